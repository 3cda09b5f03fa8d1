// SPDX-License-Identifier: Apache-2.0
//! The report of NCCL Inspector's files.

use super::shown::{Printed, show};
use crate::args::ReportArgs;
use crate::io::shell_words::words;
use crate::io::terminal::Watched;
use ncclscope_answer::Answer;
use ncclscope_console::failure::{BAD_INPUT, Failure, tell, warn};
use ncclscope_inspector::{Files, Found, VERBOSE};
use ncclscope_report::inspector;
use std::process::ExitCode;

/// Prints the report of these files.
pub(super) fn run(args: &ReportArgs, found: &Found) -> Result<ExitCode, Failure> {
    let is_plain = args.by.is_empty() && args.html.is_none() && args.filter.is_empty();
    if !is_plain || args.run.id().is_some() {
        return Err(Failure::usage(
            "these are NCCL Inspector's files: --by, --html, --run and filters are for recordings",
        ));
    }
    let progress = Watched::endless("reading NCCL Inspector's files");
    let (report, files) = inspector::read(found).map_err(Failure::input)?;
    drop(progress);
    let damage = [&files.unreadable[..], &files.damage()].concat();
    damage.iter().for_each(warn);
    files.copies.iter().for_each(tell);
    let answer = Answer::unjudged(
        "NCCL Inspector's files do not show whether a job stands or is slow",
        "they have how long collectives took that ended, and not what a rank does between them",
        next(&files, args),
    );
    let printed = Printed { report: &report, answer: &answer, filter: None, run: None };
    show(args, &printed, None)?;
    Ok(if damage.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(BAD_INPUT) })
}

fn next(files: &Files, args: &ReportArgs) -> String {
    match files.members().any(|(_, of)| of.started > 0) {
        true => format!("ncclscope stragglers {}", words(&args.inputs, None)),
        false => format!("set {VERBOSE} for `ncclscope stragglers`, or record: ncclscope run CMD"),
    }
}
