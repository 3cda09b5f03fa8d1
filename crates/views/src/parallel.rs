// SPDX-License-Identifier: Apache-2.0
//! Threads that read and convert the processes of a run in parallel.

use crate::timelines::Timelines;
use ncclscope_operations::Timeline;
use ncclscope_trace::descriptors::readers_at_most;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Most threads, because each holds the events of a process in memory.
const THREADS_MAX: usize = 4;

fn threads() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    cores.min(THREADS_MAX).min(readers_at_most())
}

/// Passes timelines to `take` with their index, in order, while the next one is being read.
///
/// # Errors
/// The first error of `take`.
pub(crate) fn read_ahead<E>(
    timelines: &Timelines<'_>,
    mut take: impl FnMut(usize, &Timeline<'_>) -> Result<(), E>,
) -> Result<(), E> {
    thread::scope(|scope| {
        // Without a buffer, so at most two timelines are in memory: one in use and one being read.
        let (give, taken) = mpsc::sync_channel(0);
        scope.spawn(move || {
            let mut read = (0..timelines.len()).map(|at| (at, timelines.take(at)));
            read.all(|part| give.send(part).is_ok())
        });
        taken.into_iter().try_for_each(|(at, timeline)| take(at, &timeline))
    })
}

/// Calls `take` with the indices below `all`, in order. While it runs, other threads call `aside`
/// for the following indices, and `take` gets their results.
///
/// # Errors
/// The first error of `take`.
pub(crate) fn in_batches<P: Send, E>(
    all: usize,
    aside: impl Fn(usize) -> P + Sync,
    mut take: impl FnMut(usize, Option<P>) -> Result<(), E>,
) -> Result<(), E> {
    let threads = threads();
    (0..all).step_by(threads).try_for_each(|first| {
        thread::scope(|scope| {
            let aside = &aside;
            let others = first + 1..all.min(first + threads);
            let others: Vec<_> = others.map(|at| (at, scope.spawn(move || aside(at)))).collect();
            take(first, None)?;
            others.into_iter().try_for_each(|(at, thread)| {
                let part = thread.join();
                take(at, Some(part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
            })
        })
    })
}

/// Calls `add` for each index below `all`, on several threads with one part each and in any order;
/// returns the parts.
pub(crate) fn fold<T: Default + Send>(all: usize, add: impl Fn(&mut T, usize) + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let part = || {
        let mut part = T::default();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= all {
                return part;
            }
            add(&mut part, at);
        }
    };
    let others = threads().min(all).saturating_sub(1);
    thread::scope(|scope| {
        let spawned: Vec<_> = (0..others).map(|_| scope.spawn(part)).collect();
        let mut parts = vec![part()];
        for thread in spawned {
            parts.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        parts
    })
}
