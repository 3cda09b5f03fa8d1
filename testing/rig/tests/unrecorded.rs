// SPDX-License-Identifier: Apache-2.0
//! Jobs that hang before their first communicator: the tools' output about the processes.

use rig::job::{Job, Running};
use rig::topology::Topology;
use rig::{build, wheel};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const RELEASES: [&str; 4] = ["2.27.7", "2.28.9", "2.30.7", "2.32.3"];
/// Time limit for the ranks to reach the place where they wait.
const PATIENCE: Duration = Duration::from_secs(40);
const WAITS: &str = "is in ncclCommInitRankConfig, its first communicator";

/// A job of three ranks with numbers from a launcher, which records into `record`.
fn job(nccl: &Path, record: &Path) -> Job {
    let job = Job::new(nccl).expect("the stand-in builds").topology(Topology::Ring3);
    let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin()).env("NCCLSCOPE_DIR", record);
    let job = (0..3).fold(job, |job, rank| job.rank_env(rank, "RANK", rank.to_string()));
    job.env("WORLD_SIZE", "3").keep_going().steps(["allreduce:4096", "sleep:60000"])
}

fn diagnose(record: &Path) -> Output {
    let output = Command::new(build::tool()).arg("diagnose").arg(record).output();
    output.expect("the tool starts")
}

/// The output of `diagnose` as soon as it contains all of these texts.
#[track_caller]
fn wait_for(record: &Path, parts: &[String]) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let output = diagnose(record);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if parts.iter().all(|part| said.contains(part)) {
            assert_eq!(output.status.code(), Some(3), "{said}");
            return said;
        }
        assert!(Instant::now() < until, "waited for {parts:?}: {said}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn waits(job: &Running, rank: usize) -> String {
    format!("rank {rank} (rank, pid {}) {WAITS}", job.pid(rank))
}

#[test]
fn ranks_that_wait_in_init_and_ranks_that_never_came_are_named() {
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let record = tempfile::tempdir().expect("a folder");
        let mut job = job(&nccl, record.path()).start().expect("ranks start");
        job.kill(1);
        let absent = "rank 1 of 3 cannot be seen here".to_owned();
        let said = wait_for(record.path(), &[waits(&job, 0), waits(&job, 2), absent]);
        assert!(said.contains("2 processes of the job's 3 are on this machine"), "{said}");
        assert!(said.contains("nothing to diagnose"), "{said}");
    }
}

#[test]
fn a_rank_that_does_not_call_init_is_named_and_one_that_is_stopped() {
    for version in [RELEASES[0], RELEASES[3]] {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let record = tempfile::tempdir().expect("a folder");
        let job = job(&nccl, record.path());
        let job = job.rank_arg(1, "--init-after-ms").rank_arg(1, "60000");
        let job = job.start().expect("ranks start");
        let pid = job.pid(1);
        let late = format!(
            "rank 1 (rank, pid {pid}) has loaded NCCL, and does not wait in ncclCommInit for \
             other ranks: it holds no listening socket"
        );
        let said = wait_for(record.path(), &[waits(&job, 0), late, waits(&job, 2)]);
        assert!(!said.contains("cannot be seen"), "{said}");
        // SAFETY: no precondition; the process is a child that was not waited for.
        unsafe { libc::kill(i32::try_from(pid).expect("a process id"), libc::SIGSTOP) };
        wait_for(record.path(), &[format!("rank 1 (rank, pid {pid}) is stopped, by a signal")]);
    }
}

#[test]
fn of_ranks_with_a_communicator_nothing_is_said() {
    let Some(nccl) = wheel::find_or_skip(RELEASES[1]) else { return };
    let record = tempfile::tempdir().expect("a folder");
    let mut job = job(&nccl, record.path()).start().expect("ranks start");
    assert!((0..3).all(|rank| job.wait_for_line(rank, &format!("rank {rank} allreduce"))));
    let output = diagnose(record.path());
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("without a recording"), "{said}");
}

/// A script that starts ranks 0 and 2 of three, and ends them.
fn script(nccl: &Path, place: &Path) -> String {
    let rig = build::artifacts().expect("the stand-in builds");
    let (rank, cuda) = (rig.rank.display(), rig.cuda.display());
    let (id, nccl) = (place.join("id"), nccl.display());
    format!(
        "export WORLD_SIZE=3 NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket NCCL_CUMEM_ENABLE=0
         for rank in 0 2; do RANK=$rank NCCL_HOSTID=h$rank {rank} --cuda {cuda} --nccl {nccl} \
         --rank $rank --nranks 3 --id-file {} --timeout-s 50 allreduce:4096 & done; wait",
        id.display()
    )
}

#[test]
fn run_and_the_agent_say_it_while_the_job_waits() {
    let Some(nccl) = wheel::find_or_skip(RELEASES[3]) else { return };
    let place = tempfile::tempdir().expect("a folder");
    let record = place.path().join("run");
    let mut run = Command::new(build::tool());
    run.env("NCCLSCOPE_PLUGIN", build::plugin()).arg("run").arg("-o").arg(&record);
    run.args(["--", "sh", "-c", &script(&nccl, place.path())]);
    let run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the tool starts");
    let mut agent = Command::new(build::tool());
    agent
        .args(["agent", "--textfile"])
        .arg(place.path())
        .args(["--interval", "5", "-d"])
        .arg(&record);
    let agent = agent.stderr(Stdio::piped()).spawn().expect("the tool starts");
    let run = run.wait_with_output().expect("it ends");
    // SAFETY: no precondition; the process is a child that was not waited for.
    unsafe { libc::kill(i32::try_from(agent.id()).expect("a process id"), libc::SIGTERM) };
    let agent = agent.wait_with_output().expect("it ends");
    for output in [&run.stderr, &agent.stderr] {
        let said = String::from_utf8_lossy(output);
        assert_eq!(said.matches("are on this machine without a recording").count(), 1, "{said}");
        assert_eq!(said.matches(WAITS).count(), 2, "{said}");
        assert!(said.contains("rank 1 of 3 cannot be seen here"), "{said}");
    }
}
