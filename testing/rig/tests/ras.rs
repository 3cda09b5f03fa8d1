// SPDX-License-Identifier: Apache-2.0
//! NCCL's RAS changes the activation mask of a running job (`CONTROL PROFILER_MASK`, from NCCL
//! 2.31 on). The job lives, and the recording says when its events were off. And what RAS says of
//! the job (`STATUS`, `MONITOR`) makes verdicts.

#[path = "common/verdicts.rs"]
#[expect(dead_code, reason = "slow ranks are for others")]
mod verdicts;

use rig::job::{Job, Running};
use rig::topology::Topology;
use rig::{build, wheel};
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use verdicts::Verdict;

/// The releases with the command.
const RELEASES: [&str; 2] = ["2.31.2", "2.32.3"];
/// Number of jobs of each release under random commands; `RAS_JOBS` sets another.
const JOBS: u64 = 2;
/// NCCL's names of events (`src/ras/client_support.cc`).
const NAMES: [&str; 15] = [
    "group",
    "coll",
    "p2p",
    "proxyop",
    "proxystep",
    "proxyctrl",
    "kernelch",
    "netplugin",
    "groupapi",
    "collapi",
    "p2papi",
    "kernellaunch",
    "cecoll",
    "cesync",
    "cebatch",
];

/// Random numbers that a seed repeats (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// The argument of a command.
    fn mask(&mut self) -> String {
        match self.below(10) {
            0..3 => "all".into(),
            3..6 => "none".into(),
            6..8 => format!("{:#x}", self.below(1 << 17)),
            _ => {
                let names = NAMES.iter().filter(|_| self.below(3) == 0);
                let names: Vec<&str> = names.copied().collect();
                if names.is_empty() { "kernelch".into() } else { names.join(",") }
            }
        }
    }
}

/// Starts two ranks that record into `record` and call back to back, then with pauses: the last
/// few operations before the end are those that NCCL may wait for.
fn start(nccl: &Path, record: &Path, kernel: &str) -> Running {
    let job = Job::new(nccl).expect("the stand-in builds").timeout(Duration::from_secs(60));
    let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin()).env("NCCLSCOPE_DIR", record);
    let paused = ["allreduce:4096", "sleep:40"].repeat(25);
    let steps =
        ["repeat:700:allreduce:4096", "repeat:200:group:3x4096", "repeat:200:sendrecv:4096"];
    let job = job.env("NCCLSCOPE_KERNEL", kernel).steps(["allreduce:4096", "split:4096"]);
    let job = job.steps(steps).steps(["repeat:50:alltoall:4096", "graph:20x4096"]);
    let mut job = job.steps(paused).start().expect("ranks start");
    assert!((0..2).all(|rank| job.wait_for_line(rank, &format!("rank {rank} allreduce"))));
    job
}

fn set(job: &Running, mask: &str) {
    // A job that has ended does not answer.
    let answer = job.ras().command(&format!("CONTROL PROFILER_MASK {mask}"));
    if let Ok(answer) = answer {
        assert!(!answer.to_lowercase().contains("error"), "{mask}: {answer}");
    }
}

#[test]
fn a_job_survives_all_commands_of_ras() {
    let jobs = std::env::var("RAS_JOBS").map_or(JOBS, |jobs| jobs.parse().expect("a number"));
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        for seed in 1..=jobs {
            for kernel in ["auto", "on"] {
                let record = tempfile::tempdir().expect("a folder");
                let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let job = start(&nccl, record.path(), kernel);
                for _ in 0..10 {
                    set(&job, &random.mask());
                    std::thread::sleep(Duration::from_millis(random.below(250)));
                }
                set(&job, "all");
                let outcome = job.wait();
                assert!(outcome.succeeded(), "{version}, seed {seed}, {kernel}: {outcome}");
            }
        }
    }
}

/// The time of day, ns.
fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    i64::try_from(now.as_nanos()).expect("a time before 2262")
}

#[test]
fn the_time_in_which_events_were_off_is_told() {
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let record = tempfile::tempdir().expect("a folder");
        let job = Job::new(&nccl).expect("the stand-in builds");
        let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin());
        let job = job.env("NCCLSCOPE_DIR", record.path()).env("NCCLSCOPE_LOG", "stderr");
        let steps = ["allreduce:4096", "sleep:20"].repeat(150);
        let mut job = job.steps(steps).start().expect("ranks start");
        assert!((0..2).all(|rank| job.wait_for_line(rank, &format!("rank {rank} allreduce"))));
        let mut said = Vec::new();
        for mask in ["none", "0x7f9f"] {
            std::thread::sleep(Duration::from_millis(700));
            set(&job, mask);
            said.push(now_ns());
        }
        let outcome = job.wait();
        outcome.expect_success();
        assert!(outcome.to_string().contains("was changed from outside to 0x0 (RAS"), "{outcome}");

        let report = report(record.path());
        let changes = report["mask_changes"].as_array().expect("an array");
        assert_eq!(changes.len(), 2, "{version}: of two processes: {changes:?}");
        for change in changes {
            assert_eq!(change["mask"], 0, "{change}");
            let times = ["start_ns", "end_ns"].map(|name| change[name].as_i64().expect("ns"));
            for (found, truth) in times.into_iter().zip(&said) {
                let off_ms = (found - truth).abs() / 1_000_000;
                assert!(off_ms < 300, "{version}: {off_ms} ms beside the truth");
            }
        }
        assert_eq!(report["windows"].as_array().map(Vec::len), Some(4), "two of each process");
        let calls = report["operations"].as_array().expect("an array");
        let calls: u64 = calls.iter().filter_map(|row| row["count"].as_u64()).sum();
        assert!((100..290).contains(&calls), "{version}: {calls} of 300 operations are recorded");
    }
}

