// SPDX-License-Identifier: Apache-2.0
//! A collector that fails in the middle of a job and recovers: requests in the ranks' queues
//! arrive, and those that do not fit are counted.
//!
//! Each request covers the time since the previous one (delta), so that a missing request is
//! missing in the sums.

use super::receiver::Collector;
use super::{compare, decode, product, python};
use rig::job::Job;
use rig::wheel;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The minimum length of a window: in seconds as in the variable, and in ns.
const WINDOW: (&str, u64) = ("0.1", 100_000_000);
/// Longer than the plugin's queue of 64 requests lasts; twice that would also lose the counts of
/// the loss.
const LONG: Duration = Duration::from_secs(8);

/// The requests of a job of `operations` operations, one every 0.1 s, whose collector was down for
/// `outage`; and the job's report.
struct Outage {
    requests: Vec<Value>,
    report: Value,
}

impl Outage {
    fn run(python: &Path, nccl: &Path, operations: usize, outage: Duration) -> Outage {
        let (plugin, cli) = product();
        let folder = tempfile::tempdir().expect("a directory");
        let run: PathBuf = folder.path().join("run");
        let mut collector = Collector::start();
        let job = Job::new(nccl).expect("the stand-in builds").timeout(Duration::from_secs(120));
        let job = job
            .env("NCCL_PROFILER_PLUGIN", plugin)
            .env("NCCLSCOPE_DIR", &run)
            .env("NCCLSCOPE_OTLP", &collector.url)
            .env("NCCLSCOPE_WINDOW", WINDOW.0)
            .env("NCCLSCOPE_LABELS", "rank,peer,channel")
            .env("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
            .arg("--pause-ms")
            .arg("100");
        let step = format!("repeat:{operations}:allreduce:30001");
        let mut running = job.steps([step]).start().expect("ranks start");
        assert!(running.wait_for_line(1, "rank 1 allreduce"), "an operation is done");
        while collector.bodies().len() < 4 {
            std::thread::sleep(Duration::from_millis(5));
        }
        collector.go_down();
        let before = collector.bodies().len();
        std::thread::sleep(outage);
        assert_eq!(collector.bodies().len(), before, "it was down");
        collector.come_back();
        running.wait().expect_success();
        let requests = decode(python, folder.path(), &collector.bodies());
        Outage { requests, report: super::report(&cli, &run) }
    }

    /// The requests of each process, in order of arrival.
    fn by_process(&self) -> Vec<Vec<&Value>> {
        let mut processes: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for request in &self.requests {
            let instance = request["resource"]["service.instance.id"].as_str().expect("text");
            processes.entry(instance).or_default().push(request);
        }
        processes.into_values().collect()
    }
}

/// Begin and end of a request's window, ns.
fn window(request: &Value) -> (u64, u64) {
    let metrics = request["metrics"].as_array().expect("metrics");
    let sum = metrics.iter().find(|metric| metric["kind"] == "sum").expect("a counter");
    let point = &sum["points"][0];
    (point["start"].as_u64().expect("ns"), point["time"].as_u64().expect("ns"))
}

/// Gaps between windows that should be adjacent.
fn gaps(requests: &[&Value]) -> Vec<u64> {
    let windows: Vec<_> = requests.iter().map(|request| window(request)).collect();
    let gap = |pair: &[(u64, u64)]| pair[1].0.checked_sub(pair[0].1).expect("they are in order");
    windows.windows(2).map(gap).filter(|&gap| gap > 0).collect()
}

/// Number of requests that the ranks report as lost.
fn lost(requests: &[&Value]) -> u64 {
    super::sums(requests, "ncclscope.export.lost", &[]).values().sum()
}

#[test]
fn an_outage_that_the_queue_holds_loses_nothing() {
    let Some(python) = python() else { return };
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    let outage = Outage::run(&python, &nccl, 60, Duration::from_secs(3));
    for requests in outage.by_process() {
        assert_eq!(gaps(&requests), [0; 0], "every window arrived, once, in order");
        assert_eq!(lost(&requests), 0);
    }
    let all: Vec<&Value> = outage.requests.iter().collect();
    compare("2.28.9", &all, &outage.report, 120);
}

#[test]
fn an_outage_beyond_the_queue_says_what_it_lost() {
    let Some(python) = python() else { return };
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    let outage = Outage::run(&python, &nccl, 110, LONG);
    let processes = outage.by_process();
    assert_eq!(processes.len(), 2);
    for requests in &processes {
        let (gaps, lost) = (gaps(requests), lost(requests));
        let [gap] = gaps[..] else { panic!("the oldest are missing, in one piece: {gaps:?}") };
        assert!(lost > 0 && lost * WINDOW.1 <= gap, "{lost} windows in {gap} ns");
        let done = super::sums(requests, "nccl.operations", &[]).values().sum::<u64>();
        assert!((1..110).contains(&done), "{done} operations arrived");
    }
}
