// SPDX-License-Identifier: Apache-2.0
//! Metrics from the ranks of a real NCCL job, as a collector receives them, compared value by value
//! with the recording of the same job.

#[path = "../common/mod.rs"]
mod common;
mod outage;
mod receiver;

use common::report;
use receiver::Collector;
use rig::job::Job;
use rig::topology::Topology;
use rig::{build, wheel};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const RELEASES: [&str; 2] = ["2.28.9", "2.32.3"];

/// A Python with OpenTelemetry's own schema.
fn python() -> Option<PathBuf> {
    rig::python::with_or_skip("opentelemetry-proto")
}

/// The content of requests, read by an independent decoder.
fn decode(python: &Path, folder: &Path, bodies: &[Vec<u8>]) -> Vec<Value> {
    let write = |(index, body): (usize, &Vec<u8>)| {
        let request = folder.join(format!("request-{index}"));
        std::fs::write(&request, body).expect("a file");
        request
    };
    let files: Vec<PathBuf> = bodies.iter().enumerate().map(write).collect();
    let script = "import sys; sys.path.insert(0, '../../crates/metrics/tests/encoders')\n\
                  import check_otlp\n\
                  for request in sys.argv[2:]: check_otlp.main(request, sys.argv[1])";
    let mut command = Command::new(python);
    command.args(["-B", "-c", script]).arg(folder.join("response")).args(files);
    let output = command.output().expect("python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    values.collect::<Result<_, _>>().expect("the script prints JSON")
}

/// The last request of each process; it is cumulative, so it contains everything.
fn last_of_each(requests: &[Value]) -> Vec<&Value> {
    let mut last = BTreeMap::new();
    for request in requests {
        let instance = request["resource"]["service.instance.id"].as_str().expect("an instance");
        last.insert(instance, request);
    }
    last.into_values().collect()
}

fn points<'a>(request: &'a Value, name: &str) -> Vec<&'a Value> {
    let metrics = request["metrics"].as_array().expect("metrics");
    let metric = metrics.iter().find(|metric| metric["name"] == name);
    metric.map_or(vec![], |m| m["points"].as_array().expect("points").iter().collect())
}

/// Sums of a counter over all processes, by an attribute or several.
fn sums(requests: &[&Value], name: &str, by: &[&str]) -> BTreeMap<Vec<String>, u64> {
    let mut sums = BTreeMap::new();
    for point in requests.iter().flat_map(|request| points(request, name)) {
        let text = |name: &&str| match &point["attributes"][name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let key = by.iter().map(text).collect();
        *sums.entry(key).or_default() += point["value"].as_u64().expect("a whole number");
    }
    sums
}

/// The plugin and the tool.
fn product() -> (PathBuf, PathBuf) {
    (build::plugin(), build::tool())
}

#[test]
fn what_a_collector_receives_is_what_the_recording_holds() {
    let Some(python) = python() else { return };
    let (plugin, cli) = product();
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let folder = tempfile::tempdir().expect("a directory");
        let collector = Collector::start();
        let job = Job::new(&nccl).expect("the stand-in builds").timeout(Duration::from_secs(60));
        let job = job
            .env("NCCL_PROFILER_PLUGIN", &plugin)
            .env("NCCLSCOPE_DIR", folder.path().join("run"))
            .env("NCCLSCOPE_OTLP", &collector.url)
            .env("NCCLSCOPE_WINDOW", "0.5")
            .env("NCCLSCOPE_LABELS", "rank,peer,channel")
            .env("OTEL_RESOURCE_ATTRIBUTES", "team=red");
        let steps = ["repeat:100:allreduce:1000", "repeat:100:allreduce:300001"];
        let outcome = job.topology(Topology::Socket).steps(steps).run().expect("ranks start");
        outcome.expect_success();
        let bodies = collector.bodies();
        assert!(bodies.len() > 2, "{version}: several windows");
        // The last request of each process is among these.
        let late = &bodies[bodies.len().saturating_sub(8)..];
        let requests = decode(&python, folder.path(), late);
        let last = last_of_each(&requests);
        assert_eq!(last.len(), 2, "{version}: two processes");
        for request in &last {
            assert_eq!(request["resource"]["team"], "red", "{version}");
            assert_eq!(request["resource"]["service.name"], "ncclscope", "{version}");
        }
        compare(version, &last, &report(&cli, &folder.path().join("run")), 400);
    }
}

