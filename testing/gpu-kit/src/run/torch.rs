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
    expected: "`merge` puts our lanes into both traces; the process still has a thread key for us",
    seconds: 55,
    run: torch,
};

/// A key from this number on gives a thread's lane no way back (recorder, `registry.rs`).
const KEYS: f64 = 32.0;
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
    let lanes = lanes(&folder.join("merged"));
    let text = format!(
        "torch {version}: merge {}, {lanes} of our lanes; pthread key {key} after the first CUDA \
         call",
        merged.status
    );
    Ok(Found::judged(merged.status.success() && lanes > 0 && key < KEYS, text)
        .figure("pthread_key", key)
        .figure("lanes", lanes as f64))
}

/// How many tracks of ours the merged traces have: names of threads or processes that name us.
fn lanes(folder: &std::path::Path) -> usize {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let traces = files.filter_map(|file| {
        let text = std::fs::read(file.path()).ok()?;
        serde_json::from_slice::<Value>(&text).ok()
    });
    let names = |trace: &Value| {
        let events = trace["traceEvents"].as_array();
        let meta = events.into_iter().flatten().filter(|event| event["ph"] == "M");
        meta.filter(|event| event["args"]["name"].to_string().to_lowercase().contains("nccl"))
            .count()
    };
    traces.map(|trace| names(&trace)).sum()
}
