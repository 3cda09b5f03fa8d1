// SPDX-License-Identifier: Apache-2.0
//! A descriptor, byte by byte: garbage except for the fields that are set.

use crate::offsets::{MOST_BYTES, NO, PARENT, RANK, Row, SIZE, TYPE_BYTES};
use core::ffi::CStr;

/// The bytes outside the fields that a descriptor sets: garbage, as under NCCL's shims.
pub const GARBAGE: u8 = 0xa5;

/// A descriptor of one version.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Descr {
    bytes: [u8; MOST_BYTES],
    v: usize,
    bit: u64,
    parent: u64,
    number: i32,
}

impl Descr {
    /// A descriptor of garbage with the fields that all events have; `version` is one of
    /// [`crate::VERSIONS`].
    #[must_use]
    pub fn new(version: usize, bit: u64, parent: u64, rank: i32) -> Descr {
        let v = version - 1;
        let mut descr = Descr { bytes: [GARBAGE; MOST_BYTES], v, bit, parent, number: 0 };
        let bytes = bit.to_le_bytes();
        descr.put(0, &bytes[..TYPE_BYTES[v]]);
        descr.put(PARENT, &parent.to_le_bytes());
        descr.put(RANK, &rank.to_le_bytes());
        descr
    }

    /// Bytes of the descriptor, as many as the version's structure has.
    #[must_use]
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[..SIZE[self.v]]
    }

    /// Its entry in the log: type, parent and the step's number.
    #[must_use]
    pub const fn facts(&self) -> (u64, u64, i32) {
        (self.bit, self.parent, self.number)
    }

    /// Writes bytes at an offset.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes a step's number, also for the log.
    pub fn put_step(&mut self, step: i32) {
        self.number = step;
        self.put(24, &step.to_le_bytes());
    }

    /// Writes a string's address; NULL for none.
    pub fn put_str(&mut self, at: usize, text: Option<&'static CStr>) {
        let address = text.map_or(0, |t| t.as_ptr().addr() as u64);
        self.put(at, &address.to_le_bytes());
    }

    /// Writes a field if the version has it.
    pub fn set(&mut self, row: &Row, bytes: &[u8]) {
        if row[self.v] != NO {
            self.put(row[self.v], bytes);
        }
    }

    /// Writes a name if the version has the field: a code in version 1, a string later.
    pub fn set_name(&mut self, row: &Row, text: Option<&'static CStr>, code: u8) {
        if self.v == 0 {
            self.set(row, &[code]);
        } else if row[self.v] != NO {
            self.put_str(row[self.v], text);
        }
    }

    /// Clears all bytes from the payload on.
    pub fn clear(&mut self) {
        self.bytes[24..].fill(0);
    }
}
