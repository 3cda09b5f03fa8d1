// SPDX-License-Identifier: Apache-2.0
//! Every operation on real NCCL without a GPU: unmodified libraries, real proxies and sockets,
//! kernels played on CPU threads, results checked by the ranks.

use std::time::Duration;

use rig::job::{Job, Outcome};
use rig::wheel;

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

/// Runs steps on every release that is there.
fn on_releases(configure: impl Fn(Job) -> Job, steps: &[&str]) {
    for version in wheel::RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let job = Job::new(&nccl).expect("the stand-in builds");
        let job = configure(job).steps(steps.iter().copied()).timeout(Duration::from_secs(120));
        check(version, &job.run().expect("ranks start"), steps.len());
    }
}

/// Every rank must have done and checked all its steps with the release that was asked for.
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
    on_releases(|job| job, &OPERATIONS);
}

#[test]
fn operations_with_the_ll_protocol() {
    on_releases(|job| job.env("NCCL_PROTO", "LL"), &OPERATIONS);
}

#[test]
fn operations_with_the_simple_protocol() {
    on_releases(|job| job.env("NCCL_PROTO", "Simple"), &OPERATIONS);
}

#[test]
fn operations_on_two_hosts_with_two_devices_each() {
    on_releases(|job| job.devices(2), &OPERATIONS);
}

#[test]
fn operations_on_one_host_over_peer_access() {
    on_releases(|job| job.hosts(1).devices(2), &OPERATIONS);
}

#[test]
fn operations_on_one_host_with_virtual_memory() {
    on_releases(|job| job.hosts(1).devices(2).env("NCCL_CUMEM_ENABLE", "1"), &OPERATIONS);
}

#[test]
fn all_reduce_over_trees() {
    let tree = |job: Job| job.hosts(3).env("NCCL_ALGO", "allreduce:tree");
    on_releases(tree, &["allreduce:1", "allreduce:4096", "allreduce:300001", "group:2x5000"]);
}

#[test]
fn sizes_of_all_reduce_and_send_receive() {
    let steps: Vec<_> = ["allreduce", "sendrecv"]
        .iter()
        .flat_map(|op| SIZES.iter().map(move |size| format!("{op}:{size}")))
        .collect();
    on_releases(|job| job, &steps.iter().map(String::as_str).collect::<Vec<_>>());
}

/// What the player does not know ends the rank with an error that names it, not in a hang.
#[test]
fn an_unplayable_protocol_fails_loudly() {
    let Some(nccl) = wheel::find_or_skip("2.30.7") else { return };
    let job = Job::new(&nccl).expect("the stand-in builds").env("NCCL_PROTO", "LL128");
    let job = job.steps(["allreduce:100000"]).timeout(Duration::from_secs(40));
    let outcome = job.keep_going().run().expect("ranks start");
    assert!(!outcome.timed_out, "{outcome}");
    for rank in &outcome.ranks {
        assert_eq!(rank.steps_done(), 0, "{outcome}");
        let named = |line: &String| line.contains("does not know AllReduce_Sum_f32_RING_LL128");
        assert!(rank.stderr.iter().any(named), "{outcome}");
        assert_eq!(rank.status.and_then(|status| status.code()), Some(2), "{outcome}");
    }
}

/// A rank that never comes leaves the other waiting; the rig ends both and says so.
#[test]
fn a_job_that_hangs_is_ended() {
    let Some(nccl) = wheel::find_or_skip("2.30.7") else { return };
    let job = Job::new(&nccl).expect("the stand-in builds");
    // Rank 0 leaves when both have done what it takes part in.
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
