// SPDX-License-Identifier: Apache-2.0
//! The agent with foreign collectors: Rotel, and gRPC's reference implementation with
//! OpenTelemetry's own schema. What they receive is compared with the report of the same
//! recordings.

use crate::export::{Agent, PATIENCE, receive, wait_for};
use crate::{agent, ncclscope};
use scripts::{Call, Process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) const GRPC: (&str, &str) = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
const GZIP: (&str, &str) = ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip");

/// Prints why a test is skipped, or fails if no test may be skipped.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
#[track_caller]
pub(crate) fn skip(why: &str) {
    assert!(std::env::var_os("NCCLSCOPE_REQUIRE_NCCL").is_none(), "{why}");
    println!("skipped: {why}");
}

/// A Python that has the receivers' packages.
pub(crate) fn python() -> Option<PathBuf> {
    let found = std::env::var_os("NCCLSCOPE_TEST_PYTHON").map(PathBuf::from);
    if found.is_none() {
        skip("NCCLSCOPE_TEST_PYTHON names no Python with grpcio, opentelemetry-proto and rotel");
    }
    found
}

/// Writes closed recordings of two ranks into a directory, each in one step.
fn put_job(directory: &Path) {
    let beside = tempfile::tempdir_in(directory.parent().unwrap()).unwrap();
    for rank in [0, 1] {
        let mut process = Process::new(rank, 2);
        for (func, count) in [("AllReduce", 1 << 20), ("AllReduce", 1000), ("Broadcast", 1 << 16)] {
            (0..7).for_each(|_| process.collective(Call { func, count, ..Call::ALL_REDUCE }));
        }
        process.send_recv(1 - rank, 5000);
        let file = process.write(beside.path()).unwrap();
        std::fs::rename(&file, directory.join(file.file_name().unwrap())).unwrap();
    }
}

/// Runs an agent that exports to `url` when it ends, and returns what it wrote. The recordings are
/// added while it runs.
pub(crate) fn export(run: &Path, url: &str, variables: &[(&str, &str)]) -> String {
    std::fs::create_dir(run).unwrap();
    let mut command = agent();
    command.args(["--any-host", "--interval", "3600", "--prom-listen", "127.0.0.1:0"]);
    command.args(["--labels", "rank,peer,channel", "--otlp", url, "--dir"]).arg(run);
    let mut agent = Agent::spawn(command.envs(variables.iter().copied()));
    agent.address();
    put_job(run);
    agent.terminate()
}

/// A collector (`collector.py`) and what it received.
pub(crate) struct Collector {
    process: Child,
    stdout: BufReader<ChildStdout>,
    port: u16,
}

impl Collector {
    pub(crate) fn start(python: &Path, folder: &Path, answers: &[&str]) -> Collector {
        let mut command = Command::new(python);
        command.arg("tests/collector.py").arg(folder).args(answers);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let port = line.trim().parse().expect("the collector prints its port");
        Collector { process, stdout, port }
    }

    pub(crate) fn url(&self, scheme: &str) -> String {
        format!("{scheme}://localhost:{}", self.port)
    }

