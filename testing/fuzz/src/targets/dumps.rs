// SPDX-License-Identifier: Apache-2.0
//! Dumps of PyTorch's Flight Recorder, and output of NCCL's RAS.

use crate::random::Random;
use crate::target::Target;
use crate::{archives, mutate};
use ncclscope_diagnose::input::{InputOptions, flight, pickle, ras};
use ncclscope_diagnose::{Job, Options, diagnose, fr_out, open, text};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

pub(super) const PICKLE: Target = Target {
    name: "pickle",
    samples: pickles,
    mutate: opcodes,
    read: read_pickle,
    inputs: 5000,
    found: &[],
};
pub(super) const FLIGHT: Target = Target {
    name: "flight",
    samples: || vec![dump().to_string().into_bytes()],
    mutate: mutate::json,
    read: read_flight,
    inputs: 2000,
    found: &[20_011_184_153, 20_015_213_983],
};
pub(super) const RAS: Target = Target {
    name: "ras",
    samples: || vec![output().to_string().into_bytes()],
    mutate: mutate::json,
    read: read_ras,
    inputs: 2000,
    found: &[],
};

pub(super) const MONITOR: Target = Target {
    name: "ras-events",
    samples: || vec![EVENTS.into(), json_events().into_bytes()],
    mutate: mutate::any,
    read: |data| read_file("events.txt", data),
    inputs: 2000,
    found: &[],
};
pub(super) const ARCHIVE: Target = Target {
    name: "dump-archive",
    samples: || vec![archives::tar(&files())],
    mutate: archives::mutate_tar,
    read: |data| read_file("dumps.tar.gz", &archives::packed(data)),
    inputs: 500,
    found: &[],
};
pub(super) const ZIP: Target = Target {
    name: "dump-zip",
    samples: || vec![archives::zip(&files())],
    mutate: archives::mutate_zip,
    read: |data| read_file("dumps.zip", data),
    inputs: 500,
    found: &[],
};

const EVENTS: &str = "OK\n\
    [2026-11-29 19:47:31] PEER_NEW: Process 11 on node a managing GPUs 0,1\n\
    [2026-11-29 19:47:31] PEER_NEW: Process 12 on node b managing GPU 0\n\
    [2026-11-29 19:48:31] PEER_UNRESPONSIVE: Process 12 on node b managing GPU 0\n\
    [2026-11-29 19:49:31] PEER_DEAD: Process 12 on node b managing GPU 0\n";

/// The same in JSON, whose keys come in this order.
fn json_events() -> String {
    let event = |name: &str, time: &str| {
        format!(
            r#"{{"timestamp": "2026-11-29 {time}", "group": "LIFECYCLE", "event": "{name}",
                "peer": {{"host": "b", "pid": 12, "cuda_devs": [0]}}}}"#
        )
    };
    event("PEER_NEW", "19:47:31") + "\n" + &event("PEER_DEAD", "19:49:31") + "\n"
}

fn files() -> Vec<(String, String)> {
    (0..2).map(|rank| (format!("dump_{rank}"), dump().to_string())).collect()
}

fn read_file(name: &str, data: &[u8]) -> bool {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return false };
    let path = folder.path().join(name);
    let Ok(()) = std::fs::write(&path, data) else { return false };
    let Ok(input) = open(&[path], &InputOptions::default()) else { return false };
    explain(&input.job);
    true
}

fn dump() -> Value {
    let entry = |seq: u64, is_p2p: bool, state: &str| {
        let name = if is_p2p { "nccl:send 0->1" } else { "nccl:all_reduce" };
        json!({
            "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": seq,
            "p2p_seq_id": seq, "profiling_name": name,
            "time_created_ns": 1_000 * seq, "input_sizes": [[4, 8]], "input_dtypes": ["Float"],
            "state": state, "retired": false, "is_p2p": is_p2p,
        })
    };
    json!({
        "version": "2.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
        "pg_status": {"0": {"last_enqueued_collective": 3, "last_started_collective": 3,
            "last_completed_collective": 2}},
        "entries": [
            entry(1, false, "completed"),
            entry(2, true, "started"),
            entry(3, false, "scheduled"),
        ],
    })
}

fn output() -> Value {
    let rank = |rank: u32| {
        json!({"rank": rank, "host": "a", "pid": 10 + rank, "cuda_dev": rank,
            "status": {"async_error": 0}, "collective_counts": {"AllReduce": 7, "Broadcast": rank}})
    };
    json!({"nccl_version": "2.28.9", "communicators": [{"hash": "0xabc", "size": 4,
        "ranks": [rank(0), rank(1), rank(2)], "missing_ranks": [rank(3)]}]})
}

fn pickles() -> Vec<Vec<u8>> {
    vec![fr_out::pickle(&dump()), fr_out::pickle(&output())]
}

/// Changes bytes, and inserts pickle opcodes that pop the stack or read the memo.
fn opcodes(random: &mut Random, data: &mut Vec<u8>) {
    const OPCODES: &[u8] = b"(012NKMJIFGXUTBSV])}ltdeasuqhrjpgcoR.\x80\x85\x86\x87\x88\x89\
        \x8a\x8b\x8c\x8d\x8f\x90\x91\x94\x95";
    for _ in 0..random.below(6) {
        let at = random.below(data.len() + 1);
        let code = *random.of(OPCODES);
        let operand = random.number().to_le_bytes();
        let count = random.below(9);
        data.splice(at..at, [code].into_iter().chain(operand.into_iter().take(count)));
    }
    if random.below(2) == 0 {
        mutate::any(random, data);
    }
}

fn read_pickle(data: &[u8]) -> bool {
    let Ok(value) = pickle::read(data) else { return false };
    add(value);
    true
}

fn read_flight(data: &[u8]) -> bool {
    ras::parse(data).is_ok_and(add)
}

fn add(value: Value) -> bool {
    let mut dumps = flight::Dumps::default();
    let is_added = dumps.add(Path::new("dump_0"), &value, Some(1 << 60)).is_ok();
    dumps.settle();
    explain(&dumps.job(Duration::from_secs(30)));
    is_added
}

fn read_ras(data: &[u8]) -> bool {
    let Some(found) = ras::read(data) else { return false };
    let mut job = found.job(Duration::from_secs(30));
    found.fill(&mut job, Duration::ZERO);
    let mut diagnosis = diagnose(&job, &Options::default());
    found.add_to(&mut diagnosis, &job);
    let _ = text::render(&diagnosis, None, None);
    true
}

fn explain(job: &Job) {
    let found = diagnose(job, &Options::default());
    let _ = text::render(&found, None, None);
}
