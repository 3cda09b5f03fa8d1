// SPDX-License-Identifier: Apache-2.0
//! The verbs, one file each.

mod agent;
mod doctor;
mod env;
mod export;
mod plugin_path;
mod report;
mod run;

use crate::args::{Args, Verb};
use crate::failure::Failure;
use std::process::ExitCode;

/// Does what the command line says.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.verb {
        Verb::Run(args) => run::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Export(args) => export::run(&args),
        Verb::Agent(args) => agent::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::PluginPath => plugin_path::run(),
        Verb::Env(args) => env::run(&args),
    }
}
