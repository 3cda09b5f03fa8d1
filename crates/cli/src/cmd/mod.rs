// SPDX-License-Identifier: Apache-2.0
//! The verbs, one file each.

mod agent;
mod compare;
mod control;
mod diagnose;
mod doctor;
mod env;
mod export;
mod merge;
mod page_file;
mod plugin_path;
mod report;
mod run;
mod shell;
mod simulate;
mod stragglers;
#[cfg(test)]
mod tests;
mod top;
mod view;

use crate::args::{CommandLine, Verb};
use crate::failure::Failure;
use crate::terminal;
use std::process::ExitCode;

pub(crate) fn run(args: CommandLine) -> Result<ExitCode, Failure> {
    terminal::configure(args.global);
    match args.verb {
        Verb::Run(args) => run::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Diagnose(args) => diagnose::run(&args),
        Verb::Compare(args) => compare::run(&args),
        Verb::Export(args) => export::run(&args),
        Verb::Merge(args) => merge::run(&args),
        Verb::View(args) => view::run(&args),
        Verb::Stragglers(args) => stragglers::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Ls(args) => control::list(&args),
        Verb::Start(args) => control::start(&args),
        Verb::Stop(args) => control::stop(&args),
        Verb::Snapshot(args) => control::snapshot(&args),
        Verb::Dump(args) => control::dump(&args),
        Verb::Agent(args) => agent::run(&args),
        Verb::Simulate(args) => simulate::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::PluginPath(args) => plugin_path::run(&args),
        Verb::Env(args) => env::run(&args),
        Verb::Completions(args) => shell::completions(&args),
        Verb::Man(args) => shell::man(&args),
    }
}
