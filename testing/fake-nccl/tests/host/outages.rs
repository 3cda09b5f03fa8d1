// SPDX-License-Identifier: Apache-2.0
//! A file system that refuses at the start: records wait, and the watchdog needs no file. A
//! recording that is removed while it is written: the next one says so.

use crate::common::{compile, operations, play, plugin};
use ncclscope_trace::Recording;
use std::process::Command;

#[test]
fn a_file_in_the_way_at_the_start_costs_nothing() {
    let host = compile("outage", &[]);
    for how in ["time", "next", "end"] {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("run");
        std::fs::write(&dir, "in the way").unwrap();
        let mut command = Command::new(&host);
        command.arg(plugin()).arg(&dir).arg(how);
        let played = play(&mut command, &[("NCCLSCOPE_DIR", dir.to_str().unwrap())]);
        played.survived();
        let stderr = played.stderr();
        assert_eq!(stderr.lines().count(), 2, "{how}: {stderr}");
        assert!(stderr.contains("the watchdog runs, and records wait"), "{how}: {stderr}");
        assert!(stderr.contains("recording goes on after "), "{how}: {stderr}");
        let entry = std::fs::read_dir(&dir).unwrap().next().unwrap().unwrap();
        let recording = Recording::open(&entry.path()).unwrap();
        assert_eq!(operations(&recording), 40, "{how}");
        assert_eq!(recording.header().unwritten.iter().sum::<u64>(), 0, "{how}");
        let notes = recording.notes().join("\n");
        assert!(notes.contains("cannot record in "), "{how}: {notes}");
    }
}

#[test]
fn a_recording_after_a_removed_one_says_what_is_missing() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("run");
    let mut command = Command::new(compile("removed", &[]));
    let played = play(command.arg(plugin()).arg(&dir), &[("NCCLSCOPE_DIR", dir.to_str().unwrap())]);
    played.survived();
    let entry = std::fs::read_dir(&dir).unwrap().next().unwrap().unwrap();
    let recording = Recording::open(&entry.path()).unwrap();
    assert_eq!(operations(&recording), 20, "those of the end");
    let before = entry.path().display().to_string();
    assert_eq!(recording.identity().replaces.as_ref(), Some(&before));
    assert!(recording.has_hole() && recording.header().closed);
    let said = "what came before is missing: the first file was removed while written";
    assert_eq!(recording.problems(), [said]);
}
