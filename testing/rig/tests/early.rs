// SPDX-License-Identifier: Apache-2.0
//! Kernel stops that come before the kernel's end, and times of another kernel, on real NCCL: what
//! the watchdog of a rank and the report say.
//!
//! Within one node only the kernel shows what an operation does. The stand-in writes a stop like
//! the GPU code: when thread 0 is done, although the kernel still runs. CUDA events show the end.

mod common;

use rig::job::{Job, Running};
use rig::topology::Topology;
use rig::{build, wheel};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const RELEASE: &str = "2.28.9";
/// The delay of rank 0.
const LATE: &str = "sleep:5000";
/// Two ranks on one node may start a step this far apart.
const SLACK_NS: u64 = 500_000_000;
/// The time limit for a report.
const PATIENCE: Duration = Duration::from_secs(100);

struct TestRun {
    cli: PathBuf,
    dir: tempfile::TempDir,
    job: Job,
}

impl TestRun {
    fn new(release: &str) -> Option<TestRun> {
        let nccl = wheel::find_or_skip(release)?;
        let cuda = &build::artifacts().expect("the stand-in builds").cuda;
        let dir = tempfile::tempdir().expect("a folder");
        // The stand-in is loaded as the driver under this name.
        let driver = dir.path().join("driver");
        std::fs::create_dir(&driver).expect("a folder");
        std::os::unix::fs::symlink(cuda, driver.join("libcuda.so.1")).expect("a link");
        let job = Job::new(&nccl).expect("the stand-in builds").timeout(2 * PATIENCE);
        let job = job
            .topology(Topology::P2pIpc)
            .env("LD_LIBRARY_PATH", driver)
            .env("NCCL_PROFILER_PLUGIN", build::plugin())
            .env("NCCLSCOPE_DIR", dir.path().join("run"))
            .env("NCCLSCOPE_CONTROL", dir.path().join("control"))
            .env("NCCLSCOPE_KERNEL", "on");
        Some(TestRun { cli: build::tool(), dir, job })
    }

    /// A run with CUDA events and a watchdog whose limit is 2 s.
    fn watched(release: &str) -> Option<TestRun> {
        let run = TestRun::new(release)?;
        let job = run.job.env("NCCLSCOPE_CUDA_EVENTS", "on");
        let job = job.env("NCCLSCOPE_HANG_SEC", "2").env("NCCLSCOPE_HANG_ACTION", "log,exec:true");
        Some(TestRun { job, ..run })
    }

    fn report(&self) -> Value {
        common::report(&self.cli, &self.dir.path().join("run"))
    }

