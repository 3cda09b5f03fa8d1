// SPDX-License-Identifier: Apache-2.0
//! A slow or stalled link: delays the data that the process sends.
//!
//! libnccl's `send` resolves to the one here, since a program comes before libc (`build.rs` exports
//! it). If the link has no room it answers like a full socket, so that NCCL's threads continue
//! polling and the other links of the process's peers are unaffected. In a ring a rank sends its
//! data only to the next one, so its link is one edge.
//!
//! A slow link accepts a message when all of it would have arrived at the other end: a delay after
//! its last byte has left, one message after the other at the link's rate. So a transfer, which
//! NCCL considers complete when the socket has accepted it, lasts `delay + bytes / rate`. (A real
//! socket takes bytes long before they arrive, and hides the delay.)

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Messages of up to this size pass without delay: NCCL sends the size of a transfer as a message
/// of its own (`ncclNetSocketTest`, src/transport/net_socket.cc @v2.30.7-1), and its control
/// messages are equally short.
const SHORT: usize = 256;

static LINK: Mutex<Link> = Mutex::new(Link::new());
/// Whether the link is unlimited; then the lock is not taken.
static IS_FREE: AtomicBool = AtomicBool::new(true);

/// Limits the link to `mbps` megabytes a second, and delays each message by `delay`.
pub(crate) fn slow(mbps: u64, delay: Duration) {
    let mut link = lock();
    (link.mbps, link.delay) = (Some(mbps.max(1)), delay);
    IS_FREE.store(false, Relaxed);
}

/// Sends only `bytes` more.
pub(crate) fn stall(bytes: u64) {
    lock().left = Some(bytes);
    IS_FREE.store(false, Relaxed);
}

fn lock() -> MutexGuard<'static, Link> {
    LINK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The limits of the link.
struct Link {
    /// Megabytes a second; `None`: unlimited.
    mbps: Option<u64>,
    delay: Duration,
    /// Remaining bytes; `None`: unlimited.
    left: Option<u64>,
    /// When the last byte of all messages so far has left.
    free: Option<Instant>,
    /// The current message of each socket.
    messages: BTreeMap<libc::c_int, Message>,
}

/// A message that a slow link has not accepted completely.
struct Message {
    /// The address after its last byte: a call for the rest of it has the same.
    end: usize,
    /// Time at which the message arrives at the other end.
    due: Instant,
}

impl Link {
    const fn new() -> Self {
        Self {
            mbps: None,
            delay: Duration::ZERO,
            left: None,
            free: None,
            messages: BTreeMap::new(),
        }
    }

    /// Number of the `size` bytes at address `data` that the socket may send at `now`.
    fn room(&mut self, socket: libc::c_int, data: usize, size: usize, now: Instant) -> usize {
        let left = self.left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let end = data + size;
        let begun = self.messages.get(&socket).filter(|message| message.end == end);
        let due = match (begun, self.mbps) {
            (Some(message), _) => message.due,
            (None, Some(mbps)) if size > SHORT => {
                // A megabyte a second is a byte a microsecond.
                let time = Duration::from_nanos(size as u64 * 1000 / mbps);
                let free = self.free.map_or(now, |free| free.max(now)) + time;
                self.free = Some(free);
                let due = free + self.delay;
                self.messages.insert(socket, Message { end, due });
                due
            }
            _ => now,
        };
        if now < due { 0 } else { size.min(left) }
    }

    /// Notes that the socket accepted `sent` bytes up to the address `end`.
    fn sent(&mut self, socket: libc::c_int, sent: u64, end: usize) {
        self.left = self.left.map(|left| left.saturating_sub(sent));
        if self.messages.get(&socket).is_some_and(|message| message.end == end) {
            self.messages.remove(&socket);
        }
    }
}

/// `send` of libc, for everything in this process; see the module.
///
/// # Safety
/// As for libc's `send`.
#[unsafe(no_mangle)]
unsafe extern "C" fn send(
    socket: libc::c_int,
    data: *const libc::c_void,
    size: libc::size_t,
    flags: libc::c_int,
) -> libc::ssize_t {
    let call = |size: usize| {
        let (no_address, none) = (std::ptr::null::<libc::sockaddr>(), 0);
        // SAFETY: the caller's buffer has at least `size` bytes; no address is passed.
        unsafe { libc::sendto(socket, data, size, flags, no_address, none) }
    };
    if IS_FREE.load(Relaxed) || size == 0 {
        return call(size);
    }
    let mut link = lock();
    let room = link.room(socket, data.addr(), size, Instant::now());
    if room == 0 {
        // SAFETY: no precondition.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the address is that of this thread's own errno.
        unsafe { *errno = libc::EAGAIN };
        return -1;
    }
    let sent = call(room);
    if let Ok(bytes) = u64::try_from(sent) {
        link.sent(socket, bytes, data.addr() + sent.unsigned_abs());
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: usize = 0x1000;

    #[test]
    fn a_slow_link_takes_a_message_when_it_has_come() {
        let (mut link, start) = (Link::new(), Instant::now());
        let after = |us| start + Duration::from_micros(us);
        assert_eq!(link.room(3, DATA, 1 << 20, start), 1 << 20, "as fast as it gets");
        (link.mbps, link.delay) = (Some(16), Duration::from_millis(1));
        assert_eq!(link.room(3, DATA, SHORT, start), SHORT, "short messages pass");
        assert_eq!(link.room(3, DATA, 16_000, start), 0);
        assert_eq!(link.room(3, DATA, 16_000, after(1999)), 0);
        assert_eq!(link.room(3, DATA, 16_000, after(2000)), 16_000, "the delay and 1 ms");
        // A full socket accepts a part; the rest follows at once.
        link.sent(3, 6000, DATA + 6000);
        assert_eq!(link.room(3, DATA + 6000, 10_000, after(2000)), 10_000);
        link.sent(3, 10_000, DATA + 16_000);
        // The same buffer a second time is another message.
        assert_eq!(link.room(3, DATA, 16_000, after(3000)), 0);
        // A message of another socket leaves after this one.
        assert_eq!(link.room(4, DATA, 16_000, after(3500)), 0);
        assert_eq!(link.room(3, DATA, 16_000, after(5000)), 16_000);
        assert_eq!(link.room(4, DATA, 16_000, after(5999)), 0);
        assert_eq!(link.room(4, DATA, 16_000, after(6000)), 16_000);
    }

    #[test]
    fn a_stalled_link_takes_so_much_and_no_more() {
        let (mut link, now) = (Link::new(), Instant::now());
        link.left = Some(7);
        assert_eq!(link.room(3, DATA, 4, now), 4);
        link.sent(3, 4, DATA + 4);
        assert_eq!(link.room(3, DATA, 100, now), 3);
        link.sent(3, 3, DATA + 3);
        assert_eq!(link.room(3, DATA, 100, now + Duration::from_secs(9)), 0);
    }
}
