// SPDX-License-Identifier: Apache-2.0
//! Every operation on real NCCL without a GPU: unmodified libraries, real proxies and sockets,
//! kernels emulated on CPU threads, results checked by the ranks.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rig::job::{Job, Outcome};
use rig::{build, wheel};

/// One step of each kind; the odd size leaves partial chunks, slices and lines everywhere.
const OPERATIONS: [&str; 8] = [
    "allreduce:300001",
    "allgather:300001",
    "reducescatter:300001",
    "broadcast:300001",
    "reduce:300001",
    "sendrecv:300001",
    "group:4x300001",
    "graph:3x300001",
];

/// Sizes from a single element to 4 MiB of floats.
const SIZES: [&str; 6] = ["1", "2", "127", "4096", "65537", "1048576"];

/// The oldest release that runs on the stand-in, and the newest.
const ENDS: [&str; 2] = ["2.23.4", "2.32.3"];

/// Runs steps on the installed releases.
fn on(releases: &[&str], configure: impl Fn(Job) -> Job, steps: &[&str]) {
    for version in releases {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let job = Job::new(&nccl).expect("the stand-in builds");
        let job = configure(job).steps(steps.iter().copied()).timeout(Duration::from_secs(120));
        check(version, &job.run().expect("ranks start"), steps.len());
    }
}

/// Asserts that every rank ran and checked all its steps, with the requested release.
#[track_caller]
fn check(version: &str, outcome: &Outcome, steps: usize) {
    outcome.expect_success();
    for rank in &outcome.ranks {
        assert_eq!(rank.steps_done(), steps, "{version}\n{outcome}");
        assert!(!rank.stderr.iter().any(|line| line.contains("cpu-cuda")), "{version}\n{outcome}");
    }
    let number: Vec<_> = version.split('.').map(|part| format!("{part:0>2}")).collect();
    let loaded = format!("rank 0 nccl {}", number.concat().trim_start_matches('0'));
    let first = &outcome.ranks[0].stdout;
    assert!(first.iter().any(|line| line.starts_with(&loaded)), "{loaded}\n{outcome}");
}

#[test]
fn operations_between_two_hosts() {
    on(&wheel::TESTED, |job| job, &OPERATIONS);
}

#[test]
fn operations_with_the_ll_protocol() {
    on(&ENDS, |job| job.env("NCCL_PROTO", "LL"), &OPERATIONS);
}

/// NCCL uses LL128 on any connection if requested, for collectives; sends have no LL128.
#[test]
fn operations_with_the_ll128_protocol() {
    on(&ENDS, |job| job.env("NCCL_PROTO", "LL128"), &OPERATIONS);
    on(&ENDS, |job| job.env("NCCL_PROTO", "LL128").hosts(1).devices(2), &OPERATIONS);
}

#[test]
fn operations_with_the_simple_protocol() {
    on(&ENDS, |job| job.env("NCCL_PROTO", "Simple"), &OPERATIONS);
}

#[test]
fn operations_on_two_hosts_with_two_devices_each() {
    on(&ENDS, |job| job.devices(2), &OPERATIONS);
}

#[test]
fn operations_on_one_host_over_peer_access() {
    on(&["2.25.1", "2.28.9"], |job| job.hosts(1).devices(2), &OPERATIONS);
}

#[test]
fn operations_on_one_host_with_virtual_memory() {
    let virtual_memory = |job: Job| job.hosts(1).devices(2).env("NCCL_CUMEM_ENABLE", "1");
    on(&["2.26.5", "2.30.7"], virtual_memory, &OPERATIONS);
}

#[test]
fn operations_on_one_host_over_shared_memory() {
    on(&ENDS, |job| job.hosts(1).devices(2).env("NCCL_P2P_DISABLE", "1"), &OPERATIONS);
}

#[test]
fn all_reduce_over_trees() {
    let tree = |job: Job| job.hosts(3).env("NCCL_ALGO", "allreduce:tree");
    let steps = ["allreduce:1", "allreduce:4096", "allreduce:300001", "group:2x5000"];
    on(&["2.27.7", "2.32.3"], tree, &steps);
}

