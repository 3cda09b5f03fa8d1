// SPDX-License-Identifier: Apache-2.0
//! Hangs inside a node, with all variables at their defaults, on releases whose kernel events are
//! off by default: what the tools say while the job stands.

use rig::job::{Job, Running};
use rig::topology::Topology;
use rig::{build, wheel};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Releases, each with a number of ranks, for the faults in turn.
const JOBS: [(&str, usize); 2] = [("2.30.7", 2), ("2.32.3", 4)];
const OTHER_JOBS: [(&str, usize); 2] = [("2.30.7", 4), ("2.32.3", 2)];
/// The time within which a tool must see the hang.
const PATIENCE: Duration = Duration::from_secs(90);
/// Two operations, and one in which the job hangs.
const STEPS: [&str; 4] = ["allreduce:4096", "allreduce:4096", "allreduce:262144", "sleep:300000"];

/// A job inside one node that stands.
struct Standing {
    cli: PathBuf,
    job: Running,
    folder: tempfile::TempDir,
}

impl Standing {
    /// Starts a job, if the release is installed. It finds a CUDA driver if `has_driver`.
    fn start(
        (release, ranks): (&str, usize),
        has_driver: bool,
        change: impl FnOnce(Job) -> Job,
    ) -> Option<Standing> {
        let nccl = wheel::find_or_skip(release)?;
        let folder = tempfile::tempdir().expect("a folder");
        let mut job = Job::new(&nccl).expect("the stand-in builds");
        job = job.topology(Topology::Shm).devices(ranks).arg("--hang-s").arg("200");
        if has_driver {
            let cuda = &build::artifacts().expect("the stand-in builds").cuda;
            let driver = folder.path().join("driver");
            std::fs::create_dir(&driver).expect("a folder");
            std::os::unix::fs::symlink(cuda, driver.join("libcuda.so.1")).expect("a link");
            job = job.env("LD_LIBRARY_PATH", driver);
        }
        let job = job
            .timeout(2 * PATIENCE)
            .env("NCCL_PROFILER_PLUGIN", build::plugin())
            .env("NCCLSCOPE_DIR", folder.path().join("run"))
            // The rig requests kernel events of some releases.
            .env("NCCLSCOPE_KERNEL", "auto");
        let job = change(job).start().expect("ranks start");
        Some(Standing { cli: build::tool(), job, folder })
    }

