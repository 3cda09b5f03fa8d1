// SPDX-License-Identifier: Apache-2.0
//! An invalid value gives one line, in the log and in the recording, that says which value is used
//! instead.

use crate::common::{compile, plain};
use std::path::Path;

/// Runs ten operations, which must all be recorded, and returns the lines, which must be in the log
/// and in the recording.
fn told(env: &[(&str, &str)]) -> Vec<String> {
    let played = plain(&compile("plain", &[]), 10, env);
    played.survived();
    assert_eq!(played.operations(), 10, "{env:?}");
    let stderr = played.stderr();
    let lines = stderr.lines().map(|line| line.trim_start_matches("ncclscope: ").to_owned());
    let lines: Vec<String> = lines.collect();
    assert_eq!(lines, played.recording().notes(), "{env:?}");
    lines
}

#[test]
fn a_first_window_that_is_too_far_away_is_one_line_and_all_is_recorded() {
    let lines = told(&[("NCCLSCOPE_START", "at=9000000000 for=5s")]);
    let line = "NCCLSCOPE_START: at= is more than a week away; the default is used";
    assert_eq!(lines, [line]);
}

#[test]
fn lanes_that_cannot_be_where_they_were_asked_for_are_one_line() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.to_str().unwrap();
    for (lanes, why) in
        [("/nowhere", "No such file"), ("/proc/self", ""), (folder, "it is not in memory (tmpfs)")]
    {
        let lines = told(&[("NCCLSCOPE_LANES", lanes)]);
        let begin = format!("no lanes file in {lanes}: {why}");
        assert!(lines.len() == 1 && lines[0].starts_with(&begin), "{lines:?}");
        let end = "; records wait in private memory, and a SIGKILL loses up to 80 ms of them";
        assert!(lines[0].ends_with(end), "{lines:?}");
    }
}
