// SPDX-License-Identifier: Apache-2.0
/*!
File work on a thread of the host's, without the signals that the kernel sends for it.

A write beyond `ulimit -f` raises SIGXFSZ, one to a pipe without a reader raises SIGPIPE; either
ends a host that has no handler. Our own threads block all signals; where the host's thread works
for us (`init`, `finalize`, the C functions, the end of the process), a [`Shield`] does. The write
itself then fails with `EFBIG` or `EPIPE`, and is treated as any other failure.
*/

use core::marker::PhantomData;

/// As long as it lives, the calling thread gets neither signal for what it does itself. Five system
/// calls at most: never for callbacks.
#[derive(Debug)]
pub struct Shield {
    /// The thread's mask.
    mask: libc::sigset_t,
    /// What waited already, and is the host's.
    waited: libc::sigset_t,
    /// A mask belongs to a thread.
    _thread: PhantomData<*const ()>,
}

impl Shield {
    /// Blocks the signals on the calling thread.
    #[must_use]
    pub fn raise() -> Shield {
        let (mut mask, signals) = (none(), signals());
        // SAFETY: both sets are valid; `drop` restores the mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, &raw mut mask) };
        Shield { mask, waited: pending(), _thread: PhantomData }
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        let came = pending();
        let is_new = |&signal: &i32| has(&came, signal) && !has(&self.waited, signal);
        let mut ours = none();
        for signal in SIGNALS.iter().filter(|signal| is_new(signal)) {
            // SAFETY: an initialised set, and a signal that there is.
            unsafe { libc::sigaddset(&raw mut ours, *signal) };
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the set and the time are valid, and no facts about the signal are asked for.
            unsafe {
                libc::sigtimedwait(&raw const ours, core::ptr::null_mut(), &raw const at_once)
            };
        }
        // SAFETY: the mask is what `raise` got from the system.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, core::ptr::null_mut())
        };
    }
}

const SIGNALS: [i32; 2] = [libc::SIGXFSZ, libc::SIGPIPE];

fn none() -> libc::sigset_t {
    // SAFETY: zero is a valid value of this plain C struct.
    let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: valid to write to.
    unsafe { libc::sigemptyset(&raw mut set) };
    set
}

fn signals() -> libc::sigset_t {
    let mut set = none();
    for signal in SIGNALS {
        // SAFETY: an initialised set, and a signal that there is.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

/// What waits for the calling thread, or for the process.
fn pending() -> libc::sigset_t {
    let mut set = none();
    // SAFETY: valid to write to.
    unsafe { libc::sigpending(&raw mut set) };
    set
}

fn has(set: &libc::sigset_t, signal: i32) -> bool {
    // SAFETY: an initialised set, and a signal that there is.
    unsafe { libc::sigismember(set, signal) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raise_here(signal: i32) {
        // SAFETY: no memory is involved; it is for the calling thread.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    /// Either signal ends this test where it gets through: std ignores SIGPIPE, which is undone.
    #[test]
    fn what_comes_behind_a_shield_is_gone_and_what_waited_before_stays() {
        // SAFETY: the default action; no test of this crate relies on another.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let outer = Shield::raise();
        raise_here(libc::SIGXFSZ);
        {
            let _inner = Shield::raise();
            raise_here(libc::SIGPIPE);
        }
        assert!(has(&pending(), libc::SIGXFSZ), "it was there before the inner one");
        assert!(!has(&pending(), libc::SIGPIPE));
        drop(outer);
        let now = pending();
        assert!(!SIGNALS.iter().any(|&signal| has(&now, signal)));
        // SAFETY: std's own choice.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    }
}
