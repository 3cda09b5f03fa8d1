// SPDX-License-Identifier: Apache-2.0
//! Uses all cores: each recording is one task, and results are taken in the recordings' order.

use std::collections::VecDeque;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;

/// Does `work` on each item on threads of its own, and gives what comes of it to `take`, in order.
/// No more results are in memory at a time than there are cores.
///
/// # Panics
/// As `work` does.
pub fn in_order<'a, T: Sync, R: Send>(
    items: &'a [T],
    work: impl Fn(&'a T) -> R + Sync,
    mut take: impl FnMut(usize, R),
) {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    if threads == 1 || items.len() == 1 {
        return items.iter().map(work).enumerate().for_each(|(at, result)| take(at, result));
    }
    let (mut rest, work) = (items.iter(), &work);
    thread::scope(|scope| {
        let mut ahead = VecDeque::new();
        for at in 0..items.len() {
            let free = threads.saturating_sub(ahead.len());
            ahead.extend(rest.by_ref().take(free).map(|item| scope.spawn(move || work(item))));
            let Some(next) = ahead.pop_front() else { break };
            take(at, next.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn results_come_in_order_and_few_at_a_time() {
        let (items, open, most) =
            ((0..100).collect::<Vec<u64>>(), AtomicUsize::new(0), AtomicUsize::new(0));
        let mut taken = Vec::new();
        let work = |item: &u64| {
            most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(std::time::Duration::from_micros(item % 3 * 200));
            item * 2
        };
        in_order(&items, work, |at, result| {
            open.fetch_sub(1, Ordering::SeqCst);
            taken.push((at as u64, result));
        });
        assert!(taken.iter().copied().eq((0..100).map(|at| (at, at * 2))));
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        assert!(most.load(Ordering::SeqCst) <= threads, "{most:?}");
    }
}
