// SPDX-License-Identifier: Apache-2.0
//! Findings about errors in NCCL or in other plugins, which ncclscope's plugin must not have.

use crate::job::{Run, finish, job, kinds, library, record, started};
use crate::mixed_2_28;
use crate::symbol;
use rig::job::Job;
use std::path::Path;
use std::time::Duration;

/// A path where no directory can be created.
const NOWHERE: &str = "/proc/ncclscope";

/// If `init` fails after it wrote the mask, NCCL 2.28.9 continues and starts events with a NULL
/// context (src/plugin/profiler.cc@v2.28.9-1). The `init` of ncclscope's plugin always succeeds,
/// and if it cannot record it watches the job. NULL contexts are tested by
/// `null_is_taken_wherever_a_pointer_goes` of testing/fake-nccl.
#[test]
fn finding_02_a_plugin_that_cannot_record_watches_and_the_job_goes_on() {
    let Some(nccl) = library("2.28.9") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let masks = [NOWHERE.as_ref(), folder.path()].map(|folder| mask_after_init(&nccl, folder));
    assert!(masks[0] == masks[1] && masks[0] != 0, "{masks:?}");
    let job = job(&nccl, NOWHERE.as_ref()).env("NCCLSCOPE_LOG", "stderr");
    let steps = ["allreduce:300001", "init", "comms:1000", "destroy:0", "sendrecv:300001"];
    let outcome = finish(&job.steps(steps), steps.len());
    for rank in &outcome.ranks {
        let said = rank.stderr.iter().filter(|line| line.starts_with("ncclscope:"));
        let said: Vec<_> = said.collect();
        let [first, last] = said[..] else { panic!("{said:?}") };
        assert!(first.contains("the watchdog runs, and records wait"), "{said:?}");
        assert!(last.ends_with("nothing of this process was recorded"), "{said:?}");
    }
}

/// NCCL's activation mask in a rank that records into `folder`.
fn mask_after_init(nccl: &Path, folder: impl AsRef<Path>) -> u32 {
    let mut running = job(nccl, folder.as_ref()).steps(["sleep:60000"]).start().expect("it starts");
    assert!(running.wait_for_line(0, "rank 0 init ok"), "{}", running.wait());
    let mask = symbol::word(running.pid(0), nccl, "ncclProfilerEventMask");
    running.kill(0);
    let _killed = running.wait();
    mask
}

/// NCCL's example plugin has pools whose exhaustion fails `init`, and writes a trace that is not
/// valid JSON. This plugin accepts hundreds of operations in flight on several communicators, and
/// the test parses every trace strictly.
#[test]
fn finding_03_many_operations_in_flight_fit_and_the_trace_is_json() {
    let steps = ["init", "init", "repeat:200:start:100", "group:100x100", "comms:1000"];
    let Some(run) = record("2.32.3", |job| job, &steps) else { return };
    run.expect_complete();
    assert_eq!(run.ranks().len(), 6, "three communicators of two ranks: {}", run.report);
    let calls: u64 = run.ranks().iter().map(|rank| started(rank, "CollApi")).sum();
    assert_eq!(calls, 2 * (200 + 100 + 3));
    for rank in &run.trace.ranks {
        for call in rank.named("CollApi AllReduce") {
            assert_eq!(call.args["datatype"], "ncclFloat32");
            assert!(call.number("cuda_stream") > 0, "a number, not a hexadecimal word");
        }
    }
    let calls = run.trace.ranks.iter().map(|rank| rank.named("CollApi AllReduce").len());
    assert_eq!(calls.sum::<usize>(), 2 * (200 + 100 + 3));
    if let Some(run) = mixed_2_28() {
        let slices = run.trace.ranks.iter().map(|rank| rank.slices.len());
        assert!(slices.sum::<usize>() > 300, "steps, kernels and calls");
    }
}

/// Up to 2.26, an idle proxy thread reports itself in every turn. The plugin requests these events
/// only if the user names them; then all are counted, as are the events that they displace.
#[test]
fn finding_04_the_flood_of_proxy_ctrl_is_off_unless_asked_for_and_then_counted() {
    let steps = ["repeat:5:allreduce:100000", "sendrecv:300001"];
    // Their number depends on timing, least so on 2.26.
    for (version, least) in [("2.23.4", 1), ("2.26.5", 500)] {
        let flooded = |job: Job| job.env("NCCLSCOPE_EVENTS", "default,ProxyCtrl");
        let Some(plain) = record(version, |job| job, &steps) else { continue };
        let Some(flood) = record(version, flooded, &steps) else { continue };
        assert_eq!(plain.report["lost"]["total"], 0, "{version} {}", plain.report);
        assert!(plain.says("ProxyCtrl events were off"), "{version}");
        assert!(!flood.says("ProxyCtrl events were off"), "{version}");
        for rank in plain.ranks() {
            assert!(!kinds(rank).contains(&"ProxyCtrl"), "{version} {rank}");
        }
        let [recorded, dropped] = ["started", "dropped"].map(|of| all(&flood, "ProxyCtrl", of));
        assert!(recorded > 0 && recorded + dropped >= least, "{version}: {recorded} {dropped}");
        // Steps of a ProxyOp that got no slot are lost with it.
        for kind in ["Group", "Coll", "P2p", "ProxyOp", "KernelCh"] {
            let found = all(&flood, kind, "started") + all(&flood, kind, "dropped");
            assert_eq!(found, all(&plain, kind, "started"), "{version} {kind} {}", flood.report);
        }
        let lost = &flood.report["lost"]["by_kind"];
        for kind in flood.ranks().iter().flat_map(kinds) {
            let count = lost[kind].as_u64().unwrap_or(0);
            assert_eq!(all(&flood, kind, "dropped"), count, "{version} {kind} {lost}");
        }
    }
}

/// A count of a kind, over all ranks.
fn all(run: &Run, kind: &str, count: &str) -> u64 {
    run.ranks().iter().filter_map(|rank| rank["events"][kind][count].as_u64()).sum()
}

/// A hang detector must not rely on the abort: the progress thread retries forever, with a warning
/// each time.
#[test]
fn finding_11_an_abort_on_2_23_never_returns_once_the_peer_is_gone() {
    let Some(nccl) = library("2.23.4") else { return };
    let job = Job::new(&nccl).expect("the stand-in builds").timeout(Duration::from_secs(8));
    let job = job
        .keep_going()
        .rank_steps(0, ["allreduce:1000", "start:2000", "sleep:500", "abort"])
        .rank_steps(1, ["allreduce:1000", "skip", "sleep:500", "abort"]);
    let outcome = job.run().expect("ranks start");
    assert!(outcome.ranks[1].succeeded(), "{outcome}");
    let stuck = &outcome.ranks[0];
    assert!(!stuck.succeeded(), "the abort returned\n{outcome}");
    assert_eq!(stuck.steps_done(), 3, "{outcome}");
    let closed = |line: &&String| line.contains("Connection closed by remote peer");
    assert!(stuck.stdout.iter().filter(closed).count() > 100, "{outcome}");
}
