// SPDX-License-Identifier: Apache-2.0
//! CUDA events around the launches of real NCCL (`NCCLSCOPE_CUDA_EVENTS`, docs/probe.md). The
//! stand-in is the driver: it refuses what a driver forbids, and prints all requests at the end.

mod common;

use rig::job::{Job, Outcome};
use rig::{build, wheel};
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Number of CUDA events of one context.
const EVENTS: u64 = 2048;

struct TestRun {
    cli: PathBuf,
    plugin: PathBuf,
    nccl: PathBuf,
    dir: tempfile::TempDir,
}

impl TestRun {
    fn new(release: &str) -> Option<TestRun> {
        let nccl = wheel::find_or_skip(release)?;
        let cuda = &build::artifacts().expect("the stand-in builds").cuda;
        let dir = tempfile::tempdir().unwrap();
        // The stand-in is loaded as the driver under this name.
        std::fs::create_dir(dir.path().join("driver")).unwrap();
        std::os::unix::fs::symlink(cuda, dir.path().join("driver/libcuda.so.1")).unwrap();
        Some(TestRun { cli: build::tool(), plugin: build::plugin(), nccl, dir })
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// A job of two ranks without a driver.
    fn without_driver(&self) -> Job {
        let job = Job::new(&self.nccl).expect("the stand-in builds");
        job.timeout(Duration::from_secs(120))
            .env("NCCL_PROFILER_PLUGIN", &self.plugin)
            .env("NCCLSCOPE_DIR", self.folder())
            .env("NCCLSCOPE_LOG", "stderr")
            .env("NCCLSCOPE_CUDA_EVENTS", "on")
    }

    fn job(&self) -> Job {
        self.without_driver().env("LD_LIBRARY_PATH", self.dir.path().join("driver"))
    }

    fn report(&self) -> Value {
        common::report(&self.cli, &self.folder())
    }

    /// The events of a trace in Chrome's format.
    fn trace(&self) -> Vec<Value> {
        let file = self.dir.path().join("t.json");
        let mut command = Command::new(&self.cli);
        command.args(["export", "--to", "chrome", "-o"]).arg(&file).arg(self.folder());
        let output = command.output().expect("the tool starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        trace["traceEvents"].as_array().unwrap().clone()
    }
}

fn run(job: &Job) -> Outcome {
    let outcome = job.run().expect("ranks start");
    outcome.expect_success();
    outcome
}

/// Counts of each process's requests to the driver.
fn driver(outcome: &Outcome) -> Vec<HashMap<String, u64>> {
    let lines = outcome.ranks.iter().flat_map(|rank| &rank.stderr);
    let told = lines.filter_map(|line| line.split_once("driver events: "));
    let counts = told.map(|(_, counts)| {
        let pairs = counts.split(' ').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, count)| (name.to_owned(), count.parse().unwrap())).collect()
    });
    counts.collect()
}

/// Asserts that every process created and destroyed the events of `contexts` contexts, and followed
/// the driver's rules.
#[track_caller]
fn expect_clean(outcome: &Outcome, contexts: u64, recorded: u64) {
    let wanted = EVENTS * contexts;
    let wanted = [
        ("made", wanted),
        ("destroyed", wanted),
        ("recorded", recorded),
        ("captured", 0),
        ("refused", 0),
    ];
    let wanted: HashMap<String, u64> = wanted.map(|(n, count)| (n.to_owned(), count)).into();
    let driver = driver(outcome);
    assert!(!driver.is_empty(), "{outcome}");
    assert!(driver.iter().all(|counts| *counts == wanted), "{driver:?}, wanted {wanted:?}");
}

/// Number of operations of `func` that each clock timed, over all sizes.
fn timings(report: &Value, func: &str) -> HashMap<String, u64> {
    let mut timings = HashMap::new();
    let rows = report["operations"].as_array().unwrap();
    for row in rows.iter().filter(|row| row["func"] == func) {
        for (timing, count) in row["timings"].as_object().unwrap() {
            *timings.entry(timing.clone()).or_default() += count.as_u64().unwrap();
        }
    }
    timings
}

fn only(timing: &str, count: u64) -> HashMap<String, u64> {
    [(timing.to_owned(), count)].into()
}

