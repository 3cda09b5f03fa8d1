// SPDX-License-Identifier: Apache-2.0
//! What is measured on a real GPU, for a machine that has nothing but a driver, NCCL and a CUDA
//! runtime.
//!
//! ```text
//! gpu-kit run [--out DIR] [--nccl SO] [--cuda SO | --stand-in] [--small] [--seconds S]
//!             [--only ID,ID…]
//! gpu-kit event-costs LIBNCCL…
//! gpu-kit worker OPTION… STEP…
//! ```
//! `run` does the parts of [`run`] one after the other and writes `results.json` and a table;
//! `event-costs` counts on the CPU stand-in what events make NCCL do ([`run::event_costs`]);
//! `worker` is one process of their jobs ([`worker`]). The other programs lie beside this one
//! (docs/gpu.md). Exit codes: 0 nothing differs from what is expected, 1 something does, 2 usage,
//! 4 NCCL or the CUDA runtime is missing.
//!
//! This crate does **not** link CUDA, NCCL, the plugin or the stand-in: they are files.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks")]

mod facts;
mod gpu;
mod run;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.split_first() {
        Some((verb, rest)) if verb == "worker" => match worker::run(rest) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("gpu-kit worker: {error}");
                ExitCode::FAILURE
            }
        },
        Some((verb, rest)) if verb == "run" => run::run(rest),
        Some((verb, rest)) if verb == "event-costs" => run::event_costs::run(rest),
        _ => {
            eprintln!("gpu-kit: `run` or `worker` is missing (docs/gpu.md)");
            ExitCode::from(2)
        }
    }
}
