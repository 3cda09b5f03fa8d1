// SPDX-License-Identifier: Apache-2.0
//! The simulator writes ordinary recordings, which show what happened.

use invariants::Expect;
use ncclscope_operations::Timeline;
use ncclscope_simulate::{Fault, FaultGroup, Planted, Scenario, Summary, run};
use ncclscope_trace::progress::{Progress, progress_flags};
use ncclscope_trace::record::{Detail, step_flags};
use ncclscope_trace::{Heartbeat, Recording};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn scenario(fault: Fault, ranks: u32) -> Scenario {
    let mut scenario =
        Scenario { seed: 11, fault: vec![Planted::new(fault)], ..Scenario::default() };
    scenario.job.ranks = ranks;
    scenario.job.steps = 6;
    scenario.job.hold_s = 12;
    scenario
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "nscope"));
    files.sort();
    files
}

fn simulated(scenario: &Scenario) -> (tempfile::TempDir, Summary, Vec<Recording>) {
    let dir = tempfile::tempdir().unwrap();
    let summary = run(scenario, dir.path()).unwrap();
    let recordings = files(dir.path()).iter().map(|path| Recording::open(path).unwrap()).collect();
    (dir, summary, recordings)
}

/// The last progress of each communicator of a process.
fn last_progress(recording: &Recording) -> BTreeMap<u16, Progress> {
    let progress = recording.heartbeats().iter().filter_map(|heartbeat| match heartbeat {
        Heartbeat::Progress(progress) => Some((progress.comm, *progress)),
        _ => None,
    });
    progress.collect()
}

/// Every recording of every fault of a group satisfies every invariant.
fn holds_invariants(group: FaultGroup) {
    for fault in Fault::all().filter(|fault| fault.group() == group) {
        let (_dir, summary, recordings) = simulated(&scenario(fault, 16));
        assert_eq!(recordings.len(), 16);
        assert_eq!(summary.truth.hidden, Vec::<String>::new(), "{}", fault.name());
        let is_hang = group == FaultGroup::Hang;
        assert_eq!(summary.truth.verdicts.len(), usize::from(is_hang), "{}", fault.name());
        assert_eq!(summary.truth.slow.len(), usize::from(group == FaultGroup::Slow));
        for recording in &recordings {
            let overflows = fault == Fault::RingOverflow;
            let expect = Expect { killed_ok: true, lost_ok: overflows, ..Expect::default() };
            let verdict = invariants::check(recording, &expect);
            assert!(verdict.violations.is_empty(), "{} {:#?}", fault.name(), verdict.violations);
            let timeline = Timeline::read(recording, false);
            if !overflows {
                assert_eq!(timeline.orphan_steps(), 0, "{}", fault.name());
                assert_eq!(timeline.unmatched_ends().iter().sum::<u64>(), 0, "{}", fault.name());
            }
            let identity = recording.identity();
            assert!(identity.rank.is_some_and(|rank| rank < 16) && identity.world_size == Some(16));
            let device = identity.device_pci.as_deref();
            assert!(device.is_some() && identity.job.is_some() && identity.other.is_empty());
        }
    }
}

#[test]
fn recordings_of_hangs_hold_every_invariant() {
    holds_invariants(FaultGroup::Hang);
}

#[test]
fn recordings_of_slow_jobs_hold_every_invariant() {
    holds_invariants(FaultGroup::Slow);
}

#[test]
fn recordings_of_controls_hold_every_invariant() {
    holds_invariants(FaultGroup::Control);
}

