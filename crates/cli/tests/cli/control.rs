// SPDX-License-Identifier: Apache-2.0
//! `ls`, `start`, `stop`, `snapshot` and `dump` with sockets that answer as the plugin does.

use crate::common::{Outcome, tool};
use crate::pty::{self, ALL, Terminal};
use crate::schema::follows;
use ncclscope_control::directories::socket_name;
use ncclscope_control::message::{
    Boundary, CommMember, ProcessStatus, Recorded, Reply, Request, WindowState,
};
use ncclscope_control::window::WindowEnd;
use scripts::Process;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A host with processes that answer on their control sockets.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        std::fs::DirBuilder::new().mode(0o700).create(dir.path().join("control")).unwrap();
        Host { dir }
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("control")
    }

    fn tool(&self, args: &[&str]) -> Command {
        let mut command = tool();
        command.args(args).env("NCCLSCOPE_CONTROL", self.control());
        command
    }

    fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(&mut self.tool(args))
    }

    /// Adds a rank of a job. Returns the requests that it receives, without status requests.
    fn rank(&self, rank: u32, job: &str, step: Option<u64>) -> Arc<Mutex<Vec<Request>>> {
        self.process(rank, job, step, |_| {})
    }

    /// The same, with changes to its recording.
    fn process(
        &self,
        rank: u32,
        job: &str,
        step: Option<u64>,
        change: impl Fn(&mut Process),
    ) -> Arc<Mutex<Vec<Request>>> {
        self.lives(rank, (job, step), Life::Whole, change)
    }

    /// The same; a request to start a window changes its life.
    fn lives(
        &self,
        rank: u32,
        (job, step): (&str, Option<u64>),
        life: Life,
        change: impl Fn(&mut Process),
    ) -> Arc<Mutex<Vec<Request>>> {
        let pid = 4_194_400 + rank;
        let mut process = Process::new(i32::try_from(rank).unwrap(), 2);
        process.header.pid = pid;
        process.identity.rank = Some(rank);
        process.identity.local_rank = Some(rank);
        process.identity.device = Some(rank + 4);
        process.identity.command = Some("python train.py --depth 80 --width 8192".into());
        change(&mut process);
        let recording = process.write(self.dir.path()).unwrap();
        let status = ProcessStatus {
            pid,
            recorded: Recorded::No,
            job: job.into(),
            nccl_version: 22809,
            step,
            comms: vec![CommMember { hash: 0x1f, rank: 0, ranks: 2 }],
            more_comms: 0,
            recording,
            mode: "flight".into(),
            window: WindowState::default(),
        };
        let listener = UnixListener::bind(self.control().join(socket_name(pid, 1))).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let got = Arc::clone(&requests);
        std::thread::spawn(move || serve(&listener, status, life, &got));
        requests
    }
}

/// What follows a request to start a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    /// It records until it is stopped.
    Whole,
    /// The process ends.
    Ends,
    /// NCCL's activation mask is another's until the window ends, after five more requests.
    Masked,
    /// Nothing.
    Deaf,
}

/// Answers as a process with this status; a start or stop request changes it.
fn serve(
    listener: &UnixListener,
    mut status: ProcessStatus,
    life: Life,
    requests: &Mutex<Vec<Request>>,
) {
    let mut left = 5;
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        let request = Request::decode(line.trim_end_matches('\n')).unwrap();
        match &request {
            Request::Start(_) if life == Life::Deaf => {}
            Request::Start(_) if life == Life::Masked => {
                status.window.ends = Some(Boundary::Time(1));
            }
            Request::Status if status.window.ends == Some(Boundary::Time(1)) => {
                left -= 1;
                status.window.ends = status.window.ends.filter(|_| left != 0);
            }
            Request::Start(window) => {
                let steps = match window.end {
                    WindowEnd::Steps(steps) => Some(Boundary::Steps(steps)),
                    _ => None,
                };
                status.recorded = if steps.is_some() { Recorded::Waiting } else { Recorded::Yes };
                let begins = steps.map(|_| Boundary::Steps(0));
                status.window = WindowState { begins, ends: steps, sample: window.sample };
            }
            Request::Stop => {
                status.recorded = Recorded::No;
                status.window = WindowState::default();
            }
            Request::Dump(to) => {
                let to = to.clone().unwrap_or_default().join("copy.nscope");
                let _ = stream.write_all(Reply::Dumped(to).encode().as_bytes());
                continue;
            }
            _ => {}
        }
        let _ = stream.write_all(Reply::Status(status.clone()).encode().as_bytes());
        let is_end = life == Life::Ends && matches!(request, Request::Start(_));
        if request != Request::Status {
            requests.lock().unwrap().push(request);
        }
        if is_end {
            return;
        }
    }
}

