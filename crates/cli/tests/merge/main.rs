// SPDX-License-Identifier: Apache-2.0
//! `ncclscope merge` from outside: its output files, its messages, and its exit codes.

mod gpu;
#[path = "../h100/mod.rs"]
mod h100;

use scripts::{Call, EPOCH_NS, Process};
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A run of two ranks, and the trace of each; calls that the trace has are `CALLS` ns behind its
/// base.
struct Job {
    dir: TempDir,
}

const CALLS: [u64; 3] = [1_000_000, 9_000_000, 30_000_000];
const ELEMENTS: u64 = 1 << 20;

impl Job {
    fn new(func: &'static str) -> Job {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("run")).unwrap();
        for rank in 0..2 {
            let mut process = Process::new(rank, 2);
            for at in CALLS {
                process.now = at;
                process.collective(Call { func, count: ELEMENTS, ..Call::ALL_REDUCE });
            }
            process.write(&dir.path().join("run")).unwrap();
            let path = dir.path().join(format!("rank{rank}.json"));
            std::fs::write(path, trace(rank.unsigned_abs(), "allreduce").to_string()).unwrap();
        }
        Job { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn merge(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ncclscope"));
        command.current_dir(self.dir.path()).arg("merge").args(words).output().unwrap()
    }

    /// Runs a merge that must fail and leave no files. Returns the message.
    fn fails(&self, code: i32, words: &[&str]) -> String {
        let before = files(self.dir.path());
        let output = self.merge(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert_eq!(files(self.dir.path()), before);
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

/// The profile that PyTorch would have written for a rank.
fn trace(rank: u32, name: &str) -> Value {
    let args = json!({"Collective name": name, "dtype": "Float", "In msg nelems": ELEMENTS,
        "Out msg nelems": ELEMENTS, "Group size": 2, "Process Group Name": "0",
        "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]"});
    let pid = 1000 + rank;
    let mut events = Vec::new();
    for (at, id) in CALLS.into_iter().zip(10..) {
        let ts = at / 1000;
        let mut op_args = args.clone();
        op_args["External id"] = id.into();
        let kernel_args = json!({"External id": id, "correlation": 90 + id, "stream": 7});
        events.push(json!({"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": pid,
            "tid": pid, "ts": ts, "dur": 60, "args": op_args}));
        events.push(json!({"ph": "X", "cat": "kernel", "pid": rank, "tid": 7, "ts": ts + 30,
            "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "dur": 200, "args": kernel_args}));
    }
    json!({"distributedInfo": {"rank": rank, "world_size": 2}, "host_name": format!("node-{rank}"),
        "baseTimeNanoseconds": EPOCH_NS, "traceEvents": events})
}

fn read(path: &Path) -> Value {
    let mut bytes = std::fs::read(path).unwrap();
    if path.to_string_lossy().ends_with(".gz") {
        let mut plain = Vec::new();
        flate2::read::MultiGzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
        bytes = plain;
    }
    serde_json::from_slice(&bytes).unwrap()
}

/// Number of our operations that are marked as joined.
fn joined(trace: &Value) -> usize {
    let events = trace["traceEvents"].as_array().unwrap();
    let keys = events.iter().filter_map(|event| event["args"]["join_key"].as_str());
    keys.filter(|key| *key == "order in process group").count()
}

fn assert_fine(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn one_trace_becomes_one_file() {
    let job = Job::new("AllReduce");
    for name in ["out.json", "out.json.gz"] {
        let text = assert_fine(&job.merge(&["--kineto", "rank1.json", "run", "-o", name]));
        assert!(
            text.contains("3 of 3 NCCL kernels joined (3 by order in process group)"),
            "{text}"
        );
        assert_eq!(joined(&read(&job.path(name))), 3);
    }
    // Also if the output is the input file.
    assert_fine(&job.merge(&["run", "--kineto", "rank1.json", "-o", "rank1.json"]));
    assert_eq!(joined(&read(&job.path("rank1.json"))), 3);
    let text = job.fails(3, &["--kineto", "rank1.json", "run", "-o", "again.json"]);
    assert!(text.contains("rank1.json has lanes of ncclscope already"), "{text}");
}

#[test]
fn several_traces_become_a_directory_or_one_file() {
    let job = Job::new("AllReduce");
    let both = ["--kineto", "rank0.json", "rank1.json", "run", "-o"];
    assert_fine(&job.merge(&[&both[..], &["out"]].concat()));
    for name in ["out/rank0.json", "out/rank1.json"] {
        assert_eq!(joined(&read(&job.path(name))), 3);
    }
    assert_fine(&job.merge(&[&both[..], &["all.json.gz", "--merged"]].concat()));
    let all = read(&job.path("all.json.gz"));
    assert_eq!(joined(&all), 6);
    let text = job.fails(2, &[&both[..], &["all.json"]].concat());
    assert!(text.contains("name a directory"), "{text}");
}

#[test]
fn what_cannot_be_merged_is_told_in_one_line() {
    let job = Job::new("AllReduce");
    let whole = trace(0, "allreduce").to_string();
    std::fs::write(job.path("cut.json"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(job.path("other.json"), r#"{"a": 1}"#).unwrap();
    let mut far = trace(0, "allreduce");
    far["distributedInfo"] = json!({"rank": 1, "world_size": 2});
    std::fs::write(job.path("far.json"), far.to_string()).unwrap();
    let cases = [
        ("cut.json", "it is cut off"),
        ("other.json", "it is not a trace"),
        ("missing.json", "cannot read missing.json"),
        (
            "far.json",
            "no recording in run is from the process of far.json (rank 1 of 2, process 1000",
        ),
    ];
    for (file, message) in cases {
        let text = job.fails(3, &["--kineto", file, "run", "-o", "out.json"]);
        assert!(text.contains(message), "{text}");
    }
    let text = job.fails(3, &["--kineto", "rank0.json", "nowhere", "-o", "out.json"]);
    assert!(text.contains("cannot read nowhere"), "{text}");
    job.fails(2, &["--kineto", "rank0.json", "-o", "out.json"]);
    job.fails(2, &["--kineto", "rank0.json", "run", "-o", "-"]);
    // Output to a device, which must stay a device.
    assert_fine(&job.merge(&["--kineto", "rank0.json", "run", "-o", "/dev/null"]));
    assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn another_run_is_not_merged() {
    let job = Job::new("Broadcast");
    let text = job.fails(3, &["--kineto", "rank0.json", "run", "-o", "out.json"]);
    assert!(text.contains("is it another run"), "{text}");
    let text = job.fails(3, &["--merged", "--kineto", "rank0.json", "run", "-o", "out.json"]);
    assert!(text.contains("is it another run"), "{text}");
}

#[test]
fn one_bad_trace_of_several_does_not_keep_the_others_back() {
    let job = Job::new("AllReduce");
    std::fs::write(job.path("bad.json"), "{").unwrap();
    let output = job.merge(&["--kineto", "bad.json", "rank1.json", "run", "-o", "out"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(files(&job.path("out")), [job.path("out/rank1.json")]);
}

#[test]
fn a_filter_chooses_ranks_and_events() {
    let job = Job::new("AllReduce");
    std::fs::create_dir(job.path("out")).unwrap();
    let traces = ["--kineto", "rank0.json", "rank1.json", "run", "-o", "out"];
    let text =
        assert_fine(&job.merge(&[&traces[..], &["--rank", "1", "--events", "Coll"]].concat()));
    assert!(text.contains("filter: rank 1; events Coll; 1 of 2 recordings"), "{text}");
    assert!(text.contains("rank0.json is left out"), "{text}");
    assert_eq!(files(&job.path("out")), [job.path("out/rank1.json")]);
    let merged = read(&job.path("out/rank1.json"));
    let events = merged["traceEvents"].as_array().unwrap();
    let ours = events.iter().filter(|event| {
        event["ph"] == "X" && event["cat"].as_str().is_some_and(|cat| cat.starts_with("nccl_"))
    });
    let kinds: std::collections::BTreeSet<&str> =
        ours.map(|event| event["cat"].as_str().unwrap()).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["nccl_group", "nccl_operation"]);
    let none = ["--kineto", "rank0.json", "run", "-o", "none.json", "--rank", "1"];
    let output = job.merge(&none);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("the filter leaves out the ranks of all traces"), "{text}");
    assert!(!job.path("none.json").exists());
}

#[test]
fn recordings_may_be_in_several_directories() {
    let job = Job::new("AllReduce");
    std::fs::create_dir(job.path("more")).unwrap();
    let file = files(&job.path("run")).pop().unwrap();
    std::fs::rename(&file, job.path("more").join(file.file_name().unwrap())).unwrap();
    std::fs::create_dir(job.path("out")).unwrap();
    let words = ["--kineto", "rank0.json", "rank1.json", "run", "more", "-o", "out"];
    assert_fine(&job.merge(&words));
    assert_eq!(files(&job.path("out")).len(), 2);
}

#[test]
fn two_traces_of_one_name_are_not_written_to_one_file() {
    let job = Job::new("AllReduce");
    std::fs::create_dir(job.path("more")).unwrap();
    std::fs::copy(job.path("rank1.json"), job.path("more/rank0.json")).unwrap();
    let words = ["--kineto", "rank0.json", "more/rank0.json", "run", "-o", "merged"];
    let said = job.fails(2, &words);
    assert!(said.contains("two traces are called merged/rank0.json"), "{said}");
}

#[test]
fn a_trace_that_is_read_is_not_replaced_by_chance() {
    let job = Job::new("AllReduce");
    for words in [
        &["--kineto", "rank0.json", "run", "-o", "."][..],
        &["--kineto", "rank0.json", "rank1.json", "run", "-o", "."],
        &["--merged", "--kineto", "rank0.json", "rank1.json", "run", "-o", "rank1.json"],
        // It refuses before it reads, which may take minutes.
        &["--merged", "--kineto", "rank0.json", "rank1.json", "absent", "-o", "rank1.json"],
    ] {
        let said = job.fails(2, words);
        assert!(said.contains("json is one of the inputs: name another file"), "{said}");
    }
    for rank in 0..2 {
        let whole = read(&job.path(&format!("rank{rank}.json")));
        assert_eq!(whole, trace(rank, "allreduce"), "rank {rank}");
    }
}
