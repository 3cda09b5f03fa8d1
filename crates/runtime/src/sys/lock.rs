// SPDX-License-Identifier: Apache-2.0
//! The runtime's lock: a mutex that survives a panic, and that ThreadSanitizer sees.
//!
//! The standard library is compiled without the sanitizer, which therefore takes data behind a std
//! mutex for unprotected. Under `--cfg tsan` this lock reports each locking and unlocking.

use core::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex without poisoning: after a panic, the content is used as it is.
#[derive(Debug)]
pub(crate) struct Lock<T>(Mutex<T>);

/// Holds the lock until it is dropped.
pub(crate) struct Guard<'a, T>(MutexGuard<'a, T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        Guard::new(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(Guard::new(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Some(Guard::new(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn is_free(&self) -> bool {
        self.try_lock().is_some()
    }
}

impl<'a, T> Guard<'a, T> {
    fn new(guard: MutexGuard<'a, T>) -> Guard<'a, T> {
        #[cfg(tsan)]
        tsan::locked(&raw const *guard);
        Guard(guard)
    }
}

#[cfg(tsan)]
impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        tsan::unlocks(&raw const *self.0);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(tsan)]
mod tsan {
    use core::ffi::c_void;

    unsafe extern "C" {
        fn __tsan_acquire(address: *const c_void);
        fn __tsan_release(address: *const c_void);
    }

    /// Tells ThreadSanitizer that everything before the last unlock happens before this.
    pub(super) fn locked<T>(address: *const T) {
        // SAFETY: the address is only used as an identifier.
        unsafe { __tsan_acquire(address.cast()) };
    }

    /// Tells ThreadSanitizer that everything so far happens before the next lock.
    pub(super) fn unlocks<T>(address: *const T) {
        // SAFETY: the address is only used as an identifier.
        unsafe { __tsan_release(address.cast()) };
    }
}
