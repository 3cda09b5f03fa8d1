// SPDX-License-Identifier: Apache-2.0
//! A rank on which NCCL runs an operation otherwise than on the others, because of a variable:
//! `diagnose` names it, and no GPU and no path.

#[path = "common/verdicts.rs"]
#[expect(dead_code, reason = "of the helpers this test needs one")]
mod verdicts;

use rig::job::Job;
use rig::topology::Topology;
use rig::{build, wheel};
use verdicts::diagnose;

const RELEASES: [&str; 2] = ["2.27.7", "2.28.9"];
/// Seconds after which a wait is a hang, and after which a rank in its last step is ended.
const LIMIT_S: &str = "2";
const HANG_S: &str = "6";

/// Runs three ranks on as many hosts, the second with another value of the variable.
fn expect_the_second(variable: &str, value: &str) {
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let record = tempfile::tempdir().expect("a folder");
        let job = Job::new(&nccl).expect("the stand-in builds").topology(Topology::Ring3);
        let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin()).env("NCCL_PROTO", "Simple");
        let job = job.env("NCCLSCOPE_DIR", record.path()).keep_going().arg("--no-destroy");
        let job = job.rank_env(1, variable, value).arg("--hang-s").arg(HANG_S);
        let _ends_by_force = job.steps(["allreduce:1048576"]).run().expect("ranks start");
        let found = diagnose(record.path(), LIMIT_S);
        let expected = [("H2c".to_owned(), "confirmed".to_owned(), vec![1])];
        assert_eq!(found, expected, "{version}, {variable}={value}");
    }
}

#[test]
fn another_protocol_is_the_odd_ranks() {
    expect_the_second("NCCL_PROTO", "LL");
}

#[test]
fn other_steps_are_the_odd_ranks() {
    expect_the_second("NCCL_BUFFSIZE", "65536");
}
