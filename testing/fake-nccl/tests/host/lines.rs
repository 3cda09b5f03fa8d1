// SPDX-License-Identifier: Apache-2.0
//! What cannot be used is one line, in the log and in the recording, and says what holds instead.

use crate::common::{compile, plain};

/// Ten operations; all of them are recorded, and so is each line.
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
    let line = "NCCLSCOPE_START: at= is more than a week away; the default holds";
    assert_eq!(lines, [line]);
}
