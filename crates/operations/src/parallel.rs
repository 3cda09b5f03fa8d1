// SPDX-License-Identifier: Apache-2.0
//! Uses all cores: each recording is one task, and results are taken in the recordings' order. With
//! few descriptors, fewer recordings are read at a time.

use ncclscope_trace::descriptors::readers_at_most;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Most results in memory per core, so that cores can continue while one is busy with a long
/// recording.
const AHEAD: usize = 2;

/// Runs `work` on each item, on as many threads as there are cores or as descriptors allow, and
/// passes the results to `take` in order. At most `AHEAD` results per core are in memory at a time.
///
/// # Panics
/// If `work` panics.
pub fn in_order<'a, T: Sync, R: Send>(
    items: &'a [T],
    work: impl Fn(&'a T) -> R + Sync,
    mut take: impl FnMut(usize, R),
) {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(items.len()).min(readers_at_most());
    if threads <= 1 {
        return items.iter().map(work).enumerate().for_each(|(at, result)| take(at, result));
    }
    let (places, to_do) = channel();
    let to_do = Mutex::new(to_do);
    let (done, results) = channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (done, to_do, work) = (done.clone(), &to_do, &work);
            scope.spawn(move || {
                while let Some(at) = next(to_do) {
                    let result = catch_unwind(AssertUnwindSafe(|| work(&items[at])));
                    if done.send((at, result)).is_err() {
                        break;
                    }
                }
            });
        }
        // The threads end when the channel of indices is closed, also if `take` panics.
        let go_on = move |at| {
            let _ = places.send(at);
        };
        let mut rest = 0..items.len();
        rest.by_ref().take(AHEAD * threads).for_each(&go_on);
        let mut early = BTreeMap::new();
        for at in 0..items.len() {
            let result = loop {
                if let Some(result) = early.remove(&at) {
                    break result;
                }
                let Ok((place, result)) = results.recv() else { return };
                early.insert(place, result);
            };
            take(at, result.unwrap_or_else(|panic| resume_unwind(panic)));
            rest.next().into_iter().for_each(&go_on);
        }
    });
}

/// The next index; `None` after the last.
fn next(places: &Mutex<Receiver<usize>>) -> Option<usize> {
    places.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
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
        assert!(most.load(Ordering::SeqCst) <= AHEAD * threads, "{most:?}");
    }

    #[test]
    #[should_panic(expected = "item 7")]
    fn a_panic_reaches_the_caller() {
        let items: Vec<u64> = (0..100).collect();
        let work = |&item: &u64| assert!(item != 7, "item {item}");
        in_order(&items, work, |_, ()| ());
    }

    #[test]
    #[should_panic(expected = "enough")]
    fn a_panic_of_the_caller_ends_the_threads() {
        let items: Vec<u64> = (0..100).collect();
        in_order(&items, |&item| item, |at, _| assert!(at < 7, "enough"));
    }
}
