// SPDX-License-Identifier: Apache-2.0
//! Handles, contexts, types and states that should not occur, but occur.

use crate::common::{Folded, Found, NO_COMM, command, exact, survive};
use ncclscope_trace::record::{Detail, KernelCh, step_flags};
use ncclscope_trace::{EventKind as K, StrId};

const OPS: usize = 5;

/// The number of kinds of the version; the scripts play one event of each.
const fn kinds(version: usize) -> u64 {
    [6, 6, 8, 8, 12, 15, 16][version - 1]
}

fn run(version: usize, script: &str, ops: usize, folded: Folded) -> (u64, u64, Found) {
    let (played, found) = exact(version, script, &["--ops", &ops.to_string()], folded);
    let header = played.recording.header();
    (header.stale, header.unknown_events, found)
}

#[test]
fn null_is_taken_wherever_a_pointer_goes() {
    for version in fake_nccl::VERSIONS {
        // The one step gets its first and third state twice.
        let folded = Folded { states: 2, ..Folded::default() };
        let (stale, unknown, found) = run(version, "nulls", 1, folded);
        // 26 of the 32 states do not belong to steps.
        assert_eq!((stale, unknown), (0, 26), "v{version}");
        let strays = found.all(K::Group).iter().filter(|g| g.comm == NO_COMM).count();
        assert_eq!((found.all(K::Group).len(), strays), (2, 1), "v{version}");
        let (_, step) = found.steps[0];
        assert!(!step.has(step_flags::SIZED), "v{version}: NULL arguments have no size");
    }
}

/// Some replayers forbid this: the plugin may not even call `clock_gettime` then.
#[test]
fn a_process_that_must_not_read_the_counter_goes_on_without_a_recording() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let mut command = command(6, "ctrl", &run, &["--tsc", "forbidden"]);
    survive(&mut command, "no counter");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.matches("PR_SET_TSC").count(), 1, "{text}");
    assert!(!run.exists(), "nothing is recorded");
}

#[test]
fn names_may_be_missing() {
    for version in fake_nccl::VERSIONS {
        let (_, _, found) = run(version, "nameless", OPS, Folded::default());
        for coll in found.all(K::Coll) {
            let Detail::Coll(d) = coll.detail else { unreachable!() };
            let none = [d.func, d.datatype, d.algo, d.proto].iter().all(|&s| s == StrId::NONE);
            assert_eq!(none, version > 1, "v{version}: version 1 has codes");
        }
        for api in found.all(K::CollApi) {
            let Detail::CollApi(d) = api.detail else { unreachable!() };
            assert_eq!((d.func, d.datatype), (StrId::NONE, StrId::NONE), "v{version}");
        }
        let expected = [(K::P2p, 1), (K::P2pApi, 5), (K::CeColl, 6), (K::KernelPhase, 7)];
        for (kind, since) in expected {
            let played = if version >= since { OPS } else { 0 };
            assert_eq!(found.all(kind).len(), played, "v{version}: {kind}");
        }
    }
}

#[test]
fn a_second_stop_and_a_state_after_it_change_no_step_and_no_operation() {
    for version in fake_nccl::VERSIONS {
        let (stale, unknown, found) = run(version, "twice", OPS, Folded::default());
        // Stale are only callbacks on slots: two second stops, and the step's state. For other
        // kinds, readers recognise the second stop by its handle.
        assert_eq!((stale, unknown), (3 * OPS as u64, 0), "v{version}");
        for (handle, stops) in &found.stops {
            let slot = matches!(handle.kind(), K::ProxyOp);
            assert_eq!(*stops, if slot { 1 } else { 2 }, "v{version} {handle:?}");
        }
        assert_eq!(found.steps.len(), OPS);
        let bare = |s: u8| s & !(step_flags::IS_SEND | step_flags::STOPPED) == 0;
        assert!(found.steps.iter().all(|(_, s)| bare(s.flags)), "v{version}");
    }
}

#[test]
fn events_after_finalize_are_recorded_with_their_communicator() {
    for version in fake_nccl::VERSIONS {
        let (played, found) =
            exact(version, "late", &["--ops", "5", "--end", "exit"], Folded::default());
        assert_eq!(played.recording.header().stale, 0, "v{version}");
        let ended = played.recording.comm_end(0).expect("it was finalized");
        let late = |s: &&ncclscope_trace::Start| s.comm == 0 && s.ticks > ended;
        let each = match version {
            1..=2 => 7,
            3..=4 => 9,
            _ => 12,
        };
        assert_eq!(found.events.values().filter(late).count(), each * OPS, "v{version}");
        assert_eq!(found.all(K::Coll).len(), 1 + OPS + 1, "v{version}");
        assert_eq!(played.recording.comms().len(), 2, "it comes back after the last one");
        let open: Vec<_> = found.events.keys().filter(|h| !found.stops.contains_key(h)).collect();
        assert!(open.is_empty(), "v{version}: {open:?}");
    }
}

