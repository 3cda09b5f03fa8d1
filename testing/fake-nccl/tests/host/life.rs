// SPDX-License-Identifier: Apache-2.0
//! Actions of a host while the plugin is loaded: on its environment, threads, clock and children.

use crate::common::{compile, play, plugin};
use ncclscope_trace::EventKind;
use ncclscope_trace::lanes_file::adopt;
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

/// The threads of eight GPUs and their proxies.
#[test]
fn threads_that_begin_together_lose_nothing() {
    let host = compile("together", &[]);
    for threads in [8, 16] {
        let played = play(Command::new(&host).arg(plugin()).arg(threads.to_string()), &[]);
        played.survived();
        assert_eq!(played.operations(), threads, "{threads} threads");
        assert_eq!(played.recording().header().without_lane.iter().sum::<u64>(), 0, "{threads}");
    }
}

#[test]
fn threads_may_call_us_as_they_end() {
    let host = compile("ends", &[]);
    let played = play(Command::new(host).arg(plugin()), &[]);
    played.survived();
    // Eight threads, with one operation each before and four after their end began. Events without
    // a ready lane are counted: a lane that was taken in the last round stays with its exited
    // thread until the drain thread checks.
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

/// A child has a copy of a lock of the plugin, which may be held by a thread that does not exist in
/// the child.
#[test]
fn children_of_a_busy_host_call_us_and_end_at_once() {
    let host = compile("forks", &[]);
    let played = play(Command::new(&host).arg(plugin()), &[]);
    played.survived();
    assert!(played.number("slowest") < 900, "{:?}", played.output);
    assert_eq!(played.recording().problems(), &[] as &[String]);
}

/// A thread that is cancelled within `init` or a C function exits after it; `errno` is preserved.
#[test]
fn threads_are_cancelled_behind_us_and_keep_their_errno() {
    let host = compile("cancelled", &[]);
    let played = play(Command::new(host).arg(plugin()), &[]);
    played.survived();
    assert_eq!(played.recording().problems(), &[] as &[String]);
}

/// NCCL unloads the plugin before the process exits. No handler sees `_exit`.
#[test]
fn the_recording_has_the_status_that_the_parent_sees() {
    let host = compile("status", &[]);
    for (how, status, seen) in
        [("exit", "1", Some(1)), ("return", "301", Some(45)), ("exit", "0", Some(0))]
    {
        let mut command = Command::new(&host);
        let played = play(command.arg(plugin()).args([how, status]), &[]);
        assert_eq!(played.output.status.code(), seen, "{:?}", played.output);
        let recording = played.recording();
        let told = recording.identity().exit_status.map(u32::cast_signed);
        assert!(recording.header().closed && told == seen, "{how} {status}: {told:?}");
    }
    let mut command = Command::new(&host);
    let played = play(command.arg(plugin()).args(["_exit", "3"]), &[]);
    assert_eq!(played.output.status.code(), Some(3));
    assert_eq!(played.recording().identity().exit_status, None);
}

/// A signal handler that calls `exit` may interrupt a thread that holds a lock of the plugin.
#[test]
fn a_handler_ends_the_process_whatever_it_interrupts() {
    let host = compile("exits", &[]);
    for what in ["mark", "step", "windows", "communicators", "first"] {
        for round in 0..3 {
            // The first communicator is created within some milliseconds.
            let us = if what == "first" { 300 + round * 1500 } else { 20_000 + round * 1777 };
            let mut command = Command::new(&host);
            let played = play(command.arg(plugin()).arg(what).arg(us.to_string()), &[]);
            // If a lock was held, lanes are left for the next process to remove.
            played.ended();
        }
    }
}

/// Init and exit, which need stack space, run on a stack of the plugin. A debug build's frames are
/// larger.
#[test]
fn threads_with_small_stacks_begin_and_end_us() {
    let host = compile("stack", &[]);
    let bytes = if cfg!(debug_assertions) { 512 << 10 } else { 32 << 10 };
    let played = play(Command::new(host).arg(plugin()).arg(bytes.to_string()), &[]);
    played.survived();
    assert_eq!(played.operations(), 1);
}

/// A child created by a direct system call has a copy of an initialisation in progress, but not the
/// thread that runs it.
#[test]
fn children_that_are_made_while_we_begin_begin_nothing() {
    let host = compile("forks-first", &[]);
    let played = play(Command::new(host).arg(plugin()), &[]);
    played.ended();
    // A child that is created before the parent begins to record is a separate process, and
    // records.
    assert!(!played.files().is_empty());
    // A child calls `_exit` and may leave lanes, which no process holds. The next process removes
    // them at once, or a week later if the child had not yet stored what they belong to.
    // SAFETY: no arguments, and it cannot fail.
    let user = unsafe { libc::geteuid() };
    for left in std::fs::read_dir(played.lanes.path()).unwrap() {
        let left = left.unwrap().path();
        std::fs::File::open(&left).unwrap().try_lock().expect("its process is dead");
        adopt(&left, user).unwrap();
    }
}

/// A host changes its own state, and is still recorded correctly.
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
    // A process that can no longer reach the path of its lanes file cannot remove it: the next
    // process does.
    if matches!(what, "root-is-elsewhere" | "other-user") {
        played.ended();
    } else {
        played.survived();
    }
    assert_eq!(played.operations(), 3001, "{what}");
    assert!(played.recording().header().closed, "{what}");
    // Only the host's own threads are interrupted.
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

/// The drain thread can run before the thread that starts it continues; on a busy machine this can
/// happen at any start.
#[test]
fn the_drain_thread_waits_for_the_thread_that_starts_it() {
    let host = compile("plain", &["-DLATE_MS=50", "-rdynamic"]);
    let played = play(Command::new(host).arg(plugin()).arg("20000"), &[]);
    played.survived();
    // Far more than the lane has room for.
    assert_eq!(played.operations(), 20_000);
}
