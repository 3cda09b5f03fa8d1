// SPDX-License-Identifier: Apache-2.0
/*!
Protects work of ours on a thread of the host: no signal, no cancellation, and an unchanged `errno`.

A write beyond `ulimit -f` raises SIGXFSZ, and one to a pipe without a reader raises SIGPIPE; either
ends a host that has no handler. Our own threads block all signals; when a host thread works for us
(`init`, `finalize`, the C functions, the end of the process), a [`Shield`] does. The write then
fails with `EFBIG` or `EPIPE`, and is treated like any other failure.

`pthread_cancel` unwinds a thread out of a system call, and the process would abort if that reached
a `catch_unwind` of ours: the shield delays the cancellation to the thread's next call outside our
code. A signal handler that ends the process, or calls us, would find our locks held by the thread
that it interrupts: while we hold them, all signals wait.
*/

use core::ffi::c_int;
use core::marker::PhantomData;

/// While this value lives, the calling thread gets neither signal for its own actions and cannot be
/// cancelled. Costs up to ten system calls; not for callbacks.
#[derive(Debug)]
pub struct Shield {
    errno: c_int,
    /// The cancellation state of the thread before.
    cancel: c_int,
    mask: libc::sigset_t,
    /// Signals that were pending before; they are the host's.
    waited: libc::sigset_t,
    /// Makes this value `!Send`, because all this belongs to the thread.
    _thread: PhantomData<*const ()>,
}

impl Shield {
    /// Blocks the two signals and cancellation on the calling thread. For work that takes long.
    #[must_use]
    pub fn raise() -> Shield {
        Shield::against(&signals())
    }

    /// Blocks all signals except those for faults of the thread itself. The host's handlers run
    /// after the shield is dropped.
    #[must_use]
    pub fn raise_against_all() -> Shield {
        let mut signals = none();
        // SAFETY: valid to write to.
        unsafe { libc::sigfillset(&raw mut signals) };
        for signal in FAULTS {
            // SAFETY: an initialised set, and an existing signal.
            unsafe { libc::sigdelset(&raw mut signals, signal) };
        }
        Shield::against(&signals)
    }

    fn against(signals: &libc::sigset_t) -> Shield {
        let errno = *errno();
        let (mut cancel, mut mask) = (0, none());
        // SAFETY: valid to write to; `drop` restores the state.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut cancel) };
        // SAFETY: both sets are valid; `drop` restores the mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, signals, &raw mut mask) };
        Shield { errno, cancel, mask, waited: pending(), _thread: PhantomData }
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        let came = pending();
        let is_new = |&signal: &i32| has(&came, signal) && !has(&self.waited, signal);
        let mut ours = none();
        for signal in SIGNALS.iter().filter(|signal| is_new(signal)) {
            // SAFETY: an initialised set, and an existing signal.
            unsafe { libc::sigaddset(&raw mut ours, *signal) };
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the set and the time are valid, and no information about the signal is
            // requested.
            unsafe {
                libc::sigtimedwait(&raw const ours, core::ptr::null_mut(), &raw const at_once)
            };
        }
        // SAFETY: the mask is the one that `raise` got from the system.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, core::ptr::null_mut())
        };
        // SAFETY: the state is the one that `raise` got; it is not used after this.
        unsafe { pthread_setcancelstate(self.cancel, core::ptr::null_mut()) };
        *errno() = self.errno;
    }
}

/// The calling thread's `errno`. The reference must not be kept.
fn errno<'a>() -> &'a mut c_int {
    // SAFETY: it takes nothing and cannot fail.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's own, valid as long as the thread lives, and without another
    // reference.
    unsafe { &mut *place }
}

unsafe extern "C" {
    /// The POSIX function; the same in glibc and musl, which both allow NULL.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`, of glibc and musl.
const CANCEL_DISABLE: c_int = 1;
/// Signals that the kernel sends a thread for its own fault: blocked, they end the process.
const FAULTS: [c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGSYS,
];
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
        // SAFETY: an initialised set, and an existing signal.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

/// Signals that are pending for the calling thread or the process.
fn pending() -> libc::sigset_t {
    let mut set = none();
    // SAFETY: valid to write to.
    unsafe { libc::sigpending(&raw mut set) };
    set
}

fn has(set: &libc::sigset_t, signal: i32) -> bool {
    // SAFETY: an initialised set, and an existing signal.
    unsafe { libc::sigismember(set, signal) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raise_here(signal: i32) {
        // SAFETY: no memory is involved; it is for the calling thread.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    /// Either signal would end this test if it were delivered: std ignores SIGPIPE, which is undone
    /// here.
    #[test]
    fn what_comes_behind_a_shield_is_gone_and_what_waited_before_stays() {
        // SAFETY: the default action; no test of this crate relies on another one.
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
        // SAFETY: the action that std sets.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    }

    fn is_blocked(signal: i32) -> bool {
        let mut mask = none();
        // SAFETY: valid to write to; nothing is changed.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut mask) };
        has(&mask, signal)
    }

    fn cancel_state() -> c_int {
        let (mut state, mut own) = (0, 0);
        // SAFETY: valid to write to.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut state) };
        // SAFETY: the state from before.
        unsafe { pthread_setcancelstate(state, &raw mut own) };
        state
    }

    #[test]
    fn a_thread_is_as_it_was_behind_a_shield() {
        assert_ne!(cancel_state(), CANCEL_DISABLE);
        *errno() = libc::EXDEV;
        let shield = Shield::raise();
        assert!(!is_blocked(libc::SIGTERM), "it may take long");
        drop(Shield::raise_against_all());
        assert_eq!(cancel_state(), CANCEL_DISABLE, "the outer one is there");
        *errno() = libc::ENOENT;
        drop(shield);
        assert_eq!(*errno(), libc::EXDEV);
        assert_ne!(cancel_state(), CANCEL_DISABLE);
        assert!(!is_blocked(libc::SIGPIPE));
    }

    #[test]
    fn what_is_short_is_interrupted_by_faults_alone() {
        let shield = Shield::raise_against_all();
        assert!(is_blocked(libc::SIGTERM) && is_blocked(libc::SIGALRM));
        assert!(!is_blocked(libc::SIGSEGV) && !is_blocked(libc::SIGABRT));
        drop(shield);
        assert!(!is_blocked(libc::SIGTERM));
    }
}
