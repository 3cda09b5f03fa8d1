// SPDX-License-Identifier: Apache-2.0
//! The size of an export, as estimated before it is written.

use crate::common::ncclscope;
use ncclscope_trace::Recording;
use ncclscope_views::size::{Kind, estimate};

/// Simulates a job, and compares the estimates with its traces.
#[track_caller]
fn compare(job: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let words: Vec<&str> = job.split_whitespace().collect();
    ncclscope(&[&["simulate", "-o", path], &words[..]].concat()).ends_with(0);
    let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|file| file.extension().is_some_and(|end| end == "nscope"));
    let recordings: Vec<Recording> = files.map(|file| Recording::open(&file).unwrap()).collect();
    for (kind, name) in [(Kind::Pftrace, "t.pftrace"), (Kind::Chrome, "t.json")] {
        let trace = dir.path().join(name);
        ncclscope(&["export", path, "-o", trace.to_str().unwrap()]).ends_with(0);
        let (size, guess) = (trace.metadata().unwrap().len(), estimate(&recordings, kind));
        assert!(size < 2 * guess && guess < 2 * size, "{job} {name}: {size}, estimate {guess}");
    }
}

#[test]
fn of_jobs_with_network_and_pipeline() {
    compare("--ranks 16 --tp 4 --pp 2 --dp 2 --steps 6 --seed 3");
    compare("--ranks 16 --tp 1 --pp 4 --dp 4 --ep 4 --steps 4 --seed 5");
}

#[test]
fn of_jobs_with_one_kind_of_parallelism() {
    compare("--ranks 16 --tp 1 --pp 1 --dp 16 --steps 8 --seed 2");
    compare("--ranks 8 --tp 8 --pp 1 --dp 1 --steps 8 --seed 2");
    compare("--ranks 2 --tp 1 --pp 1 --dp 2 --steps 40 --seed 2");
}
