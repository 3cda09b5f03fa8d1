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
use crate::io::formats::refuse;
use crate::io::terminal;
use crate::text::list_rules;
use ncclscope_console::failure::Failure;
use ncclscope_diagnose::Rule as HangRule;
use ncclscope_findings::AboutRule;
use ncclscope_limits::Limit;
use ncclscope_stragglers::Rule as SlowRule;
use std::process::ExitCode;

pub(crate) fn run(args: CommandLine) -> Result<ExitCode, Failure> {
    terminal::configure(args.global);
    if starts_no_program(&args.verb) {
        use_small_pages();
    }
    if let Some((rules, limits)) = asked_rules(&args.verb) {
        return list_rules(&rules, limits);
    }
    refuse_others(&args.verb)?;
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
        Verb::Agent(_) => agent::run(),
        Verb::Simulate(args) => simulate::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::PluginPath(args) => plugin_path::run(&args),
        Verb::Env(args) => env::run(&args),
        Verb::Completions(args) => shell::completions(&args),
        Verb::Man(args) => shell::man(&args),
    }
}

/// The rules that are to be listed, and the tables of their limits.
fn asked_rules(verb: &Verb) -> Option<(Vec<AboutRule>, &'static [&'static [Limit]])> {
    match verb {
        Verb::Diagnose(args) if args.list_rules => {
            Some((HangRule::all_about().into(), &ncclscope_limits::HANGS))
        }
        Verb::Stragglers(args) if args.list_rules => {
            Some((SlowRule::all_about().into(), &ncclscope_limits::SLOWNESS))
        }
        _ => None,
    }
}

/// Refuses files of other tools, and of other verbs.
fn refuse_others(verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Report(args) => refuse("report", &args.inputs),
        Verb::Diagnose(args) => refuse("diagnose", &args.inputs),
        Verb::Compare(args) => refuse("compare", [&args.a, &args.b]),
        Verb::Export(args) => refuse("export", &args.inputs),
        Verb::Merge(args) => refuse("merge", args.kineto.iter().chain(&args.runs)),
        Verb::View(args) => refuse("view", &args.inputs),
        Verb::Stragglers(args) => refuse("stragglers", &args.inputs),
        _ => Ok(()),
    }
}

/// Whether a verb reads many recordings and starts no program but a pager. Programs inherit the
/// setting of [`use_small_pages`].
const fn starts_no_program(verb: &Verb) -> bool {
    matches!(verb, Verb::Report(_) | Verb::Diagnose(_) | Verb::Stragglers(_) | Verb::Compare(_))
}

/// Takes no huge pages. With them a report of thousands of ranks needs a tenth more memory, and up
/// to a third more time in a virtual machine whose host has to provide each of them.
fn use_small_pages() {
    // A system that does not know the setting keeps its own.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
