// SPDX-License-Identifier: Apache-2.0
//! The recorded events by kind and rank, and their threads.

use super::page::{LIST_MAX, Page, or_dash, rank_cell, rank_text};
use crate::tables::table::{Align, Table};
use ncclscope_operations::human::duration;
use ncclscope_operations::stats::to_f64;
use ncclscope_report::Report;
use ncclscope_report::schema::{EventCounts, RankRow};
use ncclscope_trace::{EventKind, State};
use std::collections::BTreeMap;

/// If there are more ranks, only the sum is shown.
const COLUMNS_MAX: usize = 8;

pub(super) fn table(page: &mut Page, report: &Report) {
    let rows = &report.ranks;
    page.heading("EVENTS");
    let names: Vec<String> = rows.iter().map(column).collect();
    let is_wide = rows.len() <= COLUMNS_MAX;
    let mut columns = vec![("started", Align::Left)];
    if is_wide {
        columns.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
    }
    let sums = ["all", "stopped", "open", "dropped", "stale", "orphan"];
    columns.extend(sums.map(|name| (name, Align::Right)));
    // The ranks' columns are left out first, from the last one on, because the sums matter most.
    let ranks = names.iter().rev().map(String::as_str).filter(|_| is_wide);
    let spare: Vec<&str> = ranks.chain(["stale", "orphan", "stopped"]).collect();
    let mut table = Table::new(&columns).spare(&spare);
    for kind in EventKind::ALL {
        let counts = |row: &RankRow| row.events.get(kind.name()).copied().unwrap_or_default();
        let sum = rows.iter().map(counts).fold(EventCounts::default(), add);
        if sum == EventCounts::default() {
            continue;
        }
        let mut cells = vec![kind.name().to_owned()];
        if is_wide {
            cells.extend(rows.iter().map(|row| counts(row).started.to_string()));
        }
        let EventCounts { started, stopped, open, dropped, stale, unknown_parent } = sum;
        let sums = [started, stopped, open, dropped, stale, unknown_parent];
        cells.extend(sums.map(|count| count.to_string()));
        table.row(cells);
    }
    if table.is_empty() {
        page.line("  none was recorded");
        return;
    }
    page.table(&table);
    states(page, rows);
}

fn column(row: &RankRow) -> String {
    match row.comm_rank {
        None => "no comm".into(),
        member => rank_text(row.rank, member),
    }
}

fn add(a: EventCounts, b: EventCounts) -> EventCounts {
    EventCounts {
        started: a.started + b.started,
        stopped: a.stopped + b.stopped,
        open: a.open + b.open,
        dropped: a.dropped + b.dropped,
        stale: a.stale + b.stale,
        unknown_parent: a.unknown_parent + b.unknown_parent,
    }
}

fn states(page: &mut Page, rows: &[RankRow]) {
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    for (state, count) in rows.iter().flat_map(|row| &row.states) {
        *states.entry(state).or_default() += count;
    }
    if !states.is_empty() {
        let list: Vec<String> = states.iter().map(|(state, n)| format!("{state} {n}")).collect();
        page.wrapped("  states: ", &list.join(", "));
    }
    // NCCL reports this state again at each poll for the peer.
    if State::STEP_SEND_PEER_WAIT.name().is_some_and(|polled| states.contains_key(polled)) {
        let text =
            "states count each report; NCCL reports a wait such as SendPeerWait at each poll";
        page.wrapped("  ", text);
    }
}

pub(super) fn threads(page: &mut Page, report: &Report) {
    page.heading("THREADS AND CLOCKS");
    let mut table = Table::new(&[
        ("rank", Align::Right),
        ("process", Align::Left),
        ("comm", Align::Left),
        ("threads", Align::Left),
        ("clock", Align::Left),
        ("error", Align::Right),
        ("GPU clock error", Align::Right),
        ("step", Align::Right),
    ])
    .spare(&["step", "GPU clock error", "comm", "error"]);
    for row in report.ranks.iter().take(LIST_MAX) {
        table.row(vec![
            rank_cell(row.rank, row.comm_rank),
            format!("{} {}", row.host, row.pid),
            or_dash(row.comm.clone(), |comm| comm),
            row.threads.join(", "),
            row.clock.source.into(),
            duration(f64::from(row.clock.error_ns)),
            or_dash(row.clock.gpu_error_ns, |ns| duration(to_f64(ns))),
            or_dash(row.clock.gpu_granularity_ns, |ns| duration(to_f64(ns))),
        ]);
    }
    page.table(&table);
    page.cut(report.ranks.len());
}
