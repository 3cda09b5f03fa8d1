// SPDX-License-Identifier: Apache-2.0
//! The page of `report --html`.

use super::assessment::Assessment;
use crate::run_input::input::Input;
use ncclscope_answer::Answer;
use ncclscope_page::{Beside, Content, render};
use ncclscope_report::{Report, ReportBuilder};
use ncclscope_trace::Recording;
use std::path::PathBuf;

/// Maximum number of inputs in the heading.
const NAMED: usize = 8;

/// The page of a run, with the bandwidths of the other run if the inputs are two runs.
pub(super) fn page(
    (inputs, filter): (&[PathBuf], Option<&str>),
    read: &Input,
    answer: &Answer,
    found: &Assessment,
) -> String {
    let other = other(inputs, read);
    let filter = filter.map_or_else(String::new, |text| {
        format!(" (filter: {text}; findings, late ranks and steps are of all that was read)")
    });
    let input = heading(inputs, read, other.as_ref().map(|(name, _)| name.as_str())) + &filter;
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

/// The inputs that have recordings of the run, and the name of the other run.
fn heading(inputs: &[PathBuf], read: &Input, other: Option<&str>) -> String {
    let has_some = |path: &&PathBuf| read.recordings.iter().any(|one| one.path().starts_with(path));
    let named = |path: &PathBuf| path.display().to_string();
    let all = inputs.iter().take(NAMED);
    let mut names: Vec<String> = all.clone().filter(has_some).map(named).collect();
    if names.is_empty() {
        names = all.map(named).collect();
    }
    let more = inputs.len().saturating_sub(NAMED);
    names.extend((more > 0).then(|| format!("and {more} more")));
    names.join(" ") + &other.map_or_else(String::new, |name| format!(", beside {name}"))
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
