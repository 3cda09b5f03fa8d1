// SPDX-License-Identifier: Apache-2.0
//! Windows of metrics of simulated processes.

mod by_count;
mod cases;
mod comings;
mod offline;

use ncclscope_metrics::{Collector, Metrics};
use ncclscope_trace::handle::LANES;
use ncclscope_trace::{Recording, StrId};
use scripts::Process;

const SECOND: u64 = 1_000_000_000;

fn recording(process: &Process) -> Recording {
    let dir = tempfile::tempdir().unwrap();
    Recording::open(&process.write(dir.path()).unwrap()).unwrap()
}

fn collector(recording: &Recording) -> Collector {
    let mut collector = Collector::default();
    collector.clock(&recording.tick_map());
    for id in 1..=u16::MAX {
        if let Some(text) = recording.string(StrId(id)) {
            collector.string(StrId(id), text);
        }
    }
    recording.comms().iter().for_each(|comm| collector.comm(comm));
    collector
}

/// Drains the lanes in turn at each of `rounds` (ticks), and closes a window after each of them.
fn windows(recording: &Recording, rounds: &[u64]) -> Vec<Metrics> {
    let mut collector = collector(recording);
    let clock = recording.tick_map();
    let mut lanes: Vec<_> = (0..LANES)
        .map(|lane| recording.records(lane).collect::<Vec<_>>().into_iter().peekable())
        .collect();
    let mut windows = Vec::new();
    for &until in rounds.iter().chain([&u64::MAX]) {
        // The last lane first: children before their parents.
        for (lane, records) in lanes.iter_mut().enumerate().rev() {
            while let Some(record) = records.next_if(|record| record.ticks() <= until) {
                collector.record(lane, &record);
            }
        }
        windows.push(match until {
            u64::MAX => collector.finish(recording.last_ticks(), &clock),
            now => collector.close(now, &clock),
        });
    }
    windows
}

fn merged(windows: &[Metrics]) -> Metrics {
    let mut total = Metrics::default();
    windows.iter().for_each(|window| total.merge(window));
    total
}

fn measured(process: &Process, rounds: &[u64]) -> Metrics {
    merged(&windows(&recording(process), rounds))
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}
