// SPDX-License-Identifier: Apache-2.0
/*!
The `ncclscope` command-line tool: runs a job with the plugin, reports on its recordings, exports
them for trace viewers, and checks an installation.

Exit codes: 0 success; 1 findings; 2 wrong usage; 3 some input cannot be read (the result of the
other inputs is printed); 4 something is missing or refused in the environment. `run` exits with the
command's own code: 128 + N if signal N killed it, 126 or 127 if it could not be started.

This crate does **not** link the recorder or the plugin: it only reads their files.
*/
#![forbid(unsafe_code)]

mod args;
mod assessment;
mod cmd;
mod control;
mod doctor;
mod dynolog;
mod failure;
mod formats;
mod fresh;
mod http;
mod indented;
mod input;
mod loading;
mod narrow;
mod nccl;
mod other_inputs;
mod output;
mod pass;
mod pipe;
mod plugin;
mod printable;
mod ras;
mod sheet;
mod shell_words;
mod table;
mod terminal;
mod text;
mod timed;
mod unrecorded;
mod whole_file;
mod whole_folder;

use clap::Parser;
use failure::Failure;
use printable::Printable;
use signal_hook::consts::SIGXFSZ;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

/// Reports of many ranks make many small allocations on all cores at the same time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // With this handler, exceeding `ulimit -f` is a write error and does not end the process.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let done = args::CommandLine::try_parse().map_or_else(|error| tell(&error), cmd::run);
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