#[test]
fn without_kernel_events_cuda_events_time_what_has_a_launch_of_its_own() {
    for release in wheel::RELEASES {
        let Some(test) = TestRun::new(release) else { continue };
        let steps = ["allreduce:65536", "repeat:4:allreduce:300001", "group:2x4096", "sendrecv:64"];
        let outcome = run(&test.job().env("NCCLSCOPE_KERNEL", "off").steps(steps));
        expect_clean(&outcome, 1, 2 * 7);
        let report = test.report();
        assert_eq!(report["lost"]["total"], 0, "{release}: {report}");
        let all_reduce = timings(&report, "AllReduce");
        assert_eq!(all_reduce["cuda_event"], 2 * 5, "{release}: {all_reduce:?}");
        assert_eq!(all_reduce["proxy"], 2 * 2, "two share a launch: {release}");
        assert_eq!(timings(&report, "Send"), only("proxy", 2), "{release}");
        for rank in report["ranks"].as_array().unwrap() {
            assert!(rank["states"].get("State254").is_none(), "it is no state of NCCL's: {rank}");
        }
        let sentences = report["unknowable"].to_string();
        assert!(!sentences.contains("no duration is measured by the GPU"), "{sentences}");
    }
}

#[test]
fn events_agree_with_the_gpus_own_timer_which_comes_first() {
    let Some(test) = TestRun::new("2.28.9") else { return };
    // A step is long, so that the time between an event and the kernel's first timestamp is small
    // in comparison.
    let job = test.job().env("CPU_CUDA_FAULTS", "delay:us=40000");
    run(&job.steps(["repeat:3:allreduce:300001"]));
    let report = test.report();
    assert_eq!(timings(&report, "AllReduce"), only("kernel", 6));
    // By rank: the duration of each launch, and the time from the first to the last timestamp of
    // each kernel.
    let mut launches: HashMap<u64, u64> = HashMap::new();
    for event in test.trace() {
        let args = &event["args"];
        if let Some(ns) = args["cuda_event_ns"].as_u64() {
            *launches.entry(event["pid"].as_u64().unwrap()).or_default() += ns;
        }
    }
    assert_eq!(launches.len(), 2, "{launches:?}");
    let row = &report["operations"][0];
    let (min, max) = (&row["duration_ns"]["min"], &row["duration_ns"]["max"]);
    let (min, max) = (min.as_u64().unwrap(), max.as_u64().unwrap());
    for ns in launches.into_values() {
        assert!(ns >= 3 * min, "{ns} of 3 launches, kernels took {min} or more");
        assert!(ns <= 3 * max + 3 * max / 2, "{ns} of 3 launches, kernels took {max} or less");
    }
}

#[test]
fn graphs_are_left_alone() {
    for release in wheel::RELEASES {
        let Some(test) = TestRun::new(release) else { continue };
        // The first AllReduce is still in flight while the graphs are captured.
        let job = test.job().env("CPU_CUDA_FAULTS", "delay:us=20000");
        let steps = ["init", "start:300001", "repeat:5:graph:2x64", "allreduce:64"];
        let outcome = run(&job.steps(steps));
        let driver = driver(&outcome);
        assert_eq!(driver.len(), 2, "{release}: {outcome}");
        for counts in driver {
            assert_eq!((counts["captured"], counts["refused"]), (0, 0), "{release}");
            assert_eq!((counts["made"], counts["destroyed"]), (EVENTS, EVENTS), "{release}");
            assert_eq!(counts["recorded"], 2 * 2, "{release}: graphs have none");
        }
    }
}

#[test]
fn devices_of_one_process_have_events_of_their_own() {
    let Some(test) = TestRun::new("2.28.9") else { return };
    let job = test.job().hosts(1).devices(2).threads().env("NCCLSCOPE_KERNEL", "off");
    let outcome = run(&job.steps(["init", "repeat:5:allreduce:4096", "comms:4096", "destroy:1"]));
    expect_clean(&outcome, 2, 2 * 2 * 7);
    assert_eq!(timings(&test.report(), "AllReduce"), only("cuda_event", 2 * 7));
}

#[test]
fn what_cannot_be_measured_gives_one_line_and_the_job_continues() {
    let Some(test) = TestRun::new("2.28.9") else { return };
    let says = |outcome: &Outcome, words: &str| {
        for rank in &outcome.ranks {
            let lines = rank.stderr.iter().filter(|line| line.starts_with("ncclscope:"));
            let lines: Vec<&String> = lines.collect();
            assert!(lines.len() == 1 && lines[0].contains(words), "{words}: {lines:?}");
        }
    };
    let outcome = run(&test.without_driver().steps(["allreduce:4096"]));
    says(&outcome, "no libcuda.so.1 is loaded: no CUDA events");
    assert_eq!(driver(&outcome), []);
    assert_eq!(timings(&test.report(), "AllReduce"), only("kernel", 2));

    let Some(older) = TestRun::new("2.27.7") else { return };
    let outcome = run(&older.job().steps(["allreduce:4096"]));
    says(&outcome, "this NCCL does not report its launches (2.28 does)");
    assert_eq!(timings(&older.report(), "AllReduce"), only("kernel", 2));
}
