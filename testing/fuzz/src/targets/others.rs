// SPDX-License-Identifier: Apache-2.0
//! Files of NCCL Inspector and the output of nccl-tests.

use crate::mutate;
use crate::random::Random;
use crate::target::Target;
use ncclscope_compare::input::{inspector as compared, nccl_tests};
use ncclscope_compare::{Limits, Run, compare};
use ncclscope_inspector::find;
use ncclscope_report::inspector as reported;
use ncclscope_stragglers::analyze;
use ncclscope_stragglers::input::inspector as judged;
use serde_json::{Value, json};
use std::path::PathBuf;

pub(super) const INSPECTOR: Target = Target {
    name: "inspector",
    samples: || ["v4.0", "v4.3"].into_iter().map(lines).collect(),
    mutate: mutate_lines,
    read: read_inspector,
    inputs: 1000,
    found: &[],
};
pub(super) const NCCL_TESTS: Target = Target {
    name: "nccl-tests",
    samples: || vec![TABLE.into(), JSON.into()],
    mutate: mutate::any,
    read: read_nccl_tests,
    inputs: 1000,
    found: &[],
};

const TABLE: &str = "\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 1 iters: 5
#  Rank  0 Group  0 Pid   7 on n1 device  0 [0000:1b:00] GPU
#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong timestamp
   8  2 float sum -1  11.50 0.09 0.04 0 10.25 0.10 0.05 N/A  2026-01-01 00:00:00
  16  4 float sum -1                    10.50 0.10 0.05 N/A  2026-01-01 00:00:00
";
const JSON: &str = r#"{"version":2,"args":["/a/all_reduce_perf"],"nccl_version":22907,
"config":{"devices":[{"rank":0,"hostname":"n1"}],"iterations":5},"results":[{"size":8,
"type":"float","redop":"sum","root":"-1","in_place":{"time":8.5,"nwrong":0.0}}]}"#;

/// The lines of two ranks of one process.
fn lines(version: &str) -> Vec<u8> {
    let header = |rank: u32| json!({"id": "0x1f", "rank": rank, "n_ranks": 2, "nnodes": 1});
    let metadata = json!({"inspector_output_format_version": version, "hostname": "n1", "pid": 7});
    let mut lines: Vec<Value> = Vec::new();
    for rank in 0..2 {
        let (header, metadata) = (header(rank), &metadata);
        lines.push(json!({"header": header, "metadata": metadata,
            "dump_stats": {"coll_records": 12, "coll_dropped_total": rank}}));
        for seq in 0..12 {
            let perf = json!({"coll": "AllReduce", "coll_algo": "RING", "coll_sn": seq,
                "coll_msg_size_bytes": 1 << 20, "coll_exec_time_us": 100 + 50 * rank + seq,
                "coll_timing_source": "kernel_gpu",
                "event_trace_ts": {"kernel_events": [{"kernel_start_ts": 1000 * seq + 1}]}});
            lines.push(match version {
                "v4.3" => json!({"coll_perf": perf}),
                _ => json!({"header": header, "metadata": metadata, "coll_perf": perf}),
            });
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect::<String>().into_bytes()
}

/// Changes values in some of the lines; in one of four cases, anything.
fn mutate_lines(random: &mut Random, data: &mut Vec<u8>) {
    if random.below(4) == 0 {
        return mutate::any(random, data);
    }
    let mut lines: Vec<Vec<u8>> = data.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    for _ in 0..=random.below(4) {
        let at = random.below(lines.len());
        mutate::json(random, &mut lines[at]);
    }
    *data = lines.join(&b'\n');
}

fn with_file(data: &[u8], read: impl FnOnce(PathBuf) -> bool) -> bool {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return false };
    let path = folder.path().join("n1-pid7.log");
    std::fs::write(&path, data).is_ok() && read(path)
}

fn compared_with_itself(runs: &[Run]) {
    let _ = serde_json::to_string(&compare(runs, runs, &Limits::default()));
}

fn read_inspector(data: &[u8]) -> bool {
    with_file(data, |path| {
        let Ok(found) = find(&[path]) else { return false };
        if let Ok((job, _)) = judged::read(&found) {
            let limits = ncclscope_stragglers::Limits::default();
            let _ = serde_json::to_string(&analyze(&job, &limits));
        }
        if let Ok(read) = compared::read("a".into(), &found) {
            compared_with_itself(&[read.run]);
        }
        let Ok((report, _)) = reported::read(&found) else { return false };
        serde_json::to_string(&report).is_ok() && !report.operations.is_empty()
    })
}

fn read_nccl_tests(data: &[u8]) -> bool {
    with_file(data, |path| {
        let Ok(runs) = nccl_tests::read(&path) else { return false };
        compared_with_itself(&runs);
        true
    })
}
