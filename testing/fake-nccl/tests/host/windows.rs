// SPDX-License-Identifier: Apache-2.0
//! The watchdog while recording is stopped or sampled: it reports no hang of unrecorded operations,
//! and says what it cannot see.

use crate::common::{Played, compile, play, plugin};
use std::process::Command;

/// Plays `windows.c`.
fn windows(what: &str, limit: &str) -> Played {
    let host = compile("windows", &[]);
    let control = tempfile::tempdir().unwrap();
    let env =
        [("NCCLSCOPE_HANG_SEC", limit), ("NCCLSCOPE_CONTROL", control.path().to_str().unwrap())];
    let played = play(Command::new(host).arg(plugin()).arg(what).arg(control.path()), &env);
    played.survived();
    assert_eq!(played.recording().hangs(), [], "{what}");
    played
}

#[test]
fn an_operation_whose_kernel_comes_long_after_its_window_does_not_hang() {
    windows("settles", "12");
}

#[test]
fn what_is_left_out_is_said_and_asked_for_too() {
    for (what, says) in [
        ("stops", "operations issued while recording is stopped, as it is now"),
        ("samples", "unrecorded operations: one operation in 16 is recorded now"),
    ] {
        let played = windows(what, "2");
        let stdout = String::from_utf8_lossy(&played.output.stdout).into_owned();
        let why = stdout.lines().find(|line| line.starts_with("why ok\tin_flight=0\t"));
        assert!(why.is_some_and(|line| line.contains(says)), "{stdout}");
        let stderr = played.stderr();
        assert_eq!(stderr.lines().count(), 1, "one line, not one a window: {stderr}");
        assert!(stderr.contains(says), "{stderr}");
    }
}

#[test]
fn a_stop_does_not_keep_the_watchdog_from_saying_later_what_it_cannot_see() {
    let stderr = windows("silent", "2").stderr();
    assert!(stderr.contains("hangs of communicator 0xc0ffee"), "{stderr}");
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
}
