// SPDX-License-Identifier: Apache-2.0
//! How long a verdict takes from the vectors of a very large job: 131,072 ranks with ten
//! communicators each, in every [`Shape`]. `cargo run --release -p ncclscope-diagnose --example
//! diagnose-speed [RANKS]`, or a table of vectors instead of the number.

use ncclscope_diagnose::{Options, diagnose, input, text};
use ncclscope_trace::vectors::{self, Edge, Vector};
use std::time::Instant;

/// The size of a communicator of each kind, from one host to the whole job.
const SIZES: [u32; 10] = [8, 8, 16, 16, 32, 64, 128, 1024, 8192, u32::MAX];
const LATE: u32 = 4_321;

/// How a job hangs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// One rank is late; kernels run in the communicator of all ranks.
    OneLate,
    /// All ranks are in their operations, their kernels run, and nothing shows why they do not end.
    AllInside,
    /// All ranks are in their operations, and no kernel has started.
    NoneStarted,
    /// Half of the ranks have no input, and the others wait.
    HalfSilent,
    /// Of eight ranks, seven have no input.
    MostSilent,
    /// Data that each rank sent did not arrive.
    NoNetwork,
}

impl Shape {
    const ALL: [Shape; 6] = [
        Shape::OneLate,
        Shape::AllInside,
        Shape::NoneStarted,
        Shape::HalfSilent,
        Shape::MostSilent,
        Shape::NoNetwork,
    ];

    fn has_input(self, process: u32) -> bool {
        match self {
            Shape::HalfSilent => process.is_multiple_of(2),
            Shape::MostSilent => process.is_multiple_of(8),
            _ => true,
        }
    }
}

fn job(ranks: u32, shape: Shape) -> Vec<Vector> {
    let mut all = Vec::new();
    for (kind, size) in (1u64..).zip(SIZES) {
        let size = size.min(ranks);
        let is_stuck = kind % 2 == 0;
        for process in (0..ranks).filter(|&process| shape.has_input(process)) {
            let (block, rank) = (process / size, process % size);
            let waits = is_stuck && (shape != Shape::OneLate || process != LATE % ranks);
            let runs = match shape {
                // Kernels of smaller communicators are queued behind that of the whole job.
                Shape::OneLate => size == ranks,
                Shape::NoneStarted => false,
                _ => true,
            };
            let is_stalled = shape == Shape::NoNetwork && size == ranks;
            let next = i32::try_from((rank + 1) % size).unwrap_or(-1);
            all.push(Vector {
                comm: kind << 32 | u64::from(block),
                process,
                rank,
                nranks: size.min(ranks - block * size),
                api: 1000 + u32::from(waits),
                enqueued: 1000 + u32::from(waits),
                started: 1000 + u32::from(waits && runs),
                done: 1000,
                age_ms: if waits { 60_000 } else { 0 },
                hash: 7,
                hash_at: 960,
                peer: if is_stalled { next } else { -1 },
                edge: Edge { channel: 0, is_send: true, reached: Some(3), ..Edge::default() }
                    .bits(),
                ..Vector::default()
            });
        }
    }
    all
}

/// A figure of `/proc/self/status`, in MiB.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    number.unwrap_or(0) / 1024
}

#[expect(clippy::print_stdout, reason = "an example that prints figures")]
fn main() {
    let argument = std::env::args().nth(1).unwrap_or_else(|| "131072".into());
    match argument.parse::<u32>() {
        Ok(ranks) => {
            for shape in Shape::ALL {
                let mut bytes = Vec::new();
                vectors::write(&mut bytes, &job(ranks, shape)).expect("memory takes it");
                println!("{shape:?}");
                measure(&bytes);
            }
        }
        Err(_) => measure(&std::fs::read(&argument).expect("a number of ranks, or a table")),
    }
}

#[expect(clippy::print_stdout, reason = "an example that prints figures")]
fn measure(bytes: &[u8]) {
    let start = Instant::now();
    let all = vectors::read(bytes).expect("a table of vectors");
    let read = start.elapsed();
    let job = input::vectors::build(&all, &Default::default());
    let built = start.elapsed();
    let found = diagnose(&job, &Options::default());
    let done = start.elapsed();
    println!("{} vectors of {} ranks in {} communicators", all.len(), found.ranks, job.comms.len());
    println!("read {read:.2?}, job {:.2?}, verdict {:.2?}", built - read, done - built);
    println!("all {done:.2?}, peak memory so far {} MiB", memory("VmHWM"));
    let lines = text::render(&found, None, None).lines().count();
    println!("{} verdicts, {lines} lines", found.findings.len());
    for verdict in found.findings.iter().take(4) {
        println!("{} {}: {} victims", verdict.class.name(), verdict.title, verdict.victims);
    }
    println!();
}
