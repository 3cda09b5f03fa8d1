// SPDX-License-Identifier: Apache-2.0
/*!
Waiting until another thread signals, without std's handle of the waiting thread.

std creates the handle of a thread that it did not start at the first request, and registers a
destructor for it. glibc does that under the lock that `dlopen` holds, so it may wait for as long as
another thread loads a library from a file system that hangs.
*/

use core::ptr::null;
use core::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A wake-up for one thread at a time; it is kept until that thread waits.
#[derive(Debug)]
pub(crate) struct Wake(AtomicU32);

impl Wake {
    /// No wake-up is pending.
    pub(crate) const fn new() -> Wake {
        Wake(AtomicU32::new(0))
    }

    /// Wakes the thread. Everything before this call happens before what that thread does then.
    pub(crate) fn wake(&self) {
        if self.0.swap(1, Ordering::Release) == 0 {
            // SAFETY: the address is of a live word; waking writes nothing.
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), WAKE, 1) };
        }
    }

    /// Waits for a wake-up, at most for `patience`. May return early.
    pub(crate) fn wait(&self, patience: Option<Duration>) {
        if self.0.swap(0, Ordering::Acquire) == 0 {
            let time = patience.map(|patience| libc::timespec {
                tv_sec: patience.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                tv_nsec: patience.subsec_nanos().into(),
            });
            let time = time.as_ref().map_or(null(), core::ptr::from_ref);
            // SAFETY: the word lives, and the time is valid or null.
            unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), WAIT, 0, time) };
            self.0.swap(0, Ordering::Acquire);
        }
    }
}

/// Sleeps, perhaps for less time. Unlike std's function it does not panic if the system refuses, as
/// a filter of system calls (seccomp) may.
pub(crate) fn pause(time: Duration) {
    Wake::new().wait(Some(time));
}

const WAIT: libc::c_int = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
const WAKE: libc::c_int = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_word_is_kept_until_it_is_waited_for() {
        let wake = Wake::new();
        wake.wake();
        let begin = Instant::now();
        wake.wait(None);
        wake.wait(Some(Duration::from_millis(20)));
        assert!(begin.elapsed() >= Duration::from_millis(20), "it is said once");
    }

    /// With a filter that refuses `clock_nanosleep`, std's function panics.
    #[test]
    fn no_thread_of_ours_sleeps_by_std() {
        fn look(folder: &std::path::Path) {
            for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    look(&entry);
                } else {
                    let text = std::fs::read_to_string(&entry).unwrap();
                    let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
                    let sleeps = concat!("thread::", "sleep(");
                    assert!(!code.contains(sleeps), "{}", entry.display());
                }
            }
        }
        look(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        let begin = Instant::now();
        pause(Duration::from_millis(20));
        assert!(begin.elapsed() >= Duration::from_millis(19));
    }

    #[test]
    fn a_thread_that_waits_is_woken_each_time() {
        let (there, back) = (Wake::new(), Wake::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..1000 {
                    there.wait(None);
                    back.wake();
                }
            });
            for _ in 0..1000 {
                there.wake();
                back.wait(None);
            }
        });
    }
}
