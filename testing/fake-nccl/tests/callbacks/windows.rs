// SPDX-License-Identifier: Apache-2.0
//! Recording that is started and stopped at run time, and the rest of the C functions.

use crate::common::{Found, Played, command, only, play, survive};
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::record::Detail;
use ncclscope_trace::{EventKind as K, Handle, Mark, MarkKind, Recording, State};
use std::collections::BTreeMap;

fn operations(found: &Found) -> Vec<u64> {
    let seq = |detail: &Detail| match detail {
        Detail::Coll(coll) => coll.seq,
        _ => unreachable!("a Coll"),
    };
    found.all(K::Coll).into_iter().map(|start| seq(&start.detail)).collect()
}

/// Asserts that nothing was lost or misinterpreted.
fn nothing_lost(played: &Played) {
    let header = played.recording.header();
    assert_eq!((header.stale, header.unknown_events, header.overwritten), (0, 0, [0; KINDS]));
    assert_eq!((header.without_memory(), header.unwritten), ([0; KINDS], [0; KINDS]));
    for lane in played.recording.lanes() {
        assert_eq!((lane.header.lost, lane.header.lost_ends), ([0; KINDS], [0; KINDS]));
    }
}

/// Asserts that every recorded operation has all of its parts.
fn whole(version: usize, found: &Found) {
    let ops = operations(found).len();
    let since = |since: usize, count: usize| if version >= since { count * ops } else { 0 };
    let parts = [
        (K::Group, since(1, 1)),
        (K::Coll, since(1, 1)),
        (K::ProxyOp, since(1, 4)),
        (K::ProxyStep, since(1, 16)),
        (K::KernelCh, since(3, 2)),
        (K::GroupApi, since(5, 1)),
        (K::CollApi, since(5, 1)),
        (K::KernelLaunch, since(5, 1)),
    ];
    let parts: BTreeMap<K, usize> = parts.into_iter().filter(|part| part.1 > 0).collect();
    let mut kinds = found.kinds();
    if version >= 5 {
        // From version 5 on, a Group has no parent and is not part of an operation: it may begin in
        // a window without its operations.
        kinds.insert(K::Group, ops);
    }
    assert_eq!(kinds, parts, "v{version}");
    let stopped = |handle: &Handle| found.stops.get(handle) == Some(&1);
    let unstopped: Vec<_> = found.events.keys().filter(|h| !stopped(h)).collect();
    assert_eq!(unstopped, [] as [&Handle; 0], "v{version}");
}

#[test]
fn a_window_has_exactly_the_operations_issued_in_it() {
    for version in fake_nccl::VERSIONS {
        let played = play(version, "windows", false, &["--ops", "30"]);
        let issued: Vec<u64> = played
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("recorded ")?.parse().ok())
            .collect();
        assert_eq!(issued.len(), 20);
        let found = Found::read(&played.recording);
        assert_eq!(operations(&found), issued, "v{version}");
        whole(version, &found);
        nothing_lost(&played);
        let what: Vec<MarkKind> = played.recording.marks().iter().map(|mark| mark.what).collect();
        let expected: Vec<MarkKind> = [MarkKind::Start]
            .into_iter()
            .chain([MarkKind::Stop, MarkKind::Start].repeat(10))
            .collect();
        assert_eq!(what, expected, "v{version}");
    }
}

#[test]
fn a_thousand_toggles_under_way_leave_whole_operations_only() {
    for version in [1, 4, 6, 7] {
        let played = play(version, "toggles", false, &["--ops", "1000"]);
        let found = Found::read(&played.recording);
        nothing_lost(&played);
        whole(version, &found);
        let marks = played.recording.marks();
        assert_eq!(marks.len(), 2001, "v{version}");
        let root = if version >= 5 { K::GroupApi } else { K::Group };
        let roots: Vec<u64> = found.all(root).iter().map(|start| start.ticks).collect();
        // A callback that was running when recording was stopped may have a later timestamp.
        for (stopped, started) in pauses(marks) {
            let inside = roots.iter().filter(|at| (stopped..started).contains(at)).count();
            assert!(inside <= 1, "v{version}: {inside} operations between {stopped} and {started}");
        }
        assert!(roots.len() > 10, "v{version}: {} operations", roots.len());
    }
}

