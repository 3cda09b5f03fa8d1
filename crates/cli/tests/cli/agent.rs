// SPDX-License-Identifier: Apache-2.0
//! `ncclscope agent`: starts the program next to the tool.

use crate::common::{Run, ncclscope, tool};
use crate::program::Outcome;
use scripts::Call;
use std::fs;
use std::process::Command;

/// Builds the agent, which is next to the tool.
pub(crate) fn build() {
    built::AGENT.path().unwrap();
}

#[test]
fn the_verb_is_the_program_with_all_arguments() {
    build();
    let run = Run::new(|process| process.collective(Call::ALL_REDUCE));
    let once = ["--color", "never", "agent", "--once", "--dir", run.text()];
    let outcome = ncclscope(&once).ends_with(0);
    assert_eq!(outcome.stderr, "");
    assert!(outcome.stdout.contains("nccl_operations_total{"), "{outcome:#?}");
    let missing = ncclscope(&["agent", "--once", "--dir", "/nowhere"]).ends_with(3);
    assert!(
        missing.stderr.contains("ncclscope: error: /nowhere: no such directory"),
        "{missing:#?}"
    );
}

#[test]
fn without_the_program_the_verb_says_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    let alone = place.path().join("ncclscope");
    fs::copy(tool().get_program(), &alone).unwrap();
    let outcome = Outcome::of(Command::new(&alone).args(["agent", "--once"])).ends_with(4);
    let program = place.path().canonicalize().unwrap().join("ncclscope-agent");
    let expected = format!("cannot start {}: No such file", program.display());
    assert!(outcome.stderr.contains(&expected), "{outcome:#?}");
    assert!(outcome.stderr.contains("put ncclscope-agent of this release there"), "{outcome:#?}");
}
