// SPDX-License-Identifier: Apache-2.0
//! Lets idle threads of NCCL leave the processor to others: redirects the imports of libnccl with
//! which these threads poll.
//!
//! A proxy thread that has nothing to do calls `sched_yield` in a loop, and a thread that waits for
//! a socket calls `recv`, or `accept` for a peer, in a loop. This is fine for threads with a core
//! of their own, but in the tests ranks outnumber the cores, and this polling took more than half
//! of a test machine's time. Therefore a thread that has polled a number of times in quick
//! succession sleeps for some microseconds, which looks to NCCL like a call that took longer, and
//! the longer it has had nothing to do ([`nap`]), the longer it sleeps.

use crate::elf::Image;
use crate::util::nap;
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

/// Polls in quick succession.
#[derive(Clone, Copy)]
struct Polls {
    count: u32,
    /// When the first of them returned, and the last one.
    times: Option<(Instant, Instant)>,
}

thread_local! {
    static POLLED: Cell<Polls> = const { Cell::new(Polls { count: 0, times: None }) };
}

/// The time since the last poll returned; `None` before the first one. It must be taken before the
/// system call of a poll: `accept` makes a socket even if there is no peer, and `sched_yield` lasts
/// as long as others have the processor, so that both take longer than [`QUICK`].
fn since_last() -> Option<Duration> {
    POLLED.get().times.map(|(_, last)| last.elapsed())
}

/// Counts a poll that found nothing to do and began `since` after the last one, and sleeps after
/// many.
fn idle(since: Option<Duration>) {
    let Polls { count, times } = POLLED.get();
    let count = match since {
        Some(time) if time < QUICK => count.saturating_add(1),
        Some(time) if time >= PREEMPTED => count,
        _ => 0,
    };
    let first = times.map(|(first, _)| first).filter(|_| count > 0);
    if let Some(first) = first.filter(|_| count >= POLLS) {
        std::thread::sleep(nap(first.elapsed()));
    }
    let now = Instant::now();
    POLLED.set(Polls { count, times: Some((first.unwrap_or(now), now)) });
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
        let slept = |count, idle_ms, since| {
            let now = Instant::now();
            let first = now.checked_sub(Duration::from_millis(idle_ms)).unwrap();
            POLLED.set(Polls { count, times: Some((first, now)) });
            idle(Some(since));
            now.elapsed()
        };
        let ms = Duration::from_millis;
        assert!(slept(POLLS - 1, 64, Duration::ZERO) >= nap(ms(64)), "polls came quickly");
        assert!(slept(POLLS, 1000, 2 * PREEMPTED) >= nap(ms(1000)), "it was only preempted");
        slept(2 * POLLS, 1000, 2 * QUICK);
        let Polls { count, times } = POLLED.get();
        assert_eq!(count, 0, "the thread had something to do");
        assert!(times.is_some_and(|(first, last)| first == last), "it is idle from now on");
    }

    #[test]
    fn a_slow_call_is_no_work() {
        POLLED.set(Polls { count: 0, times: None });
        let counts = || {
            let since = since_last();
            std::thread::sleep(2 * QUICK);
            idle(since);
            POLLED.get().count > 0
        };
        // The thread may lose the processor between two polls.
        assert!((0..100).any(|_| counts()), "the polls came in quick succession");
    }

    #[test]
    fn a_receive_that_finds_nothing_says_so() {
        use std::os::fd::AsRawFd;
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let later = Instant::now() + Duration::from_secs(60);
        POLLED.set(Polls { count: POLLS, times: Some((later, later)) });
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
        let later = Instant::now() + Duration::from_secs(60);
        POLLED.set(Polls { count: POLLS, times: Some((later, later)) });
        let none = std::ptr::null_mut();
        // SAFETY: no address is asked for.
        let result = unsafe { accepting(listener.as_raw_fd(), none, std::ptr::null_mut()) };
        let error = io::Error::last_os_error();
        assert_eq!((result, error.raw_os_error()), (-1, Some(libc::EAGAIN)));
    }
}
