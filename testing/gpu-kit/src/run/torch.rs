// SPDX-License-Identifier: Apache-2.0
//! PyTorch's profile of a job with our lanes in it.

use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::find;
use super::part::Part;
use super::row::Found;
use super::setup::Setup;

/// Check 11.
pub(super) const TORCH: Part = Part {
    id: "11",
    title: "PyTorch: two ranks with torch.profiler, merged with our recordings",
    expected: "`merge` puts our operations onto the kernels of both traces, to 20 us",
    seconds: 55,
    run: torch,
};

/// By how much the start of an operation may differ from that of its kernel, us: the GPU's clock is
/// placed by us and by CUPTI.
const APART_US: f64 = 20.0;
/// AllReduces of a rank under the profiler, in the script.
const PROFILED: usize = 5;
const SCRIPT: &str = include_str!("torch.py");

fn torch(setup: &Setup, limit: Duration) -> Result<Found, String> {
    if setup.stand_in {
        return Ok(Found::skipped("PyTorch needs a GPU"));
    }
    let Some(version) = find::torch() else {
        return Ok(Found::skipped("python3 has no torch that sees a GPU"));
    };
    let folder = setup.out.join("11-torch");
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let script = folder.join("job.py");
    std::fs::write(&script, SCRIPT).map_err(|e| e.to_string())?;
    let mut job = Command::new("timeout");
    job.arg(limit.as_secs().to_string()).arg(setup.bin.join("ncclscope"));
    job.args(["run", "--no-report", "-o"]).arg(&folder).arg("--").arg("python3").arg(&script);
    job.arg(&folder).env("NCCL_SOCKET_IFNAME", "lo").env("NCCL_NET", "Socket");
    job.env("NCCL_IB_DISABLE", "1").env("NCCLSCOPE_KERNEL", "on").stdin(Stdio::null());
    let output = job.output().map_err(|e| format!("ncclscope run: {e}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        return Err(format!("{}: {}", output.status, last.join(" | ")));
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let key = said.lines().filter_map(|line| line.strip_prefix("key ")?.parse::<f64>().ok());
    let key = key.fold(0.0, f64::max);
    let traces = [folder.join("trace0.json"), folder.join("trace1.json")];
    let mut merge = Command::new(setup.bin.join("ncclscope"));
    merge.arg("merge").arg("--kineto").args(&traces).arg("-o").arg(folder.join("merged"));
    let merged = merge.arg("--").arg(&folder).output().map_err(|e| format!("merge: {e}"))?;
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

/// How far each operation's start is from that of its kernel, us: those of a stream run in order.
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
