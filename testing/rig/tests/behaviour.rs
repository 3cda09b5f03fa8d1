// SPDX-License-Identifier: Apache-2.0
//! Applications' use of communicators and groups, on real NCCL with the plugin loaded: the ranks
//! check every result, and the report of the recording must account for every event.

mod common;

use rig::job::{Job, Outcome};
use rig::topology::Topology;
use rig::{build, wheel};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The oldest and the newest supported release.
const RELEASES: [&str; 2] = ["2.28.9", "2.32.3"];

/// The built parts of the product.
struct Product {
    cli: PathBuf,
    plugin: PathBuf,
}

impl Product {
    fn build() -> Self {
        Self { cli: build::tool(), plugin: build::plugin() }
    }

    fn job(&self, nccl: &Path, folder: &Path) -> Job {
        let job = Job::new(nccl).expect("the stand-in builds").timeout(Duration::from_secs(60));
        job.env("NCCL_PROFILER_PLUGIN", &self.plugin).env("NCCLSCOPE_DIR", folder)
    }

    fn report(&self, folder: &Path) -> Value {
        common::report(&self.cli, folder)
    }
}

/// Runs steps on each release and passes the result to `check`.
fn on_releases(topology: Topology, steps: &[&str], check: impl Fn(&str, &Value)) {
    on_releases_with(&[], topology, steps, check);
}

/// As [`on_releases`], with environment variables.
fn on_releases_with(
    env: &[(&str, &str)],
    topology: Topology,
    steps: &[&str],
    check: impl Fn(&str, &Value),
) {
    let product = Product::build();
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let folder = tempfile::tempdir().expect("a directory");
        let mut job = product.job(&nccl, folder.path()).topology(topology);
        for (name, value) in env {
            job = job.env(name, value);
        }
        let outcome = job.steps(steps.iter().copied()).run().expect("ranks start");
        outcome.expect_success();
        expect_steps(version, &outcome, steps.len());
        let report = product.report(folder.path());
        expect_complete(version, &report);
        check(version, &report);
    }
}

#[track_caller]
fn expect_steps(version: &str, outcome: &Outcome, steps: usize) {
    for rank in &outcome.ranks {
        assert_eq!(rank.steps_done(), steps, "{version} rank {}\n{outcome}", rank.rank);
    }
}

fn array<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// Asserts that every start has a stop and a parent, and that nothing is lost.
#[track_caller]
fn expect_complete(version: &str, report: &Value) {
    for rank in array(report, "ranks") {
        for (kind, event) in rank["events"].as_object().expect("events by kind") {
            assert_eq!(event["started"], event["stopped"], "{version} {kind} {rank}");
            for none in ["open", "dropped", "stale", "unknown_parent"] {
                // Now and then NCCL does not start a kernel channel, and stops another one twice
                // (testing/invariants, rule kernel-channels).
                if (kind.as_str(), none) == ("KernelCh", "stale") {
                    continue;
                }
                assert_eq!(event[none], 0, "{version} {kind} {none} {rank}");
            }
        }
    }
    assert_eq!(report["lost"]["total"], 0, "{version} {report}");
    assert_eq!(array(report, "open_operations").len(), 0, "{version} {report}");
}

/// The number of operations of `func` on each communicator of the report, in ascending order.
fn counts(report: &Value, func: &str) -> Vec<u64> {
    let comms: BTreeSet<_> = array(report, "ranks").iter().map(|r| r["comm"].as_str()).collect();
    let on = |comm: &Option<&str>| {
        let rows = array(report, "operations").iter();
        let rows = rows.filter(|row| row["comm"].as_str() == *comm && row["func"] == func);
        rows.filter_map(|row| row["count"].as_u64()).sum()
    };
    let mut counts: Vec<u64> = comms.iter().map(on).collect();
    counts.sort_unstable();
    counts
}

#[test]
fn a_split_with_shared_resources_is_distinguished_from_its_parent() {
    let steps = ["allreduce:1000", "split:3000", "allreduce:500"];
    on_releases(Topology::Socket, &steps, |version, report| {
        assert_eq!(array(report, "ranks").len(), 4, "{version} {report}");
        // The split step runs one AllReduce on the parent and one on the child.
        assert_eq!(counts(report, "AllReduce"), [1, 3], "{version} {report}");
        assert_eq!(counts(report, "AllGather"), [0, 1], "{version} {report}");
    });
}

