// SPDX-License-Identifier: Apache-2.0
//! Recordings of AMD's RCCL, whose kernels' times are ticks of the GPU's timer: every view must
//! have the times that were planted, 4 ms for each AllReduce of 4 MiB.

use crate::common::{Outcome, ncclscope};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const KERNEL_NS: f64 = 4e6;
const BYTES: f64 = 4_194_304.0;
/// The share by which a time or a bandwidth may differ from the planted one.
const OFF: f64 = 0.02;

fn is_near(found: f64, planted: f64) -> bool {
    (found / planted - 1.0).abs() <= OFF
}

/// A run of both ranks, whose GPUs have a timer of this rate.
struct Run(TempDir);

impl Run {
    fn new(khz: &str) -> Run {
        let run = Run(tempfile::tempdir().unwrap());
        let ranks = ["0", "1"].map(|rank| {
            let mut host = Command::new(built::FAKE_NCCL.path().unwrap());
            host.arg(built::PLUGIN.path().unwrap()).args(["5", "rccl", "--ops", "60"]);
            host.args(["--rank", rank, "--nccl"]).arg(built::RCCL.path().unwrap());
            host.env("FAKE_RCCL_KHZ", khz).env("NCCLSCOPE_DIR", run.0.path());
            host.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        });
        ranks.into_iter().for_each(|mut rank| assert!(rank.wait().unwrap().success()));
        run
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ncclscope(args).ends_with(0).stdout).unwrap()
}

/// The value of a metric without labels of its own, over all series.
fn sum(text: &str, name: &str) -> f64 {
    let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[test]
fn every_view_has_the_times_that_were_planted() {
    let (run, slow) = (Run::new("100000"), Run::new("25000"));
    let report = json(&["report", "--format", "json", run.path()]);
    assert_eq!(report["ranks"][0]["nccl_version"], "RCCL 2.27.7");
    let row = &report["operations"][0];
    assert_eq!((&row["channels"], &row["timing"]), (&256.into(), &"kernel".into()), "{row}");
    for figure in ["min", "p50", "max"] {
        let found = row["duration_ns"][figure].as_f64().unwrap();
        assert!(is_near(found, KERNEL_NS), "{figure}: {found}");
    }
    let found = row["busbw_gbs"].as_f64().unwrap();
    assert!(is_near(found, BYTES / KERNEL_NS), "{row}");

    crate::agent::build();
    let text = ncclscope(&["agent", "--once", "--dir", run.path()]).ends_with(0).stdout;
    let of = |name: &str| sum(&text, &format!("nccl_operation_{name}"));
    // Of each rank's last operation a kernel never stops, so that it has no time of its own.
    let count = of("bus_bandwidth_bytes_per_second_count");
    assert!((118.0..=120.0).contains(&count), "{count}");
    let found = of("bus_bandwidth_bytes_per_second_sum") / count * 1e-9;
    assert!(is_near(found, BYTES / KERNEL_NS), "{found}");
    assert!(text.contains("nccl_channels=\"256\""), "{text}");

    let compared = json(&["compare", "--format", "json", run.path(), slow.path()]);
    let rows = compared["rows"].as_array().unwrap();
    let transfer = rows.iter().find(|row| row["key"]["kind"] == "transfer").unwrap();
    for side in ["a", "b"] {
        assert!(is_near(transfer[side].as_f64().unwrap(), KERNEL_NS), "{transfer}");
    }
    [&run, &slow].iter().for_each(|run| kernels_lie_in_their_operations(run));
}

/// In the trace each kernel has its length, and lies between its operation's call and the next one.
fn kernels_lie_in_their_operations(run: &Run) {
    /// The error of the GPU's clock, at most, us.
    const ERROR: f64 = 500.0;
    let file = run.0.path().join("trace.json");
    ncclscope(&["export", "-o", file.to_str().unwrap(), run.path()]).ends_with(0);
    let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(file).unwrap();
    let events = trace["traceEvents"].as_array().or_else(|| trace.as_array()).unwrap();
    let pids: BTreeSet<u64> = events.iter().filter_map(|event| event["pid"].as_u64()).collect();
    assert_eq!(pids.len(), 2);
    for pid in pids {
        let of = |name: &str, is_timed: bool| {
            let is_it = |event: &&Value| {
                let has_time = !event["args"]["gpu_ns"].is_null();
                event["name"] == name && event["pid"] == pid && has_time == is_timed
            };
            let at = |event: &Value| ["ts", "dur"].map(|key| event[key].as_f64().unwrap());
            let mut found: Vec<[f64; 2]> = events.iter().filter(is_it).map(at).collect();
            found.sort_by(|a, b| a[0].total_cmp(&b[0]));
            found
        };
        let calls = of("CollApi AllReduce", false);
        let kernels = of("KernelCh AllReduce", true);
        assert_eq!((calls.len(), kernels.len()), (60, 60 * 256 - 1));
        for (at, kernels) in kernels.chunks(256).enumerate() {
            let next = calls.get(at + 1).map_or(f64::INFINITY, |call| call[0]);
            for &[start, length] in kernels {
                assert!(is_near(length * 1e3, KERNEL_NS), "{length} us");
                assert!((calls[at][0] - ERROR..next).contains(&start), "{start} is of call {at}");
            }
        }
    }
}

#[test]
fn times_in_an_unknown_unit_are_refused_and_the_report_says_so() {
    let run = Run::new("0");
    let text = ncclscope(&["report", run.path()]).ends_with(0).stdout;
    assert!(text.contains("The GPU's times of kernels were dropped: RCCL gives them in ticks"));
    let report = json(&["report", "--format", "json", run.path()]);
    assert_eq!(report["processes"][0]["identity"]["timer_ns"], 0);
    let row = &report["operations"][0];
    assert_ne!(row["timing"], "kernel", "{row}");
}

#[test]
fn the_doctor_knows_its_releases() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("librccl.so.1");
    let says = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let args = ["doctor", "-o", dir.path().to_str().unwrap(), "--nccl"];
        let mut command = crate::common::tool();
        Outcome::of(command.args(args).arg(Path::new(&file))).stdout
    };
    let text = says("\0RCCL version : 2.27.7-HEAD:96a25b5\0");
    assert!(
        text.contains("RCCL 2.27.7-HEAD:96a25b5 at") && text.contains("profiler API v4"),
        "{text}"
    );
    assert!(text.contains("HIP tells the unit of their times"), "{text}");
    let text = says("\0RCCL version 2.30.4\0");
    assert!(text.contains("NCCL's schedule of grouped broadcasts"), "{text}");
    assert!(!text.contains("CUDA events time"), "there are none: {text}");
    let text = says("nothing");
    assert!(text.contains("is it NVIDIA's libnccl.so.2, or AMD's librccl.so.1?"), "{text}");
}
