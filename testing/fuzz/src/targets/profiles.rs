// SPDX-License-Identifier: Apache-2.0
//! PyTorch's traces, plain and in archives.

use crate::target::Target;
use crate::{archives, mutate};
use ncclscope_stragglers::input::kineto;
use ncclscope_stragglers::{Limits, analyze};
use serde_json::{Value, json};

pub(super) const KINETO: Target = Target {
    name: "kineto",
    samples: || (0..2).map(|rank| trace(rank).to_string().into_bytes()).collect(),
    mutate: mutate::json,
    read: |data| read("trace.json", data),
    inputs: 1000,
    found: &[983],
};
pub(super) const ARCHIVE: Target = Target {
    name: "archive",
    samples: || vec![archives::tar(&files())],
    mutate: archives::mutate_tar,
    read: |data| read("traces.tar.gz", &archives::packed(data)),
    inputs: 500,
    found: &[],
};
pub(super) const ZIP: Target = Target {
    name: "zip",
    samples: || vec![archives::zip(&files())],
    mutate: archives::mutate_zip,
    read: |data| read("traces.zip", data),
    inputs: 500,
    found: &[],
};

fn trace(rank: u32) -> Value {
    let kernel = |seq: u32| {
        json!({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            "pid": 0, "tid": 7, "ts": 100 * seq, "dur": 40 + rank,
            "args": {"Collective name": "allreduce", "Process Group Name": "0", "Seq": seq,
                "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float", "Group size": 2,
                "Process Group Ranks": "[0, 1]", "External id": seq, "stream": 7}})
    };
    json!({"schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000_000_000_000_u64,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]},
        "traceEvents": [kernel(1), kernel(2), kernel(3)]})
}

fn files() -> Vec<(String, String)> {
    (0..2).map(|rank| (format!("{rank}.json"), trace(rank).to_string())).collect()
}

fn read(name: &str, data: &[u8]) -> bool {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return false };
    let path = folder.path().join(name);
    let Ok(()) = std::fs::write(&path, data) else { return false };
    let Ok(kineto::Traces { job, .. }) = kineto::read(&[path]) else { return false };
    let _ = serde_json::to_string(&analyze(&job, &Limits::default()));
    true
}
