// SPDX-License-Identifier: Apache-2.0
//! Verdicts of the tool on recordings.

use rig::build;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Class, confidence and ranks.
pub(crate) type Verdict = (String, String, Vec<u64>);

/// Verdicts of `diagnose`, for which a wait of `limit_s` seconds is a hang.
#[track_caller]
pub(crate) fn diagnose(record: &Path, limit_s: &str) -> Vec<Verdict> {
    found(&["diagnose", "--hang-sec", limit_s], record, "findings")
}

/// Verdicts of `stragglers`.
#[track_caller]
pub(crate) fn stragglers(record: &Path) -> Vec<Verdict> {
    found(&["stragglers"], record, "findings")
}

#[track_caller]
#[expect(clippy::print_stdout, reason = "a test that fails shows the evidence")]
fn found(words: &[&str], record: &Path, list: &str) -> Vec<Verdict> {
    let mut tool = Command::new(build::tool());
    let output = tool.args(words).args(["--format", "json"]).arg(record).output();
    let output = output.expect("the tool starts");
    let found: Value = serde_json::from_slice(&output.stdout).expect("the result is JSON");
    println!("{}: {:#}", words[0], found[list]);
    of(&found[list])
}

/// A list of verdicts in JSON.
#[track_caller]
pub(crate) fn of(found: &Value) -> Vec<Verdict> {
    let text = |one: &Value, key: &str| one[key].as_str().expect("a text").to_owned();
    let verdict = |one: &Value| {
        let ranks = one["root_ranks"].as_array().expect("ranks");
        let ranks = ranks.iter().filter_map(Value::as_u64).collect();
        (text(one, "class"), text(one, "confidence"), ranks)
    };
    found.as_array().expect("the schema").iter().map(verdict).collect()
}
