// SPDX-License-Identifier: Apache-2.0
//! What the watchdog of each rank says when real NCCL hangs, and that it says nothing otherwise.
//!
//! The command that the watchdog runs leaves a report beside the recording, which is waited for;
//! the ranks are killed then. Waits are long, for a machine may be slow; limits are short.

use rig::job::{Job, Running};
use rig::scenario_file::ScenarioFile;
use rig::{build, wheel};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// With API and kernel events.
const RELEASE: &str = "2.28.9";
/// Seconds after which an operation is stuck.
const LIMIT: &str = "3";
/// For a report to come.
const PATIENCE: Duration = Duration::from_secs(100);

/// A job that runs under the watchdog.
struct Watched {
    job: Running,
    record: tempfile::TempDir,
}

impl Watched {
    /// Starts a scenario, if its release is there.
    fn start(file: &ScenarioFile, limit: &str) -> Option<Watched> {
        let nccl = wheel::find_or_skip(RELEASE)?;
        build::artifacts().expect("the stand-in builds");
        let plugin = build::package("ncclscope-plugin").expect("the plugin builds");
        let record = tempfile::tempdir().expect("a folder");
        let job = file.apply(Job::new(&nccl).expect("the stand-in builds"));
        let job = job
            .env("NCCL_PROFILER_PLUGIN", plugin.join("libnccl_profiler_ncclscope.so"))
            .env("NCCLSCOPE_DIR", record.path())
            .env("NCCLSCOPE_CONTROL", record.path().join("control"))
            .env("NCCLSCOPE_HANG_SEC", limit)
            .env("NCCLSCOPE_HANG_ACTION", "log,exec:true")
            // Longer than the scenario says: a busy machine may take its time to report.
            .arg("--hang-s")
            .arg("60")
            .timeout(2 * PATIENCE);
        Some(Watched { job: job.start().expect("ranks start"), record })
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

    /// Waits until each of `ranks` has a report that says `said`.
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

/// What the ranks say of what they wait for, by their process ids, and the tool's exit code.
fn why(cli: &Path, control: &Path) -> (Value, Option<i32>) {
    let mut command = Command::new(cli);
    command.args(["dump", "--all", "--why", "--format", "json"]).env("NCCLSCOPE_CONTROL", control);
    let output = command.output().expect("the tool starts");
    let said = serde_json::from_slice(&output.stdout);
    (said.unwrap_or_else(|error| panic!("{error}: {output:?}")), output.status.code())
}

fn scenario(name: &str) -> ScenarioFile {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    ScenarioFile::read(&folder.join(name)).expect("the file is right")
}

/// Runs a scenario that hangs: each of `ranks` must say so.
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
fn who_waits_for_a_missing_rank_says_for_which_and_also_when_asked() {
    // Before the job, which does not wait for it.
    let cli = build::package("ncclscope-cli").expect("the tool builds").join("ncclscope");
    let said = [(0, "nothing of it has come from rank 1")];
    let Some(job) = hangs("missing-rank.toml", &said) else { return };
    let (said, code) = why(&cli, &job.record.path().join("control"));
    assert_eq!(code, Some(1), "{said}");
    let processes = said["processes"].as_array().expect("the schema");
    let of = |rank| processes.iter().find(|process| process["pid"] == job.job.pid(rank));
    let [hang] = of(0).expect("it runs")["in_flight"].as_array().expect("a list").as_slice() else {
        panic!("one communicator, one operation: {said}");
    };
    let told = (&hang["event"], &hang["peer"], &hang["operation"]["number"]);
    assert_eq!(told, (&"hung".into(), &1.into(), &3.into()), "{said}");
    // It may have ended meanwhile; if not, it waits for nothing.
    assert!(of(1).is_none_or(|process| process["in_flight"] == Value::Array(vec![])), "{said}");
}

#[test]
fn a_stuck_kernel_is_its_own_gpus() {
    hangs("stuck-kernel.toml", &[(1, "N1: this GPU gives no data for rank 0")]);
}

#[test]
fn a_kernel_that_never_starts_is_told_from_one_that_waits() {
    let said = [(1, "H3a: its kernel has not started"), (0, "nothing of it has come from rank 1")];
    hangs("kernel-never-starts.toml", &said);
}

#[test]
fn a_stalled_link_is_the_senders_wire() {
    hangs("stalled-link.toml", &[(1, "N3: data to rank 2 was given to the network")]);
}

#[test]
fn a_dead_proxy_thread_is_named() {
    hangs("dead-proxy.toml", &[(1, "P1: NCCL's proxy thread")]);
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
    let reports = job.wait_for(&[(1, "recovered after"), (1, "P1: ")]);
    assert!(reports[&1][0].starts_with("HANG: "), "{reports:#?}");
    let outcome = job.job.wait();
    outcome.expect_success();
    // NCCL's log, at its lowest level but none, has it too.
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
    let Some(Watched { job, record }) = Watched::start(&file, "4") else { return };
    job.wait().expect_success();
    let reports = std::fs::read_dir(record.path()).expect("the run's folder").flatten();
    let names: Vec<_> = reports.map(|file| file.file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains(".hang-")), "{names:?}");
}