#[test]
fn a_healthy_job_ends_with_nothing_open_and_equal_counts() {
    let (_dir, summary, recordings) = simulated(&scenario(Fault::Healthy, 16));
    assert!(summary.truth.ended && summary.truth.verdicts.is_empty());
    let mut by_comm: BTreeMap<u64, Vec<Progress>> = BTreeMap::new();
    let mut sent = 0;
    for recording in &recordings {
        assert!(recording.header().closed && recording.problems().is_empty());
        assert!(recording.header().lanes_checksum.is_some());
        let timeline = Timeline::read(recording, false);
        for (_, event) in timeline.events() {
            assert!(event.stop.is_some(), "{event:?}");
        }
        let comms = recording.comms();
        for (index, progress) in last_progress(recording) {
            let comm = comms.iter().find(|comm| comm.index == index).unwrap();
            assert_eq!(progress.flags & progress_flags::ENDED, progress_flags::ENDED);
            assert_eq!((progress.api, progress.enqueued), (progress.done, progress.done));
            assert_eq!(
                (progress.p2p_api, progress.p2p_enqueued),
                (progress.p2p_done, progress.p2p_done)
            );
            assert_eq!(progress.started, progress.done);
            sent += progress.p2p_done;
            by_comm.entry(comm.hash).or_default().push(progress);
        }
    }
    assert!(sent > 0);
    for members in by_comm.values() {
        let same = |p: &Progress| (p.api, p.hash);
        assert!(members.len() > 1 && members.iter().all(|p| same(p) == same(&members[0])));
    }
}

#[test]
fn all_sent_data_is_received() {
    /// Communicator, sender and receiver.
    type Way = (u64, i32, i32);
    let (_dir, _, recordings) = simulated(&scenario(Fault::Healthy, 16));
    // Bytes and steps as each side records them.
    let mut sides: [BTreeMap<Way, (u64, u64)>; 2] = Default::default();
    let mut transfers: [BTreeMap<Way, Vec<u64>>; 2] = Default::default();
    for recording in &recordings {
        let timeline = Timeline::read(recording, true);
        for (op, step) in timeline.steps() {
            let event = timeline.event(*op);
            let Detail::ProxyOp(detail) = event.start.detail else { panic!() };
            let comm = timeline.comm(timeline.comm_of(event).unwrap());
            let ends =
                if detail.is_send { (comm.rank, detail.peer) } else { (detail.peer, comm.rank) };
            assert!(step.has(step_flags::STOPPED | step_flags::SIZED));
            let side = &mut sides[usize::from(detail.is_send)];
            let sum = side.entry((comm.hash, ends.0, ends.1)).or_default();
            *sum = (sum.0 + u64::from(step.size), sum.1 + 1);
        }
        for (_, event) in timeline.events() {
            let Detail::P2p(p2p) = event.start.detail else { continue };
            let comm = timeline.comm(timeline.comm_of(event).unwrap());
            let is_send = timeline.string(p2p.func) == "Send";
            let ends = if is_send { (comm.rank, p2p.peer) } else { (p2p.peer, comm.rank) };
            let side = &mut transfers[usize::from(is_send)];
            side.entry((comm.hash, ends.0, ends.1)).or_default().push(p2p.count);
        }
    }
    assert!(!sides[0].is_empty() && !transfers[0].is_empty());
    assert_eq!(sides[0], sides[1]);
    assert_eq!(transfers[0], transfers[1]);
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let scenario = scenario(Fault::LinkDown, 16);
    let bytes = |scenario: &Scenario| -> Vec<(String, Vec<u8>)> {
        let dir = tempfile::tempdir().unwrap();
        run(scenario, dir.path()).unwrap();
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        files(dir.path()).iter().map(|path| (name(path), std::fs::read(path).unwrap())).collect()
    };
    let first = bytes(&scenario);
    assert_eq!(first.len(), 16);
    assert!(first == bytes(&scenario));
    let other = Scenario { seed: 12, ..scenario };
    assert!(first != bytes(&other));
}

#[test]
fn a_directory_with_recordings_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    run(&scenario(Fault::Healthy, 2), dir.path()).unwrap();
    let again = || run(&scenario(Fault::Healthy, 2), dir.path()).unwrap_err().to_string();
    assert!(again().contains("truth.json"), "{}", again());
    std::fs::remove_file(dir.path().join("truth.json")).unwrap();
    assert!(again().contains(".nscope"), "{}", again());
}
