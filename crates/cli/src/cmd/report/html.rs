// SPDX-License-Identifier: Apache-2.0
//! The page of `report --html`.

use crate::assessment::Assessment;
use crate::input::Input;
use ncclscope_answer::Answer;
use ncclscope_page::{Beside, Content, render};
use ncclscope_report::{Report, ReportBuilder};
use ncclscope_trace::Recording;
use std::path::PathBuf;

/// The page of a run, with the bandwidths of the other run if the inputs are two runs.
pub(super) fn page(
    (inputs, filter): (&[PathBuf], Option<&str>),
    read: &Input,
    answer: &Answer,
    found: &Assessment,
) -> String {
    let names: Vec<String> = inputs.iter().map(|path| path.display().to_string()).collect();
    let filter = filter.map_or_else(String::new, |text| {
        format!(" (filter: {text}; findings, late ranks and steps are of all that was read)")
    });
    let input = names.join(" ") + &filter;
    let other = other(inputs, read);
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

/// Name and report of the other run, if there are two inputs with one run each.
fn other(inputs: &[PathBuf], input: &Input) -> Option<(String, Report)> {
    let [_, _] = inputs else { return None };
    let is_in = |path: &PathBuf, recording: &Recording| recording.path().starts_with(path);
    let holds_it = |path: &&PathBuf| {
        input.other.iter().all(|one| is_in(path, one))
            && !input.recordings.iter().any(|one| is_in(path, one))
    };
    let path = inputs.iter().find(holds_it).filter(|_| !input.other.is_empty())?;
    Some((path.display().to_string(), ReportBuilder::build_all(&input.other)))
}
