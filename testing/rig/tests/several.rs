// SPDX-License-Identifier: Apache-2.0
//! Several ranks in one process, as with JAX: each has its own verdict, timeline and series.

#[path = "common/verdicts.rs"]
#[expect(dead_code, reason = "of the helpers this test needs one")]
mod verdicts;

use rig::job::Job;
use rig::{build, wheel};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use verdicts::diagnose;

/// Seconds after which a wait is a hang, and after which a rank in its last step is ended.
const LIMIT_S: &str = "2";
const HANG_S: &str = "6";

#[test]
fn a_rank_that_waits_for_others_of_its_process_is_not_the_cause() {
    for (version, hosts, devices) in [("2.28.9", 1, 4), ("2.30.7", 2, 2)] {
        let Some(nccl) = wheel::find_or_skip(version) else { continue };
        let record = tempfile::tempdir().expect("a folder");
        let job = Job::new(&nccl).expect("the stand-in builds").hosts(hosts).devices(devices);
        let job = job.threads().env("NCCL_PROFILER_PLUGIN", build::plugin());
        let job = job.env("NCCLSCOPE_DIR", record.path()).keep_going().arg("--hang-s").arg(HANG_S);
        let steps = ["init", "allreduce:4096", "allreduce:4096", "alone:0x262144", "sleep:60000"];
        let _ends_by_force = job.steps(steps).run().expect("ranks start");
        let found = diagnose(record.path(), LIMIT_S);
        let found: Vec<_> =
            found.iter().map(|(class, _, ranks)| (class.as_str(), &ranks[..])).collect();
        assert_eq!(found, [("H1a", &[1, 2, 3][..])], "{version}");
    }
}

/// The report of `stragglers`.
fn stragglers(record: &Path) -> Value {
    let mut tool = Command::new(build::tool());
    let output = tool.args(["stragglers", "--format", "json"]).arg(record).output();
    serde_json::from_slice(&output.expect("the tool starts").stdout).expect("the report is JSON")
}

#[test]
fn each_rank_of_a_process_is_compared_as_one_alone_would_be() {
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    for (hosts, devices, is_threads) in [(1, 4, true), (2, 2, true), (2, 2, false)] {
        let record = tempfile::tempdir().expect("a folder");
        let job = Job::new(&nccl).expect("the stand-in builds").hosts(hosts).devices(devices);
        let job = if is_threads { job.threads() } else { job };
        let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin());
        let job = job.env("NCCLSCOPE_DIR", record.path());
        let steps = ["allreduce:4096", "repeat:15:allreduce:100000"];
        job.steps(steps).run().expect("ranks start").expect_success();
        let report = stragglers(record.path());
        let counts = ["workers", "collectives", "batches"].map(|key| report[key].as_u64());
        let case = format!("{hosts} hosts, threads: {is_threads}");
        assert_eq!(counts, [Some(4), Some(16), Some(0)], "{case}");
        assert_eq!(report["clock"]["groups"], 1, "{case}");
        let last = report["last_arrivers"].as_array().expect("the schema").iter();
        let last: Vec<u64> = last.filter_map(|row| row["last"]["rank"].as_u64()).collect();
        assert!(!last.is_empty() && last.iter().all(|&rank| rank < 4), "{case}: {last:?}");
    }
}

/// The figures that `agent` exports for each rank: its device and its number of operations.
fn series(record: &Path) -> Vec<(String, String, u64)> {
    let mut tool = Command::new(build::tool());
    let tool = tool.args(["agent", "--once", "--labels", "rank", "--dir"]).arg(record);
    let text = String::from_utf8(tool.output().expect("the tool starts").stdout).expect("text");
    let label = |line: &str, name: &str| {
        let at = line.split(&format!("{name}=\"")).nth(1)?;
        Some(at.split('"').next()?.to_owned())
    };
    let lines = text.lines().filter(|line| line.starts_with("nccl_operations_total{"));
    let mut ranks: BTreeMap<(String, String), u64> = BTreeMap::new();
    for line in lines {
        let rank = label(line, "nccl_rank").expect("a rank");
        let device = label(line, "nccl_device_index").unwrap_or_default();
        let count = line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok());
        *ranks.entry((rank, device)).or_default() += count.expect("a number");
    }
    ranks.into_iter().map(|((rank, device), count)| (rank, device, count)).collect()
}

#[test]
fn each_rank_of_a_process_has_series_and_a_device_of_its_own() {
    let Some(nccl) = wheel::find_or_skip("2.28.9") else { return };
    let [record, driver] = [(), ()].map(|()| tempfile::tempdir().expect("a folder"));
    // The stand-in is loaded as the driver under this name.
    let cuda = &build::artifacts().expect("the stand-in builds").cuda;
    std::os::unix::fs::symlink(cuda, driver.path().join("libcuda.so.1")).expect("a link");
    let job = Job::new(&nccl).expect("the stand-in builds").hosts(1).devices(4).threads();
    let job = job.env("NCCL_PROFILER_PLUGIN", build::plugin());
    let job = job.env("LD_LIBRARY_PATH", driver.path());
    let job = job.env("NCCLSCOPE_DIR", record.path()).steps(["repeat:5:allreduce:4096"]);
    job.run().expect("ranks start").expect_success();
    let wanted: Vec<_> = ["0", "1", "2", "3"].map(|n| (n.into(), n.into(), 5)).into();
    assert_eq!(series(record.path()), wanted);
}
