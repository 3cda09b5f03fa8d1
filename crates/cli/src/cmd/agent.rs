// SPDX-License-Identifier: Apache-2.0
//! `ncclscope agent`: becomes the program `ncclscope-agent`, which is next to this one. It is a
//! program of its own because it needs a server, TLS and gRPC, which no other verb needs.

use ncclscope_console::failure::Failure;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// The agent's program.
const PROGRAM: &str = "ncclscope-agent";

/// Passes on the arguments, which the command line has checked. Returns only if it fails.
pub(crate) fn run() -> Result<ExitCode, Failure> {
    let own = std::env::current_exe()
        .map_err(|e| Failure::environment(format!("cannot find {PROGRAM}: {e}")))?;
    let program = own.with_file_name(PROGRAM);
    let error = Command::new(&program).args(arguments(std::env::args_os())).exec();
    Err(Failure::environment(format!(
        "cannot start {}: {error}; the agent is a program of its own: put {PROGRAM} of this \
         release there",
        program.display()
    )))
}

/// The arguments without the program's name and without the verb.
fn arguments(all: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut is_verb = true;
    // No option before the verb has the value `agent`.
    all.skip(1).filter(move |word| !(is_verb && word == "agent" && std::mem::take(&mut is_verb)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verb_alone_is_left_out() {
        let words = ["ncclscope", "--color", "never", "agent", "--dir", "agent"];
        let rest: Vec<OsString> = arguments(words.into_iter().map(OsString::from)).collect();
        assert_eq!(rest, ["--color", "never", "--dir", "agent"]);
    }
}
