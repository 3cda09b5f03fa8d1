// SPDX-License-Identifier: Apache-2.0
//! Idle threads of NCCL leave the processor to others: imports of libnccl that they poll with lead
//! here.
//!
//! A proxy thread that has nothing to do calls `sched_yield` without end, and a thread that waits
//! for a socket calls `recv`, or `accept` for a peer, as those with a core of their own may. Here
//! ranks outnumber the cores, and more than half of a test machine's time went there. A thread that
//! has polled a number of times in quick succession sleeps for some microseconds, which to NCCL is
//! a call that took longer. One that has done so for a tenth of a second, as the ranks of a job
//! that hangs do, sleeps for longer: the threads of three ranks would take a core with their naps.

use crate::elf::Image;
use libc::{c_int, c_void, size_t, sockaddr, socklen_t, ssize_t};
use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

/// Polls in quick succession before the first sleep.
const POLLS: u32 = 64;
/// A thread that has worked for longer since its last poll is not idle.
const QUICK: Duration = Duration::from_micros(10);
/// Timers of a process fire some 50 us later than this.
const NAP: Duration = Duration::from_micros(20);
/// Polls in quick succession before the first long sleep.
const MANY_POLLS: u32 = POLLS + 1_000;
const LONG_NAP: Duration = Duration::from_micros(250);

/// Directs the imports here, those that the library has.
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
    /// Polls in quick succession, and when the last one returned.
    static LAST: Cell<(u32, Option<Instant>)> = const { Cell::new((0, None)) };
}

/// Notes a poll that found nothing to do, and sleeps if there were many. Whether it slept.
fn idle() -> bool {
    let (count, last) = LAST.get();
    let count = match last {
        Some(last) if last.elapsed() < QUICK => count.saturating_add(1),
        _ => 0,
    };
    let nap = match count {
        ..POLLS => None,
        POLLS..MANY_POLLS => Some(NAP),
        MANY_POLLS.. => Some(LONG_NAP),
    };
    nap.into_iter().for_each(std::thread::sleep);
    LAST.set((count, Some(Instant::now())));
    nap.is_some()
}

/// `sched_yield`, which cannot fail.
extern "C" fn yielding() -> c_int {
    if !idle() {
        std::thread::yield_now();
    }
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
    // SAFETY: the caller's.
    let result = unsafe { libc::recv(socket, buffer, size, flags) };
    if result < 0 {
        idle_if_none();
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
    // SAFETY: the caller's.
    let result = unsafe { libc::accept(socket, address, size) };
    if result < 0 {
        idle_if_none();
    }
    result
}

/// Notes a call of the system that failed, if it did because there was nothing, which it says
/// still.
fn idle_if_none() {
    if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock {
        idle();
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
        LAST.set((POLLS - 1, Some(Instant::now() + Duration::from_secs(60))));
        assert!(idle(), "polls came in quick succession");
        LAST.set((MANY_POLLS, Some(Instant::now() + Duration::from_secs(60))));
        let before = Instant::now();
        assert!(idle() && before.elapsed() >= LONG_NAP, "it has been idle for long");
        std::thread::sleep(2 * QUICK);
        assert!(!idle(), "the thread had something to do");
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
