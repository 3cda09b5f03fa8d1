// SPDX-License-Identifier: Apache-2.0
//! The watchdog's reports on each rank when real NCCL hangs; otherwise it reports nothing.
//!
//! The command of the watchdog writes a report beside the recording; the test waits for it and then
//! kills the ranks. The waits are long since the machine may be slow; the limits are short.

#[path = "hang/inside.rs"]
mod inside;
#[path = "hang/one_verdict.rs"]
mod one_verdict;

use ncclscope_findings::{FindingClass, Tool};
use ncclscope_trace::{Heartbeat, Recording};
use rig::job::{Job, Running};
use rig::scenario_file::ScenarioFile;
use rig::{build, wheel};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A release with API and kernel events.
const RELEASE: &str = "2.28.9";
/// Seconds after which an operation is stuck.
const LIMIT: &str = "3";
/// The time limit for a report.
const PATIENCE: Duration = Duration::from_secs(100);

/// A job that runs under the watchdog.
struct Watched {
    job: Running,
    record: tempfile::TempDir,
    _driver: tempfile::TempDir,
}

impl Watched {
    /// Starts a scenario, if its release is installed.
    fn start(file: &ScenarioFile, limit: &str) -> Option<Watched> {
        let nccl = wheel::find_or_skip(RELEASE)?;
        Some(Watched::of(file.apply(Job::new(&nccl).expect("the stand-in builds")), limit))
    }

    /// Starts a job.
    fn of(job: Job, limit: &str) -> Watched {
        let cuda = &build::artifacts().expect("the stand-in builds").cuda;
        let record = tempfile::tempdir().expect("a folder");
        // The stand-in is loaded as the driver under this name.
        let driver = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink(cuda, driver.path().join("libcuda.so.1")).expect("a link");
        let job = job
            .env("LD_LIBRARY_PATH", driver.path())
            .env("NCCL_PROFILER_PLUGIN", build::plugin())
            .env("NCCLSCOPE_DIR", record.path())
            .env("NCCLSCOPE_CONTROL", record.path().join("control"))
            .env("NCCLSCOPE_HANG_SEC", limit)
            .env("NCCLSCOPE_HANG_ACTION", "log,exec:true")
            // Longer than in the scenario: on a busy machine, reports may come late.
            .arg("--hang-s")
            .arg("60")
            .timeout(2 * PATIENCE);
        Watched { job: job.start().expect("ranks start"), record, _driver: driver }
    }

    /// The reports of each rank so far, the first one first.
    fn reports(&self, ranks: usize) -> BTreeMap<usize, Vec<String>> {
        let files = std::fs::read_dir(self.record.path()).into_iter().flatten().flatten();
        let mut names: Vec<_> = files.filter_map(|f| f.file_name().into_string().ok()).collect();
        names.sort();
        let mut reports: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for name in names.iter().filter(|name| name.contains(".hang-")) {
            let of = |rank: &usize| name.contains(&format!("-{}.nscope", self.job.pid(*rank)));
            let rank = (0..ranks).find(of).expect("a report is a rank's");
            let text = std::fs::read_to_string(self.record.path().join(name)).expect("a report");
            reports.entry(rank).or_default().push(text);
        }
        reports
    }

