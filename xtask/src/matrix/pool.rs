// SPDX-License-Identifier: Apache-2.0
//! Runs cells in parallel, and prints the progress on stderr.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::cell::{Cell, Outcome};

/// Default maximum number of cells at a time: each has two or more ranks that spin.
const JOBS_MAX: usize = 8;

/// Runs `run` on every cell, `jobs` at a time (default: one per core). The results are in the order
/// of the cells.
pub(super) fn run(
    cells: &[Cell],
    jobs: Option<usize>,
    run: impl Fn(&Cell) -> Outcome + Sync,
) -> Vec<Outcome> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let jobs = jobs.unwrap_or_else(|| cores.min(JOBS_MAX));
    let next = AtomicUsize::new(0);
    let ended = Mutex::new(Vec::new());
    let work = || {
        while let Some((index, cell)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            cells.get(index).map(|cell| (index, cell))
        } {
            let outcome = run(cell);
            let (label, name) = (&cell.wheel.label, cell.name());
            eprintln!("{label:<12} {name:<22} {:<7} {:.1} s", outcome.word(), outcome.seconds);
            if let Ok(mut ended) = ended.lock() {
                ended.push((index, outcome));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });
    let mut ended = ended.into_inner().unwrap_or_default();
    ended.sort_by_key(|(index, _)| *index);
    ended.into_iter().map(|(_, outcome)| outcome).collect()
}
