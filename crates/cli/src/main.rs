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
mod unrecorded;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cmd::run(args::CommandLine::parse()) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
