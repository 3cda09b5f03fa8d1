// SPDX-License-Identifier: Apache-2.0
//! PyTorch's traces, plain and in archives.

use crate::mutate;
use crate::random::Random;
use crate::target::Target;
use flate2::Compression;
use flate2::write::GzEncoder;
use ncclscope_stragglers::input::kineto;
use ncclscope_stragglers::{Limits, analyze};
use serde_json::{Value, json};
use std::io::Write;

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
    samples: archives,
    mutate: mutate_archive,
    read: |data| read("traces.tar.gz", &packed(data)),
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

/// A tar archive of two traces; it is compressed after the mutation.
fn archives() -> Vec<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for rank in 0..2 {
        let data = trace(rank).to_string();
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o600);
        header.set_cksum();
        let name = format!("{rank}.json");
        if archive.append_data(&mut header, name, data.as_bytes()).is_err() {
            return Vec::new();
        }
    }
    archive.into_inner().into_iter().collect()
}

/// Changes a header and corrects its checksum, or changes anything.
fn mutate_archive(random: &mut Random, data: &mut Vec<u8>) {
    if random.below(3) == 0 || data.len() < 512 {
        return mutate::any(random, data);
    }
    mutate::bytes(random, data, 0..512);
    let mut header = tar::Header::new_old();
    header.as_mut_bytes().copy_from_slice(&data[..512]);
    header.set_cksum();
    data[..512].copy_from_slice(header.as_bytes());
}

fn packed(data: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(data).and_then(|()| out.finish()).unwrap_or_default()
}

fn read(name: &str, data: &[u8]) -> bool {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return false };
    let path = folder.path().join(name);
    let Ok(()) = std::fs::write(&path, data) else { return false };
    let Ok(kineto::Traces { job, .. }) = kineto::read(&[path]) else { return false };
    let _ = serde_json::to_string(&analyze(&job, &Limits::default()));
    true
}