    /// Waits until each of `ranks` has a report that contains `said`.
    #[track_caller]
    fn wait_for(&self, said: &[(usize, &str)]) -> BTreeMap<usize, Vec<String>> {
        let until = Instant::now() + PATIENCE;
        loop {
            let reports = self.reports(3);
            let has = |(rank, text): &(usize, &str)| {
                reports.get(rank).is_some_and(|all| all.iter().any(|report| report.contains(text)))
            };
            if said.iter().all(has) {
                return reports;
            }
            assert!(Instant::now() < until, "waited for {said:?}, there is {reports:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The output of `dump --why` by process id, and the tool's exit code.
fn why(cli: &Path, control: &Path) -> (Value, Option<i32>) {
    let output = ask_why(cli, control);
    let said = serde_json::from_slice(&output.stdout);
    (said.unwrap_or_else(|error| panic!("{error}: {output:?}")), output.status.code())
}

fn ask_why(cli: &Path, control: &Path) -> Output {
    let mut command = Command::new(cli);
    command.args(["dump", "--all", "--why", "--format", "json"]).env("NCCLSCOPE_CONTROL", control);
    command.output().expect("the tool starts")
}

fn scenario(name: &str) -> ScenarioFile {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    ScenarioFile::read(&folder.join(name)).expect("the file is right")
}

/// Runs a scenario that hangs: each of `ranks` must report the given text.
fn hangs(name: &str, said: &[(usize, &str)]) -> Option<Watched> {
    let job = Watched::start(&scenario(name), LIMIT)?;
    let reports = job.wait_for(said);
    for report in reports.values().flatten() {
        assert!(report.starts_with("HANG: "), "{report}");
        assert!(report.contains("thread "), "{report}");
    }
    Some(job)
}

#[test]
fn a_rank_that_waits_for_a_missing_rank_reports_it_also_on_request() {
    // Started before the job, which does not wait for it.
    let cli = build::tool();
    let said = [(0, "no data has come from rank 1")];
    let Some(job) = hangs("missing-rank.toml", &said) else { return };
    let (said, code) = why(&cli, &job.record.path().join("control"));
    assert_eq!(code, Some(1), "{said}");
    let processes = said["processes"].as_array().expect("the schema");
    let of = |rank| processes.iter().find(|process| process["pid"] == job.job.pid(rank));
    let [hang] = of(0).expect("it runs")["in_flight"].as_array().expect("a list").as_slice() else {
        panic!("one communicator, one operation: {said}");
    };
    let told = (&hang["event"], &hang["comm_peer"], &hang["operation"]["number"]);
    assert_eq!(told, (&"hung".into(), &1.into(), &3.into()), "{said}");
    // The operation may have completed in the meantime; if not, it waits for nothing.
    assert!(of(1).is_none_or(|process| process["in_flight"] == Value::Array(vec![])), "{said}");
}

#[test]
fn a_stuck_kernel_is_its_own_gpus() {
    hangs(
        "stuck-kernel.toml",
        &[(1, "N1 gpu-not-producing: this GPU produces no data for rank 0")],
    );
}

#[test]
fn a_kernel_that_never_starts_is_distinguished_from_one_that_waits() {
    let said = [
        (1, "H3a kernel-not-started: its kernel has not started"),
        (0, "no data has come from rank 1"),
    ];
    hangs("kernel-never-starts.toml", &said);
}

#[test]
fn a_stalled_link_is_the_senders_wire() {
    hangs(
        "stalled-link.toml",
        &[(1, "N3 network-stalled: data to rank 2 of the communicator was given to the network")],
    );
}

#[test]
fn a_dead_proxy_thread_is_named() {
    hangs("dead-proxy.toml", &[(1, "P1 proxy-stalled: NCCL's proxy thread")]);
}

/// The seconds after `before` in `report`.
fn seconds(report: &str, before: &str) -> f64 {
    let (_, after) = report.split_once(before).unwrap_or_else(|| panic!("{before}: {report}"));
    let number = after.split(' ').next().expect("a word");
    number.parse().unwrap_or_else(|_| panic!("{number}: {report}"))
}

/// A kernel timeout with one process and two devices in one node, where only CUDA events show
/// anything.
#[test]
fn two_devices_of_one_process_hang_with_nothing_but_cuda_events() {
    let Some(nccl) = wheel::find_or_skip(RELEASE) else { return };
    let cli = build::tool();
    let job = Job::new(&nccl).expect("the stand-in builds").hosts(1).devices(2).threads();
    let job = job
        .env("NCCLSCOPE_KERNEL", "off")
        .env("NCCLSCOPE_CUDA_EVENTS", "on")
        .env("CPU_CUDA_FAULTS", "stuck:launch=3,rank=1,step=1")
        .steps(["init", "allreduce:4096", "allreduce:4096", "sleep:200", "allreduce:262144"]);
    let job = Watched::of(job, LIMIT);
    let of = |rank: usize| format!("rank {rank} of 2 has not moved for ");
    let reports = job.wait_for(&[(0, &of(0)), (0, &of(1))]);
    for rank in [0, 1] {
        let report = reports[&0].iter().find(|text| text.contains(&of(rank))).expect("waited for");
        let device = format!("CUDA device {rank} 0000:");
        for field in [
            "HANG: AllReduce 3 (262144 ncclFloat32) on communicator 0x",
            ", limit 3.0 s (host ",
            &device,
            " GPU-",
            inside::HAS_TURN,
            "  operation: RING ",
            " threads a block, ",
            "NCCL tells nothing of its kernel",
            "; by CUDA events its stream came to it ",
        ] {
            assert!(report.contains(field), "{field}: {report}");
        }
        let since = seconds(report, "threads a block, enqueued ");
        assert!((3.0..6.0).contains(&since), "{since} s after it was enqueued: {report}");
    }
    let (said, code) = why(&cli, &job.record.path().join("control"));
    assert_eq!(code, Some(1), "{said}");
    let hangs = said["processes"][0]["in_flight"].as_array().expect("a list");
    assert_eq!(hangs.len(), 2, "{said}");
    for hang in hangs {
        let operation = &hang["operation"];
        assert_eq!(
            (&hang["event"], &hang["limit_ns"]),
            (&"hung".into(), &3_000_000_000_u64.into()),
            "{said}"
        );
        assert_eq!(hang["device"], hang["comm_rank"], "{said}");
        assert!(hang["device_pci"].is_string() && hang["device_uuid"].is_string(), "{said}");
        assert_eq!(operation["algorithm"], "RING", "{said}");
        assert!(operation["protocol"].is_string(), "{said}");
        assert!(operation["threads_per_block"].as_u64().is_some_and(|n| n >= 64), "{said}");
        assert_eq!(operation["channels_open"], Value::Array(vec![]), "{said}");
    }
    assert_eq!(said["processes"][0]["blind"], Value::Array(vec![]), "{said}");
}

#[test]
fn what_cannot_be_seen_is_said() {
    let Some(nccl) = wheel::find_or_skip(RELEASE) else { return };
    let cli = build::tool();
    let job = Job::new(&nccl).expect("the stand-in builds").hosts(1).devices(2).threads();
    let job = job.env("NCCLSCOPE_KERNEL", "off").env("NCCLSCOPE_CUDA_EVENTS", "off");
    let job =
        job.env("NCCLSCOPE_LOG", "stderr").steps(["init", "repeat:5:allreduce:4096", "sleep:9000"]);
    let job = Watched::of(job, LIMIT);
    let until = Instant::now() + PATIENCE;
    let control = job.record.path().join("control");
    let is_said = || {
        let output = ask_why(&cli, &control);
        // The tool prints nothing until there is a process.
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let lines = said["processes"][0]["blind"].as_array().into_iter().flatten();
        let mut lines = lines.filter_map(Value::as_str);
        lines.any(|line| line.contains("no kernel events, no network, no CUDA events"))
    };
    while !is_said() {
        assert!(Instant::now() < until, "it never says so");
        std::thread::sleep(Duration::from_millis(200));
    }
    let outcome = job.job.wait();
    outcome.expect_success();
    let lines = outcome.ranks.iter().flat_map(|rank| &rank.stderr);
    let told = lines.filter(|line| line.contains("the watchdog cannot see hangs of communicator"));
    assert_eq!(told.count(), 1, "once: {outcome}");
}

#[test]
fn what_goes_on_again_has_recovered() {
    let text = r#"
        topology = "socket"
        steps = ["allreduce:4096", "sleep:200", "allreduce:262144", "sleep:3000"]
        timeout_s = 150
        env = { NCCL_DEBUG = "VERSION" }
        [[fault]]
        kind = "stopped-proxy"
        rank = 1
        step = 3
        ms = 12000
    "#;
    let file = ScenarioFile::parse("paused.toml", text).expect("the text is right");
    let Some(job) = Watched::start(&file, LIMIT) else { return };
    let reports = job.wait_for(&[(1, "recovered after"), (1, "P1 proxy-stalled: ")]);
    assert!(reports[&1][0].starts_with("HANG: "), "{reports:#?}");
    let outcome = job.job.wait();
    outcome.expect_success();
    // NCCL's log has the line too, at its lowest level.
    let log = &outcome.ranks[1].stdout;
    assert!(log.iter().any(|line| line.contains("ncclscope: HANG: ")), "{outcome}");
    assert!(log.iter().any(|line| line.contains("recovered after")), "{outcome}");
}

#[test]
fn a_healthy_job_is_left_alone() {
    let text = r#"
        topology = "socket"
        steps = ["repeat:5:allreduce:65536", "sendrecv:4096", "sleep:6000", "alltoall:4096",
            "graph:3x4096", "sleep:6000", "broadcast:4096"]
        timeout_s = 150
    "#;
    let file = ScenarioFile::parse("healthy.toml", text).expect("the text is right");
    let Some(Watched { job, record, .. }) = Watched::start(&file, "4") else { return };
    job.wait().expect_success();
    let reports = std::fs::read_dir(record.path()).expect("the run's folder").flatten();
    let names: Vec<_> = reports.map(|file| file.file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains(".hang-")), "{names:?}");
}

/// The last rank of a broadcast's ring forwards nothing: the network parts of broadcasts from other
/// ranks, which show what is in flight without kernel events, say nothing about it.
#[test]
fn an_idle_rank_of_rooted_collectives_is_left_alone() {
    let Some(nccl) = wheel::find_or_skip(RELEASE) else { return };
    let job = Job::new(&nccl).expect("the stand-in builds").hosts(2).devices(2);
    let steps = ["allreduce:4096", "bcasts:3x4096", "bcasts:3x4096", "sleep:6000"];
    let job = job.env("NCCLSCOPE_EVENTS", "default,-KernelCh").steps(steps);
    let Watched { job, record, .. } = Watched::of(job, "2");
    job.wait().expect_success();
    let files = std::fs::read_dir(record.path()).expect("the run's folder").flatten();
    let paths =
        files.map(|file| file.path()).filter(|path| path.extension() == Some("nscope".as_ref()));
    let recordings: Vec<_> = paths.map(|path| Recording::open(&path).expect("it is one")).collect();
    assert_eq!(recordings.len(), 4);
    for recording in recordings {
        assert_eq!(recording.hangs(), [], "{:?}", recording.path());
        let mut counts = recording.heartbeats().iter().filter_map(|heartbeat| match heartbeat {
            Heartbeat::Progress(progress) => Some((progress.enqueued, progress.done)),
            _ => None,
        });
        assert_eq!(counts.next_back(), Some((7, 7)), "{:?}", recording.path());
    }
}

/// The table of docs/hang.md has a row for each class, and only existing names.
#[test]
fn the_page_names_a_test_for_each_class() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("it is there");
    let page = read("docs/hang.md");
    let (_, table) = page.split_once("## Where each verdict was seen").expect("the section");
    let (table, _) = table.split_once("\n## ").expect("another follows");
    for class in FindingClass::ALL.into_iter().filter(|class| class.is_reported_by(Tool::Watchdog))
    {
        let code = class.code();
        let row = if code.starts_with('N') { "| N1 to N5 |" } else { &format!("| {code} |") };
        assert!(table.contains(row), "no row for {code}");
    }
    let tests = ["hang.rs", "hang/inside.rs", "early.rs"].map(|name| {
        let text = read(&format!("testing/rig/tests/{name}"));
        text.replace("fn inside_a_node_", "fn ")
    });
    let scripts = read("testing/fake-nccl/tests/callbacks/hang.rs");
    let cells = table.lines().filter_map(|line| line.trim_end_matches(" |").rsplit(" | ").next());
    let names = cells.filter(|cell| cell.starts_with('`')).flat_map(|cell| cell.split(", "));
    let names: Vec<&str> = names.map(|name| name.trim_matches('`')).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let is_test = tests.iter().any(|text| text.contains(&format!("fn {name}()")));
        assert!(is_test || scripts.contains(&format!("\"{name}\",")), "there is no {name}");
    }
}

/// A rank does not take part in a split: NCCL reports no event for that.
#[test]
fn a_communicator_that_is_not_made_is_a_hang_of_the_ranks_that_wait_for_it() {
    let Some(nccl) = wheel::find_or_skip(RELEASE) else { return };
    let job = Job::new(&nccl).expect("the stand-in builds").hosts(3);
    let waits = ["allreduce:4096", "split:4096"];
    let job = job.rank_steps(0, waits).rank_steps(2, waits);
    let job = job.rank_steps(1, ["allreduce:4096", "sleep:200000"]);
    let watched = Watched::of(job, LIMIT);
    let says = "  H1e comm-setup: thread ";
    let reports = watched.wait_for(&[(0, says), (2, says)]);
    assert!(!reports.contains_key(&1), "it is in no function of NCCL: {reports:#?}");
    for rank in [0, 2] {
        let text = &reports[&rank][0];
        assert!(text.starts_with("HANG: ncclCommSplit on thread "), "{text}");
        assert!(text.contains(", limit 3.0 s (host "), "{text}");
    }
}