#[test]
fn a_listing_says_what_each_process_is() {
    let host = Host::new();
    host.rank(0, "88", Some(7));
    host.rank(1, "88", None);
    // A socket that a killed process left behind.
    let stale = host.control().join(socket_name(4_194_399, 2));
    drop(UnixListener::bind(&stale).unwrap());
    let text = host.run(&["ls"]).ends_with(0).stdout;
    let words =
        |line: usize| -> Vec<&str> { text.lines().nth(line).unwrap().split("  ").collect() };
    let cells = |line| words(line).into_iter().map(str::trim).filter(|cell| !cell.is_empty());
    let heads: Vec<&str> = cells(0).collect();
    let (job, rank, pid) = ("88", "1", "4194401");
    let row: Vec<&str> = cells(2).collect();
    assert_eq!((heads.len(), row.len()), (12, 12), "{text}");
    let of = |name: &str| row[heads.iter().position(|head| *head == name).unwrap()];
    assert_eq!((of("JOB"), of("RANK"), of("PID"), of("GPU")), (job, rank, pid, "5"));
    assert_eq!(of("COMMAND"), "python train.py --depth 80 --width 8192");
    assert!(of("SIZE").ends_with("iB") && of("RECORDING").ends_with(".nscope"), "{text}");
    assert!(!stale.exists(), "a socket on which no process listens is removed");
    let json = host.run(&["ls", "--format", "json"]).ends_with(0).stdout;
    let listing: Value = serde_json::from_str(&json).unwrap();
    follows(&listing, "processes");
    let first = &listing["processes"][0];
    assert_eq!((&first["rank"], &first["device"]), (&0.into(), &4.into()));
    assert_eq!((&first["step"], &first["mode"]), (&7.into(), &"flight".into()));
    let comm = serde_json::json!([{"comm": "0x1f", "comm_rank": 0, "nranks": 2}]);
    assert_eq!((&first["comms"], &first["nccl_version"]), (&comm, &"2.28.9".into()));
    assert!(first["recording_bytes"].as_u64().unwrap() > 0, "{first}");
}

#[test]
fn a_listing_fits_the_terminal() {
    let host = Host::new();
    host.rank(0, "88", None);
    let (text, code) = pty::run(&mut host.tool(&["ls"]), 130);
    assert_eq!(code, Some(0));
    assert!(text.lines().all(|line| line.chars().count() <= 130), "{text}");
    assert!(text.contains("python tra") && text.contains('…'), "{text}");
}

#[test]
fn an_empty_listing_is_no_error_and_a_request_to_no_process_is() {
    let host = Host::new();
    let columns = "JOB,RANK,HOST,PID,GPU,RECORDED,WINDOW,STEP,SIZE,COMMUNICATORS,COMMAND,RECORDING";
    let (head, rule) = (columns.replace(',', " | "), " --- |".repeat(12));
    for (format, expected) in [
        ("text", String::new()),
        ("csv", format!("{columns}\n")),
        ("md", format!("| {head} |\n|{rule}\n")),
    ] {
        let empty = host.run(&["ls", "--format", format]).ends_with(0);
        assert_eq!(empty.stdout, expected, "{format}");
        assert!(
            empty.stderr.contains("no process of this user is recorded"),
            "{format}: {empty:?}"
        );
    }
    let json = host.run(&["ls", "--format", "json"]).ends_with(0);
    assert!(json.stderr.contains("no process of this user is recorded"), "{json:?}");
    let listing: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(listing["processes"], serde_json::json!([]));
    assert!(host.run(&["stop", "--all"]).ends_with(4).stderr.contains("see ncclscope ls"));
}

