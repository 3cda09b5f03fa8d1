// SPDX-License-Identifier: Apache-2.0
//! Commands of the system, with their errors.

use std::process::{Command, Output, Stdio};

/// Runs a command line of words that contain no spaces.
///
/// # Errors
/// The command, and what it printed.
pub fn run(line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    let output = output(command.args(words))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// The output of a command, whatever its status.
///
/// # Errors
/// It cannot be started.
pub fn output(command: &mut Command) -> Result<Output, String> {
    let done = command.stdin(Stdio::null()).output();
    done.map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))
}
