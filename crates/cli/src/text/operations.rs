// SPDX-License-Identifier: Apache-2.0
//! Open operations, and the table of all operations.

use super::{LIST_MAX, Page, or_dash};
use crate::table::{Align, Table};
use ncclscope_operations::human::{bytes, duration, three};
use ncclscope_operations::stats::to_f64;
use ncclscope_report::Report;
use ncclscope_report::schema::{OpenOperation, OperationRow};

pub(super) fn open(page: &mut Page, operations: &[OpenOperation]) {
    if operations.is_empty() {
        return;
    }
    page.heading(&format!("OPEN: {} operations or calls did not complete", operations.len()));
    for operation in operations.iter().take(LIST_MAX) {
        let rank = or_dash(operation.rank, |rank| rank.to_string());
        let mut line = format!("  rank {rank} ({} {})", operation.host, operation.pid);
        line.push_str(&format!("  {}", operation.func));
        if let Some(peer) = operation.peer {
            let way = if operation.func == "Recv" { "from" } else { "to" };
            line.push_str(&format!(" {way} rank {peer}"));
        }
        if let Some(seq) = operation.seq {
            line.push_str(&format!(" #{seq}"));
        }
        if let Some(size) = operation.bytes {
            line.push_str(&format!(", {}", bytes(size)));
        }
        if let Some(comm) = &operation.comm {
            line.push_str(&format!(", comm {comm}"));
        }
        page.line(&format!("{line}: started {} before the end", ns(operation.age_ns)));
        for what in &operation.waits_for {
            page.wrapped("      ", what);
        }
    }
    page.cut(operations.len());
}

pub(super) fn table(page: &mut Page, report: &Report) {
    page.heading("OPERATIONS");
    if report.operations.is_empty() {
        page.line("  none was recorded");
        return;
    }
    let mut comms: Vec<&str> = report.operations.iter().map(|row| row.comm.as_str()).collect();
    comms.dedup();
    for comm in comms {
        page.line(&format!("  comm {comm}"));
        let mut table = Table::new(&[
            ("function", Align::Left),
            ("size", Align::Right),
            ("datatype", Align::Left),
            ("algo", Align::Left),
            ("proto", Align::Left),
            ("ch", Align::Right),
            ("count", Align::Right),
            ("open", Align::Right),
            ("timing", Align::Left),
            ("min", Align::Right),
            ("median", Align::Right),
            ("p99", Align::Right),
            ("max", Align::Right),
            ("algbw GB/s", Align::Right),
            ("busbw GB/s", Align::Right),
        ]);
        for row in report.operations.iter().filter(|row| row.comm == comm) {
            table.row(cells(row));
        }
        page.lines(&table.lines("  "));
    }
    explain(page, &report.operations);
}

fn cells(row: &OperationRow) -> Vec<String> {
    let time = |pick: fn(&ncclscope_report::schema::Durations) -> u64| {
        or_dash(row.duration_ns.as_ref(), |durations| ns(pick(durations)))
    };
    vec![
        row.func.clone(),
        row.bytes.map_or_else(|| "unknown".into(), bytes),
        row.datatype.trim_start_matches("nccl").into(),
        or_dash(row.algo.clone(), |text| text),
        or_dash(row.proto.clone(), |text| text),
        or_dash(row.channels, |channels| channels.to_string()),
        row.count.to_string(),
        row.open.to_string(),
        row.timing.into(),
        time(|d| d.min),
        time(|d| d.p50),
        time(|d| d.p99),
        time(|d| d.max),
        or_dash(row.algbw_gbs, three),
        or_dash(row.busbw_gbs, three),
    ]
}

/// Explains the timing words that occur.
fn explain(page: &mut Page, rows: &[OperationRow]) {
    let has = |timing: &str| rows.iter().any(|row| row.timing == timing);
    let texts = [
        ("kernel", "from the first channel's start to the last one's end, by the GPU's timer"),
        ("cuda_event", "from when the stream reached it to its kernel's end, by two CUDA events"),
        ("proxy", "from the operation's start to its last network transfer's end, by the host"),
        (
            "kernel_lead",
            "a lower bound of the kernel's time, by the GPU's timer; its end is unknown",
        ),
        ("enqueue", "how long the host took to enqueue the operation; its end is unknown"),
    ];
    for (timing, text) in texts.into_iter().filter(|(timing, _)| has(timing)) {
        page.line(&format!("  timing {timing}: {text}"));
    }
}

fn ns(ns: u64) -> String {
    duration(to_f64(ns))
}