    /// Waits for a report of a rank's watchdog that contains `said`.
    #[track_caller]
    fn wait_for(&self, job: &Running, rank: usize, said: &str) -> String {
        let until = Instant::now() + PATIENCE;
        let mine = format!("-{}.", job.pid(rank));
        loop {
            let files = std::fs::read_dir(self.dir.path().join("run")).into_iter().flatten();
            let files = files.flatten().map(|file| file.path());
            let is_mine = |name: &str| name.contains(&mine) && name.contains(".hang-");
            let files = files.filter(|path| is_mine(&path.to_string_lossy()));
            let reports: Vec<String> =
                files.map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect();
            if let Some(report) = reports.iter().find(|report| report.contains(said)) {
                return report.clone();
            }
            assert!(Instant::now() < until, "waited for `{said}`, there is {reports:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs `step` on both ranks after two normal ones; rank 0 is late. Rank 1 must report it while
    /// it is open; returns the report after the end.
    fn late(self, step: &str, said: &str) -> Value {
        let early = [step, step, step];
        let late = [step, step, LATE, step];
        let job = self.job.clone().steps(early).rank_steps(0, late);
        let running = job.start().expect("ranks start");
        let hang = self.wait_for(&running, 1, "HANG: ");
        assert!(hang.contains(said), "{hang}");
        let report = self.report();
        let open = report["open_operations"].as_array().expect("the schema");
        let open: Vec<&Value> = open.iter().filter(|open| open["rank"] == 1).collect();
        assert!(!open.is_empty(), "what hangs is not over: {report}");
        running.wait().expect_success();
        self.report()
    }
}

/// Asserts that every operation of `func` is timed by a CUDA event, and that the late one took as
/// long as the delay.
#[track_caller]
fn expect_whole_times(report: &Value, func: &str) {
    let rows = report["operations"].as_array().expect("the schema");
    let row = rows.iter().find(|row| row["func"] == func).unwrap_or_else(|| panic!("{report}"));
    let timings = row["timings"].as_object().expect("counts by source");
    assert!(timings.contains_key("cuda_event") && !timings.contains_key("kernel"), "{row}");
    let longest = row["duration_ns"]["max"].as_u64().expect("a number");
    assert!(longest > 5_000_000_000 - SLACK_NS, "{row}");
    assert_eq!(report["open_operations"].as_array().map(Vec::len), Some(0), "{report}");
}

#[test]
fn a_tree_all_reduce_whose_peer_is_late_is_in_flight_after_its_stop() {
    let Some(run) = TestRun::watched(RELEASE) else { return };
    let run = TestRun { job: run.job.clone().env("NCCL_ALGO", "Tree"), ..run };
    let report = run.late("allreduce:4096", "the first part of its kernel has ended");
    expect_whole_times(&report, "AllReduce");
    assert_eq!(report["operations"][0]["algorithm"], "TREE", "{report}");
}

/// A kernel that stops early like NVLS, which only copies its data to where the switch finds it.
/// NVLS itself needs a GPU.
#[test]
fn a_stop_before_anything_is_done_ends_nothing() {
    let Some(run) = TestRun::watched(RELEASE) else { return };
    let job = run.job.clone().env("NCCL_ALGO", "Tree").env("CPU_CUDA_FAULTS", "early");
    let report =
        TestRun { job, ..run }.late("allreduce:300001", "the first part of its kernel has ended");
    expect_whole_times(&report, "AllReduce");
}

#[test]
fn a_receive_whose_peer_is_late_is_in_flight_after_the_send_beside_it() {
    let Some(run) = TestRun::watched(RELEASE) else { return };
    let report = run.late("sendrecv:4096", "the first part of its kernel has ended");
    for func in ["Send", "Recv"] {
        expect_whole_times(&report, func);
    }
}

/// Without CUDA events the time of such an operation is a lower bound, and is marked as such.
#[test]
fn without_cuda_events_an_early_stop_gives_no_bandwidth() {
    let Some(run) = TestRun::new(RELEASE) else { return };
    let job = run.job.clone().env("NCCL_ALGO", "Tree");
    let job = job.steps(["repeat:3:allreduce:4096", "sendrecv:4096"]);
    job.run().expect("ranks start").expect_success();
    let report = run.report();
    for row in report["operations"].as_array().expect("the schema") {
        assert_eq!(row["timing"], "kernel_lead", "{row}");
        assert!(row["algbw_gbs"].is_null() && row["busbw_gbs"].is_null(), "{row}");
    }
    assert_eq!(report["open_operations"].as_array().map(Vec::len), Some(0), "{report}");
    assert!(report["unknowable"].to_string().contains("the least that they took"), "{report}");
}

/// From 2.31 on, NCCL's profiler does not count a Broadcast, but its kernels do (NVIDIA/nccl#2368):
/// the AllReduces after it get the times of other kernels, or none.
#[test]
fn after_a_broadcast_no_kernel_is_believed_from_2_31_on() {
    for release in ["2.31.2", "2.32.3"] {
        let Some(run) = TestRun::new(release) else { continue };
        let steps = ["allreduce:4096", "broadcast:4096", "repeat:3:allreduce:4096"];
        let job = run.job.clone().topology(Topology::Socket).steps(steps);
        // NCCL may crash when it destroys the communicator, so the ranks do not. Its proxies need a
        // while to stop.
        let job = job.steps(["sleep:500"]).arg("--no-destroy").keep_going();
        let outcome = job.run().expect("ranks start");
        assert!(outcome.ranks.iter().all(|rank| rank.steps_done() == 6), "{release}: {outcome}");
        let report = run.report();
        let rows = report["operations"].as_array().expect("the schema");
        let row = rows.iter().find(|row| row["func"] == "AllReduce").expect("a row");
        let timings = &row["timings"];
        assert_eq!((&timings["kernel"], &timings["proxy"]), (&2.into(), &6.into()), "{row}");
        let stray = report["lost"]["stray_kernel_times"].as_u64().expect("a number");
        assert!(stray >= 6, "{release}: {}", report["lost"]);
        let losses = report["lost"]["losses"].to_string();
        assert!(losses.contains(&format!("kernel times of {stray} events")), "{losses}");
        assert_eq!(report["open_operations"].as_array().map(Vec::len), Some(0), "{report}");
        // By default, NCCL is not asked for kernel events.
        let job = run.job.clone().env("NCCLSCOPE_KERNEL", "auto").steps(steps);
        job.env("NCCLSCOPE_DIR", run.dir.path().join("auto"))
            .run()
            .expect("ranks start")
            .expect_success();
        let auto = common::report(&run.cli, &run.dir.path().join("auto"));
        assert_eq!(auto["lost"]["stray_kernel_times"], 0, "{auto}");
        assert!(
            auto["ranks"].as_array().is_some_and(|ranks| {
                ranks.iter().all(|rank| rank["events"]["KernelCh"].is_null())
            }),
            "{auto}"
        );
    }
}
