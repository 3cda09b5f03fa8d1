// SPDX-License-Identifier: Apache-2.0
//! Helpers of all modules: locks, the handle table, log lines, polling.

use crate::error::{Error, Result};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Writes one line with the stand-in's name to stderr; a library inside a foreign process has no
/// better place.
#[macro_export]
macro_rules! log {
    ($($arg:tt)*) => {
        $crate::util::write_line(&format!($($arg)*))
    };
}

/// Writes `line` to stderr behind the stand-in's name.
#[expect(clippy::print_stderr, reason = "the only exit for messages of a preloaded library")]
pub fn write_line(line: &str) {
    eprintln!("cpu-cuda[{}]: {line}", std::process::id());
}

/// Locks `mutex`. A panicking holder has been reported by `error::status`; the data of the
/// stand-in stay usable, so poisoning is ignored.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `changed` while `busy` holds.
pub fn wait_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    busy: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    changed.wait_while(guard, busy).unwrap_or_else(PoisonError::into_inner)
}

/// How long a thread that has waited for this time sleeps before it looks again: long enough that
/// the waiting threads of some ranks do not take a whole core, and short enough to lengthen no wait
/// by more than 1%. Timers of a process fire some 50 us later than requested. A thread that polls
/// must use more than 1% of a core, or the watchdog calls it still: a look takes some 5 us, so that
/// no sleep is longer than 250 us (with 500 us the share fell below 1% on a busy machine).
pub fn nap(waited: Duration) -> Duration {
    (waited / 128).clamp(Duration::from_micros(20), Duration::from_micros(250))
}

/// Polls until `done` holds: spins briefly, then yields, then sleeps, because the ranks of a test
/// outnumber the cores.
pub fn poll_until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    let mut rounds = 0_u32;
    while !done() {
        rounds = rounds.saturating_add(1);
        match rounds {
            0..64 => std::hint::spin_loop(),
            64..512 => std::thread::yield_now(),
            _ => std::thread::sleep(nap(begun.elapsed())),
        }
    }
}

/// The objects of one kind that C code refers to by an opaque handle. A handle is a number that is
/// never reused and never a valid address, so a stale or foreign one is detected.
pub struct Table<T> {
    first: usize,
    next: AtomicUsize,
    objects: OnceLock<Mutex<HashMap<usize, Arc<T>>>>,
}

impl<T> Table<T> {
    /// A table whose handles start at `kind` << 40 and count up in steps of 16.
    pub const fn new(kind: usize) -> Self {
        Self { first: kind << 40, next: AtomicUsize::new(1), objects: OnceLock::new() }
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<usize, Arc<T>>> {
        lock(self.objects.get_or_init(Mutex::default))
    }

    /// A handle that no object has had before.
    pub fn fresh(&self) -> usize {
        self.first + 16 * self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Stores `object` under `handle`, which came from [`Table::fresh`].
    pub fn insert(&self, handle: usize, object: Arc<T>) {
        self.objects().insert(handle, object);
    }

    /// Stores `object` and returns its handle.
    pub fn add(&self, object: Arc<T>) -> usize {
        let handle = self.fresh();
        self.insert(handle, object);
        handle
    }

    /// The object of `handle`.
    ///
    /// # Errors
    /// [`Error::INVALID_RESOURCE_HANDLE`] if there is none (any more).
    pub fn get(&self, handle: usize) -> Result<Arc<T>> {
        self.objects().get(&handle).cloned().ok_or(Error::INVALID_RESOURCE_HANDLE)
    }

    /// Removes the object of `handle` from the table.
    ///
    /// # Errors
    /// [`Error::INVALID_RESOURCE_HANDLE`] if there is none (any more).
    pub fn remove(&self, handle: usize) -> Result<Arc<T>> {
        self.objects().remove(&handle).ok_or(Error::INVALID_RESOURCE_HANDLE)
    }

    /// All objects, in no order.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.objects().values().cloned().collect()
    }
}

impl<T> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("objects", &self.objects().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_unique_and_checked() {
        static TABLE: Table<u32> = Table::new(9);
        let a = TABLE.add(Arc::new(1));
        let b = TABLE.add(Arc::new(2));
        assert_eq!((*TABLE.get(a).unwrap(), *TABLE.get(b).unwrap()), (1, 2));
        assert_eq!(*TABLE.remove(a).unwrap(), 1);
        assert_eq!(TABLE.get(a), Err(Error::INVALID_RESOURCE_HANDLE));
        assert_ne!(TABLE.add(Arc::new(3)), a);
    }
}
