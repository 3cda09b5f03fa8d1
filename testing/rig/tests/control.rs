// SPDX-License-Identifier: Apache-2.0
//! Control of a running job on real NCCL: ls, start, stop, dump; and access to its control socket
//! by others.

#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

mod common;

use rig::job::{Job, Running};
use rig::{build, wheel};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

struct TestRun {
    cli: PathBuf,
    plugin: PathBuf,
    dir: tempfile::TempDir,
}

impl TestRun {
    fn new() -> TestRun {
        let dir = tempfile::tempdir().unwrap();
        TestRun { cli: build::tool(), plugin: build::plugin(), dir }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Two ranks that do a small AllReduce every few milliseconds, `times` times.
    fn start(&self, nccl: &Path, times: usize) -> Running {
        let steps = (0..times).flat_map(|_| ["allreduce:4096", "sleep:4"]);
        self.job(nccl).steps(steps).start().expect("the job starts")
    }

    fn job(&self, nccl: &Path) -> Job {
        let job = Job::new(nccl).expect("the stand-in builds").timeout(Duration::from_secs(120));
        job.env("NCCL_PROFILER_PLUGIN", &self.plugin)
            .env("NCCLSCOPE_KERNEL", "on")
            .env("NCCLSCOPE_DIR", self.place("run"))
            .env("NCCLSCOPE_CONTROL", self.place("control"))
    }

    fn cli(&self, args: &[&str]) -> Output {
        let mut command = Command::new(&self.cli);
        command.args(args).env("NCCLSCOPE_CONTROL", self.place("control"));
        command.output().expect("the tool starts")
    }

    /// The tool's output; it must succeed.
    #[track_caller]
    fn says(&self, args: &[&str]) -> String {
        let output = self.cli(args);
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {text}{errors}");
        text
    }

    fn processes(&self) -> Vec<Value> {
        let text = self.says(&["ls", "--format", "json"]);
        let listing: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(listing["schema"], "ncclscope.processes/2");
        listing["processes"].as_array().unwrap().clone()
    }

    fn recorded(&self) -> Vec<Value> {
        self.processes().iter().map(|process| process["recorded"].clone()).collect()
    }
}

fn begun(job: &mut Running) {
    for rank in 0..2 {
        let line = format!("rank {rank} allreduce");
        assert!(job.wait_for_line(rank, &line), "rank {rank} does nothing");
    }
}

/// Asserts that nothing is lost, open or incomplete: each AllReduce has all of its parts. (A Group
/// is not part of an AllReduce: it has no parent, and may begin when recording has stopped.)
#[track_caller]
fn whole(report: &Value) -> u64 {
    assert_eq!(report["lost"]["total"], 0, "{report}");
    let mut operations = 0;
    for rank in report["ranks"].as_array().unwrap() {
        let events = rank["events"].as_object().unwrap();
        for (kind, event) in events {
            assert_eq!(event["started"], event["stopped"], "{kind}: {rank}");
            assert_eq!(event["unknown_parent"], 0, "{kind}: {rank}");
        }
        let count = |kind: &str| events[kind]["started"].as_u64().unwrap();
        let ops = count("Coll");
        let channels = count("ProxyOp") / 2;
        assert_eq!(count("CollApi"), ops, "{rank}");
        assert_eq!((channels % ops.max(1), count("KernelCh")), (0, channels), "{rank}");
        operations += ops;
    }
    operations
}

#[test]
fn a_running_job_is_listed_stopped_started_and_dumped() {
    let run = TestRun::new();
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    let mut job = run.start(&nccl, 1500);
    begun(&mut job);
    let processes = run.processes();
    let pids: BTreeSet<u64> = processes.iter().map(|p| p["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids, [0, 1].map(|rank| u64::from(job.pid(rank))).into());
    for process in &processes {
        assert_eq!(
            (&process["recorded"], &process["nccl_version"]),
            (&"yes".into(), &"2.28.9".into())
        );
        assert_eq!(process["comms"][0]["nranks"], 2, "{process}");
    }
    assert_eq!(run.cli(&["stop"]).status.code(), Some(2), "which of the two is not said");
    run.says(&["stop", "--all"]);
    assert_eq!(run.recorded(), ["no", "no"]);
    let first = job.pid(0).to_string();
    run.says(&["start", "--pid", &first, "--for", "100ms"]);
    let snapshot = run.place("snapshot");
    let to = snapshot.to_str().unwrap();
    let files = run.says(&["snapshot", "--all", "--for", "300ms", "-o", to]);
    assert_eq!(files.lines().count(), 2, "{files}");
    // An operation may be in flight at the moment of the copy, in which it is then open.
    let report = common::report(&run.cli, &snapshot);
    assert!(report["ranks"].as_array().unwrap().len() == 2, "{report}");
    assert!(report["operations"][0]["count"].as_u64() > Some(0), "{report}");
    assert_eq!(report["lost"]["total"], 0, "{report}");
    assert_eq!(run.recorded(), ["no", "no"], "what was not recorded before is not after");
    run.says(&["start", "--all"]);
    let dump = run.place("dump");
    let trace = run.place("dump.json");
    let wrong = run.cli(&["dump", "--all", "--trace", "dump.txt"]);
    assert_eq!((wrong.status.code(), dump.exists()), (Some(2), false));
    let trace = trace.to_str().unwrap();
    run.says(&["dump", "--all", "-o", dump.to_str().unwrap(), "--trace", trace]);
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 100);
    assert_eq!(run.recorded(), ["yes", "yes"]);
    let again = run.cli(&["dump", "--all", "-o", dump.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(4), "what is there is not overwritten");
    job.wait().expect_success();
    whole(&common::report(&run.cli, &run.place("run")));
    assert_eq!(run.processes().len(), 0);
    let without = run.cli(&["start", "--pid", &first]);
    assert_eq!(without.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&without.stderr).contains("has no socket here"));
}

/// A job that reports no steps: the tool says that a window of steps is waiting, and the previous
/// recording continues, as `ls` shows.
#[test]
fn a_window_of_steps_without_steps_changes_nothing_and_says_so() {
    let run = TestRun::new();
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    let mut job = run.start(&nccl, 1500);
    begun(&mut job);
    let first = job.pid(0).to_string();
    let start = ["start", "--pid", &first, "--steps", "3"];
    let started = run.cli(&start);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (stdout, stderr) = (text(&started.stdout), text(&started.stderr));
    let says =
        "mode flight: records; its next window is from the next training step on, for 3 steps";
    assert!(stdout.contains(&format!("pid {first}")) && stdout.contains(says), "{stdout}");
    assert!(stderr.contains("until then it records everything"), "{stderr}");
    let process = |run: &TestRun| run.processes().into_iter().find(|p| p["pid"] == job.pid(0));
    let window = process(&run).unwrap();
    assert_eq!(
        (&window["recorded"], &window["window"]["ends"]),
        (&"yes".into(), &"3 steps".into())
    );
    run.says(&["stop", "--pid", &first]);
    let again = text(&run.cli(&start).stderr);
    assert!(again.contains("until then it records nothing"), "{again}");
    assert_eq!(process(&run).unwrap()["recorded"], "waiting");
    job.wait().expect_success();
}

#[test]
fn a_window_has_exactly_the_operations_that_the_application_issued_in_it() {
    for version in wheel::RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let run = TestRun::new();
        // A thousand toggles; every other operation is in a window.
        let pattern = ["record:off", "allreduce:256", "record:on", "allreduce:300"];
        let steps = (0..500).flat_map(|_| pattern);
        let job = run.job(&nccl).steps(steps).start().expect("the job starts");
        job.wait().expect_success();
        for file in std::fs::read_dir(run.place("run")).unwrap() {
            let text =
                run.says(&["report", file.unwrap().path().to_str().unwrap(), "--format", "json"]);
            let report: Value = serde_json::from_str(&text).unwrap();
            let operations = report["operations"].as_array().unwrap();
            let of = |o: &Value| (o["bytes"].as_u64(), o["count"].as_u64(), o["open"].as_u64());
            let found: Vec<_> = operations.iter().map(of).collect();
            assert_eq!(found, [(Some(1200), Some(500), Some(0))], "{version}: {report}");
            assert_eq!(report["lost"]["total"], 0, "{version}: {report}");
            let says =
                |s: &Value| s.as_str().unwrap().starts_with("Recording was stopped 500 times");
            assert!(report["unknowable"].as_array().unwrap().iter().any(says), "{report}");
        }
    }
}

#[test]
fn a_thousand_toggles_from_outside_leave_whole_operations() {
    for version in ["2.24.3", "2.28.9", "2.32.3"] {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let run = TestRun::new();
        let mut job = run.start(&nccl, 800);
        begun(&mut job);
        let sockets = sockets(&run);
        let mut early = Vec::new();
        for toggle in 0..1000 {
            if toggle == 300 {
                early = [0, 1].map(|rank| held(job.pid(rank))).into();
            }
            let request = if toggle % 2 == 0 { "stop\n" } else { "start\n" };
            for socket in &sockets {
                let answer = request_of(socket, request);
                assert!(answer.starts_with("ok"), "{version}: {answer}");
            }
        }
        for ((memory, files), rank) in early.into_iter().zip([0, 1]) {
            let (memory_now, files_now) = held(job.pid(rank));
            assert!(memory_now < memory + (8 << 20), "{version}: {memory} then {memory_now} bytes");
            // Some descriptors belong to the stand-in's device memory, and their number changes.
            assert!(files_now < files + 20, "{version}: {files} then {files_now} descriptors");
        }
        job.wait().expect_success();
        let report = common::report(&run.cli, &run.place("run"));
        println!("{version}: {} operations recorded", partly(&report, version));
    }
}

/// The memory of a process in bytes, and its number of descriptors.
fn held(pid: u32) -> (u64, usize) {
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    (pages * 4096, std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
}

/// As [`whole`], except for 2.24.3, which never stops some of its receive steps, and has neither
/// API events nor KernelCh.
#[track_caller]
fn partly(report: &Value, version: &str) -> u64 {
    if version == "2.24.3" {
        assert_eq!(report["lost"]["total"], 0, "{report}");
        return report["operations"][0]["count"].as_u64().unwrap_or(0);
    }
    whole(report)
}

fn sockets(run: &TestRun) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(run.place("control")).unwrap();
    let sockets: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(sockets.len(), 2, "one a process");
    sockets
}

fn request_of(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn misuse_of_the_socket_changes_and_stalls_nothing() {
    let run = TestRun::new();
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    let mut job = run.start(&nccl, 1000);
    begun(&mut job);
    let sockets = sockets(&run);
    let long = "x".repeat(1 << 20);
    for garbage in ["\n", "\0\0\0\n", "stop it\n", "start\tfor=ever\n", "dump\trelative\n", &long] {
        let mut stream = UnixStream::connect(&sockets[0]).unwrap();
        // The socket may be closed before all data was read.
        let _ = stream.write_all(garbage.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("error\t"), "{answer}");
    }
    let half: Vec<UnixStream> = (0..50)
        .map(|_| {
            let mut stream = UnixStream::connect(&sockets[0]).unwrap();
            let _ = stream.write_all(b"sto");
            stream
        })
        .collect();
    let begin = Instant::now();
    assert_eq!(run.recorded(), ["yes", "yes"], "others are heard meanwhile");
    println!("answered beside 50 half requests in {:?}", begin.elapsed());
    let mut flood = Vec::new();
    for count in 0..10_000 {
        if let Ok(stream) = UnixStream::connect(&sockets[count % 2]) {
            flood.push(stream);
        }
        if flood.len() > 500 {
            flood.clear();
        }
    }
    assert_eq!(run.recorded(), ["yes", "yes"]);
    drop((half, flood));
    strangers(&run, &sockets);
    assert_eq!(run.recorded(), ["yes", "yes"]);
    job.wait().expect_success();
    assert_eq!(whole(&common::report(&run.cli, &run.place("run"))), 2000, "all of them");
}

/// Asserts that another user cannot see the sockets, and is refused if the directory is opened to
/// all.
fn strangers(run: &TestRun, sockets: &[PathBuf]) {
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&run.place("control")), 0o700);
    assert!(sockets.iter().all(|socket| mode(socket) == 0o600));
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("skipped: only root can be another user");
        return;
    }
    let cli = run.place("ncclscope");
    std::fs::copy(&run.cli, &cli).unwrap();
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(run.dir.path(), 0o755);
    let stop = || {
        let mut command = Command::new(&cli);
        command.args(["stop", "--all"]).env("NCCLSCOPE_CONTROL", run.place("control"));
        command.uid(65534).gid(65534).output().unwrap()
    };
    let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let closed = stop();
    assert_eq!(closed.status.code(), Some(4), "{}", text(&closed));
    assert!(text(&closed).contains("it belongs to another user"), "{}", text(&closed));
    open(&run.place("control"), 0o755);
    sockets.iter().for_each(|socket| open(socket, 0o666));
    let unheard = stop();
    assert_eq!(unheard.status.code(), Some(4), "{}", text(&unheard));
    open(&run.place("control"), 0o700);
}