/// From each stop to the start after it, in ticks.
fn pauses(marks: &[Mark]) -> Vec<(u64, u64)> {
    let ticks = |what: MarkKind| marks.iter().filter(move |m| m.what == what).map(|m| m.ticks);
    ticks(MarkKind::Stop).zip(ticks(MarkKind::Start).skip(1)).collect()
}

#[test]
fn a_sample_is_the_same_in_all_ranks_and_counts_the_rest() {
    for version in [1, 6] {
        let played = play(version, "sampled", false, &["--ops", "40"]);
        let found = Found::read(&played.recording);
        assert_eq!(operations(&found), (0..40).step_by(4).collect::<Vec<_>>());
        let kinds = found.kinds();
        assert_eq!((kinds[&K::P2p], kinds[&K::ProxyOp]), (10, 10 * 4 + 10));
        assert_eq!(played.recording.header().left_out, 60);
        nothing_lost(&played);
    }
}

#[test]
fn recording_that_is_off_at_first_waits_for_a_start() {
    let script = |start: &str| {
        let played = crate::common::play_with(
            6,
            "allreduce",
            false,
            &["--ops", "5"],
            &[("NCCLSCOPE_START", start)],
        );
        let ops = operations(&Found::read(&played.recording)).len();
        nothing_lost(&played);
        (ops, played.recording.marks().len())
    };
    assert_eq!(script("on"), (5, 1));
    assert_eq!(script("off"), (0, 0));
    assert_eq!(script("steps=3"), (0, 0), "no step was set");
    assert_eq!(script("for=1h"), (5, 1));
}

#[test]
fn marks_steps_roles_ids_and_dumps() {
    let dir = tempfile::tempdir().unwrap();
    let (run, dumps) = (dir.path().join("run"), dir.path().join("dumps/of this"));
    let mut process = command(6, "application", &run, &["--ops", "2"]);
    survive(process.env("FAKE_NCCL_DUMPS", &dumps), "application");
    for recording in [only(&run, "the recording"), only(&dumps, "the dump")] {
        assert_eq!(recording.problems(), [] as [String; 0]);
        assert!(recording.header().closed);
        moments(&recording);
        let role = recording.comms().iter().find_map(|comm| recording.role(comm));
        assert_eq!(role, Some("tp"));
        let found = Found::read(&recording);
        assert_eq!(operations(&found).len(), 6, "dumped while the process went on");
        external_ids(&found);
    }
}

fn moments(recording: &Recording) {
    let marks: Vec<(MarkKind, u64, Option<&str>)> = recording
        .marks()
        .iter()
        .map(|mark| (mark.what, mark.value, recording.string(mark.name)))
        .collect();
    let expected = [
        (MarkKind::Start, 1, None),
        (MarkKind::Step, 0, None),
        (MarkKind::Step, 1, None),
        (MarkKind::Note, 0, Some("half way")),
    ];
    assert_eq!(marks, expected);
}

fn external_ids(found: &Found) {
    let of = |kind: K| {
        let states = found.states.iter().filter(move |s| s.1 == State::EXTERNAL_ID);
        states.filter(move |s| s.0.kind() == kind).map(|s| s.3).collect::<Vec<_>>()
    };
    assert_eq!(of(K::CollApi), [2000, 1000, 2001, 1001]);
    assert_eq!(of(K::GroupApi), of(K::CollApi));
}

#[test]
fn signals_toggle_and_dump_if_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let mut process = command(6, "signalled", &run, &["--ops", "1"]);
    survive(process.env("NCCLSCOPE_SIGNAL", "toggle:USR1,dump:USR2"), "signalled");
    let mut recordings = Vec::new();
    for entry in std::fs::read_dir(&run).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => recordings.push(only(&path, "the dump")),
            false => recordings.push(Recording::open(&path).unwrap()),
        }
    }
    assert_eq!(recordings.len(), 2);
    for recording in recordings {
        assert_eq!(operations(&Found::read(&recording)), [0, 2]);
    }
    // Without the variable the signals have their default effect.
    let mut process = command(6, "signalled", &dir.path().join("other"), &["--ops", "1"]);
    let output = process.output().unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(output.status.signal(), Some(libc::SIGUSR1), "{output:?}");
}
