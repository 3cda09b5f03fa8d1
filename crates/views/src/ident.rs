// SPDX-License-Identifier: Apache-2.0
//! Numbers that are the same in each export of a recording, and different between recordings.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash that is built up part by part; the order of the parts matters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hash(u64);

/// A map by numbers that an attacker cannot choose, without the cost of a keyed hash.
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Hash>>;

impl Hasher for Hash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        *self = self.number(number);
    }
}

impl Hash {
    /// A hash for `kind`; the same parts with another `kind` give another number.
    pub(crate) fn new(kind: &str) -> Hash {
        Hash(0xcbf2_9ce4_8422_2325).text(kind)
    }

    pub(crate) fn number(self, number: u64) -> Hash {
        // The finaliser of SplitMix64 on the sum: it is cheap, and every bit of the input affects
        // every bit of the output.
        let mut x = self.0.wrapping_add(number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Hash(x ^ (x >> 31))
    }

    pub(crate) fn rank(self, rank: i32) -> Hash {
        self.number(u64::from(rank.cast_unsigned()))
    }

    pub(crate) fn text(self, text: &str) -> Hash {
        text.bytes().fold(self, |hash, byte| hash.number(u64::from(byte))).number(text.len() as u64)
    }

    /// The number, never 0: 0 is "none" in most formats.
    pub(crate) fn id(self) -> u64 {
        self.0.max(1)
    }

    /// The number in 32 bits, never 0.
    pub(crate) fn id32(self) -> u32 {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d]).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_kind_and_length_matter() {
        let ids = [
            Hash::new("a").number(1).number(2),
            Hash::new("a").number(2).number(1),
            Hash::new("b").number(1).number(2),
            Hash::new("a").text("bc").text("d"),
            Hash::new("a").text("b").text("cd"),
            Hash::new("a").rank(-1),
        ]
        .map(Hash::id);
        for (at, id) in ids.iter().enumerate() {
            assert!(!ids[at + 1..].contains(id));
        }
    }
}
