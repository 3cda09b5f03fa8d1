// SPDX-License-Identifier: Apache-2.0
//! How fast recordings are read and reported: `cargo run --release -p ncclscope-report --example
//! report-speed [OPERATIONS]`. Prints records a second by stage, and the most memory that was used.

#![expect(clippy::print_stdout, reason = "it is a program")]

use ncclscope_operations::{Timeline, operations};
use ncclscope_report::ReportBuilder;
use ncclscope_trace::Recording;
use scripts::{Call, Process};
use std::time::Instant;

/// Of each of the 4 ProxyOps of an operation.
const STEPS: u32 = 32;

fn main() {
    let operations_wanted: u32 = std::env::args().nth(1).map_or(12_000, |n| n.parse().unwrap_or(0));
    let dir = std::env::temp_dir().join(format!("report-speed-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let path = {
        let mut process = Process::new(0, 2);
        for at in 0..operations_wanted {
            let step_bytes = [4 << 10, 64 << 10, 512 << 10, 100_000][at as usize % 4];
            process.collective(Call { steps: STEPS, step_bytes, ..Call::ALL_REDUCE });
        }
        process.write(&dir).expect("a recording")
    };
    let before = kib("VmRSS:");
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak is set back");
    let timed = |what: &str, records: u64, started: Instant| {
        let seconds = started.elapsed().as_secs_f64();
        println!("{what}: {:.2} million records a second", records as f64 / seconds / 1e6);
    };
    let started = Instant::now();
    let recording = Recording::open(&path).expect("a recording");
    let opened = started.elapsed();
    let all = Instant::now();
    let records: u64 =
        (0..recording.lanes().len()).map(|l| recording.records(l).count() as u64).sum();
    println!("{records} records, opened in {opened:?}");
    timed("records", records, all);
    let started = Instant::now();
    let timeline = Timeline::read(&recording, false);
    timed("timeline", records, started);
    let started = Instant::now();
    let count = operations(&timeline).len();
    timed("operations", records, started);
    drop(timeline);
    let started = Instant::now();
    let mut builder = ReportBuilder::default();
    builder.add(&recording);
    let rows = builder.finish().operations.len();
    timed("report", records, started);
    let peak = kib("VmHWM:").saturating_sub(before);
    println!("{count} operations, {rows} rows, {} MiB of memory at most", peak >> 10);
    std::fs::remove_dir_all(&dir).expect("it is ours");
}

/// A figure of this process's memory, KiB.
fn kib(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
