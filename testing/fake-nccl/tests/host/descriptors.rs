// SPDX-License-Identifier: Apache-2.0
//! Descriptors of ours that the host closes, and whose numbers its own files get.

use crate::common::{compile, play, plugin};
use std::process::Command;

/// What we write goes on into the recording, and nothing of it into the host's files.
#[test]
fn a_host_that_closes_all_files_keeps_its_own_and_is_recorded() {
    let host = compile("files", &[]);
    // Of the host's sockets, one may have the number of ours: try several.
    for socket in ["3", "1002"] {
        let [own, control] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mut command = Command::new(&host);
        command.arg(plugin()).arg(own.path()).arg(control.path()).env("SOCKET", socket);
        let played = play(&mut command, &[("NCCLSCOPE_CONTROL", control.path().to_str().unwrap())]);
        played.survived();
        assert_eq!(played.stderr(), "");
        let recording = played.files().into_iter().find(|file| file.is_file()).unwrap();
        let recording = ncclscope_trace::Recording::open(&recording).unwrap();
        assert_eq!(recording.problems(), &[] as &[String]);
        assert_eq!(crate::common::operations(&recording), 100 + 20 * 400, "socket {socket}");
        assert_eq!(recording.header().unwritten, [0; 16]);
    }
}

/// A host without standard files, whose output goes where it wants it: our files have none of their
/// numbers.
#[test]
fn a_host_without_standard_files_gets_none_of_ours() {
    let host = compile("plain", &[]);
    let mut command = Command::new("bash");
    command.args(["-c", "\"$@\" <&- >&- 2>&-; echo $? survived", "bash"]);
    command.arg(host).arg(plugin()).arg("100");
    // Its last word goes to number 1, which nothing has: that is not our affair.
    let played = play(&mut command, &[]);
    assert_eq!(String::from_utf8_lossy(&played.output.stdout), "4 survived\n");
    let recording = played.recording();
    assert_eq!(crate::common::operations(&recording), 100);
}
