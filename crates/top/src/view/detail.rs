// SPDX-License-Identifier: Apache-2.0
//! The lines of a rank's detail pane.

use super::columns::operation;
use crate::picture::Row;
use crate::units::{age, gigabytes, percent, rate};
use ncclscope_operations::human;

/// Maximum number of functions and of links that are listed.
const LISTED: usize = 64;

/// All facts about a rank.
pub(super) fn lines(row: &Row) -> Vec<String> {
    let mut lines = Vec::new();
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    lines.push(format!(
        "host {}   GPU {}   pid {}",
        row.host,
        known(row.device.map(|device| device.to_string())),
        known(row.pid.map(|pid| pid.to_string()))
    ));
    lines.extend(row.facts.iter().map(|(name, value)| format!("{name}: {value}")));
    lines.push(String::new());
    let words: Vec<&str> = row.flags.iter().map(|flag| flag.word()).collect();
    if words.is_empty() {
        lines.push("state: ok".into());
    } else {
        lines.push(format!("state: {}: {}", words.join(", "), row.why));
    }
    lines.push(format!(
        "{} operations/s   bus {} GB/s   network {} GB/s sent   waiting {}",
        rate(row.operations_per_s),
        known(row.busbw_gbs.map(|gbs| gigabytes(gbs * 1e9))),
        known(row.sent_gbs.map(|gbs| gigabytes(gbs * 1e9))),
        known(row.waiting.map(percent)),
    ));
    lines.push(String::new());
    lines.push("In flight, the oldest of each communicator".into());
    for open in &row.in_flight {
        let more = open.in_flight.saturating_sub(1);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        lines.push(format!("  {}  for {}{more}", operation(open), age(open.age_s)));
    }
    if row.in_flight.is_empty() {
        lines.push("  nothing".into());
    }
    functions(row, &mut lines);
    links(row, &mut lines);
    lines
}

fn functions(row: &Row, lines: &mut Vec<String>) {
    lines.push(String::new());
    let head = ["FUNCTION", "COMM", "OP/S", "GB/S", "BUS GB/S", "MEAN TIME"];
    lines.push(function(head.map(str::to_owned)));
    for of in row.functions.iter().take(LISTED) {
        lines.push(function([
            of.func.clone(),
            of.role.clone(),
            rate(of.per_s),
            gigabytes(of.io_gbs * 1e9),
            of.busbw_gbs.map_or_else(|| "-".into(), |gbs| gigabytes(gbs * 1e9)),
            of.duration_s.map_or_else(|| "-".into(), |s| human::duration(s * 1e9)),
        ]));
    }
    lines.extend(more(row.functions.len(), "functions"));
}

fn function([func, comm, per_s, io, bus, time]: [String; 6]) -> String {
    format!("  {func:14} {comm:12} {per_s:>8} {io:>9} {bus:>9} {time:>10}")
}

fn links(row: &Row, lines: &mut Vec<String>) {
    if row.links.is_empty() {
        return;
    }
    lines.push(String::new());
    let head = ["LINK", "COMM", "GB/S", "IN TRANSFER", "TRANSFERS/S"];
    lines.push(link(head.map(str::to_owned)));
    for of in row.links.iter().take(LISTED) {
        lines.push(link([
            format!("{} {}", of.direction, of.peer),
            of.role.clone(),
            gigabytes(of.gbs * 1e9),
            of.transfer_gbs.map_or_else(|| "-".into(), |gbs| gigabytes(gbs * 1e9)),
            rate(of.per_s),
        ]));
    }
    lines.extend(more(row.links.len(), "links"));
}

fn link([to, comm, rate, transfer, per_s]: [String; 5]) -> String {
    format!("  {to:14} {comm:12} {rate:>8} {transfer:>12} {per_s:>12}")
}

fn more(all: usize, what: &str) -> Option<String> {
    (all > LISTED).then(|| format!("  {} more {what}", all - LISTED))
}
