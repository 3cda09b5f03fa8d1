// SPDX-License-Identifier: Apache-2.0
//! The user at the other end of a Unix socket, and waiting for any of several sockets.

use core::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The effective user id of this process.
pub(crate) fn user() -> u32 {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// The user id of the connected process.
pub(crate) fn user_of(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: the descriptor is open, and the buffer is valid for `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
}

/// Sleep if the system call for waiting fails.
const REFUSED: Duration = Duration::from_millis(100);

/// Waits until one of the sockets is readable or closed, or `longest` has passed. May return early.
pub(crate) fn wait_for(any: &[BorrowedFd<'_>], longest: Option<Duration>) {
    let entry =
        |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut entries: Vec<libc::pollfd> = any.iter().map(entry).collect();
    let count = libc::nfds_t::try_from(entries.len()).unwrap_or(0);
    let longest = longest.map_or(-1, |d| c_int::try_from(d.as_millis()).unwrap_or(c_int::MAX));
    // SAFETY: the descriptors are open, and there are `count` entries.
    if unsafe { libc::poll(entries.as_mut_ptr(), count, longest) } < 0 {
        // Too many descriptors, or no memory: retrying at once would keep a processor busy.
        crate::sys::wake::pause(REFUSED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::time::Instant;

    #[test]
    fn a_wait_that_the_system_refuses_takes_time() {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is valid to write to.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        if limit.rlim_cur > 1 << 22 {
            return;
        }
        let (one, _other) = UnixStream::pair().unwrap();
        let begin = Instant::now();
        wait_for(&[one.as_fd()], Some(Duration::ZERO));
        assert!(begin.elapsed() < REFUSED);
        let too_many = usize::try_from(limit.rlim_cur).unwrap() + 1;
        wait_for(&vec![one.as_fd(); too_many], None);
        assert!(begin.elapsed() >= REFUSED);
    }
}
