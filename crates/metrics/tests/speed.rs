// SPDX-License-Identifier: Apache-2.0
//! Prints what a record costs the metrics: `cargo test --release -p ncclscope-metrics --test speed
//! -- --nocapture`. Times are not asserted.

use ncclscope_metrics::Collector;
use ncclscope_trace::{Record, Recording};
use scripts::{Call, Process};
use std::time::{Duration, Instant};

struct Cost {
    spent: Duration,
    finish: Duration,
    records: u64,
    steps: u64,
}

/// The cost of 512 operations.
fn measure(steps: u32) -> Cost {
    let mut process = Process::new(0, 2);
    let sizes = [4 << 10, 64 << 10, 512 << 10, 100_000];
    for at in 0..512 {
        let step_bytes = sizes[at % sizes.len()];
        process.collective(Call { steps, step_bytes, ..Call::ALL_REDUCE });
    }
    let dir = tempfile::tempdir().unwrap();
    let recording = Recording::open(&process.write(dir.path()).unwrap()).unwrap();
    let records: Vec<(usize, Record)> = [0, 1]
        .into_iter()
        .flat_map(|lane| recording.records(lane).map(move |record| (lane, record)))
        .collect();
    let mut collector = Collector::default();
    recording.comms().iter().for_each(|comm| collector.comm(comm));
    let before = Instant::now();
    for (lane, record) in &records {
        collector.record(*lane, record);
    }
    let spent = before.elapsed();
    let window = collector.finish(recording.last_ticks(), &recording.tick_map());
    let [all, steps] = [records.len() as u64, window.events["ProxyStep"]];
    Cost { spent, finish: before.elapsed() - spent, records: all, steps }
}

#[test]
fn what_a_record_costs() {
    let (few, many) = (measure(1), measure(65));
    assert_eq!((few.steps, many.steps), (512 * 4, 512 * 4 * 65));
    let per = |time: Duration, count: u64| time.as_nanos() / u128::from(count);
    println!("one step a ProxyOp: {} ns a record", per(few.spent, few.records));
    println!("65 steps a ProxyOp: {} ns a record", per(many.spent, many.records));
    println!("a step: {} ns", per(many.spent.saturating_sub(few.spent), many.steps - few.steps));
    println!("finish: {} ns an operation", per(few.finish, 512));
}
