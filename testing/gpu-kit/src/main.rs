// SPDX-License-Identifier: Apache-2.0
//! Measures the plugin on a real GPU, on a machine that has only a driver, NCCL and a CUDA runtime.
//!
//! ```text
//! gpu-kit run [--out DIR] [--nccl SO] [--cuda SO | --stand-in] [--small] [--seconds S]
//!             [--only ID,ID…]
//! gpu-kit event-costs LIBNCCL…
//! gpu-kit worker OPTION… STEP…
//! ```
//! `run` runs the parts of [`run`] one after the other and writes `results.json` and a table;
//! `event-costs` counts on the CPU stand-in what events make NCCL do ([`run::event_costs`]);
//! `worker` is one process of their jobs ([`worker`]). The other programs are in the directory of
//! this one (docs/gpu.md). Exit codes: 0 all results are as expected, 1 a result differs, 2 usage,
//! 4 NCCL or the CUDA runtime is missing.
//!
//! This crate does **not** link CUDA, NCCL, the plugin or the stand-in: they are files.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks")]

mod facts;
mod gpu;
mod run;
mod worker;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Measure the plugin on a real GPU (docs/gpu.md)
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Do the parts one after the other
    Run(run::Options),
    /// Count on the CPU stand-in what events make NCCL do
    EventCosts(run::event_costs::Options),
    /// Be one process of a job
    Worker(worker::Options),
}

fn main() -> ExitCode {
    match Arguments::parse().verb {
        Verb::Run(options) => run::run(&options),
        Verb::EventCosts(options) => run::event_costs::run(&options),
        Verb::Worker(options) => match worker::run(&options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("gpu-kit worker: {error}");
                ExitCode::FAILURE
            }
        },
    }
}
