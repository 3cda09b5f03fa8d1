// SPDX-License-Identifier: Apache-2.0
//! Where time in NCCL is spent: by role and function, split into transfer and waiting.

use crate::chart::{Legend, Swatch, legend};
use crate::section::{Section, absent};
use maud::{Markup, html};
use ncclscope_operations::human::duration;
use ncclscope_operations::stats::to_f64;
use ncclscope_report::Report;
use ncclscope_report::schema::RoleRow;

/// Maximum number of rows.
const ROWS: usize = 24;
/// Width of the longest bar.
const WIDTH: f64 = 220.0;

pub(crate) fn section(report: &Report) -> Section {
    let body = match report.roles.is_empty() {
        true => absent("No operation was recorded."),
        false => table(&report.roles),
    };
    Section {
        id: "time",
        title: "Time in NCCL",
        about: "For how long ranks were in operations, from arrival to end, as a share of the \
                recorded time of all ranks (of what the filter chooses), and how much of it is \
                waiting for later ranks. What overlaps on a rank counts once in a row, and in \
                each of several rows, so that shares may add up to more than 100 %. >=: the \
                least, because some ends or arrivals are not known; <=: the most, from the \
                enqueueing on, because arrivals are not known.",
        body,
    }
}

fn table(rows: &[RoleRow]) -> Markup {
    let most = rows.iter().filter_map(|row| row.in_nccl_ns).max().map_or(1.0, to_f64).max(1.0);
    let entry = |class: &str, label: &str| Legend {
        class: class.into(),
        swatch: Swatch::Area,
        label: label.into(),
        role: None,
    };
    html! {
        div.scroll tabindex="0" role="group" aria-label="Time in NCCL by role and function" {
            table {
                thead { tr {
                    th scope="col" { "role" } th scope="col" { "function" }
                    th.number scope="col" { "communicators" } th.number scope="col" { "count" }
                    th.number scope="col" { "time" } th.number scope="col" { "share" }
                    th.number scope="col" { "waiting" } td {}
                } }
                tbody { @for row in rows.iter().take(ROWS) { (line(row, most)) } }
            }
        }
        @if rows.len() > ROWS { p.note { (rows.len() - ROWS) " further rows have less time." } }
        (legend(&[
            entry("s0", "transfer"),
            entry("waits", "waiting for later ranks"),
            entry("own", "waiting not known"),
        ]))
    }
}

fn line(row: &RoleRow, most: f64) -> Markup {
    let waiting = row.total_waiting_ns.zip(row.judged_ns.filter(|&ns| ns != 0));
    let waiting =
        waiting.map(|(waiting, of)| format!("{:.1} %", 100.0 * to_f64(waiting) / to_f64(of)));
    let bound = row.sign();
    let time = row.in_nccl_ns.map(|ns| format!("{bound}{}", duration(to_f64(ns))));
    let share = row.share.map(|share| format!("{bound}{:.1} %", 100.0 * share));
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    html! {
        tr data-role=(row.role) {
            th scope="row" { (row.role) } td { (row.func) }
            td.number { (row.communicators) } td.number { (row.count) }
            td.number { (or_dash(time)) }
            td.number { (or_dash(share)) }
            td.number { (or_dash(waiting)) }
            td { (bar(row, most)) }
        }
    }
}

/// The time as a bar: transfer, waiting, and what could not be split.
fn bar(row: &RoleRow, most: f64) -> Markup {
    let judged = row.judged_ns.unwrap_or(0);
    // Overlapping operations were judged more than once.
    let total = row.in_nccl_ns.unwrap_or(0).max(judged);
    let waiting = row.total_waiting_ns.unwrap_or(0).min(judged);
    let pieces = [("s0", judged - waiting), ("waits", waiting), ("own", total - judged)];
    let length = WIDTH * to_f64(row.in_nccl_ns.unwrap_or(0)) / most;
    let mut x = 0.0;
    let pieces = pieces.map(|(class, ns)| {
        let (left, width) = (x, length * to_f64(ns) / to_f64(total.max(1)));
        x += width;
        (class, left, width)
    });
    html! {
        svg width=(WIDTH) height="12" aria-hidden="true" {
            @for (class, left, width) in pieces {
                @if width > 0.05 {
                    rect.(class) x=(crate::chart::px(left)) width=(crate::chart::px(width))
                        height="12" {}
                }
            }
        }
    }
}