#[test]
fn a_split_of_four_ranks_makes_two_communicators() {
    on_releases(Topology::SocketShm, &["split:3000", "comms:100"], |version, report| {
        assert_eq!(array(report, "ranks").len(), 8, "{version} {report}");
        assert_eq!(counts(report, "AllReduce"), [2, 2, 2], "{version} {report}");
        let mut sizes: Vec<_> = array(report, "ranks").iter().map(|r| &r["nranks"]).collect();
        sizes.sort_by_key(|size| size.as_u64());
        assert_eq!(sizes, [2, 2, 2, 2, 4, 4, 4, 4], "{version}");
    });
}

#[test]
fn communicators_may_be_destroyed_in_any_order() {
    let steps = ["split:1000", "init", "comms:1000", "destroy:0", "comms:1000", "destroy:1"];
    on_releases(Topology::Socket, &steps, |version, report| {
        // The parent is destroyed first, then the third communicator, and the split-off one at the
        // end.
        assert_eq!(counts(report, "AllReduce"), [2, 2, 3], "{version} {report}");
    });
}

#[test]
fn after_the_last_destroy_the_plugin_is_loaded_again() {
    let steps = ["allreduce:1000", "destroy:0", "init", "allreduce:2000", "allreduce:2000"];
    on_releases(Topology::Socket, &steps, |version, report| {
        assert_eq!(counts(report, "AllReduce"), [1, 2], "{version} {report}");
        let files: BTreeSet<_> = array(report, "ranks").iter().map(|r| r["pid"].as_u64()).collect();
        assert_eq!(files.len(), 2, "{version}");
    });
}

#[test]
fn nonblocking_communicators() {
    let steps = ["init-nonblocking", "destroy:0", "allreduce:1000", "graph:2x100", "split:100"];
    let more = ["comms:100", "nested:100"];
    on_releases(Topology::Socket, &[&steps[..], &more].concat(), |version, report| {
        assert_eq!(counts(report, "AllReduce"), [0, 2, 7], "{version} {report}");
    });
}

#[test]
fn nested_groups_are_one_group() {
    on_releases(Topology::Socket, &["nested:4096"], |version, report| {
        assert_eq!(counts(report, "AllReduce"), [2], "{version} {report}");
        for rank in array(report, "ranks") {
            assert_eq!(rank["events"]["GroupApi"]["started"], 1, "{version} {rank}");
            assert_eq!(rank["events"]["CollApi"]["started"], 2, "{version} {rank}");
        }
    });
}

#[test]
fn all_to_all() {
    let steps = ["alltoall:3001", "nccl-alltoall:3001"];
    on_releases(Topology::Ring3, &steps, |version, report| {
        for rank in array(report, "ranks") {
            let started = |kind: &str| rank["events"][kind]["started"].as_u64();
            // Three peers, including the rank itself; each has a send and a receive in both steps.
            assert_eq!(started("P2p"), Some(12), "{version} {rank}");
            assert!(started("P2pApi") >= Some(6), "{version} {rank}");
        }
        assert_eq!(counts(report, "Send"), [6], "{version} {report}");
        assert_eq!(counts(report, "Recv"), [6], "{version} {report}");
    });
}

#[test]
fn four_devices_in_one_process() {
    let steps = ["allreduce:30001", "group:4x100", "alltoall:100", "nested:100", "graph:2x100"];
    // Without kernel events, a replay of a graph shows nothing if there is no network.
    let env = [("NCCLSCOPE_KERNEL", "on")];
    on_releases_with(&env, Topology::Threads, &steps, |version, report| {
        let pids: BTreeSet<_> = array(report, "ranks").iter().map(|r| r["pid"].as_u64()).collect();
        assert_eq!(pids.len(), 1, "{version} {report}");
        let mut ranks: Vec<_> = array(report, "ranks").iter().map(|r| r["rank"].as_i64()).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, [Some(0), Some(1), Some(2), Some(3)], "{version}");
        assert_eq!(counts(report, "AllReduce"), [9], "{version} {report}");
    });
}

/// The last thread to call `ncclCommDestroy` frees the memory of all ranks of its process, which
/// waits for their devices, while the other threads have already continued: work that they launch
/// then and that needs this thread would never end, on a real device either. Hence the barriers.
///
/// Without kernel channel events: on a busy machine, 2.28.9 and 2.30.7 free the counters of a
/// communicator that shares its parent's proxy thread while that thread still reads them
/// (`profilerProxyProgress`, src/transport/profiler.cc), whichever plugin requested the events.
#[test]
fn communicators_of_four_devices_in_one_process_come_and_go() {
    let steps = ["split:1000", "init", "comms:1000", "destroy:0", "barrier", "comms:1000"];
    let more = ["destroy:1", "barrier", "split:300", "comms:100"];
    let (env, steps) = ([("NCCLSCOPE_KERNEL", "off")], [&steps[..], &more].concat());
    on_releases_with(&env, Topology::Threads, &steps, |version, report| {
        // The first split makes two halves, the second splits each of them again.
        let sizes = array(report, "ranks").iter().map(|r| r["nranks"].as_u64().expect("ranks"));
        let count = |size| sizes.clone().filter(|&s| s == size).count();
        assert_eq!((count(4), count(2)), (8, 8), "{version} {report}");
        assert_eq!(counts(report, "AllReduce"), [2, 2, 2, 2, 5, 5], "{version} {report}");
    });
}

