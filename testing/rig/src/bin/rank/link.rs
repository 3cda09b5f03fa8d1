// SPDX-License-Identifier: Apache-2.0
//! A slow or stalled link: what the process sends is held back.
//!
//! libnccl's `send` resolves to the one here, since a program comes before libc (`build.rs` exports
//! it). Where the link has no room it answers as a full socket does, so that NCCL's threads go on
//! polling and the other links of the process's peers are untouched. In a ring a rank sends its
//! data to the next one only: its link is one edge.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most that a slow link takes at once, in bytes.
const PIECE: usize = 16 << 10;

/// Megabytes a second; `u64::MAX`: as fast as it gets.
static RATE: AtomicU64 = AtomicU64::new(u64::MAX);
/// Bytes that still get through; `u64::MAX`: all.
static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);
/// When a slow link is free again; held while a piece is sent.
static FREE: Mutex<Option<Instant>> = Mutex::new(None);

/// From now on sends no more than `mbps` megabytes a second.
pub(crate) fn slow(mbps: u64) {
    RATE.store(mbps.max(1), Relaxed);
}

/// From now on sends `bytes` more, and then nothing.
pub(crate) fn stall(bytes: u64) {
    LEFT.store(bytes, Relaxed);
}

/// What a call may do.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    /// Send up to so many bytes.
    Bytes(usize),
    Full,
}

/// The room for `size` bytes at `now`; takes it.
fn take(free: &mut Option<Instant>, now: Instant, size: usize) -> Room {
    let (rate, left) = (RATE.load(Relaxed), LEFT.load(Relaxed));
    let size = size.min(usize::try_from(left).unwrap_or(usize::MAX));
    if size == 0 || free.is_some_and(|free| now < free) {
        return Room::Full;
    }
    if rate == u64::MAX {
        return Room::Bytes(size);
    }
    let size = size.min(PIECE);
    // A megabyte a second is a byte a microsecond.
    *free = now.checked_add(Duration::from_nanos(size as u64 * 1000 / rate));
    Room::Bytes(size)
}

/// `send` of libc, for everything in this process; see the module.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn send(
    socket: libc::c_int,
    data: *const libc::c_void,
    size: libc::size_t,
    flags: libc::c_int,
) -> libc::ssize_t {
    let call = |size: usize| {
        let (nobody, none) = (std::ptr::null::<libc::sockaddr>(), 0);
        // SAFETY: the caller's promise for `size` bytes or more; there is no address.
        unsafe { libc::sendto(socket, data, size, flags, nobody, none) }
    };
    let is_free = RATE.load(Relaxed) == u64::MAX && LEFT.load(Relaxed) == u64::MAX;
    if is_free || size == 0 {
        return call(size);
    }
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let Room::Bytes(room) = take(&mut free, Instant::now(), size) else {
        // SAFETY: no precondition.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the address is that of this thread's own errno.
        unsafe { *errno = libc::EAGAIN };
        return -1;
    };
    let sent = call(room);
    if LEFT.load(Relaxed) != u64::MAX {
        LEFT.fetch_sub(u64::try_from(sent).unwrap_or(0), Relaxed);
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test for both: the link is the process's.
    #[test]
    fn a_link_is_slow_and_then_stalls() {
        let (mut free, now) = (None, Instant::now());
        assert_eq!(take(&mut free, now, 1 << 20), Room::Bytes(1 << 20));
        slow(16);
        assert_eq!(take(&mut free, now, 1 << 20), Room::Bytes(PIECE));
        assert_eq!(take(&mut free, now, 1), Room::Full, "the piece takes a millisecond");
        let later = now + Duration::from_micros(1024);
        assert_eq!(take(&mut free, later, 100), Room::Bytes(100));
        stall(7);
        let later = later + Duration::from_millis(1);
        assert_eq!(take(&mut free, later, 100), Room::Bytes(7));
        stall(0);
        assert_eq!(take(&mut free, later + Duration::from_secs(9), 100), Room::Full);
    }
}
