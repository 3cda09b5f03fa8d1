// SPDX-License-Identifier: Apache-2.0
//! Network traffic between ranks.

use super::operations::role;
use super::page::{LIST_MAX, Page, or_dash, rank_cell};
use crate::tables::table::{Align, Table};
use ncclscope_operations::human::{bytes, duration, three};
use ncclscope_operations::stats::to_f64;
use ncclscope_report::Report;
use ncclscope_report::schema::PeerRow;

/// Explanations of the columns. In a healthy job, too, a step spends most of its time waiting.
const LEGEND: [&str; 3] = [
    "src: what the sender's transfers waited for: its own GPU's data, the peer's buffer, the wire. \
     Waits for a GPU contain all of its other work, and are long in a healthy job, too",
    "dst: what the receiver's waited for: data to arrive, the flush to its GPU, its GPU to take it",
    "latency and GB/s: a line through the wire times by size; fit: how well they lie on it (r2), 1 \
     at best; -: no line fits, as with one size, and GB/s is that of the bytes by their wire time",
];

pub(super) fn table(page: &mut Page, report: &Report) {
    let peers = &report.peers;
    if peers.is_empty() {
        return;
    }
    page.heading("NETWORK, with mean times of one transfer");
    let columns = [
        ("comm", Align::Left),
        ("role", Align::Left),
        ("src", Align::Right),
        ("dst", Align::Right),
        ("bytes", Align::Right),
        ("transfers", Align::Right),
        ("| src GPU", Align::Right),
        ("peer", Align::Right),
        ("wire", Align::Right),
        ("| dst data", Align::Right),
        ("flush", Align::Right),
        ("GPU", Align::Right),
        ("| latency us", Align::Right),
        ("GB/s", Align::Right),
        ("fit", Align::Right),
    ];
    let spare =
        ["fit", "GB/s", "| latency us", "flush", "comm", "transfers", "peer", "role", "bytes"];
    let mut table = Table::new(&columns).spare(&spare);
    let mut order: Vec<&PeerRow> = peers.iter().collect();
    // Only the busiest links if there are too many.
    if peers.len() > LIST_MAX {
        order.sort_by_key(|row| std::cmp::Reverse((row.bytes, row.transfers)));
    }
    for row in order.into_iter().take(LIST_MAX) {
        table.row(cells(row, role(report, &row.comm)));
    }
    page.table(&table);
    page.cut(peers.len());
    for text in LEGEND {
        page.wrapped("  ", text);
    }
}

fn cells(row: &PeerRow, role: Option<&str>) -> Vec<String> {
    let mean = |sum: Option<u64>| {
        let transfers = Some(row.transfers).filter(|&transfers| transfers != 0);
        or_dash(sum.zip(transfers), |(sum, n)| duration(to_f64(sum) / to_f64(n)))
    };
    let waits = &row.waits_ns;
    vec![
        row.comm.clone(),
        role.unwrap_or("-").to_owned(),
        rank_cell(row.src, Some(row.comm_src)),
        rank_cell(row.dst, Some(row.comm_dst)),
        row.bytes.map_or_else(|| "unknown".into(), bytes),
        row.transfers.to_string(),
        mean(waits.send_gpu),
        mean(waits.send_peer),
        mean(waits.send_network),
        mean(waits.recv_network),
        mean(waits.recv_flush),
        mean(waits.recv_gpu),
        or_dash(row.latency_ns, |ns| three(to_f64(ns) / 1e3)),
        or_dash(row.rate_gbs.or(row.transfer_gbs), three),
        or_dash(row.r2, |r2| format!("{r2:.2}")),
    ]
}
