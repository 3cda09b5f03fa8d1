// SPDX-License-Identifier: Apache-2.0
//! PyTorch's profile of a job, with ncclscope's lanes in it.

use serde_json::Value;
use std::process::Command;
use std::time::Duration;

use super::part::Part;
use super::python::{Script, version};
use super::row::Found;
use super::setup::Setup;

/// Check 11.
pub(super) const TORCH: Part = Part {
    id: "11",
    title: "PyTorch: two ranks with torch.profiler, merged with our recordings",
    expected: "`merge` puts our operations onto the kernels of both traces, to 20 us",
    seconds: 30,
    run: torch,
};

/// Maximum distance between the start of an operation and that of its kernel, us: ncclscope and
/// CUPTI each place the GPU's clock.
const APART_US: f64 = 20.0;
/// Number of AllReduces of a rank under the profiler, in the script.
const PROFILED: usize = 5;
const SCRIPT: &str = include_str!("torch.py");

fn torch(setup: &Setup, limit: Duration) -> Result<Found, String> {
    let version = match version(setup) {
        Ok(version) => version,
        Err(skipped) => return Ok(skipped),
    };
    let mut job = Script::new(setup, "11-torch", SCRIPT, (&[], limit, true))?;
    job = job.env("NCCLSCOPE_KERNEL", "on");
    let (said, folder) = (job.run()?, &job.folder);
    let key = said.lines().filter_map(|line| line.strip_prefix("key ")?.parse::<f64>().ok());
    let key = key.fold(0.0, f64::max);
    let traces = [folder.join("trace0.json"), folder.join("trace1.json")];
    let mut merge = Command::new(setup.bin.join("ncclscope"));
    merge.arg("merge").arg("--kineto").args(&traces).arg("-o").arg(folder.join("merged"));
    let merged = merge.arg("--").arg(folder).output().map_err(|e| format!("merge: {e}"))?;
    let apart = apart_us(&folder.join("merged"));
    let worst = apart.iter().copied().fold(0.0, f64::max);
    let text = format!(
        "torch {version}: merge {}; {} of our operations start within {worst:.1} us of their \
         kernels; pthread key {key} after the first CUDA call",
        merged.status,
        apart.len()
    );
    let is_exact = apart.len() == 2 * PROFILED && worst <= APART_US;
    Ok(Found::judged(merged.status.success() && is_exact, text)
        .figure("pthread_key", key)
        .figure("operations", apart.len() as f64)
        .figure("apart_us", worst))
}

/// Distance of each operation's start from that of its kernel, us. Operations of a stream run in
/// order.
fn apart_us(folder: &std::path::Path) -> Vec<f64> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let traces = files
        .filter_map(|file| serde_json::from_slice::<Value>(&std::fs::read(file.path()).ok()?).ok());
    let of = |trace: Value| {
        let [kernels, ours] =
            [("kernel", "nccl"), ("nccl_operation", "")].map(|(category, word)| {
                let events = trace["traceEvents"].as_array().into_iter().flatten();
                let events = events.filter(|event| event["cat"] == category && event["ph"] == "X");
                let named =
                    |event: &&Value| event["name"].to_string().to_lowercase().contains(word);
                let mut starts: Vec<f64> =
                    events.filter(named).filter_map(|event| event["ts"].as_f64()).collect();
                starts.sort_by(f64::total_cmp);
                starts
            });
        let is_whole = kernels.len() == ours.len();
        let pairs = kernels.into_iter().zip(ours).map(|(kernel, own)| (kernel - own).abs());
        pairs.take(if is_whole { PROFILED } else { 0 }).collect::<Vec<_>>()
    };
    traces.flat_map(of).collect()
}
