// SPDX-License-Identifier: Apache-2.0
//! Measures how fast a recording is read and reported on one core: `cargo run --release -p
//! ncclscope-report --example report-speed [OPERATIONS | RECORDING]`. Prints records per second of
//! processor time, for decoding alone (the lower bound) and for the report, and the report's peak
//! memory.

#![expect(clippy::print_stdout, reason = "it is a program")]

use ncclscope_report::ReportBuilder;
use ncclscope_trace::{Record, Recording, Visitor};
use scripts::{Call, Process};
use std::path::Path;

/// Steps of each of the 4 ProxyOps of an operation.
const STEPS: u32 = 32;
const ROUNDS: usize = 3;

fn main() {
    let input = std::env::args().nth(1).unwrap_or_else(|| "12000".into());
    let dir = std::env::temp_dir().join(format!("report-speed-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let path = match input.parse() {
        Ok(operations) => record(&dir, operations),
        Err(_) => input.into(),
    };
    let before = kib("VmRSS:");
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak is set back");
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let recording = Recording::open(&path).expect("a recording");
        let mut counter = Counter(0);
        let floor = timed(|| recording.visit(&mut counter));
        let mut builder = ReportBuilder::default();
        let report = timed(|| builder.add(&recording));
        let report_again = builder.finish();
        let rate = |ns: u64| counter.0 as f64 * 1e3 / ns as f64;
        println!(
            "{} records, {} rows: decoded at {:.2}, reported at {:.2} million records a second",
            counter.0,
            report_again.operations.len(),
            rate(floor),
            rate(report)
        );
        rates.push(floor as f64 / report as f64);
    }
    let peak = kib("VmHWM:").saturating_sub(before);
    rates.sort_by(f64::total_cmp);
    println!("the report's share of the floor: {:.2}", rates[ROUNDS / 2]);
    println!("{:.1} MiB of memory at most", peak as f64 / 1024.0);
    std::fs::remove_dir_all(&dir).expect("it is ours");
}

fn record(dir: &Path, operations: u32) -> std::path::PathBuf {
    let mut process = Process::new(0, 2);
    for at in 0..operations {
        let step_bytes = [4 << 10, 64 << 10, 512 << 10, 100_000][at as usize % 4];
        process.collective(Call { steps: STEPS, step_bytes, ..Call::ALL_REDUCE });
    }
    process.write(dir).expect("a recording")
}

struct Counter(u64);

impl Visitor for Counter {
    fn record(&mut self, _: usize, record: &Record) {
        std::hint::black_box(record);
        self.0 += 1;
    }

    fn reached(&mut self, _: u64) {}
}

/// Processor time of `work`, ns.
fn timed(work: impl FnOnce()) -> u64 {
    let before = on_cpu();
    work();
    (on_cpu() - before).max(1)
}

fn on_cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// A figure of this process's memory, KiB.
fn kib(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
