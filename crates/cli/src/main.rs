// SPDX-License-Identifier: Apache-2.0
/*!
The `ncclscope` command-line tool: runs a job with the plugin, reports what happened, exports it for
trace viewers, and says what is wrong with an installation.

Exit codes: 0 fine; 1 findings; 2 wrong usage; 3 an input that cannot be read (where others could,
what they say is printed all the same); 4 something missing or refused in the environment. `run`
ends with the command's own: 128 + N if signal N killed it, 126 or 127 if it could not be started.

This crate does **not** link the recorder or the plugin: it knows them only by their files.
*/
#![forbid(unsafe_code)]

mod args;
mod cmd;
mod control;
mod doctor;
mod dynolog;
mod failure;
mod http;
mod input;
mod loading;
mod nccl;
mod output;
mod plugin;
mod table;
mod text;
mod time;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cmd::run(args::Args::parse()) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
