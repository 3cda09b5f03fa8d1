// SPDX-License-Identifier: Apache-2.0
//! Processes that exit, fork, unload and name things while callbacks run.

use crate::common::{Folded, Found, at_once, balance, command, exact, only, play, survive};
use ncclscope_trace::{EventKind as K, Recording};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

/// Number of threads that play at the same time.
const THREADS: &str = "3";

/// Starts on the communicator that the threads use.
fn of_first(found: &Found) -> usize {
    found.events.values().filter(|s| s.comm == 0).count()
}

#[test]
fn the_library_may_go_and_come_again() {
    for version in fake_nccl::VERSIONS {
        // The log has only the last round; the recording has all three.
        let played = play(version, "allreduce", false, &["--ops", "5", "--end", "reload"]);
        let found = Found::read(&played.recording);
        assert_eq!(found.all(K::Coll).len(), 3 * 5, "v{version}");
        assert_eq!(found.steps.len(), 3 * 5 * 16, "v{version}");
        let comms = played.recording.comms();
        assert_eq!(comms.len(), 3, "v{version}");
        for comm in comms {
            assert!(played.recording.comm_end(comm.index).is_some(), "v{version}: {comm:?}");
        }
    }
}

#[test]
fn the_library_may_go_while_others_still_call() {
    at_once(|version| {
        let options = ["--end", "dlclose", "--threads", THREADS];
        let played = play(version, "allreduce", false, &options);
        let found = Found::read(&played.recording);
        balance(&played, &found, Folded::default());
        assert_eq!(played.recording.comms().len(), 1 + 3, "v{version}");
        for comm in 1..4 {
            let colls = found.all(K::Coll).iter().filter(|c| c.comm == comm).count();
            assert_eq!(colls, 1, "v{version}: of communicator {comm}");
            assert!(played.recording.comm_end(comm).is_some(), "v{version}");
        }
        assert!(of_first(&found) > 3 * 20, "v{version}");
    });
}

#[test]
fn a_child_of_busy_threads_goes_on_and_records_nothing() {
    at_once(|version| {
        let options = ["--end", "fork-busy", "--threads", THREADS];
        let played = play(version, "allreduce", false, &options);
        let found = Found::read(&played.recording);
        balance(&played, &found, Folded::default());
        assert_eq!(played.recording.comms().len(), 1, "v{version}: the child has none");
        assert!(of_first(&found) > 3 * 20, "v{version}");
    });
}

/// Reads the recording after a termination: it must have everything that was played before, each
/// event once.
fn hold(recording: &Recording, name: &str) -> Found {
    let header = recording.header();
    assert_eq!((header.panics, header.garbage_words), (0, 0), "{name}");
    let found = Found::read(recording);
    assert!(of_first(&found) > 3 * 20, "{name}");
    assert!(!found.steps.is_empty(), "{name}");
    found
}

/// Whether the recording was closed; prints a line if not. An exit handler closes it, but waits
/// only a short time for a drain thread that a busy machine delays; on an idle machine `life.rs`
/// requires it.
fn is_closed(recording: &Recording, name: &str) -> bool {
    let closed = recording.header().closed;
    match recording.problems() {
        [] => assert!(closed, "{name}"),
        [problem, ..] => assert!(problem.contains("was killed") && !closed, "{name}: {problem}"),
    }
    closed
}

#[test]
fn a_termination_amid_callbacks_leaves_a_recording() {
    at_once(|version| {
        for end in ["term-busy", "term-flag", "term-exit"] {
            let name = format!("v{version} {end}");
            let dir = tempfile::tempdir().unwrap();
            let options = ["--end", end, "--threads", THREADS];
            let mut command = command(version, "allreduce", dir.path(), &options);
            if end == "term-busy" {
                let output = command.output().unwrap();
                assert_eq!(output.status.signal(), Some(15), "{name}: {output:?}");
            } else {
                survive(&mut command, &name);
            }
            let recording = only(dir.path(), &name);
            let found = hold(&recording, &name);
            assert!(!is_closed(&recording, &name) || end != "term-busy", "{name}");
            if end == "term-flag" {
                let open = found.events.keys().filter(|h| !found.stops.contains_key(h)).count();
                assert_eq!(open, 0, "{name}: it ended in order");
                assert!(recording.comm_end(0).is_some(), "{name}");
            }
        }
    });
}

#[test]
fn an_end_without_destroy_leaves_a_recording() {
    at_once(|version| {
        for end in ["exit-busy", "_exit-busy", "kill-busy"] {
            let name = format!("v{version} {end}");
            let dir = tempfile::tempdir().unwrap();
            let options = ["--end", end, "--threads", THREADS];
            let mut command = command(version, "allreduce", dir.path(), &options);
            if end == "kill-busy" {
                let output = command.output().unwrap();
                assert_eq!(output.status.signal(), Some(9), "{name}: {output:?}");
            } else {
                survive(&mut command, &name);
            }
            let recording = only(dir.path(), &name);
            hold(&recording, &name);
            assert!(!is_closed(&recording, &name) || end == "exit-busy", "{name}");
        }
    });
}