#[test]
fn start_and_stop_say_whom_they_reached() {
    let host = Host::new();
    let requests = host.rank(3, "88", Some(7));
    let started = host.run(&["start", "--sample", "16"]).ends_with(0);
    let name = started.stdout.strip_suffix(": records one of 16 operations until it is stopped\n");
    let name = name.unwrap_or_else(|| panic!("{started:#?}"));
    assert!(name.starts_with("rank 3 ("), "{name}");
    assert!(name.ends_with(", local rank 3, GPU 7, pid 4194403), job 88, mode flight"), "{name}");
    assert_eq!(started.stderr, "");
    let stopped = host.run(&["stop"]).ends_with(0);
    assert_eq!(stopped.stdout, format!("{name}: does not record\n"));
    assert_eq!(requests.lock().unwrap().len(), 2);
}

#[test]
fn dump_and_snapshot_say_whom_they_reached_beside_the_paths() {
    let host = Host::new();
    host.rank(3, "88", Some(7));
    let place = host.dir.path().join("copies");
    let path = format!("{}/copy.nscope\n", place.display());
    let done = host.run(&["dump", "-o", place.to_str().unwrap()]).ends_with(0);
    assert_eq!(done.stdout, path);
    assert!(done.stderr.starts_with("ncclscope: rank 3 ("), "{done:#?}");
    assert!(done.stderr.ends_with("job 88, mode flight: copied\n"), "{done:#?}");
    host.run(&["start"]).ends_with(0);
    let args = ["snapshot", "--for", "100ms", "-o", place.to_str().unwrap()];
    let done = host.run(&args).ends_with(0);
    assert_eq!(done.stdout, path);
    let waits = "mode flight: records until it is stopped; it was recorded before and goes on\n";
    assert!(done.stderr.contains(waits) && done.stderr.ends_with(": copied\n"), "{done:#?}");
}

#[test]
fn a_snapshot_goes_on_without_processes_that_end() {
    let host = Host::new();
    host.rank(0, "88", None);
    host.run(&["start", "--pid", "4194400"]).ends_with(0);
    host.lives(1, ("88", None), Life::Ends, |_| {});
    let place = host.dir.path().join("copies");
    let args = ["snapshot", "--all", "--for", "200ms", "-o", place.to_str().unwrap()];
    let done = host.run(&args).ends_with(4);
    assert_eq!(done.stdout, format!("{}/copy.nscope\n", place.display()));
    let said = "warning: process 4194401 has ended; the snapshot goes on without it\n";
    assert!(done.stderr.contains(said), "{done:#?}");
    let host = Host::new();
    host.lives(1, ("88", None), Life::Ends, |_| {});
    let done = host.run(&["snapshot", "--for", "200ms"]).ends_with(4);
    assert!(done.stderr.contains("error: no process is left that could be "), "{done:#?}");
}

#[test]
fn a_window_that_another_mask_interrupts_is_waited_for() {
    let host = Host::new();
    host.lives(0, ("88", None), Life::Masked, |_| {});
    let begun = Instant::now();
    let place = host.dir.path().join("copies");
    let done = host.run(&["snapshot", "--for", "1s", "-o", place.to_str().unwrap()]).ends_with(0);
    assert!(begun.elapsed() > Duration::from_millis(300), "{done:#?}");
    let said = "process 4194400 does not record within its window, because NCCL's activation mask";
    assert_eq!(done.stderr.matches(said).count(), 1, "{done:#?}");
    let host = Host::new();
    host.lives(0, ("88", None), Life::Deaf, |_| {});
    let done = host.run(&["snapshot", "--for", "1s"]).ends_with(4);
    assert!(done.stderr.contains("process 4194400: the window did not begin"), "{done:#?}");
}

