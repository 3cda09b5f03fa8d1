// SPDX-License-Identifier: Apache-2.0
//! Open operations, and the table of all operations.

use super::page::{LIST_MAX, Page, bandwidth, is_part, or_dash, rank_text};
use crate::tables::table::{Align, Table};
use ncclscope_operations::human::{bytes, duration, if_one};
use ncclscope_operations::stats::to_f64;
use ncclscope_report::Report;
use ncclscope_report::schema::{Durations, LastRank, OpenOperation, OperationRow, RankRow};
use std::collections::BTreeSet;

/// The columns that a narrow terminal need not show, in the order of leaving out.
const SPARE: [&str; 11] = [
    "algbw GB/s",
    "datatype",
    "ch",
    "min",
    "timing",
    "max",
    "open",
    "last",
    "p99",
    "transfer",
    "proto",
];

pub(super) fn open(page: &mut Page, report: &Report) {
    let operations: &[OpenOperation] = &report.open_operations;
    if operations.is_empty() {
        return;
    }
    let what = if_one(operations.len(), "operation or call", "operations or calls");
    page.heading(&format!("OPEN: {} {what} did not complete", operations.len()));
    for operation in operations.iter().take(LIST_MAX) {
        let rank = rank_text(operation.rank, operation.comm_rank);
        let mut line = format!("{rank} ({} {})  ", operation.host, operation.pid);
        if let Some(number) = operation.number {
            line.push_str(&format!("operation {number}: "));
        }
        line.push_str(&operation.func);
        if operation.comm_peer.is_some() {
            let way = if operation.func == "Recv" { "from" } else { "to" };
            let peer = rank_text(operation.peer, operation.comm_peer);
            line.push_str(&format!(" {way} {peer}"));
        }
        if let Some(size) = operation.bytes {
            line.push_str(&format!(", {}", bytes(size)));
        }
        if let Some(comm) = &operation.comm {
            line.push_str(&format!(", comm {comm}{}", quoted_role(report, comm)));
        }
        page.entry(&format!("{line}: started {} before the end", ns(operation.age_ns)));
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
    let mut tables: Vec<(String, Table)> = Vec::new();
    for comm in comms {
        let role = quoted_role(report, comm);
        let columns = [
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
            ("transfer", Align::Right),
            ("algbw GB/s", Align::Right),
            ("busbw GB/s", Align::Right),
            ("last", Align::Left),
        ];
        let mut table = Table::new(&columns).spare(&SPARE);
        for row in report.operations.iter().filter(|row| row.comm == comm) {
            table.row(cells(row));
        }
        tables.push((format!("  comm {comm}{role}"), table));
    }
    page.tables(&tables);
    explain(page, &report.operations);
}

/// The role behind a communicator's hash; empty if it has none.
fn quoted_role(report: &Report, comm: &str) -> String {
    role(report, comm).map_or_else(String::new, |role| format!(" \"{role}\""))
}

/// The role of a communicator as declared by the application, else its name.
pub(super) fn role<'a>(report: &'a Report, comm: &str) -> Option<&'a str> {
    let of_comm = |row: &&RankRow| row.comm.as_deref() == Some(comm);
    let text = |row: &'a RankRow| row.role.as_deref().or(row.comm_name.as_deref());
    report.ranks.iter().filter(of_comm).find_map(text)
}

fn cells(row: &OperationRow) -> Vec<String> {
    let time = |pick: fn(&Durations) -> u64| {
        or_dash(row.duration_ns.as_ref(), |durations| ns(pick(durations)))
    };
    vec![
        row.func.clone(),
        row.bytes.map_or_else(|| "unknown".into(), bytes),
        row.datatype.trim_start_matches("nccl").into(),
        or_dash(row.algorithm.clone(), |text| text),
        or_dash(row.protocol.clone(), |text| text),
        or_dash(row.channels, |channels| channels.to_string()),
        row.count.to_string(),
        row.open.to_string(),
        row.timing.into(),
        time(|d| d.min),
        time(|d| d.p50),
        time(|d| d.p99),
        time(|d| d.max),
        or_dash(row.transfer_ns.as_ref(), |transfer| ns(transfer.p50)),
        bandwidth(row.algbw_gbs, None),
        busbw(row),
        last(row),
    ]
}

