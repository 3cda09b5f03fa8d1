// SPDX-License-Identifier: Apache-2.0
//! `ncclscope report`: prints a report of the recordings of a run, the answer first.

use crate::args::{Format, ReportArgs};
use crate::failure::Failure;
use crate::input::{Input, progress};
use crate::output;
use crate::text::{self, Content};
use ncclscope_answer::{Answer, Found};
use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Diagnosis, Options, diagnose};
use ncclscope_report::{Report, ReportBuilder};
use ncclscope_stragglers::input::recording;
use ncclscope_stragglers::{Limits, analyze};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// What `--format json` prints: the report, its answer, and what `ncclscope run` noted.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    report: &'a Report,
    answer: &'a Answer,
    run: Option<&'a serde_json::Value>,
}

pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode, Failure> {
    let input = Input::open(&args.inputs, args.run.id())?;
    let report = build(&input);
    let answer = answer(&input, &report, &args.inputs, args.hang_sec);
    match args.format {
        Format::Json => {
            output::json(&Printed { report: &report, answer: &answer, run: input.run.as_ref() })?;
        }
        Format::Text => {
            let content = Content { answer: &answer, report: &report, run: input.run.as_ref() };
            let text = if args.full { text::full } else { text::screen };
            output::text(&text(content, output::has_colour()))?;
        }
    }
    Ok(input.finish())
}

/// Prints the answer and one screen about recordings in `directory`.
pub(crate) fn print(input: &Input, directory: &Path) -> std::io::Result<()> {
    let report = build(input);
    let hang = Options::default().hang;
    let answer = answer(input, &report, &[directory.to_owned()], hang);
    let content = Content { answer: &answer, report: &report, run: input.run.as_ref() };
    output::text(&text::screen(content, output::has_colour()))
}

/// The report about recordings.
fn build(input: &Input) -> Report {
    let all = input.recordings.len();
    ReportBuilder::build_all(&input.recordings, |index| progress(index, all))
}

/// What `diagnose` and `stragglers` find in them, as an answer.
fn answer(input: &Input, report: &Report, paths: &[PathBuf], hang: Duration) -> Answer {
    let slow = analyze(&recording::job(&input.recordings), &Limits::default());
    let hang = hangs(input, hang);
    let words: Vec<String> = paths.iter().map(|path| shell_word(&path.to_string_lossy())).collect();
    Answer::of(Found { hang: &hang, slow: &slow, report }, &words.join(" "))
}

/// Why the job hangs, from the same files. Files that `diagnose` cannot read are in the report's
/// problems, or were named when they were opened.
fn hangs(input: &Input, hang: Duration) -> Diagnosis {
    let files: Vec<PathBuf> =
        input.recordings.iter().map(|recording| recording.path().to_owned()).collect();
    let settings = InputOptions { hang, run: None };
    let job = ncclscope_diagnose::input::open(&files, &settings).map(|input| input.job);
    diagnose(&job.unwrap_or_default(), &Options { hang })
}

/// A path as a shell reads it.
fn shell_word(path: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !path.is_empty() && path.chars().all(is_plain) {
        path.to_owned()
    } else {
        format!("'{}'", path.replace('\'', r"'\''"))
    }
}
