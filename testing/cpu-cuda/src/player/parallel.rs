// SPDX-License-Identifier: Apache-2.0
//! Parts of a kernel that run at once, on a thread each.

use super::block::Stop;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Runs `f` for all items at once, one thread each. When one fails, `broken` is set so that the
/// others stop waiting; the failure wins over their aborts.
pub(super) fn all<T: Sync>(
    items: &[T],
    broken: &AtomicBool,
    f: impl Fn(&T) -> Result<(), Stop> + Sync,
) -> Result<(), Stop> {
    let guarded = |item: &T| {
        let result = panic::catch_unwind(AssertUnwindSafe(|| f(item)))
            .unwrap_or_else(|_| Err(Stop::Failed("the player panicked".into())));
        if matches!(result, Err(Stop::Failed(_))) {
            broken.store(true, Ordering::Relaxed);
        }
        result
    };
    if let [item] = items {
        return guarded(item);
    }
    let guarded = &guarded;
    let results = thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(|| guarded(item))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("guarded");
        threads.into_iter().map(join).collect::<Vec<_>>()
    });
    let failures = |result: &&Result<(), Stop>| matches!(result, Err(Stop::Failed(_)));
    let worst = results.iter().find(failures).or_else(|| results.iter().find(|r| r.is_err()));
    worst.cloned().unwrap_or(Ok(()))
}
