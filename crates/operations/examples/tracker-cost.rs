// SPDX-License-Identifier: Apache-2.0
//! Measures the cost of tracking operations in flight: `cargo run --release -p ncclscope-operations
//! --example tracker-cost`. Prints ns per record, for steps and for all other records, and ns per
//! look at the operations in flight.

#![expect(clippy::print_stdout, reason = "it is a program")]

use ncclscope_operations::progress::{LaunchFate, LiveState, Tracker};
use ncclscope_trace::record::{Coll, KernelCh, ProxyOp, Step, step_flags};
use ncclscope_trace::{Detail, EventKind, Handle, Record, Start};
use std::hint::black_box;
use std::time::Instant;

const OPS: u64 = 20_000;
const CHANNELS: u8 = 2;
const STEPS: u32 = 64;

/// The words of a lane, and the number of their records.
#[derive(Default)]
struct Lane {
    words: Vec<u64>,
    records: u32,
}

impl Lane {
    fn put(&mut self, words: &[u64]) {
        self.words.extend(words);
        self.records += 1;
    }

    fn start(&mut self, ticks: u64, handle: Handle, parent: Handle, detail: Detail) {
        self.put(Start { ticks, comm: 0, handle, parent, detail }.pack().words());
    }
}

/// One operation: its API lane, and its proxy lane before, during and after the steps.
fn operation(number: u64) -> [Lane; 4] {
    let ticks = number * 100_000;
    let [mut api, mut begin, mut steps, mut end] = [(); 4].map(|()| Lane::default());
    let coll = Handle::value(7, EventKind::Coll, 0, number);
    let detail = Detail::Coll(Coll { channels: CHANNELS, ..Coll::default() });
    api.start(ticks, coll, Handle::NULL, detail);
    api.put(Record::stop(ticks + 10, coll).words());
    for channel in 0..CHANNELS {
        let kernel = Handle::value(7, EventKind::KernelCh, 1, number * 2 + u64::from(channel));
        begin.start(
            ticks + 20,
            kernel,
            coll,
            Detail::KernelCh(KernelCh { channel, ptimer: ticks }),
        );
        end.put(Record::stop(ticks + 90_000, kernel).words());
        for is_send in [false, true] {
            let slot = usize::from(channel) * 2 + usize::from(is_send);
            let op = Handle::slot_op(7, 1, number, slot);
            let detail = ProxyOp { is_send, peer: 1, steps: STEPS, channel, ..ProxyOp::default() };
            begin.start(ticks + 20, op, coll, Detail::ProxyOp(detail));
            for step in 0..STEPS {
                let (flags, op_ref) = (step_flags::STOPPED, op.op_ref());
                let it = Step { ticks: ticks + 30, flags, step, op_ref, ..Step::default() };
                steps.put(it.pack().words());
            }
            end.put(Record::stop(ticks + 80_000, op).words());
        }
    }
    [api, begin, steps, end]
}

fn main() {
    let operations: Vec<[Lane; 4]> = (1..=OPS).map(operation).collect();
    let mut tracker = Tracker::default();
    let (mut step_ns, mut other_ns, mut look_ns) = (0.0, 0.0, 0.0);
    let (mut steps, mut others, mut looks) = (0.0, 0.0, 0.0);
    for (number, [api, begin, step, end]) in (1..).zip(&operations) {
        let from = Instant::now();
        tracker.words(0, &api.words);
        tracker.words(1, &begin.words);
        let before = Instant::now();
        tracker.words(1, &step.words);
        step_ns += before.elapsed().as_secs_f64() * 1e9;
        other_ns += (before - from).as_secs_f64() * 1e9;
        let from = Instant::now();
        tracker.words(1, &end.words);
        other_ns += from.elapsed().as_secs_f64() * 1e9;
        steps += f64::from(step.records);
        others += f64::from(api.records + begin.records + end.records);
        // At a rate of 10,000 operations per second.
        if number % 10_000 == 0 {
            let from = Instant::now();
            let outside = LiveState { is_live: &|_| true, fate: &|_| LaunchFate::Unknown };
            tracker.look(number * 100_000, 1_000_000_000, &outside);
            look_ns += from.elapsed().as_secs_f64() * 1e9;
            looks += 1.0;
        }
    }
    black_box(&tracker);
    println!("a step record: {:.1} ns", step_ns / steps);
    println!("any other record: {:.1} ns", other_ns / others);
    println!("a look, 10,000 operations a second: {:.0} us", look_ns / looks / 1e3);
}
