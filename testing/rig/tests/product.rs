// SPDX-License-Identifier: Apache-2.0
//! The product on real NCCL, as a user runs it: `ncclscope run`, then `report` and `export`.

use rig::job::Job;
use rig::{build, wheel};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// The supported releases, on the stand-in.
const RELEASES: [&str; 2] = ["2.28.9", "2.30.7"];

struct Product {
    cli: PathBuf,
    plugin: PathBuf,
    job: PathBuf,
}

impl Product {
    fn build() -> Product {
        build::artifacts().expect("the stand-in builds");
        Product { cli: build::tool(), plugin: build::plugin(), job: build::job() }
    }

    fn cli(&self, args: &[&OsStr]) -> Output {
        let mut command = Command::new(&self.cli);
        command.args(args).env("NCCLSCOPE_PLUGIN", &self.plugin);
        command.output().expect("the tool starts")
    }

    /// `ncclscope run` of a job of two ranks.
    fn run(&self, folder: &Path, nccl: &Path, steps: &[&str]) -> Output {
        let mut args: Vec<&OsStr> = vec!["run".as_ref(), "-o".as_ref(), folder.as_os_str()];
        args.extend([OsStr::new("--"), self.job.as_os_str(), "--nccl".as_ref(), nccl.as_os_str()]);
        args.extend(steps.iter().map(OsStr::new));
        let output = self.cli(&args);
        assert!(output.status.success(), "{}", text(&output));
        output
    }

    fn report(&self, folder: &Path) -> Value {
        let args = ["report".as_ref(), folder.as_os_str(), "--format".as_ref(), "json".as_ref()];
        let output = self.cli(&args);
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice(&output.stdout).expect("the report is JSON")
    }
}

fn text(output: &Output) -> String {
    let of = String::from_utf8_lossy;
    format!("{}\n{}\n{}", output.status, of(&output.stdout), of(&output.stderr))
}

fn array<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("{name} in {value}"))
}

#[test]
fn one_all_reduce_gives_exactly_the_events_that_nccl_made() {
    let product = Product::build();
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let folder = tempfile::tempdir().unwrap();
        product.run(folder.path(), &nccl, &["allreduce:262144"]);
        let report = product.report(folder.path());
        assert_eq!(array(&report, "ranks").len(), 2, "{report}");
        for rank in array(&report, "ranks") {
            assert_eq!(rank["nccl_version"], version);
            let expected = [
                ("GroupApi", 1),
                ("CollApi", 1),
                ("KernelLaunch", 1),
                ("Group", 1),
                ("Coll", 1),
                ("ProxyOp", 4),
                ("ProxyStep", 16),
                ("KernelCh", 2),
            ];
            let events = rank["events"].as_object().unwrap();
            for (kind, count) in expected {
                let event = &events[kind];
                assert_eq!(event["started"], count, "{version} {kind} {rank}");
                assert_eq!(event["stopped"], count, "{version} {kind} {rank}");
                assert_eq!(event["open"], 0, "{version} {kind} {rank}");
                assert_eq!(event["dropped"], 0, "{version} {kind} {rank}");
            }
            let others: Vec<_> =
                events.keys().filter(|k| expected.iter().all(|(e, _)| e != k)).collect();
            assert_eq!(others, [] as [&str; 0], "{version}");
            for state in ["SendGPUWait", "SendWait", "RecvWait", "RecvFlushWait", "RecvGPUWait"] {
                assert_eq!(rank["states"][format!("ProxyStep{state}")], 8, "{version} {rank}");
            }
            // SendPeerWait is reported again on every poll of a peer that is not ready.
            assert!(rank["states"]["ProxyStepSendPeerWait"].as_u64() >= Some(8), "{rank}");
            assert_eq!(rank["states"]["KernelChStop"], 2);
        }
        let [operation] = array(&report, "operations").as_slice() else { panic!("{report}") };
        for (field, value) in [("func", "AllReduce"), ("algorithm", "RING"), ("protocol", "SIMPLE")]
        {
            assert_eq!(operation[field], value);
        }
        assert_eq!((&operation["bytes"], &operation["channels"]), (&1_048_576.into(), &2.into()));
        assert_eq!((&operation["count"], &operation["open"]), (&1.into(), &0.into()));
        assert_eq!(operation["timing"], "kernel", "KernelCh has pTimer: {operation}");
        assert!(operation["duration_ns"]["min"].as_u64() > Some(0));
        let peers = array(&report, "peers");
        assert_eq!(peers.len(), 2);
        assert!(peers.iter().all(|p| p["bytes"] == 1_048_576 && p["transfers"] == 8), "{peers:?}");
        assert_eq!(report["lost"]["total"], 0);
    }
}

#[test]
fn a_mixed_job_is_complete_and_its_trace_is_what_perfetto_reads() {
    let product = Product::build();
    for version in wheel::RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let steps = ["allreduce:256", "allgather:300001", "reducescatter:4096", "broadcast:65536"];
        let more = ["reduce:65536", "sendrecv:300001", "group:4x65536", "graph:3x4096"];
        product.run(folder.path(), &nccl, &[steps, more].concat());
        let report = product.report(folder.path());
        for rank in array(&report, "ranks") {
            for (kind, event) in rank["events"].as_object().unwrap() {
                assert_eq!(event["started"], event["stopped"], "{version} {kind} {rank}");
                assert_eq!(event["unknown_parent"], 0, "{version} {kind} {rank}");
            }
        }
        assert_eq!(report["lost"]["total"], 0, "{version}");
        let trace = folder.path().join("t.pftrace");
        let args = ["export", "--to", "pftrace", "-o"].map(OsStr::new);
        let output = product.cli(&[&args[..], &[trace.as_ref(), folder.path().as_ref()]].concat());
        assert!(output.status.success(), "{}", text(&output));
        check_trace(&trace);
    }
}