#[test]
fn unknown_types_and_states_are_counted_and_nothing_else() {
    for version in fake_nccl::VERSIONS {
        let (stale, unknown, found) = run(version, "unknown", OPS, Folded::default());
        // Five types; of each kind, four states that do not fit into a byte; and three more states
        // of the step.
        let expected = (5 + 4 * kinds(version) + 3) * OPS as u64;
        assert_eq!((stale, unknown), (0, expected), "v{version}");
        assert!(found.states.iter().all(|s| s.1.name().is_none()), "v{version}");
    }
}

#[test]
fn handles_that_never_were_touch_nothing() {
    for version in fake_nccl::VERSIONS {
        let (stale, unknown, found) = run(version, "wild", 1, Folded::default());
        assert!(stale > 0, "v{version}");
        assert_eq!(unknown, 0, "v{version}");
        assert_eq!(found.steps.len(), 1, "v{version}: only the real step is one");
        let (_, step) = found.steps[0];
        assert_eq!(step.flags, step_flags::IS_SEND | step_flags::STOPPED, "v{version}");
        // An invented handle may be that of a later event: stopped early, and again when it ends.
        for (handle, start) in &found.events {
            assert!(found.stops.contains_key(handle), "v{version} {start:?}");
        }
    }
}

#[test]
fn a_step_started_at_every_poll_is_one_step() {
    for version in fake_nccl::VERSIONS {
        let folded = Folded { starts: 8 * 1000, ..Folded::default() };
        let (stale, _, found) = run(version, "restarts", 1000, folded);
        assert_eq!((stale, found.steps.len()), (0, 8), "v{version}");
        assert!(found.steps.iter().all(|(_, s)| s.has(step_flags::STOPPED)), "v{version}");
    }
}

#[test]
fn waiting_for_the_peer_is_stamped_once_and_counted() {
    for version in 4..=7 {
        let counted = u64::from(u16::MAX);
        let folded = Folded { states: 100_000 - 1 - counted, ..Folded::default() };
        let (stale, unknown, found) = run(version, "peer-wait", 100_000, folded);
        assert_eq!((stale, unknown), (0, 0), "v{version}");
        let (_, step) = found.steps[0];
        assert_eq!((step.repeats, step.size), (u16::MAX, 4096), "v{version}");
        assert!(step.states[1] <= step.states[2] && step.states[2] <= step.end, "{step:?}");
    }
}

#[test]
fn steps_that_are_never_stopped_end_with_the_next_or_their_operation() {
    for version in fake_nccl::VERSIONS {
        let (stale, _, found) = run(version, "unstopped", 100, Folded::default());
        assert_eq!((stale, found.steps.len()), (0, 100), "v{version}");
        assert!(found.steps.iter().all(|(_, s)| !s.has(step_flags::STOPPED)), "v{version}");
        let mut numbers: Vec<u32> = found.steps.iter().map(|(_, s)| s.step).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>(), "v{version}");
    }
}

#[test]
fn a_call_stopped_again_and_again_stays_one_call() {
    for version in 5..=7 {
        let (stale, unknown, found) = run(version, "toggle", 1000, Folded::default());
        assert_eq!((stale, unknown), (0, 0), "v{version}");
        let calls = found.all(K::CollApi);
        assert_eq!((calls.len(), found.stops[&calls[0].handle]), (1, 1001), "v{version}");
        assert_eq!(found.all(K::Coll)[0].parent, calls[0].handle, "v{version}");
    }
}

#[test]
fn times_of_the_gpu_are_kept_as_they_come() {
    for version in 4..=7 {
        let (_, _, found) = run(version, "ptimers", 1, Folded::default());
        let pairs: Vec<(u64, u64)> = found
            .all(K::KernelCh)
            .into_iter()
            .map(|start| {
                let Detail::KernelCh(KernelCh { ptimer, .. }) = start.detail else {
                    unreachable!()
                };
                (ptimer, found.states.iter().find(|s| s.0 == start.handle).unwrap().3)
            })
            .collect();
        let expected = [(0, 0), (0, 500), (500, 0), (700, 600), (800, 800), (u64::MAX, 1)];
        assert_eq!(pairs, expected, "v{version}");
    }
}
