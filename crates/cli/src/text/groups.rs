// SPDX-License-Identifier: Apache-2.0
//! The table of `--by`.

use super::content::Content;
use super::page::{Page, bandwidth, is_part, or_dash};
use crate::tables::table::{Align, Table};
use ncclscope_operations::human::{bytes, duration, percent};
use ncclscope_operations::stats::to_f64;
use ncclscope_report::schema::{GroupRow, Groups, Label};

/// The answer and one table.
pub(crate) fn groups(content: Content<'_>, groups: &Groups, page: Page) -> String {
    let mut page = page;
    super::answer(&mut page, content);
    let by: Vec<&str> = groups.by.iter().map(|by| head(by)).collect();
    page.heading(&format!("BY {}", by.join(", ").to_uppercase()));
    if groups.rows.is_empty() {
        page.line("  no operation was recorded");
        return page.into_text();
    }
    page.table(&table(groups));
    if groups.by == ["channel"] {
        let text = "count: kernels of the channel; bytes: what was sent over the network; time: \
                    that of the kernels, by the GPU's timer";
        page.wrapped("  ", text);
    } else {
        let text = "count, bytes and time are sums over all ranks; waiting for later ranks and \
                    transfer are the parts of the time of which the transfer is known";
        page.wrapped("  ", text);
    }
    explain_times(&mut page, groups);
    page.into_text()
}

/// Explains the times if they cover less than all operations, or add up to more than NCCL's time.
fn explain_times(page: &mut Page, groups: &Groups) {
    if has_timed(groups) {
        let text = "timed: the operations that the time is of; the others did not end, or their \
                    times are from another source than most of their communicator, function and \
                    size";
        page.wrapped("  ", text);
    }
    let sum = |ns: fn(&GroupRow) -> Option<u64>| {
        groups.rows.iter().filter_map(ns).map(to_f64).sum::<f64>()
    };
    let (early, all) = (sum(|row| row.from_enqueue_ns), sum(|row| row.total_ns));
    if early > 0.0 {
        let text = format!(
            "{} of the time is that of operations with a network part, and begins when the host \
             enqueues them: it contains how far the host runs ahead of the GPU",
            percent(early / all)
        );
        page.wrapped("  ", &text);
    }
}

/// True if noticeably fewer operations have times than there are.
fn has_timed(groups: &Groups) -> bool {
    groups.rows.iter().any(|row| is_part(row.timed, row.count))
}

fn table(groups: &Groups) -> Table {
    let keys = groups.by.iter().map(|by| (head(by), align(by)));
    let timed = has_timed(groups).then_some("timed");
    let figures = ["bytes", "time", "waiting", "transfer", "busbw GB/s"];
    let figures = std::iter::once("count").chain(timed).chain(figures);
    let figures = figures.map(|name| (name, Align::Right));
    let mut table = Table::new(&keys.chain(figures).collect::<Vec<_>>())
        .spare(&["bytes", "transfer", "count", "waiting"]);
    for row in &groups.rows {
        table.row(cells(groups, row, timed.is_some()));
    }
    table
}

/// The heading of a key (docs/glossary.md): the column `bytes` beside it is a sum.
fn head(by: &'static str) -> &'static str {
    match by {
        "bytes" => "size",
        "func" => "function",
        by => by,
    }
}

fn align(by: &str) -> Align {
    match by {
        "rank" | "bytes" | "channel" | "step" => Align::Right,
        _ => Align::Left,
    }
}

fn cells(groups: &Groups, row: &GroupRow, has_timed: bool) -> Vec<String> {
    let key = |by: &&'static str| match row.keys.get(by) {
        Some(Label::Number(size)) if *by == "bytes" => bytes(*size),
        Some(Label::Number(number)) => number.to_string(),
        Some(Label::Text(text)) => text.clone(),
        Some(Label::Unknown(())) | None => "unknown".into(),
    };
    let time = |ns: Option<u64>| or_dash(ns, |ns| duration(to_f64(ns)));
    let mut cells: Vec<String> = groups.by.iter().map(key).collect();
    cells.push(row.count.to_string());
    cells.extend(has_timed.then(|| row.timed.to_string()));
    cells.extend([
        or_dash(row.total_bytes, bytes),
        time(row.total_ns),
        time(row.total_waiting_ns),
        time(row.total_transfer_ns),
        bandwidth(row.busbw_gbs, None),
    ]);
    cells
}
