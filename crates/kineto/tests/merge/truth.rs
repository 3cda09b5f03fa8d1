// SPDX-License-Identifier: Apache-2.0
//! The contents of a trace, read as a whole and in another way than by the crate: each kernel is
//! assigned to its CPU operation through its launch.

use crate::recording::{Played, Recorder};
use flate2::read::MultiGzDecoder;
use ncclscope_trace::Comm;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// A NCCL kernel of a trace and its CPU operation; times in ns since 1970.
pub(crate) struct Kernel {
    pub(crate) correlation: u64,
    /// External id of its CPU operation.
    pub(crate) external_id: u64,
    pub(crate) func: &'static str,
    /// Number of elements of four bytes, if the trace has it; otherwise 1.
    pub(crate) count: u64,
    pub(crate) kernel: (i64, i64),
    pub(crate) op: (i64, i64),
}

/// A trace.
pub(crate) struct Truth {
    pub(crate) json: Value,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) pid: u32,
}

/// Reads a file, compressed or not.
pub(crate) fn bytes(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        MultiGzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
        return plain;
    }
    bytes
}

pub(crate) fn ns(value: &Value) -> i64 {
    let text = value.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    whole.parse::<i64>().unwrap() * 1000 + format!("{fraction:0<3}")[..3].parse::<i64>().unwrap()
}

fn interval(event: &Value, base: i64) -> (i64, i64) {
    let start = base + ns(&event["ts"]);
    (start, start + ns(&event["dur"]))
}

impl Truth {
    pub(crate) fn read(path: &Path) -> Truth {
        let json: Value = serde_json::from_slice(&bytes(path)).unwrap();
        let base = json["baseTimeNanoseconds"].as_i64().unwrap_or(0);
        let events = json["traceEvents"].as_array().unwrap();
        let named = |name: &'static str| events.iter().filter(move |e| e["name"] == name);
        let ops: Vec<&Value> = named("record_param_comms").collect();
        let launches: HashMap<u64, &Value> = events
            .iter()
            .filter(|e| e["cat"] == "cuda_runtime")
            .filter_map(|e| Some((e["args"]["correlation"].as_u64()?, e)))
            .collect();
        let mut kernels = Vec::new();
        for event in events.iter().filter(|e| e["cat"].as_str().is_some_and(is_kernel)) {
            let name = event["name"].as_str().unwrap();
            let Some(func) = name.starts_with("nccl").then(|| func(name)) else { continue };
            let correlation = event["args"]["correlation"].as_u64().unwrap();
            let launch = launches[&correlation];
            let at = base + ns(&launch["ts"]);
            let around = |op: &&&Value| {
                let (start, end) = interval(op, base);
                op["tid"] == launch["tid"] && start <= at && at <= end
            };
            let op = ops.iter().find(around).unwrap();
            let width = if op["args"]["dtype"] == "Long" { 2 } else { 1 };
            let count = op["args"]["In msg nelems"].as_u64().map_or(1, |n| n * width);
            let external_id = op["args"]["External id"].as_u64().unwrap();
            let (kernel, op) = (interval(event, base), interval(op, base));
            kernels.push(Kernel { correlation, external_id, func, count, kernel, op });
        }
        kernels.sort_by_key(|kernel| kernel.op);
        let number = |key: &str| json["distributedInfo"][key].as_u64().unwrap() as u32;
        let pid = ops[0]["pid"].as_u64().unwrap() as u32;
        Truth { rank: number("rank"), ranks: number("world_size"), pid, kernels, json }
    }

    /// What the plugin would have recorded of the kernels: calls at irregular times, some
    /// microseconds after PyTorch's.
    pub(crate) fn played(&self) -> Vec<Played> {
        let played = self.kernels.iter().enumerate().map(|(at, it)| {
            let delay = 8_000 + (at * at * 7919 % 37) as i64 * 700;
            Played {
                tag: it.correlation,
                external_id: 0,
                func: it.func,
                comm: 0,
                count: it.count,
                call_ns: it.op.0 + delay.min((it.op.1 - it.op.0) / 2),
                kernel: it.kernel,
            }
        });
        played.collect()
    }

    /// A recorder of the trace's process, with a communicator of all ranks.
    pub(crate) fn recorder(&self, shift_ns: i64) -> Recorder {
        let origin = self.kernels[0].op.0;
        let host = format!("node-{}", self.rank);
        let mut recorder = Recorder::new(self.pid, &host, shift_ns, origin);
        recorder.comms.push(Comm {
            hash: 0x1f2e_3d4c,
            ranks: self.ranks,
            rank: self.rank as i32,
            api_version: 5,
            nccl_version: 22809,
            ..Comm::default()
        });
        recorder
    }
}

fn is_kernel(cat: &str) -> bool {
    cat.eq_ignore_ascii_case("kernel")
}

fn func(name: &str) -> &'static str {
    let all = ["AllReduce", "AllGather", "Broadcast", "SendRecv", "ReduceScatter"];
    all.into_iter().find(|func| name.contains(func)).unwrap()
}

/// A trace of a real job in `../shared/data`; `None` (and a line that says so) without it.
pub(crate) fn real(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/kineto").join(name);
    if path.exists() {
        return Some(path);
    }
    skip(&format!("{} is not there", path.display()));
    None
}

/// Prints why a test is skipped, directly to stderr: the test harness captures what macros print.
pub(crate) fn skip(reason: &str) {
    let mut out = std::io::stderr();
    writeln!(out, "skipped: {reason}").unwrap();
}
