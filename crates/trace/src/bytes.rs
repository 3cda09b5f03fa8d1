// SPDX-License-Identifier: Apache-2.0
/*!
Numbers as bytes: LEB128, zigzag differences, and words that are read and written without alignment.
[`Out`] writes and [`In`] reads a coding; [`u16_at`] and similar functions read one number at a
fixed offset.

Both move eight bytes at a time and use only some of them, because a loop over bytes would cost more
than the rest of the coding.
*/

/// Zigzag coding of a 64-bit difference: small differences of both signs become small numbers.
#[inline(always)]
pub(crate) const fn zigzag(difference: u64) -> u64 {
    let signed = difference.cast_signed();
    (signed << 1 ^ signed >> 63).cast_unsigned()
}

/// The inverse of [`zigzag`].
#[inline(always)]
pub(crate) const fn unzigzag(number: u64) -> u64 {
    number >> 1 ^ (number & 1).wrapping_neg()
}

/// Zigzag coding of a 32-bit difference.
#[inline(always)]
pub(crate) const fn zigzag32(difference: u32) -> u32 {
    let signed = difference.cast_signed();
    (signed << 1 ^ signed >> 31).cast_unsigned()
}

/// The inverse of [`zigzag32`].
#[inline(always)]
pub(crate) const fn unzigzag32(number: u32) -> u32 {
    number >> 1 ^ (number & 1).wrapping_neg()
}

/// The low half of a word.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "it is meant")]
pub(crate) const fn low(word: u64) -> u32 {
    word as u32
}

/// The high half of a word.
#[inline(always)]
pub(crate) const fn high(word: u64) -> u32 {
    low(word >> 32)
}

/// Writes into a byte slice. Bytes that do not fit are left out but counted, so the caller must
/// provide the room and eight bytes more.
#[derive(Debug)]
pub(crate) struct Out<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) at: usize,
}

impl<'a> Out<'a> {
    /// Writes to `bytes` from `at` on.
    pub(crate) const fn new(bytes: &'a mut [u8], at: usize) -> Out<'a> {
        Out { bytes, at }
    }

    /// Appends the lowest `len` bytes of a word, at most eight. It stores all eight, so later bytes
    /// of the slice are overwritten.
    #[inline(always)]
    pub(crate) fn word(&mut self, word: u64, len: usize) {
        if let Some(to) = self.bytes.get_mut(self.at..self.at + 8) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.at += len;
    }

    /// Replaces a byte that is already written.
    #[inline(always)]
    pub(crate) fn set(&mut self, at: usize, byte: u8) {
        if let Some(to) = self.bytes.get_mut(at) {
            *to = byte;
        }
    }

    /// Appends a number in LEB128. Most numbers take one or two bytes.
    #[inline(always)]
    pub(crate) fn number(&mut self, value: u64) {
        if value < 1 << 7 {
            self.word(value, 1);
        } else if value < 1 << 14 {
            self.word(value & 0x7f | 0x80 | value >> 7 << 8, 2);
        } else if value < 1 << 21 {
            let low = value & 0x7f | 0x80 | (value >> 7 & 0x7f | 0x80) << 8;
            self.word(low | value >> 14 << 16, 3);
        } else {
            self.long_number(value);
        }
    }

    #[inline(never)]
    fn long_number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.word(value & 0x7f | 0x80, 1);
            value >>= 7;
        }
        self.word(value, 1);
    }
}

/// Reads a byte slice, with zeros after its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct In<'a> {
    bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> In<'a> {
    /// Starts at the first of `bytes`.
    pub(crate) const fn new(bytes: &'a [u8]) -> In<'a> {
        In { bytes, at: 0 }
    }

    /// Whether more bytes were read than the slice has.
    #[inline(always)]
    pub(crate) const fn is_beyond(&self) -> bool {
        self.at > self.bytes.len()
    }

    /// The word that begins `ahead` bytes after the current position, which does not change.
    #[inline(always)]
    pub(crate) fn peek(&self, ahead: usize) -> u64 {
        let from = self.at.saturating_add(ahead);
        match self.bytes.get(from..).and_then(<[u8]>::first_chunk) {
            Some(word) => u64::from_le_bytes(*word),
            None => self.peek_last(from),
        }
    }

    #[cold]
    fn peek_last(&self, from: usize) -> u64 {
        let rest = self.bytes.get(from..).unwrap_or(&[]);
        rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
    }

    #[inline(always)]
    pub(crate) fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    /// Reads a number in LEB128. Bits beyond 64 are ignored.
    #[inline(always)]
    pub(crate) fn number(&mut self) -> u64 {
        let word = self.peek(0);
        if word & 0x80 == 0 {
            self.at += 1;
            return word & 0x7f;
        }
        if word & 0x8000 == 0 {
            self.at += 2;
            return word & 0x7f | word >> 1 & 0x7f << 7;
        }
        self.long_number()
    }

    #[inline(never)]
    fn long_number(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte();
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
}

/// The little-endian `u16` at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The little-endian `u32` at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The little-endian `u64` at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(numbers in prop::collection::vec((any::<u64>(), 0..64), 0..20)) {
            let numbers: Vec<u64> = numbers.iter().map(|&(bits, by)| bits >> by).collect();
            let mut bytes = vec![0xff; 10 * numbers.len() + 8];
            let mut out = Out::new(&mut bytes, 0);
            numbers.iter().for_each(|&number| out.number(number));
            let end = out.at;
            let mut from = In::new(&bytes[..end]);
            for number in numbers {
                prop_assert_eq!(from.number(), number);
            }
            prop_assert!(from.at == end && !from.is_beyond());
            from.byte();
            prop_assert!(from.is_beyond());
        }

        #[test]
        fn differences_come_back(a in any::<u64>(), b in any::<u64>(), by in 0..64) {
            let difference = a.wrapping_sub(b) >> by;
            prop_assert_eq!(unzigzag(zigzag(difference)), difference);
            prop_assert_eq!(unzigzag32(zigzag32(low(difference))), low(difference));
            prop_assert_eq!(zigzag(1u64.wrapping_neg()), 1);
        }
    }
}
