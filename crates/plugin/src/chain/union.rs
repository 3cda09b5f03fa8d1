// SPDX-License-Identifier: Apache-2.0
//! NCCL's activation mask, which is the union of all plugins' masks.

use core::sync::atomic::{AtomicI32, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Number of attempts, a millisecond apart, to take a lock, which a fork may have left locked.
const PATIENCE: u32 = 100;

/// NCCL's activation mask, known while there are communicators.
#[derive(Debug, Default)]
pub(super) struct Union(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// NCCL's global variable; `None` while there are no communicators.
    mask: Option<&'static AtomicI32>,
    /// Number of communicators that keep the variable valid.
    live: u32,
    /// The bits requested last.
    last: i32,
}

impl Union {
    /// Adds a communicator, and requests `wanted` from NCCL.
    ///
    /// # Safety
    /// `mask` is valid, and accessed atomically, until the communicator's [`Union::leave`].
    pub(super) unsafe fn join(&self, mask: *mut i32, wanted: i32) {
        // SAFETY: by the caller's promise, valid as long as it is used.
        let mask: &'static AtomicI32 = unsafe { AtomicI32::from_ptr(mask) };
        mask.fetch_or(wanted, Ordering::Relaxed);
        if let Some(mut state) = self.lock() {
            state.live += 1;
            state.last |= wanted;
            state.mask = Some(mask);
        }
    }

    /// Removes a communicator; after the last one NCCL may be unloaded.
    pub(super) fn leave(&self) {
        if let Some(mut state) = self.lock() {
            state.live = state.live.saturating_sub(1);
            if state.live == 0 {
                state.mask = None;
            }
        }
    }

    /// Passes the changes since the last request to NCCL; bits that others set stay. `false` if
    /// there is no communicator.
    pub(super) fn update(&self, wanted: i32) -> bool {
        let Some(mut state) = self.lock() else { return false };
        let Some(mask) = state.mask else { return false };
        if wanted != state.last {
            mask.fetch_or(wanted & !state.last, Ordering::Relaxed);
            mask.fetch_and(wanted | !state.last, Ordering::Relaxed);
            state.last = wanted;
        }
        true
    }

    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        for _ in 0..PATIENCE {
            match self.0.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_is_written() {
        static MASK: AtomicI32 = AtomicI32::new(0);
        let union = Union::default();
        assert!(!union.update(1), "there is no mask to write");
        // SAFETY: a static.
        unsafe { union.join(MASK.as_ptr(), 0b0110) };
        MASK.fetch_or(0b1000_0000, Ordering::Relaxed);
        assert!(union.update(0b0011));
        assert_eq!(MASK.load(Ordering::Relaxed), 0b1000_0011);
        MASK.store(0, Ordering::Relaxed);
        assert!(union.update(0b0011));
        assert_eq!(MASK.load(Ordering::Relaxed), 0, "an operator's word stands");
        union.leave();
        assert!(!union.update(0xff));
        assert_eq!(MASK.load(Ordering::Relaxed), 0, "the last one is gone");
    }
}
