// SPDX-License-Identifier: Apache-2.0
//! Stopped processes (SIGSTOP, a frozen control group) are reported as stopped, and not as dead.

#[path = "common/cgroup.rs"]
#[expect(dead_code, reason = "of the groups this test needs those with a freezer")]
mod cgroup;
#[path = "common/verdicts.rs"]
mod verdicts;

use cgroup::Group;
use rig::job::{Job, Running};
use rig::topology::Topology;
use rig::{build, wheel};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use verdicts::{Verdict, diagnose, stragglers};

const RELEASES: [&str; 2] = ["2.27.7", "2.32.3"];
const LIMIT_S: &str = "2";
/// Longer than the limit, and than the interval in which a heartbeat must come.
const PATIENCE: Duration = Duration::from_secs(7);

/// Starts three ranks, which record into `record`.
fn start(nccl: &Path, record: &Path) -> Running {
    let job = Job::new(nccl).expect("the stand-in builds").topology(Topology::Ring3);
    let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin()).env("NCCLSCOPE_DIR", record);
    let steps = ["allreduce:4096", "repeat:1000000:allreduce:4096"];
    let mut job = job.steps(steps).start().expect("ranks start");
    assert!((0..3).all(|rank| job.wait_for_line(rank, &format!("rank {rank} allreduce"))));
    job
}

fn signal(job: &Running, rank: usize, number: i32) {
    let pid = i32::try_from(job.pid(rank)).expect("a process id");
    // SAFETY: no precondition; the process is a child that was not waited for.
    unsafe { libc::kill(pid, number) };
}

fn gone(ranks: &[u64]) -> Vec<Verdict> {
    vec![("H1b".into(), "confirmed".into(), ranks.to_vec())]
}

fn text(record: &Path) -> String {
    let mut tool = Command::new(build::tool());
    let output = tool.args(["diagnose", "--hang-sec", LIMIT_S]).arg(record).output();
    String::from_utf8(output.expect("the tool starts").stdout).expect("text")
}

#[test]
fn a_stopped_rank_is_told_as_stopped_and_a_killed_one_as_gone() {
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        for (number, is_stopped) in [(libc::SIGSTOP, true), (libc::SIGKILL, false)] {
            let record = tempfile::tempdir().expect("a folder");
            let job = start(&nccl, record.path());
            signal(&job, 1, number);
            std::thread::sleep(PATIENCE);
            assert_eq!(diagnose(record.path(), LIMIT_S), gone(&[1]), "{version}, {number}");
            let text = text(record.path());
            assert_eq!(text.contains("exists and is stopped (state T)"), is_stopped, "{text}");
            assert_eq!(text.contains("has written no record since"), !is_stopped, "{text}");
        }
    }
}

#[test]
fn a_job_that_is_stopped_as_a_whole_is_told_as_stopped() {
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let record = tempfile::tempdir().expect("a folder");
        let job = start(&nccl, record.path());
        (0..3).for_each(|rank| signal(&job, rank, libc::SIGSTOP));
        std::thread::sleep(PATIENCE);
        assert_eq!(diagnose(record.path(), LIMIT_S), gone(&[0, 1, 2]), "{version}");
        (0..3).for_each(|rank| signal(&job, rank, libc::SIGCONT));
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(diagnose(record.path(), LIMIT_S), [], "{version}: it goes on");
    }
}

#[test]
fn a_rank_whose_group_is_frozen_is_told_as_frozen() {
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let groups = Group::with_freezer();
        if groups.is_empty() {
            eprintln!("left out: no control group can be frozen here (root, `freezer`)");
        }
        for group in &groups {
            let record = tempfile::tempdir().expect("a folder");
            let job = start(&nccl, record.path());
            group.take(job.pid(1));
            group.freeze(true);
            std::thread::sleep(PATIENCE);
            assert_eq!(diagnose(record.path(), LIMIT_S), gone(&[1]), "{version}");
            let text = text(record.path());
            assert!(text.contains("exists and is frozen, with its control group"), "{text}");
            assert!(text.contains("frozen, by its control group (a paused container)"), "{text}");
            group.freeze(false);
            std::thread::sleep(Duration::from_secs(3));
            assert_eq!(diagnose(record.path(), LIMIT_S), [], "{version}: it goes on");
            // None of the stopped time is attributed to a link. Links between the other ranks may
            // be suspected, because this machine is busy.
            let found = stragglers(record.path());
            let is_blamed = |(class, confidence, ranks): &&Verdict| {
                let is_link = ["S3", "S4", "S5"].contains(&class.as_str());
                is_link && (confidence == "confirmed" || ranks.contains(&1))
            };
            assert_eq!(found.iter().find(is_blamed), None, "{version}: {found:?}");
        }
    }
}