/// Bus bandwidth of the transfer, else its lower bound.
fn busbw(row: &OperationRow) -> String {
    bandwidth(row.busbw_gbs, row.busbw_with_waiting_gbs)
}

/// The rank that the others waited for, if they waited noticeably and mostly for the same rank.
fn last(row: &OperationRow) -> String {
    let waiting = row.total_waiting_ns.zip(row.total_with_waiting_ns);
    let waiting = waiting.filter(|(waiting, all)| *waiting > all / 10).map(|(ns, _)| ns);
    let last = row.last_rank.zip(waiting).filter(|(last, all)| last.waiting_ns > all / 2);
    or_dash(last, |(LastRank { rank, comm_rank, waiting_ns, .. }, all)| {
        let rank = rank_text(rank, Some(comm_rank));
        format!("{rank} ({:.0} %)", 100.0 * to_f64(waiting_ns) / to_f64(all))
    })
}

/// How many operations have buffers that NCCL copies slowly.
fn explain_unaligned(page: &mut Page, rows: &[OperationRow]) {
    let (unaligned, all) = rows.iter().fold((0, 0), |(unaligned, all), row| {
        (unaligned + row.unaligned, all + row.timings.values().sum::<u64>())
    });
    if unaligned != 0 {
        let text = format!(
            "{unaligned} of {all} operations of all ranks have a buffer that is not aligned to 16 \
             bytes, which NCCL copies in smaller pieces: allocate buffers and split them at \
             multiples of 16 bytes"
        );
        page.wrapped("  ", &text);
    }
}

/// Explains the columns, and the timing words that occur.
fn explain(page: &mut Page, rows: &[OperationRow]) {
    page.wrapped(
        "  ",
        "count: operations of the communicator, a collective once for all ranks; open: those that \
         did not complete; min to max: over these and all their ranks, with the wait for others",
    );
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
        page.wrapped("  ", &format!("timing {timing}: {text}"));
    }
    explain_timed(page, rows);
    explain_unaligned(page, rows);
    if rows.iter().any(|row| row.transfer_ns.is_some()) {
        let text = "transfer: the median from the last rank's arrival to the end, of which algbw \
                    and busbw are; last: the rank for which the others waited most, with its part \
                    of their waiting";
        page.wrapped("  ", text);
    }
    let is_least = |row: &&OperationRow| row.busbw_gbs.is_none() && busbw(row).starts_with('>');
    let why: BTreeSet<&str> =
        rows.iter().filter(is_least).filter_map(|r| r.transfer_unknown).collect();
    if !why.is_empty() {
        let why: Vec<&str> = why.into_iter().collect();
        page.wrapped(
            "  ",
            &format!("busbw >=: with the wait for later ranks ({})", why.join("; ")),
        );
    }
}

/// Names the rows in which noticeably fewer operations have times than there are.
fn explain_timed(page: &mut Page, rows: &[OperationRow]) {
    const FEW: usize = 3;
    let all = |row: &OperationRow| row.timings.values().sum::<u64>();
    let part: Vec<&OperationRow> = rows.iter().filter(|row| is_part(row.timed, all(row))).collect();
    if part.is_empty() {
        return;
    }
    let name = |row: &&OperationRow| {
        let size = row.bytes.map_or_else(String::new, |size| format!(" of {}", bytes(size)));
        format!("{}{size} on {}: {} of {}", row.func, row.comm, row.timed, all(row))
    };
    let named: Vec<String> = part.iter().take(FEW).map(name).collect();
    let more = match part.len().saturating_sub(FEW) {
        0 => String::new(),
        more => format!("; and {more} more rows"),
    };
    page.wrapped(
        "  ",
        &format!(
            "min to max are only of the operations of all ranks that ended and have the row's \
             timing ({}{more})",
            named.join("; ")
        ),
    );
}

fn ns(ns: u64) -> String {
    duration(to_f64(ns))
}
