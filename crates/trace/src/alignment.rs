// SPDX-License-Identifier: Apache-2.0
//! The alignment of an operation's buffers. NCCL's kernels copy 16 bytes at a time if the addresses
//! are aligned, else byte by byte.

use crate::bytes::low;
use crate::fields::{Field, Meaning};
use crate::words::MAX_WORDS;

/// The largest power of two that divides the addresses of an operation's buffers, as its exponent
/// plus one: in the record 0 means that the writer did not record it, and 31 that NCCL passed no
/// address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Alignment(u8);

/// The bit at which the search for the lowest set bit ends: 1 GiB.
const END: u32 = 1 << 30;
const MASK: u8 = 31;

impl Alignment {
    /// The alignment of several addresses, given as their bitwise or. Null pointers have no effect.
    #[must_use]
    #[inline(always)]
    pub const fn of(addresses: u64) -> Alignment {
        let [exponent, ..] = (low(addresses) | END).trailing_zeros().to_le_bytes();
        Alignment(exponent + 1)
    }

    /// The alignment in bytes; `None` if it is unknown, or 1 GiB and more.
    #[must_use]
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            0 | MASK.. => None,
            number => Some(1 << (number - 1)),
        }
    }
}

impl Field for Alignment {
    const BITS: u32 = 5;
    const MEANING: Meaning = Meaning::Unsigned;

    #[inline(always)]
    fn put(&self, words: &mut [u64], word: usize, shift: u32) {
        self.0.put(words, word, shift);
    }

    #[inline(always)]
    fn take(words: &[u64; MAX_WORDS], word: usize, shift: u32) -> Self {
        Alignment(u8::take(words, word, shift) & MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_buffer_counts() {
        let of = |send: u64, receive: u64| Alignment::of(send | receive).bytes();
        assert_eq!(of(0x7f00_0000_1000, 0x7f00_0000_2010), Some(16));
        assert_eq!(of(0x7f00_0000_1000, 0), Some(4096), "no send buffer");
        assert_eq!(of(0x7f00_0000_1001, 0x10), Some(1));
        assert_eq!(of(1 << 29, 0), Some(1 << 29));
        assert_eq!((of(0, 0), of(1 << 30, 0)), (None, None));
        assert_eq!(Alignment::default().bytes(), None);
    }

    #[test]
    fn a_field_has_five_bits() {
        let mut words = [0; MAX_WORDS];
        let alignment = Alignment::of(0);
        alignment.put(&mut words, 3, 9);
        assert_eq!(words[3], 31 << 9);
        words[3] = u64::MAX;
        assert_eq!(Alignment::take(&words, 3, 9), alignment);
    }
}
