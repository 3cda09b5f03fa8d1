// SPDX-License-Identifier: Apache-2.0
//! `ncclscope stragglers` where recordings are missing or end early.

use crate::common::ncclscope;
use serde_json::Value;
use std::path::Path;

/// Simulates a job into a new directory, and returns it.
fn simulate(scenario: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (file, run) = (directory.path().join("job.toml"), directory.path().join("run"));
    std::fs::write(&file, scenario).unwrap();
    let (file, run) = (file.to_str().unwrap(), run.to_str().unwrap());
    ncclscope(&["simulate", "-o", run, file]).ends_with(0);
    directory
}

/// Class, confidence and ranks of the findings, and the notes.
fn found(directory: &Path, code: i32) -> (Vec<[String; 3]>, String) {
    let run = directory.join("run");
    let args = ["stragglers", run.to_str().unwrap(), "--format", "json"];
    let report: Value = serde_json::from_str(&ncclscope(&args).ends_with(code).stdout).unwrap();
    let row = |f: &Value| {
        [&f["class"], &f["confidence"], &f["root_ranks"]].map(|of| of.to_string().replace('"', ""))
    };
    let all = report["findings"].as_array().unwrap().iter().map(row).collect();
    (all, format!("{}{}", report["notes"], report["quiet"]))
}

#[test]
fn a_host_that_was_copied_before_the_others_makes_no_rank_slow() {
    let early = |fault: &str| {
        let job = "seed = 1\n[job]\nranks = 16\nsteps = 150\nearly_s = 8\n";
        simulate(&format!("{job}[[fault]]\nname = \"{fault}\"\n"))
    };
    let (summary, notes) = found(early("healthy").path(), 0);
    assert_eq!(summary, [[""; 3]; 0]);
    assert!(notes.contains("the recordings of ranks 0-3 end up to"), "{notes}");
    // A slow link is named without another rank.
    let (summary, _) = found(early("slow-link").path(), 1);
    assert_eq!(summary, [["S3", "confirmed", "[6,2]"]]);
}

#[test]
fn a_missing_host_makes_no_rank_slow_beyond_a_suspicion() {
    let without = |seed: u32, fault: &str, host: &str| {
        let job = format!("seed = {seed}\n[job]\nranks = 16\n[[fault]]\nname = \"{fault}\"\n");
        let directory = simulate(&job);
        for entry in std::fs::read_dir(directory.path().join("run")).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_string_lossy().starts_with(host) {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        directory
    };
    let (summary, notes) = found(without(2, "gc-pauses", "node-0003-").path(), 0);
    assert_eq!(summary, [[""; 3]; 0]);
    assert!(notes.contains("no readable recording of ranks 12-15"), "{notes}");
    assert!(notes.contains("whether 4 ranks are slow is not said"), "{notes}");
    let (summary, _) = found(without(2, "slow-gpu", "node-0003-").path(), 1);
    assert_eq!(summary, [["S1", "suspect", "[8]"]]);
}

/// Why nothing is said of a rank is told once.
#[test]
fn a_rank_with_a_damaged_recording_is_mentioned_once() {
    let directory = simulate("seed = 9\n[job]\nranks = 16\n");
    let files = std::fs::read_dir(directory.path().join("run")).unwrap();
    let is_of_5 = |path: &std::path::PathBuf| path.to_string_lossy().ends_with("-10320.nscope");
    let path = files.map(|file| file.unwrap().path()).find(is_of_5).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() / 20 * 19;
    bytes[at..at + 200].fill(0x5a);
    std::fs::write(path, bytes).unwrap();
    let (summary, notes) = found(directory.path(), 3);
    assert_eq!(summary, [[""; 3]; 0]);
    assert!(notes.contains("whether 1 rank is slow is not said"), "{notes}");
    assert_eq!(notes.matches("were not recorded").count(), 1, "{notes}");
}