/// Reads the trace with Perfetto's own schema.
fn check_trace(trace: &Path) {
    let Some(python) = rig::python::with_or_skip("perfetto") else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = script.join("../../crates/cli/tests/check_pftrace.py");
    let output = Command::new(python).arg(script).arg(trace).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

fn plugin_job(product: &Product, nccl: &Path, folder: &Path) -> Job {
    let job = Job::new(nccl).expect("the stand-in builds").timeout(Duration::from_secs(100));
    job.env("NCCL_PROFILER_PLUGIN", &product.plugin)
        .env("NCCLSCOPE_DIR", folder)
        .env("NCCLSCOPE_LOG", "stderr")
}

#[test]
fn a_rank_killed_in_mid_run_leaves_a_recording_that_names_its_end() {
    let product = Product::build();
    let Some(nccl) = wheel::find_or_skip(RELEASES[0]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let job = plugin_job(&product, &nccl, folder.path());
    let job = job.steps(["allreduce:65536", "repeat:100000:allreduce:65536"]);
    let mut running = job.start().expect("ranks start");
    assert!(running.wait_for_line(1, "rank 1 allreduce"), "no operation ended");
    std::thread::sleep(Duration::from_millis(700));
    running.kill(1);
    let outcome = running.wait();
    assert!(outcome.ranks.iter().all(|rank| rank.killed), "{outcome}");

    let report = product.report(folder.path());
    assert_eq!(array(&report, "ranks").len(), 2, "{report}");
    let problems = report["problems"].to_string();
    assert!(problems.contains("was killed"), "{problems}");
    assert!(problems.contains("records taken from its lanes"), "{problems}");
    let [operation] = array(&report, "operations").as_slice() else { panic!("{report}") };
    assert!(operation["count"].as_u64() > Some(10), "{operation}");
    assert_eq!(report["lost"]["total"], 0, "{report}");
}

/// The ranks are killed, and their directory can be moved. The report may also be made elsewhere,
/// because the user asked for that or because a launcher started `ncclscope run` for each rank.
#[test]
fn what_killed_ranks_left_in_memory_is_fetched_also_without_a_report() {
    let product = Product::build();
    let Some(nccl) = wheel::find_or_skip(RELEASES[0]) else { return };
    for place in [&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")][..], &[]] {
        let folder = tempfile::tempdir().unwrap();
        let lanes = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut run = Command::new(&product.cli);
        run.args(["run", "--no-report", "-o"]).arg(folder.path()).arg("--").arg(&product.job);
        run.arg("--nccl").arg(&nccl).args(["--timeout-s", "3", "repeat:100000:allreduce:65536"]);
        run.env("NCCLSCOPE_PLUGIN", &product.plugin).env("NCCLSCOPE_LANES", lanes.path());
        let output = run.envs(place.iter().copied()).output().unwrap();
        assert!(!output.status.success(), "{}", text(&output));
        let left: Vec<_> = std::fs::read_dir(lanes.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?} {}", text(&output));
        let problems = product.report(folder.path())["problems"].to_string();
        assert!(problems.contains("records taken from its lanes"), "{problems}");
    }
}

#[test]
fn whatever_is_wrong_with_the_recording_the_job_goes_on() {
    let product = Product::build();
    let Some(nccl) = wheel::find_or_skip(RELEASES[0]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    for (name, value, says) in [
        ("NCCLSCOPE_DIR", file.to_str().unwrap(), "the watchdog runs, and records wait"),
        ("NCCLSCOPE_DIR", "/proc/ncclscope", "the watchdog runs, and records wait"),
        ("NCCLSCOPE_MODE", "loud", "expected off, or flight, trace, metrics"),
        ("NCCLSCOPE_RING_MB", "0", "expected MiB from 1"),
    ] {
        let job = plugin_job(&product, &nccl, &folder.path().join("run")).env(name, value);
        let outcome = job.steps(["allreduce:4096"]).run().expect("ranks start");
        outcome.expect_success();
        for rank in &outcome.ranks {
            let said: Vec<_> =
                rank.stderr.iter().filter(|line| line.starts_with("ncclscope:")).collect();
            assert!(said[0].contains(says), "{name}={value}: {said:?}");
            // A file that never came is said at the end, too.
            let at_end = said.get(1).is_some_and(|line| line.ends_with("was recorded"));
            assert_eq!(said.len(), 1 + usize::from(at_end), "{name}={value}: {said:?}");
            assert_eq!(at_end, name == "NCCLSCOPE_DIR", "{name}={value}: {said:?}");
        }
    }
}

#[test]
fn peers_have_the_bytes_that_were_sent_in_every_release() {
    let product = Product::build();
    for version in ["2.23.4", "2.26.5", "2.28.9"] {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("run");
        product.run(&folder, &nccl, &["repeat:3:sendrecv:300000"]);
        let report = product.report(&folder);
        let bytes: Vec<_> =
            array(&report, "peers").iter().map(|row| row["bytes"].as_u64()).collect();
        assert_eq!(bytes, [Some(3 * 4 * 300_000); 2], "{version}: {}", report["peers"]);
    }
}
