// SPDX-License-Identifier: Apache-2.0
//! Reads from a connection with one limit for all of them together, so that a peer that sends a
//! byte per second does not stay.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::Instant;

/// A stream of which all reads together end at the deadline, with [`io::ErrorKind::TimedOut`] or
/// the system's error for it.
pub(crate) struct Timed<'a> {
    pub(crate) stream: &'a TcpStream,
    pub(crate) deadline: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}
