// SPDX-License-Identifier: Apache-2.0
//! Stopped processes (SIGSTOP) are told as stopped, and not as dead.

#[path = "common/verdicts.rs"]
#[expect(dead_code, reason = "of the helpers this test needs one")]
mod verdicts;

use rig::job::{Job, Running};
use rig::topology::Topology;
use rig::{build, wheel};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use verdicts::{Verdict, diagnose};

const RELEASES: [&str; 2] = ["2.27.7", "2.32.3"];
const LIMIT_S: &str = "2";
/// Longer than the limit, and than the time in which a heartbeat must come.
const PATIENCE: Duration = Duration::from_secs(7);

/// Three ranks at work, which record there.
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
