// SPDX-License-Identifier: Apache-2.0
//! How long a verdict takes from the vectors of a very large job: 131,072 ranks with ten
//! communicators each, in every [`Shape`]. `cargo run --release -p ncclscope-diagnose --example
//! diagnose-speed [RANKS]`, or a table of vectors instead of the number.

use ncclscope_diagnose::{Options, diagnose, input, text};
use ncclscope_trace::vectors::{self, OpenTransfer, Table, Vector};
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

fn job(ranks: u32, shape: Shape) -> Table {
    let (mut all, mut transfers) = (Vec::new(), Vec::new());
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
            if is_stalled {
                let vector = u32::try_from(all.len()).unwrap_or(u32::MAX);
                let (is_send, reached, still_ms) = (true, Some(3), 60_000);
                let sent =
                    OpenTransfer { posted: 8, ready: 8, transmitted: 8, ..OpenTransfer::default() };
                let one = OpenTransfer { vector, peer: next, is_send, reached, still_ms, ..sent };
                transfers.push(OpenTransfer { steps: 8, ..one });
            }
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
                ..Vector::default()
            });
        }
    }
    Table { vectors: all, transfers, ..Table::default() }
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
                println!("{shape:?}");
                // The table itself is dropped before.
                let bytes = job(ranks, shape).bytes();
                measure(&bytes);
            }
        }
        Err(_) => measure(&std::fs::read(&argument).expect("a number of ranks, or a table")),
    }
}

#[expect(clippy::print_stdout, reason = "an example that prints figures")]
fn measure(bytes: &[u8]) {
    let start = Instant::now();
    let table = vectors::read_table(bytes).expect("a table of vectors");
    let read = start.elapsed();
    let job = input::vectors::build(&table, Options::default().hang);
    let built = start.elapsed();
    let found = diagnose(&job, &Options::default());
    let done = start.elapsed();
    println!(
        "{} vectors of {} ranks in {} communicators",
        table.vectors.len(),
        found.ranks,
        job.comms.len()
    );
    println!("read {read:.2?}, job {:.2?}, verdict {:.2?}", built - read, done - built);
    println!("all {done:.2?}, peak memory so far {} MiB", memory("VmHWM"));
    let lines = text::render(&found, None, None).lines().count();
    println!("{} verdicts, {lines} lines", found.findings.len());
    for verdict in found.findings.iter().take(4) {
        println!("{} {}: {} victims", verdict.class.name(), verdict.title(), verdict.victims);
    }
    println!();
}
