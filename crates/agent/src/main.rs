// SPDX-License-Identifier: Apache-2.0
/*!
`ncclscope-agent`: exports metrics of the ranks of this node continuously. The verb `ncclscope
agent` starts it.

It only reads the recordings that the ranks write in any case: a failure of the agent, or of its
collector, does not affect a rank. One process serves a node; a second agent on the same directory
exports the same figures again.

This crate does **not** follow recordings or judge jobs: that is `node`.
*/
#![forbid(unsafe_code)]

mod agent;
mod answer;
mod grpc;
mod https;
mod output;
mod page;
mod sender;
mod server;
mod target;
mod tls;

use clap::Parser;
use ncclscope_console::options::{AgentArgs, GlobalArgs};
use ncclscope_console::terminal;
use std::process::ExitCode;

/// A window's metrics are many small allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exports metrics of the ranks of this node, continuously.
#[derive(Debug, Parser)]
#[command(name = "ncclscope-agent", version, max_term_width = 100)]
struct CommandLine {
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    global: GlobalArgs,
}

fn main() -> ExitCode {
    ncclscope_console::start(|args: CommandLine| {
        terminal::configure(args.global);
        agent::run(&args.agent)
    })
}
