// SPDX-License-Identifier: Apache-2.0
//! The report on one screen: at most 60 lines, whatever the number of ranks.

use super::content::Content;
use super::page::{Page, bandwidth, or_dash};
use super::{head, late, losses};
use crate::tables::table::{Align, Table};
use ncclscope_operations::human::{bytes, duration, percent};
use ncclscope_operations::stats::to_f64;
use ncclscope_report::schema::{RoleRow, SizeRow};

/// Maximum number of lines, if the terminal has the usual width.
const LINES: usize = 60;

/// How much is shown.
#[derive(Clone, Copy)]
struct Most {
    /// Maximum number of rows of the table of times, and of that of sizes.
    rows: usize,
    /// Maximum number of ranks that are named, and of sentences in a section.
    few: usize,
}

/// The choices, of which the first is taken that needs at most [`LINES`].
const CHOICES: [Most; 4] = [
    Most { rows: 8, few: 3 },
    Most { rows: 8, few: 2 },
    Most { rows: 6, few: 2 },
    Most { rows: 4, few: 1 },
];

pub(super) fn write(page: &mut Page, content: Content<'_>) {
    let before = page.clone();
    for most in CHOICES {
        *page = before.clone();
        write_in(page, content, most);
        if page.fits(LINES) {
            break;
        }
    }
}

fn write_in(page: &mut Page, content: Content<'_>, most: Most) {
    let report = content.report;
    head::write(page, report, content.run, head::Room::Screen);
    roles(page, content, most.rows);
    sizes(page, &report.sizes, most.rows);
    late::write(page, content, most.few);
    more(page, report.late_ranks.len(), most.few);
    few(page, "PROBLEMS", &report.problems, most.few);
    losses::write(page, report.lost.losses.get(..most.few).unwrap_or(&report.lost.losses));
    few(page, "WHAT THIS RUN CANNOT TELL", &report.unknowable, most.few);
}

/// The section about time in NCCL by role.
fn roles(page: &mut Page, Content { report, filter, .. }: Content<'_>, most: usize) {
    let rows: &[RoleRow] = &report.roles;
    let of = match filter {
        Some(_) => {
            format!(" within the filter: {}", duration(to_f64(report.total_recorded_ns)))
        }
        None => String::new(),
    };
    page.heading(&format!("TIME IN NCCL, as a share of the recorded time of all ranks{of}"));
    if rows.is_empty() {
        page.line("  no operation was recorded");
        return;
    }
    let mut table = Table::new(&[
        ("role", Align::Left),
        ("function", Align::Left),
        ("comms", Align::Right),
        ("count", Align::Right),
        ("time", Align::Right),
        ("of it waiting for ranks", Align::Right),
    ])
    .spare(&["comms", "count"]);
    for row in rows.iter().take(most) {
        let waiting = row.total_waiting_ns.zip(row.judged_ns.filter(|&ns| ns != 0));
        table.row(vec![
            row.role.clone(),
            row.func.clone(),
            row.communicators.to_string(),
            row.count.to_string(),
            or_dash(row.share, |share| row.sign().to_owned() + &percent(share)),
            or_dash(waiting, |(waiting, of)| percent(to_f64(waiting) / to_f64(of))),
        ]);
    }
    page.table(&table);
    more(page, rows.len(), most);
    explain_bounds(page, rows.get(..most).unwrap_or(rows));
}

/// Explains why shares are bounds or unknown.
fn explain_bounds(page: &mut Page, rows: &[RoleRow]) {
    let texts = [
        (">=", "time >=: when some operations came to the GPU, or ended, is not known"),
        (
            "<=",
            "time <=: when they came to the GPU is not known, so that the time begins when the \
             host enqueued them",
        ),
    ];
    for (sign, text) in texts {
        if rows.iter().any(|row| row.sign() == sign) {
            page.wrapped("  ", text);
        }
    }
    if rows.iter().any(|row| row.in_nccl_ns.is_none() && row.total_ns.is_some()) {
        page.wrapped("  ", "time -: nothing shows when they came to the GPU, or ended");
    }
}

/// Sizes with bandwidths, as nccl-tests prints them.
fn sizes(page: &mut Page, rows: &[SizeRow], most: usize) {
    if rows.is_empty() {
        return;
    }
    page.heading("BANDWIDTH BY SIZE in GB/s, of transfers; >=: with the wait for late ranks");
    let mut table = Table::new(&[
        ("size", Align::Right),
        ("function", Align::Left),
        ("role", Align::Left),
        ("ranks", Align::Right),
        ("count", Align::Right),
        ("time", Align::Right),
        ("algbw", Align::Right),
        ("busbw", Align::Right),
        ("lowest", Align::Right),
    ])
    .spare(&["lowest", "ranks", "algbw", "count"]);
    for row in rows.iter().take(most) {
        table.row(vec![
            row.bytes.map_or_else(|| "unknown".into(), bytes),
            row.func.clone(),
            row.role.clone(),
            or_dash(row.nranks, |n| n.to_string()),
            row.count.to_string(),
            or_dash(row.transfer_ns, |ns| duration(to_f64(ns))),
            bandwidth(row.algbw_gbs, None),
            bandwidth(row.busbw_gbs, row.busbw_with_waiting_gbs),
            bandwidth(row.least.as_ref().map(|least| least.busbw_gbs), None),
        ]);
    }
    page.table(&table);
    more(page, rows.len(), most);
}

/// The first sentences of a section.
fn few(page: &mut Page, title: &str, sentences: &[String], most: usize) {
    page.sentences(title, sentences.get(..most).unwrap_or(sentences));
    more(page, sentences.len(), most);
}

fn more(page: &mut Page, all: usize, shown: usize) {
    if all > shown {
        page.line(&format!("  ... and {} more: --full", all - shown));
    }
}