    fn run(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn tool(&self, args: &[&str]) -> Output {
        let mut command = Command::new(&self.cli);
        command.args(args).arg(self.run()).output().expect("the tool starts")
    }

    /// Calls a tool until its output is as wanted.
    #[track_caller]
    fn wait_for(&self, args: &[&str], is_right: impl Fn(&Output, &str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let output = self.tool(args);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if is_right(&output, &text) {
                return text;
            }
            assert!(Instant::now() < until, "{args:?}: {output:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Asserts that all tools call the job hung, and name the rank if there is one.
    #[track_caller]
    fn expect_hung(&self, class: &str, root: Option<u64>) {
        let diagnose = ["diagnose", "--hang-sec", "2", "--format", "json"];
        // A stopped process may be taken for a GPU that is behind, until it has been silent for a
        // few seconds.
        let found = self.wait_for(&diagnose, |_, text| first_finding(text)["name"] == class);
        let finding = first_finding(&found);
        if let Some(root) = root {
            assert_eq!(finding["root_ranks"], serde_json::json!([root]), "{found}");
        }
        let report =
            self.wait_for(&["report", "--hang-sec", "2"], |_, text| text.starts_with("HUNG "));
        let is_named = root.is_none_or(|root| report.contains(&format!("\nwho   rank {root} ")));
        assert!(is_named, "{report}");
        let top = ["top", "--once", "--hang-sec", "2", "--format", "json"];
        self.wait_for(&top, |output, text| output.status.code() == Some(1) && all_are_bad(text));
        let agent = ["agent", "--once", "--hang-sec", "2", "--dir"];
        let at_fault = root.map_or_else(String::new, |root| format!("rank=\"{root}\""));
        let metrics = self.wait_for(&agent, |_, text| {
            let mut findings = text.lines().filter(|line| line.starts_with("nccl_finding{"));
            let is_named = findings.any(|line| line.contains(class) && line.contains(&at_fault));
            is_named && sum(text, "nccl_operations_in_flight") > 0.0
        });
        assert!(sum(&metrics, "nccl_operations_oldest_age_seconds") > 1.0, "{metrics}");
        assert!(!metrics.contains("nccl_operations_hidden"), "{metrics}");
    }
}

fn first_finding(diagnosis: &str) -> Value {
    let diagnosis: Value = serde_json::from_str(diagnosis).unwrap_or_default();
    diagnosis["findings"][0].clone()
}

/// Whether something is wrong with each rank.
fn all_are_bad(top: &str) -> bool {
    let top: Value = serde_json::from_str(top).unwrap_or_default();
    let is_bad = |row: &Value| row["flags"].as_array().is_some_and(|flags| !flags.is_empty());
    top["ranks"].as_array().is_some_and(|rows| rows.iter().all(is_bad))
}

/// The sum of a metric's series.
fn sum(text: &str, name: &str) -> f64 {
    let of = text.lines().filter(|line| line.strip_prefix(name).is_some_and(is_series));
    of.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

fn is_series(rest: &str) -> bool {
    rest.starts_with(['{', ' '])
}

#[test]
fn a_stuck_kernel_inside_a_node_is_a_hang_by_default() {
    for job in JOBS {
        let stuck =
            |job: Job| job.steps(STEPS).env("CPU_CUDA_FAULTS", "stuck:launch=3,rank=1,step=1");
        let Some(standing) = Standing::start(job, true, stuck) else { continue };
        // The kernels of all ranks run: which one is at fault is not visible inside a node.
        standing.expect_hung("kernel-not-ending", None);
    }
}

#[test]
fn a_rank_that_stops_calling_inside_a_node_is_named_by_default() {
    for job in &OTHER_JOBS {
        let idle = ["allreduce:4096", "allreduce:4096", "sleep:300000"];
        let Some(standing) =
            Standing::start(*job, true, |job| job.steps(STEPS).rank_steps(1, idle))
        else {
            continue;
        };
        standing.expect_hung("host-stuck", Some(1));
    }
}

#[test]
fn a_stopped_process_inside_a_node_is_named_by_default() {
    for job in &JOBS {
        let busy = ["allreduce:4096", "repeat:1000000:allreduce:4096"];
        let Some(standing) = Standing::start(*job, true, |job| job.steps(busy)) else { continue };
        let report = ["report", "--format", "json"];
        standing.wait_for(&report, |_, text| has_operations(text));
        stop(standing.job.pid(1));
        standing.expect_hung("process-gone", Some(1));
    }
}

/// CUDA events show that all operations have ended, and no other record does.
#[test]
fn ranks_that_are_idle_inside_a_node_hide_nothing() {
    let idle = ["allreduce:4096", "allreduce:4096", "sleep:300000"];
    for job in JOBS {
        let Some(standing) = Standing::start(job, true, |job| job.steps(idle)) else { continue };
        let diagnose = ["diagnose", "--hang-sec", "2"];
        let found = standing.wait_for(&diagnose, |_, text| text.contains("OUTSIDE_NCCL"));
        assert!(!found.contains("NOT VISIBLE"), "{found}");
        let top = standing.tool(&["top", "--once"]);
        let top = String::from_utf8_lossy(&top.stdout);
        assert!(!top.contains("hidden"), "{top}");
    }
}

/// Without a CUDA driver, or with CUDA events off, nothing shows the end of an operation.
#[test]
fn what_is_not_visible_inside_a_node_is_not_called_fine() {
    let off = |job: Job| job.env("NCCLSCOPE_CUDA_EVENTS", "off");
    for (has_driver, reason) in [(true, "CUDA events are off"), (false, "no CUDA event was")] {
        let change = |job: Job| {
            let job = job.steps(STEPS).env("CPU_CUDA_FAULTS", "stuck:launch=3,rank=1,step=1");
            if has_driver { off(job) } else { job }
        };
        let Some(standing) = Standing::start(JOBS[0], has_driver, change) else { return };
        let says = |text: &str| text.contains("NOT VISIBLE: ") && text.contains(reason);
        let diagnose = ["diagnose", "--hang-sec", "2"];
        let found = standing.wait_for(&diagnose, |_, text| says(text));
        assert!(!found.contains("OUTSIDE_NCCL") && !found.contains("wait in NCCL"), "{found}");
        let report = standing.tool(&["report", "--hang-sec", "2"]);
        let report = String::from_utf8_lossy(&report.stdout);
        assert!(report.starts_with("CANNOT TELL ") && says(&report), "{report}");
        let top = standing.wait_for(&["top", "--once"], |_, text| text.contains("hidden"));
        assert!(!top.contains(" ok "), "{top}");
        let metrics = standing.wait_for(&["agent", "--once", "--dir"], |_, text| {
            sum(text, "nccl_operations_hidden") == 2.0
        });
        assert!(!metrics.contains("nccl_operations_in_flight{"), "{metrics}");
    }
}

fn has_operations(report: &str) -> bool {
    let report: Result<Value, _> = serde_json::from_str(report);
    report.is_ok_and(|it| it["operations"].as_array().is_some_and(|rows| !rows.is_empty()))
}

fn stop(pid: u32) {
    let status = Command::new("kill").args(["-STOP", &pid.to_string()]).status();
    assert!(status.expect("kill starts").success());
}
