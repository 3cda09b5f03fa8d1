// SPDX-License-Identifier: Apache-2.0
//! A hash map for handles and other small numbers, which an attacker cannot choose.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map without the cost of a keyed hash.
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// A hasher that does one multiplication per word.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u8(&mut self, x: u8) {
        self.write_u64(x.into());
    }

    fn write_u16(&mut self, x: u16) {
        self.write_u64(x.into());
    }

    fn write_u32(&mut self, x: u32) {
        self.write_u64(x.into());
    }

    fn write_i32(&mut self, x: i32) {
        self.write_u64(x.cast_unsigned().into());
    }

    fn write_usize(&mut self, x: usize) {
        self.write_u64(x as u64);
    }

    // Called for the discriminant of an enum.
    fn write_isize(&mut self, x: isize) {
        self.write_u64(x.cast_unsigned() as u64);
    }

    fn write_u64(&mut self, x: u64) {
        let product = (self.0 ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The map uses the low bits for the index, which a multiplication mixes least.
        self.0 = product ^ product >> 32;
    }
}
