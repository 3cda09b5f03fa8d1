// SPDX-License-Identifier: Apache-2.0
//! Lets idle threads of NCCL leave the processor to others: redirects the imports of libnccl with
//! which these threads poll.
//!
//! A proxy thread that has nothing to do calls `sched_yield` in a loop, and a thread that waits for
//! a socket calls `recv`, or `accept` for a peer, in a loop. This is fine for threads with a core
//! of their own, but in the tests ranks outnumber the cores, and this polling took more than half
//! of a test machine's time. Therefore a thread that has polled a number of times in quick
//! succession sleeps for some microseconds, which looks to NCCL like a call that took longer. A
//! thread that has polled for a tenth of a second, as the ranks of a hung job do, sleeps for
//! longer, and after a second for longer still: the short sleeps of the threads of three ranks
//! would take a whole core.

use crate::elf::Image;
use libc::{c_int, c_void, size_t, sockaddr, socklen_t, ssize_t};
use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

/// Polls in quick succession before the first sleep.
const POLLS: u32 = 64;
/// A thread that did not poll again within this time has worked.
const QUICK: Duration = Duration::from_micros(10);
/// A thread that did not poll again within this time had no processor: NCCL's work between two
/// polls is shorter. It is as idle as before.
const PREEMPTED: Duration = Duration::from_micros(500);
/// First sleep. Timers of a process fire some 50 us later than requested.
const NAP: Duration = Duration::from_micros(20);
/// Polls in quick succession before the first long sleep.
const MANY_POLLS: u32 = POLLS + 1_000;
const LONG_NAP: Duration = Duration::from_micros(250);
/// Polls in quick succession before the first of the longest sleeps: a second of long ones.
const MOST_POLLS: u32 = MANY_POLLS + 3_000;
const LONGEST_NAP: Duration = Duration::from_millis(2);

/// Redirects to this module those of the imports that the library has.
///
/// # Errors
/// A text that says why an import cannot be changed.
pub fn attach(image: &Image) -> Result<(), String> {
    let yielding: extern "C" fn() -> c_int = yielding;
    let receiving: unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int) -> ssize_t = receiving;
    let accepting: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int = accepting;
    let ours = [
        ("sched_yield", yielding as *const ()),
        ("recv", receiving as _),
        ("accept", accepting as _),
    ];
    for (name, target) in ours {
        if let Some(slot) = image.import(name) {
            crate::redirect::write_import(slot, target)?;
        }
    }
    Ok(())
}

thread_local! {
    /// Number of polls in quick succession, and when the last one returned.
    static LAST: Cell<(u32, Option<Instant>)> = const { Cell::new((0, None)) };
}

/// The time since the last poll returned; `None` before the first one. It must be taken before the
/// system call of a poll: `accept` makes a socket even if there is no peer, and `sched_yield` lasts
/// as long as others have the processor, so that both take longer than [`QUICK`].
fn since_last() -> Option<Duration> {
    LAST.get().1.map(|last| last.elapsed())
}

/// Counts a poll that found nothing to do and began `since` after the last one, and sleeps after
/// many.
fn idle(since: Option<Duration>) {
    let (count, _) = LAST.get();
    let count = match since {
        Some(time) if time < QUICK => count.saturating_add(1),
        Some(time) if time >= PREEMPTED => count,
        _ => 0,
    };
    let nap = match count {
        ..POLLS => None,
        POLLS..MANY_POLLS => Some(NAP),
        MANY_POLLS..MOST_POLLS => Some(LONG_NAP),
        MOST_POLLS.. => Some(LONGEST_NAP),
    };
    nap.into_iter().for_each(std::thread::sleep);
    LAST.set((count, Some(Instant::now())));
}

/// `sched_yield`, which cannot fail.
extern "C" fn yielding() -> c_int {
    let since = since_last();
    std::thread::yield_now();
    idle(since);
    0
}

/// `recv`.
///
/// # Safety
/// As for `recv`.
unsafe extern "C" fn receiving(
    socket: c_int,
    buffer: *mut c_void,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    let since = since_last();
    // SAFETY: the caller keeps the contract of `recv`.
    let result = unsafe { libc::recv(socket, buffer, size, flags) };
    if result < 0 {
        idle_if_none(since);
    }
    result
}

/// `accept`.
///
/// # Safety
/// As for `accept`.
unsafe extern "C" fn accepting(
    socket: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> c_int {
    let since = since_last();
    // SAFETY: the caller keeps the contract of `accept`.
    let result = unsafe { libc::accept(socket, address, size) };
    if result < 0 {
        idle_if_none(since);
    }
    result
}

/// Counts a failed system call as a poll if it failed because there was nothing to do; `errno`
/// keeps its value.
fn idle_if_none(since: Option<Duration>) {
    if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock {
        idle(since);
        // SAFETY: no precondition.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the address is that of this thread's variable.
        unsafe { errno.write(libc::EAGAIN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_with_nothing_to_do_sleeps() {
        let slept = |count, since| {
            LAST.set((count, None));
            let before = Instant::now();
            idle(Some(since));
            before.elapsed()
        };
        assert!(slept(POLLS - 1, Duration::ZERO) >= NAP, "polls came in quick succession");
        assert!(slept(MANY_POLLS, Duration::ZERO) >= LONG_NAP, "it has been idle for long");
        assert!(slept(MOST_POLLS, 2 * PREEMPTED) >= LONGEST_NAP, "it was only preempted");
        slept(MOST_POLLS, 2 * QUICK);
        assert_eq!(LAST.get().0, 0, "the thread had something to do");
    }

    #[test]
    fn a_slow_call_is_no_work() {
        LAST.set((0, None));
        let counts = || {
            let since = since_last();
            std::thread::sleep(2 * QUICK);
            idle(since);
            LAST.get().0 > 0
        };
        // The thread may lose the processor between two polls.
        assert!((0..100).any(|_| counts()), "the polls came in quick succession");
    }

    #[test]
    fn a_receive_that_finds_nothing_says_so() {
        use std::os::fd::AsRawFd;
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        LAST.set((POLLS, Some(Instant::now() + Duration::from_secs(60))));
        let mut buffer = [0_u8; 4];
        // SAFETY: the buffer has this size.
        let result = unsafe { receiving(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), 4, 0) };
        let error = io::Error::last_os_error();
        assert_eq!((result, error.raw_os_error()), (-1, Some(libc::EAGAIN)));
    }

    #[test]
    fn a_peer_that_has_not_come_is_none() {
        use std::os::fd::AsRawFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        LAST.set((POLLS, Some(Instant::now() + Duration::from_secs(60))));
        let none = std::ptr::null_mut();
        // SAFETY: no address is asked for.
        let result = unsafe { accepting(listener.as_raw_fd(), none, std::ptr::null_mut()) };
        let error = io::Error::last_os_error();
        assert_eq!((result, error.raw_os_error()), (-1, Some(libc::EAGAIN)));
    }
}