/// From 2.29 on NCCL schedules the broadcasts of one group together, as an AllGather with a size
/// for each rank, and reports nothing of them below the API.
#[test]
fn grouped_broadcasts() {
    for topology in [Topology::Ring3, Topology::Threads] {
        on_releases(topology, &["bcasts:3x1", "bcasts:5x30001"], |version, report| {
            for rank in array(report, "ranks") {
                let started = |kind: &str| rank["events"][kind]["started"].as_u64();
                assert_eq!(started("CollApi"), Some(8), "{version} {rank}");
                let below = (version == "2.28.9").then_some(8);
                assert_eq!(started("Coll"), below, "{version} {rank}");
            }
        });
    }
}

/// With kernel events, NCCL 2.30.7 waits at its end for a kernel that it has counted wrongly, so
/// they are off by default.
#[test]
fn a_communicator_with_grouped_broadcasts_can_be_destroyed() {
    let Some(nccl) = wheel::find_or_skip("2.30.7") else { return };
    let product = Product::build();
    for (hosts, devices) in [(1, 2), (3, 1)] {
        let folder = tempfile::tempdir().expect("a directory");
        let job = product.job(&nccl, folder.path()).hosts(hosts).devices(devices);
        let job = job.env("NCCLSCOPE_KERNEL", "auto").timeout(Duration::from_secs(40));
        let outcome = job.steps(["allreduce:4096", "bcasts:2x4096", "allreduce:4096"]).run();
        outcome.expect("ranks start").expect_success();
        let report = product.report(folder.path());
        assert_eq!(counts(&report, "AllReduce"), [2], "{report}");
        let kernels = array(&report, "ranks").iter().map(|rank| &rank["events"]["KernelCh"]);
        assert!(kernels.clone().all(Value::is_null), "{report}");
    }
}

#[test]
fn every_topology() {
    for topology in Topology::ALL {
        on_releases(topology, &["allreduce:3001", "sendrecv:3001"], |version, report| {
            let ranks = array(report, "ranks").len();
            assert_eq!(ranks, topology.ranks(), "{version} {topology}");
            let proxied = |rank: &Value| rank["events"]["ProxyOp"]["started"].as_u64().is_some();
            let network = array(report, "ranks").iter().any(proxied);
            assert_eq!(network, topology.hosts() > 1, "{version} {topology} {report}");
        });
    }
}

#[test]
fn abort_with_a_missing_rank_returns_and_leaves_the_operation_open() {
    let product = Product::build();
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let folder = tempfile::tempdir().expect("a directory");
        let job = product.job(&nccl, folder.path()).timeout(Duration::from_secs(30));
        // The first operation creates the connections and needs both ranks.
        let job = job
            .rank_steps(0, ["allreduce:1000", "start:2000", "sleep:500", "abort"])
            .rank_steps(1, ["allreduce:1000", "skip", "sleep:500", "abort"]);
        let outcome = job.run().expect("ranks start");
        outcome.expect_success();
        expect_steps(version, &outcome, 4);
        let report = product.report(folder.path());
        assert_eq!(report["lost"]["total"], 0, "{version} {report}");
        let rows = array(&report, "operations").iter();
        let counted: Vec<_> = rows.filter(|row| row["bytes"] == 8000).collect();
        let [aborted] = counted.as_slice() else { panic!("{version} {report}") };
        assert_eq!((&aborted["count"], &aborted["ranks"]), (&1.into(), &1.into()), "{aborted}");
        assert_eq!(aborted["open"], 1, "{version} {aborted}");
        let [open] = array(&report, "open_operations") else { panic!("{version} {report}") };
        assert_eq!((&open["rank"], &open["bytes"]), (&0.into(), &8000.into()), "{version} {open}");
        let reasons = open["waits_for"].to_string();
        assert!(reasons.contains("receive from communicator rank 1"), "{version} {open}");
        for rank in array(&report, "ranks") {
            for (kind, event) in rank["events"].as_object().expect("events by kind") {
                let of = |name: &str| event[name].as_u64().expect("a count");
                assert_eq!(of("started"), of("stopped") + of("open"), "{version} {kind} {rank}");
            }
        }
    }
}
