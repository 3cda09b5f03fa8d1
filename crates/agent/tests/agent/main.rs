// SPDX-License-Identifier: Apache-2.0
//! Tests of the agent from outside: what it exports and where, and its exit codes.

mod export;
mod otlp;
#[path = "../../../cli/tests/cli/program.rs"]
mod program;
mod tls;

use program::{Outcome, program};
use std::process::Command;

/// The agent, without the environment variables of the user who runs the tests.
pub(crate) fn agent() -> Command {
    program(env!("CARGO_BIN_EXE_ncclscope-agent"))
}

/// Runs the agent until it ends.
pub(crate) fn run_agent(args: &[&str]) -> Outcome {
    Outcome::of(agent().args(args))
}

/// Runs the tool until it ends.
pub(crate) fn ncclscope(args: &[&str]) -> Outcome {
    Outcome::of(program(built::TOOL.path().unwrap()).args(args))
}
