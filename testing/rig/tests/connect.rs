// SPDX-License-Identifier: Apache-2.0
//! Ranks that wait while NCCL connects them, inside the first call that needs a connection:
//! `diagnose` names the ranks for which they wait, and not these ranks as the cause.
//!
//! Three ranks over sockets. NCCL connects sends and receives in their first call, and collectives
//! too if it uses virtual memory (`NCCL_RUNTIME_CONNECT`). Before 2.28 it reports no calls.

#[path = "common/verdicts.rs"]
#[expect(dead_code, reason = "of the helpers this test needs one")]
mod verdicts;

use rig::job::Job;
use rig::topology::Topology;
use rig::{build, wheel};
use verdicts::{Verdict, diagnose};

const RELEASES: [&str; 3] = ["2.28.9", "2.30.7", "2.32.3"];
/// The last release that reports no calls.
const SILENT: &str = "2.27.7";
/// Seconds after which a wait is a hang, and after which a rank in its last step is ended.
const LIMIT_S: &str = "2";
const HANG_S: &str = "4";
const AWAY: &str = "sleep:60000";
/// A rank with this step ends long before the others.
const ENDS: &str = "sleep:500";

/// Whether NCCL connects the ranks for collectives when the communicator is created, or in the
/// first call.
#[derive(Clone, Copy)]
enum Connects {
    AtInit,
    AtFirstCall,
}

