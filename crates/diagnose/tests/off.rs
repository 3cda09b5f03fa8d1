// SPDX-License-Identifier: Apache-2.0
//! Recordings that were stopped: what ranks called since then is not seen.

use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Options, diagnose, recorded_job};
use ncclscope_trace::{Mark, MarkKind, StrId};
use scripts::{Call, Process};
use std::path::PathBuf;
use std::time::Duration;

/// Two ranks whose recording is stopped and, a minute later, ends. It is closed if the processes
/// ended in order.
fn hidden(is_closed: bool) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let paths: [PathBuf; 2] = [0, 1].map(|rank| {
        let mut process = Process::new(rank, 2);
        process.header.closed = is_closed;
        process.collective(Call::ALL_REDUCE);
        let (what, name) = (MarkKind::Stop, StrId(0));
        process.marks.push(Mark { ticks: process.now, what, name, value: 0 });
        process.now += 60_000_000_000;
        process.write(dir.path()).unwrap()
    });
    let hang = Duration::from_secs(30);
    let options = InputOptions { hang, ..InputOptions::default() };
    let job = recorded_job(&paths, &options, &mut Vec::new()).unwrap();
    let found = diagnose(&job, &Options::of(hang));
    assert!(found.findings.is_empty(), "{found:#?}");
    found.hidden.map(|hidden| hidden.text)
}

#[test]
fn what_is_called_while_recording_is_off_is_not_seen() {
    let text = hidden(false).unwrap();
    assert!(text.starts_with("recording has been off on 2 of 2 ranks for up to 61.0 s"), "{text}");
    assert_eq!(hidden(true), None, "processes that ended in order wait for nothing");
}
