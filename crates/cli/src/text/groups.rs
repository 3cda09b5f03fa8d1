// SPDX-License-Identifier: Apache-2.0
//! The table of `--by`.

use super::content::Content;
use super::page::{Page, bandwidth, or_dash};
use crate::table::{Align, Table};
use ncclscope_operations::human::{bytes, duration};
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
    page.into_text()
}

fn table(groups: &Groups) -> Table {
    let keys = groups.by.iter().map(|by| (head(by), align(by)));
    let figures = ["count", "bytes", "time", "waiting", "transfer", "busbw GB/s"];
    let figures = figures.into_iter().map(|name| (name, Align::Right));
    let mut table = Table::new(&keys.chain(figures).collect::<Vec<_>>())
        .spare(&["bytes", "transfer", "count", "waiting"]);
    for row in &groups.rows {
        table.row(cells(groups, row));
    }
    table
}

/// What people read for a key: the column `bytes` beside it is a sum.
fn head(by: &'static str) -> &'static str {
    if by == "bytes" { "size" } else { by }
}

fn align(by: &str) -> Align {
    match by {
        "rank" | "bytes" | "channel" | "step" => Align::Right,
        _ => Align::Left,
    }
}

fn cells(groups: &Groups, row: &GroupRow) -> Vec<String> {
    let key = |by: &&'static str| match row.keys.get(by) {
        Some(Label::Number(size)) if *by == "bytes" => bytes(*size),
        Some(Label::Number(number)) => number.to_string(),
        Some(Label::Text(text)) => text.clone(),
        Some(Label::Unknown(())) | None => "unknown".into(),
    };
    let time = |ns: Option<u64>| or_dash(ns, |ns| duration(to_f64(ns)));
    let mut cells: Vec<String> = groups.by.iter().map(key).collect();
    cells.extend([
        row.count.to_string(),
        or_dash(row.total_bytes, bytes),
        time(row.total_ns),
        time(row.total_waiting_ns),
        time(row.total_transfer_ns),
        bandwidth(row.busbw_gbs, None),
    ]);
    cells
}