/// The verdicts on three ranks with these steps, which are ended in their last step.
fn verdicts(
    version: &str,
    connects: Connects,
    steps: [&[&'static str]; 3],
) -> Option<Vec<Verdict>> {
    let nccl = wheel::find_or_skip(version)?;
    let record = tempfile::tempdir().expect("a folder");
    let job = Job::new(&nccl).expect("the stand-in builds").topology(Topology::Ring3);
    let job = match connects {
        Connects::AtInit => job,
        Connects::AtFirstCall => job.env("NCCL_CUMEM_ENABLE", "1").env("CPU_CUDA_VMM", "1"),
    };
    let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin());
    let job = job.env("NCCLSCOPE_DIR", record.path()).keep_going().arg("--no-destroy");
    let job = job.arg("--hang-s").arg(HANG_S);
    let ranks = steps.iter().enumerate();
    let job = ranks.fold(job, |job, (rank, steps)| job.rank_steps(rank, steps.to_vec()));
    let _ends_by_force = job.run().expect("ranks start");
    Some(diagnose(record.path(), LIMIT_S))
}

fn verdict(class: &str, confidence: &str, ranks: &[u64]) -> Verdict {
    (class.into(), confidence.into(), ranks.to_vec())
}

fn confirmed(class: &str, ranks: &[u64]) -> Vec<Verdict> {
    vec![verdict(class, "confirmed", ranks)]
}

/// Asserts the verdicts in each release if all ranks except rank 1 make these calls, and rank 1
/// does `other`.
#[track_caller]
fn expect(connects: Connects, calls: &[&'static str], other: &[&'static str], found: &[Verdict]) {
    for version in RELEASES {
        let Some(here) = verdicts(version, connects, [calls, other, calls]) else { continue };
        assert_eq!(here, found, "{version}, {calls:?}, {other:?}");
    }
}

#[test]
fn the_first_sends_and_receives_wait_for_a_rank_that_is_elsewhere() {
    // The calls of the ranks that wait may not match.
    let suspect = [verdict("H1a", "suspect", &[1])];
    expect(Connects::AtInit, &["sendrecv:4096"], &[AWAY], &suspect);
    let before = ["allreduce:4096", "allreduce:4096", "sendrecv:4096"];
    expect(Connects::AtFirstCall, &before, &[before[0], before[1], AWAY], &suspect);
}

#[test]
fn the_first_sends_and_receives_wait_for_a_rank_that_has_ended() {
    expect(Connects::AtInit, &["sendrecv:4096"], &[ENDS], &[verdict("H1b", "suspect", &[1])]);
}

#[test]
fn the_first_sends_and_receives_come_late_or_at_once() {
    let calls = ["sendrecv:4096", AWAY];
    expect(Connects::AtInit, &calls, &["sleep:3000", "sendrecv:4096", AWAY], &[]);
    expect(Connects::AtInit, &calls, &calls, &[]);
}

#[test]
fn the_first_collective_waits_for_a_rank_that_is_elsewhere() {
    expect(Connects::AtFirstCall, &["allreduce:4096"], &[AWAY], &confirmed("H1a", &[1]));
    expect(Connects::AtFirstCall, &["group:3x4096"], &[AWAY], &confirmed("H1a", &[1]));
    expect(Connects::AtInit, &["allreduce:4096"], &[AWAY], &confirmed("H1a", &[1]));
}

#[test]
fn the_first_collective_waits_for_a_rank_that_has_ended() {
    expect(Connects::AtFirstCall, &["allreduce:4096"], &[ENDS], &confirmed("H1b", &[1]));
}

#[test]
fn the_first_collective_comes_late_or_at_once() {
    let calls = ["allreduce:4096", AWAY];
    expect(Connects::AtFirstCall, &calls, &["sleep:3000", "allreduce:4096", AWAY], &[]);
    expect(Connects::AtFirstCall, &calls, &calls, &[]);
}

/// NCCL reports no peer: each rank that does not wait itself may be the peer.
#[test]
fn a_lone_send_waits_for_one_of_the_ranks_that_wait_for_none() {
    for version in RELEASES {
        let steps: [&[&'static str]; 3] = [&["send:1x4096"], &[AWAY], &[AWAY]];
        let Some(both) = verdicts(version, Connects::AtInit, steps) else { continue };
        assert_eq!(both, [verdict("H1a", "suspect", &[1, 2])], "{version}");
        let steps: [&[&'static str]; 3] = [&["send:1x4096"], &[ENDS], &[AWAY]];
        let either = [verdict("H1a", "suspect", &[2]), verdict("H1b", "suspect", &[1])];
        assert_eq!(verdicts(version, Connects::AtInit, steps).as_deref(), Some(&either[..]));
        // The ranks that have met are connected.
        let steps: [&[&'static str]; 3] = [
            &["sendrecv:4096", "send:2x4096"],
            &["sendrecv:4096", AWAY],
            &["sendrecv:4096", "skip", AWAY],
        ];
        let other = verdicts(version, Connects::AtInit, steps);
        assert_eq!(other, Some(confirmed("H1a", &[2])), "{version}");
    }
}

/// NCCL stops the transfers of a kernel together: those with ranks that arrived have moved all
/// their data. The sleeping rank last called NCCL before the others began to wait.
#[test]
fn an_all_to_all_waits_for_the_rank_that_did_not_come_only() {
    for version in RELEASES {
        let twice = &["alltoall:20000", "alltoall:20000"][..];
        let steps = [twice, &["alltoall:20000", AWAY], twice];
        let Some(found) = verdicts(version, Connects::AtInit, steps) else { continue };
        assert_eq!(found, confirmed("H1a", &[1]), "{version}");
    }
}

#[test]
fn a_rank_that_connects_to_one_that_called_something_else_is_in_a_circle() {
    for version in RELEASES {
        let collective = &["allreduce:4096"][..];
        let steps = [&["send:1x4096"][..], collective, collective];
        let Some(found) = verdicts(version, Connects::AtInit, steps) else { continue };
        assert_eq!(found, confirmed("DEADLOCK", &[0, 1, 2]), "{version}");
    }
}

/// No verdict is better than a wrong one.
#[test]
fn a_release_that_reports_no_calls_shows_no_wait() {
    let calls = &["sendrecv:4096"][..];
    let Some(found) = verdicts(SILENT, Connects::AtInit, [calls, &[AWAY], calls]) else { return };
    assert_eq!(found, []);
}

/// From 2.29 on, NCCL reports only the call of a Broadcast: it must not count as a call that was
/// never enqueued.
#[test]
fn a_rank_that_stays_away_after_a_broadcast_has_stopped_calling() {
    let before = ["broadcast:4096", "allreduce:4096"];
    let calls = [before[0], before[1], "allreduce:4096"];
    expect(Connects::AtInit, &calls, &[before[0], before[1], AWAY], &confirmed("H1a", &[1]));
}

/// The wait of the others in the Broadcast is only probable: the evidence is that one rank has not
/// called it.
#[test]
fn a_rank_that_does_not_come_to_a_broadcast_is_suspected() {
    let calls = ["broadcast:4096", "broadcast:4096", AWAY];
    for version in ["2.30.7", "2.32.3"] {
        let away = [calls[0], AWAY];
        let at_init = Connects::AtInit;
        let Some(found) = verdicts(version, at_init, [&calls, &away, &calls]) else { continue };
        assert_eq!(found, [verdict("H1a", "suspect", &[1])], "{version}");
        let found = verdicts(version, at_init, [&calls, &calls, &calls]);
        assert_eq!(found, Some(vec![]), "{version}: all have called it");
    }
}
