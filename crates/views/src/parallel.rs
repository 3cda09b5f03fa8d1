// SPDX-License-Identifier: Apache-2.0
//! Threads: to read and show a process takes time, and a run has many.

use ncclscope_operations::Timeline;
use ncclscope_trace::Recording;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Each thread holds a process's events in memory.
const THREADS_MAX: usize = 4;

fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)
}

/// Gives the timelines of recordings to `take`, in order, while the next one is being read.
///
/// # Errors
/// The first of `take`.
pub(crate) fn read_ahead<E>(
    recordings: &[Recording],
    mut take: impl FnMut(&Timeline<'_>) -> Result<(), E>,
) -> Result<(), E> {
    thread::scope(|scope| {
        // Without room: there is one timeline here and one there.
        let (give, timelines) = mpsc::sync_channel(0);
        scope.spawn(move || {
            let mut read = recordings.iter().map(|recording| Timeline::read(recording, true));
            read.all(|timeline| give.send(timeline).is_ok())
        });
        timelines.into_iter().try_for_each(|timeline| take(&timeline))
    })
}

/// Gives recordings to `take`, in order. While it has one, the following ones are done `aside`, and
/// what comes of that is given with them.
///
/// # Errors
/// The first of `take`.
pub(crate) fn in_batches<P: Send, E>(
    recordings: &[Recording],
    aside: impl Fn(&Recording) -> P + Sync,
    mut take: impl FnMut(&Recording, Option<P>) -> Result<(), E>,
) -> Result<(), E> {
    recordings.chunks(threads()).try_for_each(|batch| {
        thread::scope(|scope| {
            let aside = &aside;
            let others = batch.iter().skip(1);
            let others: Vec<_> = others
                .map(|recording| (recording, scope.spawn(move || aside(recording))))
                .collect();
            batch.iter().take(1).try_for_each(|first| take(first, None))?;
            others.into_iter().try_for_each(|(recording, thread)| {
                let part = thread.join();
                take(recording, Some(part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
            })
        })
    })
}

/// Adds each recording to one of several parts, in any order.
pub(crate) fn fold<T: Default + Send>(
    recordings: &[Recording],
    add: impl Fn(&mut T, &Recording) + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let part = || {
        let mut part = T::default();
        while let Some(recording) = recordings.get(next.fetch_add(1, Ordering::Relaxed)) {
            add(&mut part, recording);
        }
        part
    };
    let others = threads().min(recordings.len()).saturating_sub(1);
    thread::scope(|scope| {
        let spawned: Vec<_> = (0..others).map(|_| scope.spawn(part)).collect();
        let mut parts = vec![part()];
        for thread in spawned {
            parts.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        parts
    })
}
