// SPDX-License-Identifier: Apache-2.0
//! Recordings of two ranks on an H100, merged with PyTorch's profiles of the same job.

use super::h100::unpack;
use super::{assert_fine, read};
use serde_json::Value;
use std::process::Command;

/// Number of AllReduces of each rank under the profiler.
const PROFILED: usize = 5;
/// Maximum distance between an operation's ends and those of its kernel, us.
const APART_US: f64 = 10.0;

/// Start and end of all slices of a category, us.
fn slices(trace: &Value, category: &str, name: &str) -> Vec<(f64, f64)> {
    let events = trace["traceEvents"].as_array().unwrap().iter();
    let of = events.filter(|event| event["cat"] == category);
    let named = of.filter(|event| event["name"].as_str().is_some_and(|text| text.contains(name)));
    let times = |event: &Value| Some((event["ts"].as_f64()?, event["dur"].as_f64()?));
    let mut all: Vec<(f64, f64)> =
        named.map(|event| times(event).unwrap()).map(|(ts, dur)| (ts, ts + dur)).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

#[test]
fn operations_of_a_real_gpu_lie_on_the_kernels_that_pytorch_saw() {
    let dir = tempfile::tempdir().unwrap();
    unpack("merge", dir.path());
    let mut command = Command::new(env!("CARGO_BIN_EXE_ncclscope"));
    command.current_dir(dir.path()).args(["merge", "--kineto", "trace0.json", "trace1.json"]);
    let text = assert_fine(&command.args(["-o", "out", "--", "."]).output().unwrap());
    let joined = "5 of 5 NCCL kernels joined (5 by order in process group)";
    assert_eq!(text.matches(joined).count(), 2, "{text}");
    for rank in 0..2 {
        let trace = read(&dir.path().join(format!("out/trace{rank}.json")));
        let kernels = slices(&trace, "kernel", "ncclDevKernel");
        let operations = slices(&trace, "nccl_operation", "AllReduce");
        assert_eq!((kernels.len(), operations.len()), (PROFILED, PROFILED), "rank {rank}");
        for ((start, end), own) in kernels.iter().zip(&operations) {
            let apart = [(start - own.0).abs(), (end - own.1).abs()];
            assert!(apart.iter().all(|us| *us < APART_US), "rank {rank}: {apart:?}");
        }
    }
}
