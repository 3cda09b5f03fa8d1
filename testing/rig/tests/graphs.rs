// SPDX-License-Identifier: Apache-2.0
//! Replays of CUDA graphs are no calls: ranks at different replays have not called different
//! operations. If NCCL reports nothing about replays, the tools say so.

#[path = "common/verdicts.rs"]
#[expect(dead_code, reason = "of the helpers this test needs one")]
mod verdicts;

use rig::job::Job;
use rig::{build, wheel};
use std::process::Command;
use verdicts::diagnose;

/// Seconds after which a wait is a hang, and after which a rank in its last step is ended.
const LIMIT_S: &str = "2";
const HANG_S: &str = "6";
/// Calls of different sizes, which show whether the ranks number them alike.
const CALLS: [&str; 4] = ["allreduce:1000", "allreduce:2000", "allreduce:3000", "allreduce:4000"];

#[test]
fn a_rank_that_launches_no_further_replay_is_the_cause_and_called_nothing_else() {
    for version in ["2.28.9", "2.30.7", "2.32.3"] {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let record = tempfile::tempdir().expect("a folder");
        let job = Job::new(&nccl).expect("the stand-in builds");
        let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin());
        let job = job.env("NCCLSCOPE_DIR", record.path()).env("NCCLSCOPE_HANG_SEC", LIMIT_S);
        let job = job.keep_going().arg("--hang-s").arg(HANG_S);
        let steps = |last: &[&'static str]| [&CALLS[..], last].concat();
        let job = job.rank_steps(0, steps(&["graph:5x4096"]));
        let job = job.rank_steps(1, steps(&["graph:3x4096", "sleep:60000"]));
        let _ends_by_force = job.run().expect("ranks start");
        let found = diagnose(record.path(), LIMIT_S);
        let found: Vec<_> =
            found.iter().map(|(class, _, ranks)| (class.as_str(), &ranks[..])).collect();
        assert_eq!(found, [("H1a", &[1][..])], "{version}");
    }
}

/// What a verb of the tool prints.
fn tool(words: &[&str], record: &std::path::Path) -> String {
    let output = Command::new(build::tool()).args(words).arg(record).output();
    String::from_utf8(output.expect("the tool starts").stdout).expect("text")
}

#[test]
fn replays_that_nccl_reports_nothing_of_are_said_to_be_invisible() {
    for version in ["2.28.9", "2.30.7"] {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        for kernel in ["on", "off"] {
            let record = tempfile::tempdir().expect("a folder");
            let job = Job::new(&nccl).expect("the stand-in builds").hosts(1).devices(2);
            let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin());
            let job = job.env("NCCLSCOPE_DIR", record.path()).env("NCCLSCOPE_KERNEL", kernel);
            job.steps(["graph:5x4096"]).run().expect("ranks start").expect_success();
            let (case, is_off) = (format!("{version}, kernel events {kernel}"), kernel == "off");
            let report = tool(&["report", "--full"], record.path());
            assert_eq!(report.contains("operations are invisible"), is_off, "{case}: {report}");
            let metrics = tool(&["agent", "--once", "--dir"], record.path());
            let has = |name: &str| metrics.contains(&format!("\n{name}{{"));
            assert!(has("nccl_graph_calls_total"), "{case}: {metrics}");
            assert_eq!(has("nccl_graph_invisible_total"), is_off, "{case}: {metrics}");
            assert_eq!(has("nccl_operations_total"), !is_off, "{case}: {metrics}");
        }
    }
}
