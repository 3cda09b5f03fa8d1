// SPDX-License-Identifier: Apache-2.0
//! NCCL's activation mask, which requests the events of all plugins.

use core::sync::atomic::{AtomicI32, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// How often a lock that a fork left locked in the child is tried, a millisecond apart.
const PATIENCE: u32 = 100;

/// NCCL's mask while there are communicators.
#[derive(Debug, Default)]
pub(super) struct Union(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// NCCL's global.
    mask: Option<&'static AtomicI32>,
    /// Communicators that may use it.
    live: u32,
    /// The latest request.
    last: i32,
}

impl Union {
    /// A communicator is initialised: also requests `wanted` from NCCL.
    ///
    /// # Safety
    /// `mask` is valid, and accessed atomically, until the communicator's [`Union::leave`].
    pub(super) unsafe fn join(&self, mask: *mut i32, wanted: i32) {
        // SAFETY: valid for as long as it is used by the caller's promise.
        let mask: &'static AtomicI32 = unsafe { AtomicI32::from_ptr(mask) };
        mask.fetch_or(wanted, Ordering::Relaxed);
        if let Some(mut state) = self.lock() {
            state.live += 1;
            state.last |= wanted;
            state.mask = Some(mask);
        }
    }

    /// A communicator ends; with the last one NCCL may be unloaded.
    pub(super) fn leave(&self) {
        if let Some(mut state) = self.lock() {
            state.live = state.live.saturating_sub(1);
            if state.live == 0 {
                state.mask = None;
            }
        }
    }

    /// Passes on to NCCL what changed since the last time; bits that others have written stay.
    /// `false` if there is no communicator.
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