/// Kernel events that an operator turned off stay off, because NCCL would crash; the rest is
/// recorded again, when its events are back or on request.
#[test]
fn without_kernel_events_the_rest_is_recorded() {
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let [record, control, copies] = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
        // On one host nothing else shows that operations end.
        let job = Job::new(&nccl).expect("the stand-in builds").hosts(1).devices(2);
        let job = job.env("NCCLSCOPE_KERNEL", "on").env("NCCLSCOPE_HANG_SEC", "1");
        let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin()).env("NCCLSCOPE_LOG", "stderr");
        let job = job.env("NCCLSCOPE_DIR", record.path()).env("NCCLSCOPE_CONTROL", control.path());
        let steps = ["allreduce:4096", "sleep:20"].repeat(150);
        let mut job = job.steps(steps).start().expect("ranks start");
        assert!((0..2).all(|rank| job.wait_for_line(rank, &format!("rank {rank} allreduce"))));
        for mask in ["none", "0x7fdf", "none"] {
            std::thread::sleep(Duration::from_millis(400));
            set(&job, mask);
        }
        std::thread::sleep(Duration::from_millis(300));
        let mut tool = Command::new(build::tool());
        tool.args(["snapshot", "--all", "--for", "600ms", "-o"]).arg(copies.path().join("copies"));
        let output = tool.env("NCCLSCOPE_CONTROL", control.path()).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.matches("records until").count() == 2, "{said}");
        let outcome = job.wait();
        outcome.expect_success();
        let log = outcome.to_string();
        assert!(log.contains("until it has 0x7f9f again, or until `ncclscope start`"), "{log}");
        assert!(!log.contains("HANG: "), "{version}: {log}");
        assert!(!log.contains("0x7fdf again") && !log.contains("0x40 again"), "{log}");
        let report = report(&copies.path().join("copies"));
        let changes = report["mask_changes"].as_array().expect("an array");
        assert!(changes.len() == 4 && changes.iter().all(|it| it["mask"] == 0), "{changes:?}");
        let windows = report["windows"].as_array().expect("an array");
        assert_eq!(windows.len(), 6, "{version}: three of each process: {windows:?}");
        for window in windows.iter().skip(2).step_by(3) {
            let times = ["start_ns", "stop_ns"].map(|name| window[name].as_i64().expect("ns"));
            let ms = (times[1] - times[0]) / 1_000_000;
            assert!((550..900).contains(&ms), "{version}: {windows:?}");
        }
    }
}

