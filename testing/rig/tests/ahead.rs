// SPDX-License-Identifier: Apache-2.0
//! Hosts that are ahead of their GPUs, which have other work before NCCL's. This is no hang, or
//! only a suspected one.

#[path = "common/verdicts.rs"]
#[expect(dead_code, reason = "of the helpers this test needs one")]
mod verdicts;

use rig::job::Job;
use rig::topology::Topology;
use rig::{build, wheel};
use verdicts::{Verdict, diagnose};

const RELEASES: [&str; 2] = ["2.28.9", "2.30.7"];
/// Seconds after which a rank in its last step is ended.
const HANG_S: &str = "8";
const LIMIT_S: &str = "4";
/// The verdicts on a job of two ranks with these steps, which are ended in their last step.
fn verdicts(version: &str, steps: [&[&'static str]; 2]) -> Option<Vec<Verdict>> {
    let nccl = wheel::find_or_skip(version)?;
    let record = tempfile::tempdir().expect("a folder");
    let job = Job::new(&nccl).expect("the stand-in builds").topology(Topology::P2pCumem);
    let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin());
    let job = job.env("NCCLSCOPE_KERNEL", "on").env("NCCLSCOPE_DIR", record.path());
    let job = job.keep_going().arg("--hang-s").arg(HANG_S);
    let [first, second] = steps.map(<[&str]>::to_vec);
    let job = job.rank_steps(0, first).rank_steps(1, second);
    let _ends_by_force = job.run().expect("ranks start");
    Some(diagnose(record.path(), LIMIT_S))
}

fn verdict(confidence: &str, ranks: &[u64]) -> Verdict {
    ("H3a".into(), confidence.into(), ranks.to_vec())
}

#[test]
fn gpus_that_are_all_busy_with_other_work_are_suspects() {
    let busy = ["allreduce:4096", "allreduce:4096", "busy:60000", "start:262144", "sleep:60000"];
    let free = ["allreduce:4096", "allreduce:4096", "sleep:1", "start:262144", "sleep:60000"];
    for version in RELEASES {
        let Some(both) = verdicts(version, [&busy, &busy]) else { continue };
        assert_eq!(both, [verdict("suspect", &[0, 1])], "{version}");
        // The other rank's kernel runs.
        let one = verdicts(version, [&free, &busy]);
        assert_eq!(one, Some(vec![verdict("confirmed", &[1])]), "{version}");
    }
}

/// The last operation was enqueued at the beginning, and the operation before it ended just now.
#[test]
fn an_operation_waits_for_the_one_before_it() {
    let steps = ["allreduce:4096", "busy:6000", "start:4096", "busy:60000", "start:4096"];
    let steps = [&steps[..], &["sleep:60000"]].concat();
    for version in RELEASES {
        let Some(found) = verdicts(version, [&steps, &steps]) else { continue };
        assert_eq!(found, [], "{version}");
    }
}
