// SPDX-License-Identifier: Apache-2.0
//! `ncclscope report`: prints a report of the recordings of a run, the answer first.

mod html;

use crate::args::{Format, ReportArgs};
use crate::assessment::Assessment;
use crate::failure::Failure;
use crate::input::{Input, keep_recording};
use crate::output;
use crate::terminal;
use crate::text::{self, Content};
use ncclscope_answer::{Answer, Found};
use ncclscope_diagnose::Options;
use ncclscope_report::Report;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What `--format json` prints: the report, its answer, and what `ncclscope run` noted.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    report: &'a Report,
    answer: &'a Answer,
    run: Option<&'a serde_json::Value>,
}

pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode, Failure> {
    if let Some(file) = &args.html {
        // Better before minutes of reading than after.
        keep_recording(file)?;
    }
    let input = Input::open(&args.inputs, args.run.id())?;
    let assessment = Assessment::of(&input, args.hang_sec);
    let is_page_alone = args.html.as_deref() == Some(Path::new(html::STDOUT));
    let (answer, report) = (answer(&assessment, &args.inputs), &assessment.report);
    match args.format {
        _ if is_page_alone => {}
        Format::Json => {
            output::json(&Printed { report, answer: &answer, run: input.run.as_ref() })?;
        }
        Format::Text => {
            let content = Content { answer: &answer, report, run: input.run.as_ref() };
            let text = if args.full { text::full } else { text::screen };
            output::text(&text(content, terminal::has_colour()))?;
        }
    }
    if let Some(file) = &args.html {
        html::write(file, &args.inputs, &answer, &assessment)?;
    }
    Ok(input.finish())
}

/// Prints the answer and one screen about recordings in `directory`.
pub(crate) fn print(input: &Input, directory: &Path) -> std::io::Result<()> {
    let assessment = Assessment::of(input, Options::default().hang);
    let answer = answer(&assessment, &[directory.to_owned()]);
    let report = &assessment.report;
    let content = Content { answer: &answer, report, run: input.run.as_ref() };
    output::text(&text::screen(content, terminal::has_colour()))
}

/// What it shows, as an answer.
fn answer(Assessment { report, hang, slow, .. }: &Assessment, paths: &[PathBuf]) -> Answer {
    let words: Vec<String> = paths.iter().map(|path| shell_word(&path.to_string_lossy())).collect();
    Answer::of(Found { hang, slow, report }, &words.join(" "))
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