    /// Ends the collector. Returns the metadata of all requests.
    pub(crate) fn end(mut self) -> Vec<Value> {
        drop(self.process.stdin.take());
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        assert!(self.process.wait().unwrap().success());
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A request, decoded by a foreign decoder.
fn decode(python: &Path, request: &Path) -> Value {
    let script = "../metrics/tests/encoders/check_otlp.py";
    let response = request.with_extension("response");
    let output = Command::new(python).arg(script).args([request, &response]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn points<'a>(request: &'a Value, name: &str) -> &'a Vec<Value> {
    let metrics = request["metrics"].as_array().unwrap();
    let metric = metrics.iter().find(|metric| metric["name"] == name);
    metric.unwrap_or_else(|| panic!("no {name}"))["points"].as_array().unwrap()
}

/// Sums of a metric by attributes; for a histogram, the number of its values.
fn sums(request: &Value, name: &str, by: &[&str]) -> BTreeMap<Vec<String>, u64> {
    let mut sums = BTreeMap::new();
    for point in points(request, name) {
        let text = |name: &&str| match &point["attributes"][name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let value = point.get("value").unwrap_or_else(|| &point["count"]);
        *sums.entry(by.iter().map(text).collect()).or_default() += value.as_u64().unwrap();
    }
    sums
}

/// Compares what was decoded with the report of the recordings.
fn compare(request: &Value, run: &Path) {
    let text = ncclscope(&["report", run.to_str().unwrap(), "--format", "json"]).ends_with(0);
    let report: Value = serde_json::from_str(&text.stdout).unwrap();
    let mut operations = BTreeMap::<_, u64>::new();
    let mut bytes = 0;
    for row in report["operations"].as_array().unwrap() {
        let count = row["count"].as_u64().unwrap() * row["ranks"].as_u64().unwrap();
        let key = vec![row["func"].as_str().unwrap().to_owned()];
        *operations.entry(key).or_default() += count;
        bytes += count * row["bytes"].as_u64().unwrap();
    }
    assert_eq!(operations[&vec!["AllReduce".to_owned()]], 28, "{report:#}");
    assert_eq!(sums(request, "nccl.operations", &["nccl.operation.name"]), operations);
    assert_eq!(sums(request, "nccl.operation.io", &[]), [(vec![], bytes)].into());
    let durations = sums(request, "nccl.operation.duration", &["nccl.operation.name"]);
    assert_eq!(durations, operations, "each operation is in a histogram");
    let way = ["nccl.rank", "nccl.peer.rank", "nccl.direction"];
    let (transfers, io) =
        (sums(request, "nccl.link.transfers", &way), sums(request, "nccl.link.io", &way));
    let peers = report["peers"].as_array().unwrap();
    assert_eq!(peers.len(), 2, "{report:#}");
    for peer in peers {
        let key = vec![peer["src"].to_string(), peer["dst"].to_string(), "send".into()];
        assert_eq!(
            (&peer["transfers"], &peer["bytes"]),
            (&transfers[&key].into(), &io[&key].into())
        );
    }
    let by_channel: u64 = sums(request, "nccl.channel.transfers", &[]).into_values().sum();
    assert_eq!(by_channel, transfers.values().sum::<u64>());
    assert!(sums(request, "nccl.events.lost", &[]).values().all(|&lost| lost == 0));
}

#[test]
fn what_is_sent_by_http_is_what_the_report_says() {
    let Some(python) = python() else { return };
    for variables in [&[][..], &[GZIP]] {
        let place = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let collector = std::thread::spawn(move || receive(&listener, "200 OK"));
        let run = place.path().join("run");
        assert_eq!(export(&run, &url, variables), "");
        let (head, mut body) = collector.join().unwrap();
        let is_compressed = head.contains("\r\ncontent-encoding: gzip\r\n");
        assert_eq!(is_compressed, !variables.is_empty(), "{head}");
        if is_compressed {
            let compressed = std::mem::take(&mut body);
            flate2::read::GzDecoder::new(&*compressed).read_to_end(&mut body).unwrap();
            assert!(compressed.len() < body.len() / 2);
        }
        let request = place.path().join("request");
        std::fs::write(&request, body).unwrap();
        compare(&decode(&python, &request), &run);
    }
}

/// Forwards one connection to `port`, and keeps what the client sends.
fn listen_in(port: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = listener.local_addr().unwrap().port();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heard);
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(("localhost", port)).unwrap();
        let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        let mut part = [0; 4096];
        while let Ok(read @ 1..) = client.read(&mut part) {
            kept.lock().unwrap().extend_from_slice(&part[..read]);
            server.write_all(&part[..read]).unwrap();
        }
    });
    (ours, heard)
}

#[test]
fn what_is_sent_by_grpc_is_what_the_report_says() {
    let Some(python) = python() else { return };
    let variables = [
        GRPC,
        ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20secret,x-team=red"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "60000"),
        ("OTEL_SERVICE_NAME", "training"),
        GZIP,
    ];
    for variables in [&variables[..4], &variables] {
        let place = tempfile::tempdir().unwrap();
        let collector = Collector::start(&python, place.path(), &["OK"]);
        let (port, heard) = listen_in(collector.port);
        let run = place.path().join("run");
        assert_eq!(export(&run, &format!("http://localhost:{port}/"), variables), "");
        let seen = collector.end();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!(seen[0]["authorization"], "Bearer secret");
        assert_eq!(seen[0]["x-team"], "red");
        let agent = seen[0]["user-agent"].as_str().unwrap();
        assert!(agent.starts_with("ncclscope-agent/"), "{agent}");
        let left = seen[0]["seconds_left"].as_f64().unwrap();
        assert!(left > 0.0 && left <= 60.0, "the collector knows the deadline: {left}");
        let heard = heard.lock().unwrap();
        let says = |what: &[u8]| heard.windows(what.len()).any(|part| part == what);
        let is_compressed = variables.contains(&GZIP);
        assert_eq!(says(b"nccl.operation.duration"), !is_compressed);
        // The flag of a compressed message and its length, then the magic number of gzip.
        assert_eq!(says(&[0x1f, 0x8b, 0x08]), is_compressed);
        let request = decode(&python, &place.path().join("request-1"));
        assert_eq!(request["resource"]["service.name"], "training");
        compare(&request, &run);
    }
}