#[test]
fn the_main_thread_may_end_before_the_others() {
    for version in fake_nccl::VERSIONS {
        let dir = tempfile::tempdir().unwrap();
        let options = ["--ops", "5", "--end", "main-gone"];
        survive(
            &mut command(version, "allreduce", dir.path(), &options),
            "without its main thread",
        );
        let recording = only(dir.path(), "without its main thread");
        assert_eq!(recording.problems(), &[] as &[String], "v{version}");
        assert_eq!(Found::read(&recording).all(K::Coll).len(), 5 + 10, "v{version}");
        assert!(recording.header().closed && recording.comm_end(0).is_some(), "v{version}");
    }
}

#[test]
fn a_child_that_is_a_program_of_its_own_records_its_own() {
    for version in [1, 6] {
        let dir = tempfile::tempdir().unwrap();
        let options = ["--ops", "5", "--end", "exec-busy", "--threads", THREADS];
        let text = survive(&mut command(version, "allreduce", dir.path(), &options), "a parent");
        let colls = text.lines().find_map(|l| l.strip_prefix("played 1 ")).unwrap();
        let colls: usize = colls.split(' ').next().unwrap().parse().unwrap();
        let files = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
        let mut found: Vec<usize> = files
            .map(|file| {
                let recording = Recording::open(&file).unwrap();
                assert_eq!(recording.problems(), &[] as &[String], "v{version}");
                Found::read(&recording).all(K::Coll).len()
            })
            .collect();
        found.sort_unstable();
        assert_eq!(found, [5, colls], "v{version}: the child's and the parent's");
    }
}

/// A directory below `dir` whose path is at least `length` bytes long.
fn deep(dir: &Path, length: usize) -> PathBuf {
    let mut path = dir.to_owned();
    while path.as_os_str().len() < length {
        path.push("d".repeat(120));
    }
    path
}

#[test]
fn a_path_may_be_long() {
    for version in fake_nccl::VERSIONS {
        let dir = tempfile::tempdir().unwrap();
        let run = deep(dir.path(), 600);
        survive(&mut command(version, "allreduce", &run, &["--ops", "5"]), "a long path");
        let recording = only(&run, "a long path");
        assert_eq!(Found::read(&recording).all(K::Coll).len(), 5, "v{version}");
        assert!(recording.header().closed, "v{version}");
    }
}

#[test]
fn a_path_that_is_too_long_is_one_line_at_each_end() {
    for version in fake_nccl::VERSIONS {
        let dir = tempfile::tempdir().unwrap();
        for run in [dir.path().join("x".repeat(300)), deep(dir.path(), 5000)] {
            let output = command(version, "allreduce", &run, &[]).output().unwrap();
            let (out, err) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
            assert!(String::from_utf8_lossy(out).ends_with("survived\n"), "v{version}: {err}");
            let [first, last] = err.lines().collect::<Vec<_>>()[..] else { panic!("{err}") };
            assert!(first.contains("the watchdog runs, and records wait"), "v{version}: {err}");
            assert!(last.ends_with("nothing of this process was recorded"), "v{version}: {err}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "v{version}");
    }
}

#[test]
fn names_of_communicators_may_be_missing_or_long() {
    for version in fake_nccl::VERSIONS {
        // A longer name is truncated: it would take the space of other definitions.
        for (name, length) in [("null", 0), ("0", 0), ("255", 255), ("256", 255), ("5000", 255)] {
            let options = ["--ops", "2", "--name", name];
            let (played, _) = exact(version, "allreduce", &options, Folded::default());
            let told = played.recording.comms()[0].name.as_deref().unwrap_or("").len();
            // Versions 1 to 3 get no name.
            assert_eq!(told, if version >= 4 { length } else { 0 }, "v{version} {name}");
        }
    }
}

#[test]
fn the_logger_is_called_in_order_or_not_at_all() {
    at_once(|version| {
        let logged = |script: &str, logger: &str, log_to: &str| -> u64 {
            let dir = tempfile::tempdir().unwrap();
            let options = ["--ops", "2", "--threads", "16", "--logger", logger];
            let mut command = command(version, script, dir.path(), &options);
            // A line besides the file's name.
            command.env("NCCLSCOPE_LOG", log_to).env("NCCLSCOPE_MODE", "loud");
            let name = format!("v{version} {script}, logger {logger}, to {log_to}");
            let text = survive(&mut command, &name);
            let count = text.lines().find_map(|l| l.strip_prefix("logged ")).unwrap();
            count.parse().unwrap()
        };
        // Versions 1 to 3 have no logger.
        let expected = if version >= 4 { 2 } else { 0 };
        for script in ["allreduce", "inits", "late"] {
            // The end of the last communicator waits 25 ms for a line. Where the processors are
            // busy, that may be too short.
            let mut counts = (0..5).map(|_| logged(script, "real", "nccl"));
            let last = counts.find(|count| *count >= expected);
            assert_eq!(last, Some(expected), "v{version} {script}");
            assert_eq!(logged(script, "real", "off"), 0, "v{version} {script}");
            assert_eq!(logged(script, "garbage", "off"), 0, "v{version} {script}");
        }
    });
}
