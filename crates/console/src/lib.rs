// SPDX-License-Identifier: Apache-2.0
/*!
What the programs `ncclscope` and `ncclscope-agent` share on the command line: options, errors with
their exit codes, warnings, progress and colours.

This crate does **not** know what a program does: it reads no recordings.
*/
#![forbid(unsafe_code)]

pub mod failure;
pub mod options;
pub mod printable;
pub mod progress;
pub mod terminal;
pub mod value;

use clap::Parser;
use failure::Failure;
use printable::Printable;
use signal_hook::consts::SIGXFSZ;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

/// The body of `main`: parses the command line and passes it to `run`; prints what went wrong.
pub fn start<T: Parser>(run: impl FnOnce(T) -> Result<ExitCode, Failure>) -> ExitCode {
    // With this handler, exceeding `ulimit -f` is a write error and does not end the process.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let done = T::try_parse().map_or_else(|error| tell(&error), run);
    done.unwrap_or_else(Failure::report)
}

/// Prints the help that was requested, or the error in the command line.
fn tell(error: &clap::Error) -> Result<ExitCode, Failure> {
    // Clap prints control characters of arguments.
    let is_active = |word: OsString| word.to_string_lossy().chars().any(char::is_control);
    let printed = match error.use_stderr() && std::env::args_os().any(is_active) {
        true => write!(io::stderr(), "{}", Printable(error.render().to_string())),
        false => error.print(),
    };
    let printed = printed.and_then(|()| io::stdout().flush());
    if error.use_stderr() {
        return Ok(ExitCode::from(failure::USAGE));
    }
    printed?;
    Ok(ExitCode::SUCCESS)
}
