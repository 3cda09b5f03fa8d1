// SPDX-License-Identifier: Apache-2.0
/*!
The `ncclscope` command-line tool: runs a job with the plugin, reports on its recordings, exports
them for trace viewers, and checks an installation.

Exit codes: 0 success; 1 findings; 2 wrong usage; 3 some input cannot be read (the result of the
other inputs is printed); 4 something is missing or refused in the environment. `run` exits with the
command's own code: 128 + N if signal N killed it, 126 or 127 if it could not be started.

This crate does **not** link the recorder or the plugin: it only reads their files. Nor does it link
the agent: it starts that program.
*/
#![forbid(unsafe_code)]

mod args;
mod cmd;
mod control;
mod doctor;
mod io;
mod plugin;
mod run_input;
mod tables;
mod text;

use std::process::ExitCode;

/// Reports of many ranks make many small allocations on all cores at the same time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ncclscope_console::start(cmd::run)
}
