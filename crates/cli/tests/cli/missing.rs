// SPDX-License-Identifier: Apache-2.0
//! Recordings of a hung job that are missing: said first, and no sign of death.

use crate::common::{ncclscope, recordings};
use crate::schema::follows;
use ncclscope_trace::layout::DEFINITIONS;
use ncclscope_trace::{Definition, Recording};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A job of 64 ranks, 8 on each host, of which rank 37 on node-0004 is stuck.
fn hung(dir: &Path) -> std::path::PathBuf {
    let run = dir.join("run");
    let fault = ["--ranks", "64", "--fault", "host-stuck", "--rank", "37", "--seed", "1"];
    let steps = ["--steps", "8"];
    ncclscope(&[&["simulate", "-o", run.to_str().unwrap()], &fault[..], &steps].concat())
        .ends_with(0);
    run
}

/// Removes the recordings whose names satisfy this.
fn remove(run: &Path, is_lost: impl Fn(&str) -> bool) {
    for file in recordings(run) {
        if is_lost(file.file_name().unwrap().to_str().unwrap()) {
            fs::remove_file(file).unwrap();
        }
    }
}

fn report(run: &Path) -> (Vec<String>, Value) {
    report_with(run, 0)
}

/// The same, with this exit code.
fn report_with(run: &Path, code: i32) -> (Vec<String>, Value) {
    let run = run.to_str().unwrap();
    let text = ncclscope(&["report", run]).ends_with(code).stdout;
    let json = ncclscope(&["report", "--format", "json", run]).ends_with(code).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    follows(&json, "report");
    assert!(!text.contains("process-gone") && !text.contains("dead"), "{text}");
    (text.lines().map(str::to_owned).collect(), json)
}

#[test]
fn without_the_node_at_fault_nothing_is_dead() {
    let dir = tempfile::tempdir().unwrap();
    let run = hung(dir.path());
    remove(&run, |name| name.starts_with("node-0004-"));
    let (lines, json) = report(&run);
    assert!(lines[0].starts_with("HUNG  since 20"), "{lines:#?}");
    assert!(lines[0].ends_with("; 8 of 64 recordings are missing"), "{lines:#?}");
    assert_eq!(lines[1], "who   CANNOT TELL who: no recording of ranks 32-39 (8 of 64)");
    let next = format!(
        "next  collect the recordings of ranks 32-39, then ncclscope report {}",
        run.display()
    );
    assert_eq!(lines[4], next);
    let answer = &json["answer"];
    assert_eq!((&answer["classes"], &answer["root_ranks"]), (&json!(["H0"]), &json!([])));
    let run = run.to_str().unwrap();
    let text = ncclscope(&["diagnose", run]).ends_with(1).stdout;
    assert!(text.starts_with("56 of 64 ranks (recordings), 56 of them wait in NCCL\n"), "{text}");
    let json = ncclscope(&["diagnose", run, "--format", "json"]).ends_with(1).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    follows(&json, "diagnosis");
    assert_eq!((&json["ranks"], &json["job_ranks"]), (&json!(56), &json!(64)));
}

#[test]
fn one_node_or_one_file_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let run = hung(dir.path());
    remove(&run, |name| !name.starts_with("node-0006-"));
    let (lines, _) = report(&run);
    assert!(lines[0].contains(": 8 of 64 ranks wait in NCCL for "), "{lines:#?}");
    assert!(lines[0].ends_with("; 56 of 64 recordings are missing"), "{lines:#?}");
    assert_eq!(lines[1], "who   CANNOT TELL who: no recording of ranks 0-47, 56-63 (56 of 64)");
    let first = recordings(&run).remove(0);
    remove(&run, |name| first.file_name().unwrap() != name);
    let (lines, _) = report(&run);
    assert!(lines[0].contains(": 1 of 64 ranks waits in NCCL for "), "{lines:#?}");
    assert_eq!(lines[1], "who   CANNOT TELL who: no recording of 63 of 64 ranks");
}

#[test]
fn with_the_culprit_present_the_missing_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let run = hung(dir.path());
    remove(&run, |name| name.starts_with("node-0007-"));
    let (lines, json) = report(&run);
    assert!(lines[0].ends_with("; 8 of 64 recordings are missing"), "{lines:#?}");
    assert!(lines[1].starts_with("who   rank 37 (node-0004, "), "{lines:#?}");
    assert_eq!(json["answer"]["root_ranks"], json!([37]));
}

/// Adds a fact to the identity of a recording's process.
fn identify(file: &Path, key: &str, value: &str) {
    let mut header = Recording::open(file).unwrap().header().clone();
    let mut bytes = Vec::new();
    Definition::Identity { key: key.into(), value: value.into() }.encode(&mut bytes);
    let file = fs::File::options().write(true).open(file).unwrap();
    file.write_all_at(&bytes, DEFINITIONS + header.definitions).unwrap();
    header.definitions += bytes.len() as u64;
    file.write_all_at(&header.encode(), 0).unwrap();
}

/// Someone removes the directory of a job that runs: the new recordings look like whole ones.
#[test]
fn what_came_before_a_removal_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let fault = ["--ranks", "4", "--fault", "slow-nvlink", "--seed", "1"];
    ncclscope(&[&["simulate", "-o", run.to_str().unwrap()], &fault[..]].concat()).ends_with(0);
    let (lines, json) = report(&run);
    assert!(lines[0].starts_with("FINE  4 ranks: "), "{lines:#?}");
    assert_eq!(json["lost"]["removed"], 0);
    for file in &recordings(&run)[..2] {
        identify(file, "replaces", "/run/h-7.nscope");
    }
    let (lines, json) = report_with(&run, 3);
    let text = lines.join("\n");
    let first = "2 recordings were removed while written: what came before is missing";
    assert!(lines[0].starts_with("CANNOT TELL") && text.contains(first), "{text}");
    assert!(text.contains("lost        what came before the files were removed"), "{text}");
    let problem = lines.iter().skip_while(|line| *line != "PROBLEMS").nth(1).unwrap();
    assert!(problem.contains("what came before is missing: the first file was "), "{text}");
    assert_eq!(json["lost"]["removed"], 2);
    assert!(json["lost"]["losses"][0]["what"].as_str().unwrap().starts_with("what came before"));
}
