// SPDX-License-Identifier: Apache-2.0
//! `ncclscope report`: prints a report of the recordings of a run, the answer first.

mod html;

use crate::args::{Format, ReportArgs};
use crate::assessment::Assessment;
use crate::failure::Failure;
use crate::input::{Input, keep_recording};
use crate::narrow::{Keep, Narrowed, Note};
use crate::output;
use crate::text::{self, Content};
use ncclscope_answer::{Answer, Found};
use ncclscope_diagnose::Options;
use ncclscope_report::Report;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What `--format json` prints: the report, its answer, the filter of its figures, and what
/// `ncclscope run` noted.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    report: &'a Report,
    answer: &'a Answer,
    filter: Option<&'a Note>,
    run: Option<&'a serde_json::Value>,
}

pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode, Failure> {
    if let Some(file) = &args.html {
        // Better before minutes of reading than after.
        keep_recording(file)?;
    }
    let mut input = Input::open(&args.inputs, args.run.id())?;
    let narrowed = Narrowed::new(&mut input, &args.filter, Keep::Chosen)?;
    let assessment = Assessment::of(&input, &narrowed, args.hang_sec);
    let report = &assessment.report;
    if report.operations.is_empty() && report.open_operations.is_empty() {
        no_operation(&narrowed)?;
    }
    let is_page_alone = args.html.as_deref() == Some(Path::new(html::STDOUT));
    let answer = match narrowed.is_part() {
        true => Answer::of_a_part(&words(&args.inputs)),
        false => answer(&assessment, &args.inputs),
    };
    let filter = narrowed.note.as_ref();
    match args.format {
        _ if is_page_alone => {}
        Format::Json => {
            let run = input.run.as_ref();
            output::json(&Printed { report, answer: &answer, filter, run })?;
        }
        Format::Text => {
            let (run, filter) = (input.run.as_ref(), narrowed.text());
            let content = Content { answer: &answer, filter, report, run };
            let text = if args.full { text::full } else { text::screen };
            output::text(&text(content, output::has_colour()))?;
        }
    }
    if let Some(file) = &args.html {
        html::write(file, (&args.inputs, narrowed.text()), &answer, &assessment)?;
    }
    Ok(input.finish())
}

/// Prints the answer and one screen about recordings in `directory`.
pub(crate) fn print(input: &Input, directory: &Path) -> std::io::Result<()> {
    let assessment = Assessment::of(input, &Narrowed::default(), Options::default().hang);
    let answer = answer(&assessment, &[directory.to_owned()]);
    let report = &assessment.report;
    let content = Content { answer: &answer, filter: None, report, run: input.run.as_ref() };
    output::text(&text::screen(content, output::has_colour()))
}

/// What it shows, as an answer.
fn answer(Assessment { report, hang, slow, .. }: &Assessment, paths: &[PathBuf]) -> Answer {
    Answer::of(Found { hang, slow, report }, &words(paths))
}

/// Paths as a shell reads them.
fn words(paths: &[PathBuf]) -> String {
    let words: Vec<String> = paths.iter().map(|path| shell_word(&path.to_string_lossy())).collect();
    words.join(" ")
}

/// A filter that leaves no operation is a mistake; a run without any is not.
fn no_operation(narrowed: &Narrowed) -> Result<(), Failure> {
    narrowed.text().map_or(Ok(()), |text| {
        Err(Failure::usage(format!("the filter leaves no operation: {text}")))
    })
}

/// A path as a shell reads it.
pub(super) fn shell_word(path: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !path.is_empty() && path.chars().all(is_plain) {
        path.to_owned()
    } else {
        format!("'{}'", path.replace('\'', r"'\''"))
    }
}