#[test]
fn a_copy_in_the_way_is_noticed_before_the_window() {
    let host = Host::new();
    let requests = host.rank(0, "88", None);
    let place = host.dir.path().join("copies");
    std::fs::create_dir(&place).unwrap();
    let mut files = std::fs::read_dir(host.dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let own = files.find(|file| file.extension().is_some_and(|it| it == "nscope")).unwrap();
    let copy = place.join(own.file_name().unwrap());
    std::fs::copy(&own, &copy).unwrap();
    for output in [&place, &copy] {
        let args = ["snapshot", "--for", "60s", "-o", output.to_str().unwrap()];
        let done = host.run(&args).ends_with(4);
        let said = format!("error: {} is ", copy.display());
        assert!(done.stderr.contains(&said) && done.stderr.contains("with -o"), "{done:#?}");
    }
    assert!(requests.lock().unwrap().is_empty(), "nothing was requested");
}

#[test]
fn a_window_of_steps_says_that_no_step_was_reported() {
    let host = Host::new();
    host.rank(0, "88", None);
    let started = host.run(&["start", "--steps", "3"]).ends_with(0);
    let records = ": records from the next training step on, for 3 steps\n";
    assert!(started.stdout.ends_with(records), "{started:#?}");
    assert!(started.stderr.contains("has not reported any training step yet"), "{started:#?}");
    assert!(started.stderr.contains("until then it records nothing"), "{started:#?}");
    let host = Host::new();
    host.rank(0, "88", Some(1));
    assert_eq!(host.run(&["start", "--steps", "3"]).ends_with(0).stderr, "");
}

#[test]
fn all_processes_of_several_jobs_need_a_yes() {
    let host = Host::new();
    let requests = [host.rank(0, "88", None), host.rank(1, "99", None)];
    let count = || requests.iter().map(|of| of.lock().unwrap().len()).sum::<usize>();
    let refused = host.run(&["stop", "--all"]).ends_with(2).stderr;
    let what = "--all reaches 2 jobs (88: 1 rank, 99: 1 rank)";
    assert!(refused.contains(what) && refused.contains("--yes"), "{refused}");
    let ask = |answer: &str| {
        let mut terminal = Terminal::start(&mut host.tool(&["stop", "--all"]), 80, ALL);
        terminal.types(answer);
        terminal.read_to_end()
    };
    let (text, code) = ask("n\n");
    assert!(text.contains(what) && text.contains("[y/N]"), "{text}");
    assert_eq!((code, count()), (Some(2), 0), "{text}");
    assert_eq!((ask("y\n").1, count()), (Some(0), 2));
    host.run(&["stop", "--all", "--yes"]).ends_with(0);
    host.run(&["stop", "--job", "88"]).ends_with(0);
    assert_eq!(count(), 5);
}

/// Two programs without a job id that share no communicator.
#[test]
fn jobs_without_an_id_are_told_apart_by_their_communicators() {
    let host = Host::new();
    let alone = |process: &mut Process| process.identity.rank = None;
    host.process(0, "", None, alone);
    host.process(1, "", None, alone);
    host.run(&["stop", "--all"]).ends_with(0);
    host.process(2, "", None, |process| {
        alone(process);
        process.comm.hash = 0x77;
    });
    let refused = host.run(&["stop", "--all"]).ends_with(2).stderr;
    assert!(refused.contains("--all reaches 2 jobs (without a job id, 0x"), "{refused}");
    assert!(refused.contains("without a job id, 0x77: 1 rank"), "{refused}");
    host.run(&["stop", "--all", "--yes"]).ends_with(0);
}
