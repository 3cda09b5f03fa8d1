// SPDX-License-Identifier: Apache-2.0
//! What a host does with itself while the plugin is there: its environment, its threads, its clock,
//! its children.

use crate::common::{compile, play, plugin};
use ncclscope_trace::EventKind;
use std::process::Command;

#[test]
fn the_environment_is_read_once() {
    let host = compile("environment", &[]);
    let control = tempfile::tempdir().unwrap();
    let told = control.path().join("told");
    let command = format!("exec:env > {0}.part && mv {0}.part {0}", told.display());
    let env = [
        ("NCCLSCOPE_CONTROL", control.path().to_str().unwrap()),
        ("NCCLSCOPE_HANG_ACTION", &command),
        ("SLURM_JOB_ID", "early"),
        ("EARLY", "1"),
    ];
    let played = play(Command::new(host).arg(plugin()).arg(control.path()).arg(&told), &env);
    played.survived();
    let stdout = String::from_utf8_lossy(&played.output.stdout);
    assert!(stdout.contains("\tjob=early\t"), "{stdout}");
    let told = std::fs::read_to_string(told).unwrap();
    let has = |line: &str| told.lines().any(|is| is == line);
    assert!(has("EARLY=1") && has("SLURM_JOB_ID=early") && has("NCCLSCOPE_HANG_DRILL=1"), "{told}");
    assert!(!has("LATE=1"), "{told}");
}

#[test]
fn threads_may_call_us_as_they_end() {
    let host = compile("ends", &[]);
    let played = play(Command::new(host).arg(plugin()), &[]);
    played.survived();
    // Eight threads, with one operation each before and four after their end began.
    // What came when no lane was ready is counted: a lane that is taken in the last round stays
    // with the thread that is gone until the drain thread looks for it.
    let lost = played.recording().header().without_lane[EventKind::Coll as usize];
    assert_eq!(played.operations() as u64 + lost, 8 * 5);
}

#[test]
fn a_window_is_as_long_as_it_says_whatever_the_time_of_day_does() {
    let host = compile("clock", &["-rdynamic"]);
    for set_by in ["3600", "-3600"] {
        let played = play(Command::new(&host).arg(plugin()).arg(set_by), &[]);
        played.survived();
        assert_eq!(played.operations(), 2);
    }
}

/// Children have a copy of our lock as it was, held by a thread of which there is no copy.
#[test]
fn children_of_a_busy_host_call_us_and_end_at_once() {
    let host = compile("forks", &[]);
    let played = play(Command::new(&host).arg(plugin()), &[]);
    played.survived();
    assert!(played.number("slowest") < 900, "{:?}", played.output);
    assert_eq!(played.recording().problems(), &[] as &[String]);
}

/// Cancelled within `init` or a C function, a thread ends behind it; and `errno` stays the host's.
#[test]
fn threads_are_cancelled_behind_us_and_keep_their_errno() {
    let host = compile("cancelled", &[]);
    let played = play(Command::new(host).arg(plugin()), &[]);
    played.survived();
    assert_eq!(played.recording().problems(), &[] as &[String]);
}

/// A handler that calls `exit` interrupts a thread that may hold a lock of ours.
#[test]
fn a_handler_ends_the_process_whatever_it_interrupts() {
    let host = compile("exits", &[]);
    for what in ["mark", "step", "windows", "communicators", "first"] {
        for round in 0..3 {
            // The first communicator comes within some milliseconds.
            let us = if what == "first" { 300 + round * 1500 } else { 20_000 + round * 1777 };
            let mut command = Command::new(&host);
            let played = play(command.arg(plugin()).arg(what).arg(us.to_string()), &[]);
            // Where the lock was held, lanes are left for the next process.
            played.ended();
        }
    }
}

/// What needs room, the beginning and the end, is done on a stack of ours. A debug build's frames
/// are larger.
#[test]
fn threads_with_small_stacks_begin_and_end_us() {
    let host = compile("stack", &[]);
    let bytes = if cfg!(debug_assertions) { 512 << 10 } else { 32 << 10 };
    let played = play(Command::new(host).arg(plugin()).arg(bytes.to_string()), &[]);
    played.survived();
    assert_eq!(played.operations(), 1);
}

/// Made by a system call, a child has the beginning as it was, by a thread that it has not got.
#[test]
fn children_that_are_made_while_we_begin_begin_nothing() {
    let host = compile("forks-first", &[]);
    let played = play(Command::new(host).arg(plugin()), &[]);
    played.survived();
    // One that is made before that is a process of its own, and records.
    assert!(!played.files().is_empty());
}

/// A host does something to itself, and is recorded as if it had not.
fn odd(what: &str) {
    let host = compile("odd", &[]);
    let (elsewhere, control) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = Command::new(&host);
    command.arg(plugin()).arg(what).arg(elsewhere.path());
    let env = [
        ("NCCLSCOPE_HANG_ACTION", "log,dump,exec:true"),
        ("NCCLSCOPE_CONTROL", control.path().to_str().unwrap()),
    ];
    let played = play(&mut command, &env);
    // Who has no way to a name any more cannot remove it: the next process does.
    if matches!(what, "root-is-elsewhere" | "other-user") {
        played.ended();
    } else {
        played.survived();
    }
    assert_eq!(played.operations(), 3001, "{what}");
    assert!(played.recording().header().closed, "{what}");
    // Interrupted threads are the host's own.
    let cpu = played.number("cpu");
    assert!(cpu < 400 || what.starts_with("storm"), "{what}: {cpu} ms of 2 s");
}

#[test]
fn a_host_may_do_odd_things_to_itself() {
    // SAFETY: no arguments, and it cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let for_all = ["storm", "storm-first", "no-files", "no-stack"];
    let for_root = ["locked", "root-is-elsewhere", "other-user"];
    std::thread::scope(|scope| {
        for what in for_all.into_iter().chain(for_root.into_iter().filter(|_| is_root)) {
            scope.spawn(move || odd(what));
        }
    });
}

#[test]
fn a_host_may_have_no_address_space_left() {
    odd("no-memory");
}

#[test]
fn what_is_stopped_while_a_communicator_is_initialised_stays_stopped() {
    let host = compile("masks", &[]);
    let played = play(Command::new(&host).arg(plugin()).arg("1000"), &[]);
    played.survived();
    assert_eq!(played.number("left "), 0);
}
