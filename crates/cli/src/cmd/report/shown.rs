// SPDX-License-Identifier: Apache-2.0
//! Prints a report in the format that the user chose.

use crate::args::{ReportArgs, TableFormat};
use crate::io::output;
use crate::io::terminal;
use crate::run_input::narrow::{Note, tell_filter};
use crate::tables::sheet::Sheet;
use crate::text::{self, Content, Page};
use ncclscope_answer::Answer;
use ncclscope_console::failure::Failure;
use ncclscope_report::Report;
use serde::Serialize;

/// The fields of an operation's row that the table shows.
const OPERATION: [&str; 27] = [
    "comm",
    "comm_name",
    "func",
    "bytes",
    "datatype",
    "algorithm",
    "protocol",
    "channels",
    "count",
    "open",
    "ranks",
    "timing",
    "timed",
    "duration_ns.min",
    "duration_ns.p50",
    "duration_ns.p99",
    "duration_ns.max",
    "total_ns",
    "total_waiting_ns",
    "transfer_ns.p50",
    "transfers",
    "last_rank.rank",
    "last_rank.waiting_ns",
    "algbw_gbs",
    "busbw_gbs",
    "busbw_with_waiting_gbs",
    "transfer_unknown",
];
/// The fields of a group's row that the table shows after its keys.
const GROUP: [&str; 9] = [
    "count",
    "total_bytes",
    "timed",
    "total_ns",
    "from_enqueue_ns",
    "judged_ns",
    "total_waiting_ns",
    "total_transfer_ns",
    "busbw_gbs",
];

/// What `--format json` prints: the report, its answer, the filter of its figures, and the content
/// of `run.json`.
#[derive(Serialize)]
pub(super) struct Printed<'a> {
    #[serde(flatten)]
    pub(super) report: &'a Report,
    pub(super) answer: &'a Answer,
    pub(super) filter: Option<&'a Note>,
    pub(super) run: Option<&'a serde_json::Value>,
}

/// Prints a report in the chosen format; `filter` is what its figures are of.
pub(super) fn show(
    args: &ReportArgs,
    printed: &Printed<'_>,
    filter: Option<&str>,
) -> Result<(), Failure> {
    let Printed { report, answer, run, .. } = *printed;
    match args.format {
        TableFormat::Json => output::json(printed)?,
        TableFormat::Csv => {
            tell_filter(filter);
            sheet(report)?.print_csv()?;
        }
        TableFormat::Text | TableFormat::Md => {
            let page = match args.format {
                TableFormat::Md => Page::markdown(),
                _ => Page::new(terminal::has_colour()),
            };
            let content = Content { answer, filter, report, run };
            let text = match &report.groups {
                Some(groups) => text::groups(content, groups, page),
                None if args.full => text::full(content, page),
                None => text::screen(content, page),
            };
            output::text(&text)?;
        }
    }
    Ok(())
}

/// The table of `--by`, else that of operations.
fn sheet(report: &Report) -> Result<Sheet, Failure> {
    match &report.groups {
        Some(groups) => {
            let fields: Vec<&str> = groups
                .by
                .iter()
                .flat_map(|&key| [Some(key), (key == "comm").then_some("comm_name")])
                .flatten()
                .chain(GROUP)
                .collect();
            Sheet::of(&groups.rows, &fields)
        }
        None => Sheet::of(&report.operations, &OPERATION),
    }
}