/// The agent exports five times a second, until the collector has answered all that it has to.
#[test]
fn what_a_collector_refuses_is_counted_and_what_may_change_is_sent_again() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let answers = [
        "UNAUTHENTICATED",
        "RESOURCE_EXHAUSTED",
        "UNAVAILABLE",
        "RESOURCE_EXHAUSTED+0.01",
        "UNAVAILABLE+0",
        "PARTIAL",
        "OK",
    ];
    let collector = Collector::start(&python, place.path(), &answers);
    let mut command = agent();
    command.args(["--interval", "0.2", "--prom-listen", "127.0.0.1:0"]);
    command.args(["--otlp", &collector.url("http"), "--dir"]).arg(place.path());
    let mut agent = Agent::spawn(command.envs([GRPC]));
    let address = agent.address();
    wait_for(&address, "ncclscope_agent_failed_exports_total", 3.0);
    let end = Instant::now() + PATIENCE;
    while !place.path().join("request-8").exists() {
        assert!(Instant::now() < end, "it goes on");
        std::thread::sleep(Duration::from_millis(50));
    }
    wait_for(&address, "ncclscope_agent_failed_exports_total", 3.0);
    let said = agent.terminate();
    let reasons =
        ["Unauthenticated: not", "ResourceExhausted: not", "Unavailable: not", "rejected"];
    assert!(reasons.iter().all(|why| said.contains(why)), "{said}");
    assert_eq!(said.lines().count(), reasons.len(), "each reason is told once: {said}");
    let read = |n: usize| std::fs::read(place.path().join(format!("request-{n}"))).unwrap();
    assert_ne!(read(1), read(2), "what was refused is not sent again");
    assert_ne!(read(2), read(3), "nor where no reply says when there is room");
    for again in [4, 5, 6] {
        assert_eq!(read(3), read(again), "{again}");
    }
    assert_ne!(read(6), read(7), "what was taken in part is not sent again");
    assert!(collector.end().len() >= 8);
}

/// Three listeners that are no collectors: one sends text, one is silent, one closes the
/// connection.
#[test]
fn who_speaks_no_grpc_gets_nothing_and_ends_nothing() {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let urls = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let [talks, silent, hangs_up] = listeners;
    std::thread::spawn(move || {
        for mut stream in talks.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    std::thread::spawn(move || silent.incoming().flatten().collect::<Vec<_>>());
    std::thread::spawn(move || hangs_up.incoming().flatten().for_each(drop));
    let place = tempfile::tempdir().unwrap();
    for (name, address) in ["talks", "silent", "hangs-up"].iter().zip(urls) {
        let short = ("OTEL_EXPORTER_OTLP_TIMEOUT", "500");
        let said = export(&place.path().join(name), &format!("http://{address}"), &[GRPC, short]);
        assert!(said.contains("cannot export") && said.contains("did not reach"), "{name}: {said}");
        assert!(!said.contains("panicked"), "{name}: {said}");
    }
}

/// Rotel, a foreign receiver, which prints what it receives.
struct Rotel {
    process: Child,
    http: String,
    grpc: String,
    log: PathBuf,
}

impl Rotel {
    fn start(python: &Path, folder: &Path) -> Rotel {
        let find = "import os, rotel; print(os.path.dirname(rotel.__file__))";
        let output = Command::new(python).args(["-c", find]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found = String::from_utf8(output.stdout).unwrap();
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [http, grpc] = ports.map(|port| port.local_addr().unwrap().to_string());
        let log = folder.join("rotel.log");
        let mut command = Command::new(Path::new(found.trim()).join("rotel-agent"));
        command.args(["start", "--exporter", "blackhole", "--debug-log", "metrics"]);
        command.args(["--debug-log-verbosity", "detailed", "--otlp-http-endpoint", &http]);
        command.args(["--otlp-grpc-endpoint", &grpc]);
        let file = File::create(&log).unwrap();
        let process = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        let urls = [&http, &grpc].map(|place| format!("http://{place}"));
        let end = Instant::now() + PATIENCE;
        while [&http, &grpc].iter().any(|place| TcpStream::connect(place.as_str()).is_err()) {
            assert!(Instant::now() < end, "{}", std::fs::read_to_string(&log).unwrap());
            std::thread::sleep(Duration::from_millis(20));
        }
        let [http, grpc] = urls;
        Rotel { process, http, grpc, log }
    }
}

impl Drop for Rotel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_receiver_of_others_takes_all_forms_histograms_too() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let rotel = Rotel::start(&python, place.path());
    let forms = [
        ("http", &rotel.http, &[][..]),
        ("http-gzip", &rotel.http, &[GZIP]),
        ("grpc", &rotel.grpc, &[GRPC]),
        ("grpc-gzip", &rotel.grpc, &[GRPC, GZIP]),
    ];
    for (form, url, variables) in forms {
        let name = [("OTEL_SERVICE_NAME", form)];
        let before = std::fs::read_to_string(&rotel.log).unwrap().len();
        let said = export(&place.path().join(form), url, &[&name, variables].concat());
        assert_eq!(said, "", "{form}");
        let service = format!("Str({form})");
        let words = [&*service, "nccl.operation.duration", "ExponentialHistogram", "Count: 7"];
        let end = Instant::now() + PATIENCE;
        loop {
            let log = std::fs::read_to_string(&rotel.log).unwrap();
            let new = &log[before..];
            assert!(!new.contains("ERROR"), "{form}: {new}");
            if words.iter().all(|word| new.contains(word)) {
                break;
            }
            assert!(Instant::now() < end, "{form}: {new}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
