// SPDX-License-Identifier: Apache-2.0
//! `ncclscope report`: prints a report of the recordings of a run, the answer first.

pub(super) mod assessment;
mod html;
mod inspector;
mod runs;
mod shown;

use super::page_file;
use crate::args::ReportArgs;
use crate::io::output;
use crate::io::shell_words::words;
use crate::io::terminal;
use crate::io::whole_file::keep_inputs;
use crate::run_input::input::{Input, recordings_in};
use crate::run_input::narrow::{Keep, Narrowed};
use crate::run_input::other_inputs;
use crate::text::{self, Content, Page};
use assessment::Assessment;
use ncclscope_answer::Answer;
use ncclscope_console::failure::{Failure, warn_lines};
use ncclscope_diagnose::Options;
use ncclscope_node::unrecorded::Unrecorded;
use ncclscope_report::By;
use ncclscope_trace::EventKind;
use shown::{Printed, show};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::slice;

pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode, Failure> {
    page_file::check(args.html.as_deref(), args.format)?;
    if let Some(file) = &args.html {
        keep_inputs(&args.inputs, slice::from_ref(file))?;
    }
    if let Some(found) = other_inputs::inspector(&args.inputs)? {
        return inspector::run(args, &found);
    }
    if let Some(code) = runs::print(args)? {
        return Ok(code);
    }
    // Neither is freed before the process ends: of thousands of ranks that would take a while.
    let opened = Input::open(&args.inputs, args.run.id());
    let mut input = ManuallyDrop::new(opened.map_err(|error| before_first(&args.inputs, error))?);
    let narrowed = Narrowed::new(&mut input, &args.filter, Keep::Chosen)?;
    let is_named_twice = |(at, key): (usize, &By)| args.by[..at].contains(key);
    if args.by.iter().enumerate().any(is_named_twice) {
        return Err(Failure::usage("--by names a key twice: name each once"));
    }
    if args.by.contains(&By::Channel) && args.by.len() > 1 {
        return Err(Failure::usage(
            "--by channel stands alone: an operation uses several channels",
        ));
    }
    let assessment = Assessment::of(&input, (&narrowed, &args.by), args.hang.hang_sec);
    let assessment = ManuallyDrop::new(assessment);
    let report = &assessment.report;
    if report.operations.is_empty() && report.open_operations.is_empty() {
        no_operation(&narrowed, args.filter.kinds())?;
    }
    let is_page_alone = page_file::is_alone(args.html.as_deref());
    let mut answer = match narrowed.is_part() {
        true => Answer::of_a_part(&words(&args.inputs, args.run.id())),
        false => assessment.answer(&words(&args.inputs, args.run.id()), args.hang.hang_sec),
    };
    // What was just printed is no next step.
    answer.next.retain(|next| !args.full || !next.starts_with("ncclscope report --full "));
    if !is_page_alone {
        let (filter, run) = (narrowed.note.as_ref(), input.run.as_ref());
        show(args, &Printed { report, answer: &answer, filter, run }, narrowed.text())?;
    }
    if let Some(file) = &args.html {
        let named = (args.inputs.as_slice(), narrowed.text());
        page_file::write(file, &html::page(named, &input, &answer, &assessment))?;
    }
    Ok(input.finish())
}

/// The error for directories without a recording: if processes of this machine record into them,
/// the job has not created its first communicator, and each of them is told with what it does.
fn before_first(inputs: &[PathBuf], error: Failure) -> Failure {
    let runs = |input: &PathBuf| other_inputs::inspector_runs(input).unwrap_or_default();
    if let Some((run, _)) = inputs.iter().flat_map(runs).next() {
        return Failure::input(format!(
            "files of NCCL Inspector are in {run}: name that directory"
        ));
    }
    let is_empty = |input: &&PathBuf| recordings_in(input).is_ok_and(|files| files.is_empty());
    let directories: Vec<PathBuf> = inputs.iter().filter(is_empty).cloned().collect();
    let Some(lines) = Unrecorded::find(&directories).lines() else { return error };
    warn_lines(lines);
    Failure::input("the job has not created its first communicator, so that nothing is recorded")
}

/// Prints the answer and one screen about recordings in `directory`.
pub(crate) fn print(input: &Input, directory: &Path) -> std::io::Result<()> {
    let limit = Options::default().hang;
    let assessment = Assessment::of(input, (&Narrowed::default(), &[]), limit);
    let answer = assessment.answer(&words(&[directory], None), limit);
    let report = &assessment.report;
    let content = Content { answer: &answer, filter: None, report, run: input.run.as_ref() };
    output::text(&text::screen(content, Page::new(terminal::has_colour())))
}

/// The kinds of events that are operations.
const OPERATIONS: [EventKind; 3] = [EventKind::Coll, EventKind::P2p, EventKind::CeColl];
/// An error if a filter leaves no operation; a run without operations is no error.
fn no_operation(narrowed: &Narrowed, kinds: Option<u32>) -> Result<(), Failure> {
    let operations = OPERATIONS.map(EventKind::bit).iter().sum::<u32>();
    let advice = match kinds {
        Some(kinds) if kinds & operations == 0 => {
            let [first, second, third] = OPERATIONS.map(EventKind::name);
            format!(
                ": a report is of {first}, {second} and {third}; `ncclscope export` shows events \
                 of other kinds"
            )
        }
        _ => String::new(),
    };
    narrowed.text().map_or(Ok(()), |text| {
        Err(Failure::usage(format!("the filter leaves no operation: {text}{advice}")))
    })
}
