// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask fuzz`: damaged and forged input for all readers (testing/fuzz), with limited
//! memory. `cargo xtask test` runs it for a short time.

use std::process::Command;

use crate::outcome::Outcome;
use crate::process;

/// Runs the targets within 4 GiB of address space; the arguments are passed on.
const RUN: &str = r#"ulimit -v 4194304 && exec target/fuzz/fuzz "$@""#;

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let build = ["cargo", "build", "--profile", "fuzz", "--package", "fuzz"];
    process::check(process::command(&build).args(["--package", "ncclscope-cli"]))?;
    let mut command = Command::new("sh");
    command.args(["-c", RUN, "fuzz"]).args(arguments);
    Ok(process::exit_code(process::status(&mut command)?))
}
