// SPDX-License-Identifier: Apache-2.0
//! A file system or a log that does not respond: the job does not wait for it, the watchdog still
//! works, and the recorded data is written when it responds again.

use crate::common::{Played, compile, operations, play, plugin};
use ncclscope_trace::lanes_file::adopt;
use ncclscope_trace::{MarkKind, Recording};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs `stall.c`, whose symbols override those of the C library.
fn stall(when: &str) -> Played {
    let host = compile("stall", &["-rdynamic"]);
    let slow_library = match when {
        "load" => compile("slow_library", &["-shared", "-fPIC"]),
        _ => PathBuf::new(),
    };
    let slow_library = slow_library.to_str().unwrap();
    let env =
        [("NCCLSCOPE_HANG_SEC", "2"), ("NCCLSCOPE_LOG", "nccl"), ("SLOW_LIBRARY", slow_library)];
    play(Command::new(host).arg(plugin()).arg(when), &env)
}

/// The value that the host printed for `name`.
fn figure(played: &Played, name: &str) -> f64 {
    let text = String::from_utf8_lossy(&played.output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().split(' ').next());
    number.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Asserts that no call took a significant part of the file system's delay.
#[expect(clippy::print_stdout, reason = "what was measured")]
fn does_not_wait(played: &Played, stalled_ms: f64) {
    for name in ["init", "finalize", "mark", "set_step", "start", "stop", "last finalize"] {
        let took = figure(played, &format!("{name} "));
        println!("{name}: {took} ms");
        assert!(took < stalled_ms / 4.0, "{name} took {took} ms");
    }
}

#[test]
fn a_file_system_that_hangs_at_first_gets_everything_later() {
    let played = stall("begin");
    played.survived();
    does_not_wait(&played, 1000.0);
    assert_eq!(played.operations(), 1000);
    assert!(played.recording().header().closed);
}

#[test]
fn a_default_directory_that_hangs_is_not_waited_for() {
    let host = compile("stall", &["-rdynamic"]);
    let job = format!("stall-{}", std::process::id());
    let played = play(Command::new(host).arg(plugin()).arg("default"), &[("SLURM_JOB_ID", &job)]);
    played.survived();
    assert_eq!(played.files(), [] as [PathBuf; 0]);
    does_not_wait(&played, 1000.0);
    let user = std::fs::metadata(played.run.path()).unwrap().uid();
    let dir = PathBuf::from(format!("/tmp/ncclscope-{user}")).join(job);
    let files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    let recording = Recording::open(&files[0]).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!((files.len(), operations(&recording)), (1, 1000));
}

#[test]
fn while_the_file_system_hangs_the_job_goes_on_and_nothing_is_lost() {
    let played = stall("later");
    played.survived();
    does_not_wait(&played, 4000.0);
    let recording = played.recording();
    assert_eq!(recording.problems(), &[] as &[String]);
    let steps = recording.marks().iter().filter(|mark| mark.what == MarkKind::Step).count();
    assert!(steps > 20, "{steps} steps");
    // Each step has a communicator and one operation.
    assert_eq!(recording.comms().len(), steps + 1);
    assert_eq!(operations(&recording), 1000 + steps);
    assert_eq!(recording.header().unwritten.iter().sum::<u64>(), 0);
}

#[test]
fn a_hang_is_reported_while_the_file_system_nccls_log_or_the_loader_hangs() {
    for when in ["hang", "log", "load"] {
        let played = stall(when);
        played.survived();
        does_not_wait(&played, 4000.0);
        let told = figure(&played, "told after");
        assert!((1.9..4.0).contains(&told), "{when}: told after {told} s of a limit of 2 s");
    }
}

#[test]
fn a_file_system_that_hangs_at_the_end_leaves_the_lanes() {
    let begin = Instant::now();
    let played = stall("exit");
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(String::from_utf8_lossy(&played.output.stdout).ends_with("survived\n"));
    let left: Vec<_> = std::fs::read_dir(played.lanes.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let user = left[0].metadata().unwrap().uid();
    adopt(&left[0].path(), user).unwrap();
    let recording = Recording::open(&played.files()[0]).unwrap();
    assert_eq!(operations(&recording), 1000);
}

#[test]
fn a_recording_that_is_refused_late_costs_nothing_at_exit() {
    let played = stall("late");
    played.survived();
    assert!(figure(&played, "exit ") < 500.0, "{:?}", played.output);
    assert_eq!(played.files(), [] as [PathBuf; 0]);
}

#[test]
fn a_file_system_that_is_slower_than_the_records_still_gets_a_dump() {
    let played = stall("slow");
    played.survived();
    let took = figure(&played, "dump ");
    assert!((0.0..5000.0).contains(&took), "{took} ms (below 0: refused)");
}
