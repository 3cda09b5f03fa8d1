// SPDX-License-Identifier: Apache-2.0
//! The page of `report --html`.

use crate::assessment::Assessment;
use crate::input::open_runs;
use ncclscope_answer::Answer;
use ncclscope_page::{Beside, Content, render};
use ncclscope_report::{Report, ReportBuilder};
use ncclscope_trace::Recording;
use ncclscope_trace::runs::{ProcessFacts, Runs};
use std::path::PathBuf;

/// The page of a run, and of the other run where the inputs are two.
pub(super) fn page(
    (inputs, filter): (&[PathBuf], Option<&str>),
    recordings: &[Recording],
    answer: &Answer,
    found: &Assessment,
) -> String {
    let names: Vec<String> = inputs.iter().map(|path| path.display().to_string()).collect();
    let filter = filter.map_or_else(String::new, |text| format!(" (filter: {text})"));
    let input = names.join(" ") + &filter;
    let other = other(inputs, recordings);
    render(Content {
        input: &input,
        answer,
        report: &found.report,
        slow: &found.slow,
        details: &found.details,
        hang: &found.hang,
        waiting: &found.waiting,
        beside: other.as_ref().map(|(name, report)| Beside { name, report }),
    })
}

/// The run of two inputs that these recordings are not of.
fn other(inputs: &[PathBuf], recordings: &[Recording]) -> Option<(String, Report)> {
    let [_, _] = inputs else { return None };
    let facts: Vec<ProcessFacts> = recordings.iter().map(ProcessFacts::of).collect();
    let runs = Runs::split(&facts);
    let is_other = |name: &str| runs.runs.iter().all(|run| run.id != name);
    inputs.iter().find_map(|input| match &open_runs(input).ok()?.0[..] {
        [run] if is_other(&run.name) => {
            Some((input.display().to_string(), ReportBuilder::build_all(&run.recordings)))
        }
        _ => None,
    })
}