/// `ncclscope report --format json` of a folder.
fn report(record: &Path) -> serde_json::Value {
    let output =
        Command::new(build::tool()).args(["report", "--format", "json"]).arg(record).output();
    let output = output.expect("the tool starts");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// What `diagnose --ras` says of a job that records nothing: (class, confidence, ranks).
fn asked(job: &Running, more: &[&str]) -> Vec<Verdict> {
    let mut tool = Command::new(build::tool());
    let begun = Instant::now();
    tool.args(["diagnose", "--format", "json", "--ras", &job.ras().address()]).args(more);
    let output = tool.output().expect("the tool starts");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.is_empty(), "{said}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    verdicts::of(&found["findings"])
}

/// Three ranks on three hosts, of which rank 1 does something else after 50 operations.
fn hanging(nccl: &Path, rank_1: &[&str]) -> Running {
    let job = Job::new(nccl).expect("the stand-in builds").topology(Topology::Ring3);
    let steps = |last| ["repeat:50:allreduce:4096", "broadcast:4096"].into_iter().chain(last);
    let job = job.rank_steps(1, steps(rank_1.to_vec()));
    let mut job = job.steps(steps(vec!["repeat:100000:allreduce:4096"])).start().expect("starts");
    assert!((0..3).all(|rank| job.wait_for_line(rank, &format!("rank {rank} broadcast"))));
    std::thread::sleep(Duration::from_secs(1));
    job
}

/// The text form, the JSON form with the faults of 2.28.9, and the present one.
const FORMS: [&str; 3] = ["2.27.7", "2.28.9", "2.32.3"];

#[test]
fn ras_alone_names_the_rank_that_does_not_come() {
    for version in FORMS {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let job = hanging(&nccl, &["sleep:60000"]);
        let late = vec![("H1a".into(), "suspect".into(), vec![1])];
        assert_eq!(asked(&job, &[]), late, "{version}: for three seconds");
        let late = vec![("H1a".into(), "confirmed".into(), vec![1])];
        assert_eq!(asked(&job, &["--hang-sec", "2"]), late, "{version}: for longer than asked");
    }
}

#[test]
fn ras_alone_names_the_rank_that_is_stopped() {
    for version in FORMS {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let job = hanging(&nccl, &["repeat:100000:allreduce:4096"]);
        let pid = i32::try_from(job.pid(1)).expect("a process id");
        // SAFETY: no precondition; the process is a child that was not waited for.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        std::thread::sleep(Duration::from_secs(1));
        let found = asked(&job, &[]);
        let stopped: Vec<_> = found.iter().map(|(class, _, ranks)| (&**class, &**ranks)).collect();
        assert_eq!(stopped, [("H1b", &[1_u64][..])], "{version}");
    }
}

#[test]
fn ras_says_nothing_against_a_job_that_runs() {
    for version in FORMS {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let job = hanging(&nccl, &["repeat:100000:allreduce:4096"]);
        assert_eq!(asked(&job, &[]), [], "{version}");
        assert_eq!(asked(&job, &["--hang-sec", "1"]), [], "{version}");
    }
}

#[test]
fn ras_and_the_recording_of_one_host_give_one_verdict() {
    for version in ["2.28.9", "2.32.3"] {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let record = tempfile::tempdir().expect("a folder");
        let job = Job::new(&nccl).expect("the stand-in builds").topology(Topology::Ring3);
        let job = job.rank_env(0, "NCCL_PROFILER_PLUGIN", build::plugin());
        let job = job.rank_env(0, "NCCLSCOPE_DIR", record.path());
        let steps = |last: &[&str]| {
            let first = ["repeat:50:allreduce:4096", "sendrecv:4096", "allreduce:4096"];
            first.iter().chain(last).map(|step| (*step).to_owned()).collect::<Vec<_>>()
        };
        let job =
            job.steps(steps(&["repeat:9:allreduce:4096"])).rank_steps(1, steps(&["sleep:60000"]));
        let mut job = job.start().expect("ranks start");
        assert!((0..3).all(|rank| job.wait_for_line(rank, &format!("rank {rank} sendrecv"))));
        std::thread::sleep(Duration::from_secs(3));
        let place = record.path().to_str().expect("a path");
        let without = verdicts::diagnose(record.path(), "2");
        assert_eq!(without.len(), 1, "{version}: {without:?}");
        assert_eq!(without[0].0, "H0", "{version}: there is no input of two ranks");
        let late = vec![("H1a".into(), "confirmed".into(), vec![1])];
        assert_eq!(asked(&job, &["--hang-sec", "2", place]), late, "{version}");
    }
}

/// What an event stream has brought so far.
fn arrived(mut stream: &TcpStream) -> String {
    stream.set_nonblocking(true).expect("a socket");
    let mut all = Vec::new();
    // The stream has no end while its process runs.
    let _no_more_yet = stream.read_to_end(&mut all);
    String::from_utf8(all).expect("a text")
}

#[test]
fn the_events_of_ras_name_the_process_that_was_killed() {
    for version in RELEASES {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let job = Job::new(&nccl).expect("the stand-in builds").topology(Topology::Ring3);
        // A tenth of the minute after which RAS gives a process up; 2.30.7 takes whole seconds.
        let job = job.env("NCCL_RAS_TIMEOUT_FACTOR", "0.1");
        let mut job = job.steps(["allreduce:4096", "sleep:60000"]).start().expect("ranks start");
        assert!((0..3).all(|rank| job.wait_for_line(rank, &format!("rank {rank} allreduce"))));
        // Some of them will end with the process.
        let streams: Vec<TcpStream> =
            (0..12).map(|_| job.ras().events().expect("RAS listens")).collect();
        let pid = job.pid(1);
        job.kill(1);
        let dead = format!("PEER_DEAD: Process {pid} on node ");
        let begun = Instant::now();
        let mut said = vec![String::new(); streams.len()];
        while !said.iter().any(|said| said.contains(&dead)) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{version}: {said:?}");
            std::thread::sleep(Duration::from_millis(200));
            let more = streams.iter().map(arrived);
            said.iter_mut().zip(more).for_each(|(said, more)| said.push_str(&more));
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("events.txt");
        let events = said.iter().find(|said| said.contains(&dead)).expect("it is there");
        std::fs::write(&file, events).expect("written");
        let mut tool = Command::new(build::tool());
        let output = tool.args(["diagnose", "--format", "json"]).arg(&file).output();
        let output = output.expect("the tool starts");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let gone = vec![("H1b".into(), "suspect".into(), vec![])];
        assert_eq!(verdicts::of(&found["findings"]), gone, "{version}: {events}");
        let title = found["findings"][0]["title"].as_str().expect("a title");
        assert!(title.starts_with(&format!("process {pid} on ")), "{title}");
    }
}
