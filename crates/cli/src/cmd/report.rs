// SPDX-License-Identifier: Apache-2.0
//! `ncclscope report`: prints a report of the recordings of a run.

use crate::args::{Format, ReportArgs};
use crate::failure::Failure;
use crate::input::{Input, progress};
use crate::{output, text};
use ncclscope_report::{Report, ReportBuilder};
use serde::Serialize;
use std::process::ExitCode;

/// The report with what `ncclscope run` noted about the run.
#[derive(Serialize)]
struct WithRun<'a> {
    #[serde(flatten)]
    report: &'a Report,
    run: Option<&'a serde_json::Value>,
}

pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode, Failure> {
    let input = Input::open(std::slice::from_ref(&args.input), args.run.id())?;
    let report = build(&input);
    match args.format {
        Format::Json => output::json(&WithRun { report: &report, run: input.run.as_ref() })?,
        Format::Text => print(&report, &input)?,
    }
    Ok(input.finish())
}

/// The report about recordings.
pub(crate) fn build(input: &Input) -> Report {
    let mut builder = ReportBuilder::default();
    let all = input.recordings.len();
    builder.add_all(&input.recordings, |index| progress(index, all));
    builder.finish()
}

/// Prints the report as text.
pub(crate) fn print(report: &Report, input: &Input) -> std::io::Result<()> {
    let text = text::render(report, input.run.as_ref(), output::has_colour());
    output::text(&text)
}