/// A third-party receiver: Rotel, which prints what it receives.
struct Rotel {
    process: std::process::Child,
    url: String,
    log: PathBuf,
}

impl Rotel {
    fn start(python: &Path, folder: &Path) -> Rotel {
        let find = "import os, rotel; print(os.path.dirname(rotel.__file__))";
        let output = Command::new(python).args(["-c", find]).output().expect("python starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [http, grpc] = ports.map(|port| port.local_addr().expect("an address").to_string());
        let log = folder.join("rotel.log");
        let mut command = Command::new(Path::new(&found).join("rotel-agent"));
        command.args(["start", "--exporter", "blackhole", "--debug-log", "metrics"]);
        command.args(["--debug-log-verbosity", "detailed", "--otlp-http-endpoint", &http]);
        command.args(["--otlp-grpc-endpoint", &grpc]);
        let file = std::fs::File::create(&log).expect("a file");
        command.stdout(file.try_clone().expect("a descriptor")).stderr(file);
        let process = command.spawn().expect("rotel starts");
        Rotel { process, url: format!("http://{http}"), log }
    }
}

impl Drop for Rotel {
    fn drop(&mut self) {
        self.process.kill().expect("it is ours");
        self.process.wait().expect("it ends");
    }
}

#[test]
fn a_receiver_of_others_takes_histograms_too() {
    let Some(python) = python() else { return };
    let (plugin, _) = product();
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    let folder = tempfile::tempdir().expect("a directory");
    let rotel = Rotel::start(&python, folder.path());
    let job = Job::new(&nccl).expect("the stand-in builds").timeout(Duration::from_secs(60));
    // Configured through OpenTelemetry's own variables.
    let job = job
        .env("NCCL_PROFILER_PLUGIN", &plugin)
        .env("NCCLSCOPE_DIR", folder.path().join("run"))
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &rotel.url)
        .env("OTEL_METRIC_EXPORT_INTERVAL", "1000")
        .env("OTEL_SERVICE_NAME", "training");
    let outcome = job.steps(["repeat:50:allreduce:1000"]).run().expect("ranks start");
    outcome.expect_success();
    let is_there = |log: &str| {
        let words =
            ["Str(training)", "nccl.operation.duration", "ExponentialHistogram", "Count: 50"];
        words.iter().all(|word| log.contains(word))
    };
    let mut log = String::new();
    for _ in 0..100 {
        log = std::fs::read_to_string(&rotel.log).expect("a log");
        if is_there(&log) {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(is_there(&log), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

/// Compares the totals of `operations`, counted on each rank, with the report.
fn compare(version: &str, last: &[&Value], report: &Value, operations: u64) {
    let array = |name: &str| report[name].as_array().expect("an array").clone();
    let (mut count, mut bytes) = (0, 0);
    for row in array("operations") {
        let ops = row["count"].as_u64().expect("a count") * row["ranks"].as_u64().expect("ranks");
        count += ops;
        bytes += ops * row["bytes"].as_u64().expect("bytes");
    }
    assert_eq!(count, operations, "{version}");
    let by_name = sums(last, "nccl.operations", &["nccl.operation.name"]);
    assert_eq!(by_name, [(vec!["AllReduce".to_owned()], operations)].into(), "{version}");
    let io = sums(last, "nccl.operation.io", &[]);
    assert_eq!(io, [(vec![], bytes)].into(), "{version}");
    let way = ["nccl.rank", "nccl.peer.rank", "nccl.direction"];
    let (transfers, sent) =
        (sums(last, "nccl.link.transfers", &way), sums(last, "nccl.link.io", &way));
    for peer in array("peers") {
        let key: Vec<String> =
            vec![peer["src"].to_string(), peer["dst"].to_string(), "send".into()];
        assert_eq!(peer["transfers"], transfers[&key], "{version} {peer}");
        assert_eq!(peer["bytes"], sent[&key], "{version} {peer}");
    }
    let by_channel: u64 = sums(last, "nccl.channel.transfers", &[]).into_values().sum();
    assert_eq!(by_channel, transfers.values().sum::<u64>(), "{version}");
    assert!(sums(last, "nccl.events.lost", &[]).values().all(|&lost| lost == 0), "{version}");
}