#[test]
fn sizes_of_all_reduce_and_send_receive() {
    let steps: Vec<_> = ["allreduce", "sendrecv"]
        .iter()
        .flat_map(|op| SIZES.iter().map(move |size| format!("{op}:{size}")))
        .collect();
    on(&ENDS, |job| job, &steps.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The assignment of parts to channels changed in 2.28: the last, smaller part shows it.
#[test]
fn sends_over_four_channels() {
    let channels = |job: Job| {
        let job = job.env("NCCL_MAX_NCHANNELS", "8");
        job.env("NCCL_MIN_P2P_NCHANNELS", "4").env("NCCL_MAX_P2P_NCHANNELS", "4")
    };
    let steps = ["sendrecv:1", "sendrecv:20001", "sendrecv:300001"];
    on(&["2.23.4", "2.27.7", "2.28.9"], channels, &steps);
}

/// From 2.29 on, grouped broadcasts are works of a separate type, which the player must support.
#[test]
fn grouped_broadcasts_between_three_hosts() {
    let steps = ["bcasts:2x1", "bcasts:3x4096", "bcasts:5x300001", "allreduce:100"];
    let releases = ["2.23.4", "2.28.9", "2.29.7", "2.30.7", "2.31.2", "2.32.3"];
    on(&releases, |job| job.hosts(3), &steps);
}

/// Work that the player does not support ends the rank with an error that names it, not in a hang.
#[test]
fn an_unplayable_algorithm_fails_loudly() {
    let Some(nccl) = wheel::find_or_skip("2.30.7") else { return };
    let job = Job::new(&nccl).expect("the stand-in builds");
    let job = job.env("NCCL_PAT_ENABLE", "1").env("NCCL_ALGO", "PAT");
    let job = job.steps(["allgather:100000"]).timeout(Duration::from_secs(40));
    let outcome = job.keep_going().run().expect("ranks start");
    assert!(!outcome.timed_out, "{outcome}");
    for rank in &outcome.ranks {
        assert_eq!(rank.steps_done(), 0, "{outcome}");
        let named = |line: &String| line.contains("does not know AllGather_PAT_SIMPLE");
        assert!(rank.stderr.iter().any(named), "{outcome}");
        assert_eq!(rank.status.and_then(|status| status.code()), Some(2), "{outcome}");
    }
}

/// A rank that never enters leaves the other waiting; the rig kills both and reports it.
#[test]
fn a_job_that_hangs_is_ended() {
    let Some(nccl) = wheel::find_or_skip("2.30.7") else { return };
    let job = Job::new(&nccl).expect("the stand-in builds");
    // Rank 0 exits when both ranks have finished the steps in which it takes part.
    let steps = ["allreduce:1", "barrier", "allreduce:1"];
    let job = job.steps(steps[..2].to_vec()).rank_steps(1, steps);
    let outcome = job.arg("--no-destroy").timeout(Duration::from_secs(8)).run().expect("starts");
    assert!(!outcome.succeeded(), "{outcome}");
    assert!(outcome.ranks[0].succeeded(), "it has all it wants\n{outcome}");
    assert_eq!(outcome.ranks[1].steps_done(), 2, "{outcome}");
}

/// A rank that is killed while the others wait for it.
#[test]
fn a_killed_rank_ends_the_job() {
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    let job = Job::new(&nccl).expect("the stand-in builds");
    let job = job.steps(["allreduce:100", "sleep:60000"]).timeout(Duration::from_secs(40));
    let mut running = job.start().expect("ranks start");
    assert!(running.wait_for_line(0, "rank 0 allreduce 100 ok"), "{}", running.wait());
    running.kill(1);
    let outcome = running.wait();
    assert!(!outcome.timed_out, "{outcome}");
    assert!(outcome.ranks.iter().all(|rank| rank.killed), "{outcome}");
}

/// A job whose kernels have faults (`CPU_CUDA_FAULTS`).
fn faulty(nccl: &Path, faults: &str) -> Job {
    let job = Job::new(nccl).expect("the stand-in builds").timeout(Duration::from_secs(60));
    job.env("CPU_CUDA_FAULTS", faults)
}

/// Each kernel has at least four steps of 50 ms; the other rank is slow only because it waits.
#[test]
fn a_slow_rank_takes_its_time() {
    for version in ENDS {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let outcome = faulty(&nccl, "delay:rank=1,us=50000").steps(["allreduce:300001"]).run();
        let outcome = outcome.expect("ranks start");
        check(version, &outcome, 1);
        let took = |line: &String| -> Option<f64> {
            let (_, rest) = line.split_once("allreduce 300001 ok ")?;
            rest.strip_suffix(" ms")?.parse().ok()
        };
        let millis = outcome.ranks[1].stdout.iter().find_map(took);
        assert!(millis >= Some(200.0), "{outcome}");
    }
}

/// The second kernel of rank 1 never ends; rank 0 waits for it until rank 1 is killed.
#[test]
fn a_stuck_kernel_holds_both_ranks() {
    for version in ENDS {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let steps = ["allreduce:100", "allreduce:200"];
        let job = faulty(&nccl, "stuck:rank=1,launch=2").steps(steps);
        let mut running = job.start().expect("ranks start");
        for rank in [0, 1] {
            let first = format!("rank {rank} allreduce 100 ok");
            assert!(running.wait_for_line(rank, &first), "{}", running.wait());
        }
        std::thread::sleep(Duration::from_millis(300));
        running.kill(1);
        let outcome = running.wait();
        assert!(!outcome.timed_out, "{outcome}");
        assert!(outcome.ranks.iter().all(|rank| rank.killed && rank.steps_done() == 1));
    }
}

/// Each kernel takes 120 ms or more; by a GPU clock that runs at a thousandth of the speed, it
/// takes almost nothing.
#[test]
fn a_slow_gpu_clock_reaches_the_profiler() {
    let Some(nccl) = wheel::find_or_skip("2.30.7") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let job = faulty(&nccl, "delay:us=20000;skew:rank=1,ppm=-999000")
        .env("NCCL_PROFILER_PLUGIN", build::plugin())
        .env("NCCLSCOPE_DIR", folder.path())
        .steps(["allreduce:300001", "allreduce:300001"]);
    check("2.30.7", &job.run().expect("ranks start"), 2);
    let mut report = Command::new(build::tool());
    report.arg("report").arg(folder.path()).args(["--format", "json"]);
    let report = report.output().expect("the tool runs");
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let duration = &report["operations"][0]["duration_ns"];
    assert!(duration["min"].as_u64() < Some(20_000_000), "{report}");
    assert!(duration["max"].as_u64() > Some(115_000_000), "{report}");
}

#[test]
fn faults_that_do_not_exist_end_the_process() {
    let Some(nccl) = wheel::find_or_skip("2.30.7") else { return };
    let job = faulty(&nccl, "stuck:lunch=2").steps(["allreduce:1"]).keep_going();
    let outcome = job.run().expect("ranks start");
    for rank in &outcome.ranks {
        assert_eq!(rank.status.and_then(|status| status.code()), Some(2), "{outcome}");
        let [line] = &rank.stderr[..] else { panic!("one line\n{outcome}") };
        let wanted = "CPU_CUDA_FAULTS=stuck:lunch=2: stuck has no key `lunch`";
        assert!(line.ends_with(wanted), "{outcome}");
    }
}
