// SPDX-License-Identifier: Apache-2.0
//! `ulimit -f`: data beyond the limit is dropped with a message, and no signal kills the host.

use crate::common::{Played, compile, play, plugin};
use std::process::Command;

/// The host `plain` with `operations`, with files limited to this size in KiB.
fn limited(kib: u64, operations: usize, env: &[(&str, &str)]) -> Played {
    let host = compile("plain", &[]);
    let mut command = Command::new("bash");
    command.args(["-c", &format!("ulimit -f {kib}; exec \"$@\""), "bash"]);
    command.arg(host).arg(plugin()).arg(operations.to_string());
    play(&mut command, env)
}

#[test]
fn a_small_limit_leaves_the_host_alone_and_is_said() {
    let lanes = ["off", "on"];
    for (kib, lanes) in [65536, 1100, 40].into_iter().flat_map(|k| lanes.map(|lanes| (k, lanes))) {
        let env: &[_] = if lanes == "off" { &[("NCCLSCOPE_LANES", "off")] } else { &[] };
        let played = limited(kib, 4_000, env);
        let (case, stderr) = (format!("{kib} KiB, lanes {lanes}"), played.stderr());
        played.survived();
        let lines: Vec<&str> = stderr.lines().collect();
        assert!(lines[0].contains("(ulimit -f): "), "{case}: {stderr}");
        match kib {
            65536 => {
                assert!(lines[0].contains("62.5 MiB of records are kept"), "{case}: {stderr}");
                assert_eq!(stderr.contains("no lanes file"), lanes == "on", "{case}: {stderr}");
                assert_eq!(played.operations(), 4_000, "{case}");
            }
            1100 => {
                assert!(lines[1].contains("File too large (os error 27); records wait"), "{case}");
                let unwritten = played.recording().header().unwritten.iter().sum::<u64>();
                assert!(unwritten != 0, "{case}: they are counted");
            }
            _ => {
                let advice = "raise the limit on the size of files (`ulimit -f`)";
                assert!(lines[1..].iter().all(|line| line.contains(advice)), "{case}: {stderr}");
                assert!(lines.last().unwrap().ends_with("nothing of this process was recorded"));
                assert!(played.files().is_empty(), "{case}: {:?}", played.files());
            }
        }
        assert_eq!(
            lines.len(),
            if kib == 40 {
                3
            } else if kib == 1100 {
                2
            } else {
                1
            },
            "{case}: {stderr}"
        );
    }
}

/// Writes of the drain thread, the application's threads and the exit handler then fail, are
/// counted, and raise no signal.
#[test]
fn a_limit_that_comes_later_costs_records_and_nothing_else() {
    let host = compile("late-limit", &[]);
    for (lanes, bytes) in [(true, "0"), (false, "0"), (true, "1060000"), (false, "1060000")] {
        let env: &[_] = if lanes { &[] } else { &[("NCCLSCOPE_LANES", "off")] };
        let played = play(Command::new(&host).arg(plugin()).arg(bytes), env);
        played.ended();
        let stderr = played.stderr();
        assert_eq!(stderr.matches("cannot write ").count(), 1, "{bytes}: {stderr}");
        assert!(stderr.contains("File too large (os error 27)"), "{bytes}: {stderr}");
        // Where not even the header can be written, the lanes keep the last records.
        let has_lanes = std::fs::read_dir(played.lanes.path()).unwrap().count() == 1;
        assert_eq!(has_lanes, lanes && bytes == "0", "{bytes}: {stderr}");
        let recording = played.recording();
        assert_eq!(recording.header().closed, bytes != "0");
        if bytes == "0" {
            let problems = recording.problems().join("\n");
            assert!(problems.contains("not closed: process"), "{problems}");
            assert!(lanes || problems.contains("what came later is unknown"), "{problems}");
        }
    }
}

#[test]
fn a_pipe_that_is_closed_at_its_other_end_leaves_the_host_alone() {
    let host = compile("plain", &[]);
    let mut command = Command::new("bash");
    // When the process exits, the reader of its log has exited. The message is about the unknown
    // variable.
    command.args(["-c", "exec 2> >(exec true); sleep 0.3; exec \"$@\"", "bash"]);
    command.arg(host).arg(plugin()).arg("10");
    play(&mut command, &[("NCCLSCOPE_MOOD", "good")]).survived();
}
