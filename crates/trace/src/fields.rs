// SPDX-License-Identifier: Apache-2.0
/*!
The places of a record's fields in its words. [`record_fields!`] declares them once and generates
the struct, the functions that pack and unpack it, and the [`Layout`] for the documentation and for
readers of other versions.

A field lies in one word, from its lowest bit on, and takes the bits of its type; an array takes
several words. Everything is inlined: a record is stored without a loop.
*/

use crate::handle::Handle;
use crate::kind::State;
use crate::string::StrId;
use crate::words::MAX_WORDS;

/// The meaning of a field's bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// A number.
    Unsigned,
    /// A number in two's complement; ranks.
    Signed,
    /// 1 for true.
    Flag,
    /// The number of a string of the process.
    Text,
    /// An event's handle.
    Handle,
}

/// A field of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldLayout {
    /// Its name in the code.
    pub name: &'static str,
    /// The word that it begins in.
    pub word: usize,
    /// The lowest of its bits there.
    pub shift: u32,
    /// Its number of bits.
    pub bits: u32,
    /// How many words it takes: more than one for an array of whole words.
    pub words: usize,
    /// The meaning of the bits.
    pub meaning: Meaning,
}

/// The words of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// How many words the record has.
    pub words: usize,
    /// Mask of the words that are coded as two 32-bit numbers: bit i for word i.
    pub halves: u16,
    /// The fields, without code and time stamp.
    pub fields: &'static [FieldLayout],
}

/// The type of a field.
pub(crate) trait Field: Sized {
    const BITS: u32;
    const WORDS: usize = 1;
    const MEANING: Meaning;

    /// Adds the field to words in which its bits are 0.
    fn put(&self, words: &mut [u64], word: usize, shift: u32);

    /// Reads the field from the words of a record.
    fn take(words: &[u64; MAX_WORDS], word: usize, shift: u32) -> Self;
}

/// Implements [`Field`] for a type, from its number of bits and the two conversions.
macro_rules! field {
    ($type:ty, $bits:literal, $meaning:ident, $to:expr, $from:expr) => {
        impl Field for $type {
            const BITS: u32 = $bits;
            const MEANING: Meaning = Meaning::$meaning;

            #[inline(always)]
            fn put(&self, words: &mut [u64], word: usize, shift: u32) {
                let to: fn(Self) -> u64 = $to;
                if let Some(word) = words.get_mut(word) {
                    *word |= to(*self) << shift;
                }
            }

            #[inline(always)]
            fn take(words: &[u64; MAX_WORDS], word: usize, shift: u32) -> Self {
                let from: fn(u64) -> Self = $from;
                from(words.get(word).map_or(0, |word| *word >> shift))
            }
        }
    };
}

field!(u8, 8, Unsigned, u64::from, |bits| bits.to_le_bytes()[0]);
field!(u16, 16, Unsigned, u64::from, low16);
field!(u32, 32, Unsigned, u64::from, low32);
field!(u64, 64, Unsigned, |number| number, |bits| bits);
field!(i32, 32, Signed, |rank| u64::from(rank.cast_unsigned()), |bits| low32(bits).cast_signed());
field!(bool, 1, Flag, u64::from, |bits| bits & 1 != 0);
field!(StrId, 16, Text, |text| u64::from(text.0), |bits| StrId(low16(bits)));
field!(State, 8, Unsigned, |state| u64::from(state.0), |bits| State(bits.to_le_bytes()[0]));
field!(Handle, 64, Handle, |handle| handle.0, Handle);

/// A number from 0 to 3 in two bits, and a third bit that is set for `Some`.
impl Field for Option<u8> {
    const BITS: u32 = 3;
    const MEANING: Meaning = Meaning::Unsigned;

    fn put(&self, words: &mut [u64], word: usize, shift: u32) {
        self.map_or(0, |number| 4 | number & 3).put(words, word, shift);
    }

    fn take(words: &[u64; MAX_WORDS], word: usize, shift: u32) -> Self {
        let bits = u8::take(words, word, shift);
        (bits & 4 != 0).then_some(bits & 3)
    }
}

impl<const N: usize> Field for [u64; N] {
    const BITS: u32 = 64;
    const WORDS: usize = N;
    const MEANING: Meaning = Meaning::Unsigned;

    fn put(&self, words: &mut [u64], word: usize, _: u32) {
        if let Some(to) = words.get_mut(word..word + N) {
            to.copy_from_slice(self);
        }
    }

    fn take(words: &[u64; MAX_WORDS], word: usize, _: u32) -> Self {
        std::array::from_fn(|at| words.get(word + at).copied().unwrap_or(0))
    }
}

const fn low16(bits: u64) -> u16 {
    let bytes = bits.to_le_bytes();
    u16::from_le_bytes([bytes[0], bytes[1]])
}

const fn low32(bits: u64) -> u32 {
    let bytes = bits.to_le_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Declares a struct with the place of each field: `(word, lowest bit)`.
///
/// `set` adds the fields to words in which only code, time stamp and the fields of all starts are
/// set; `get` reads them.
macro_rules! record_fields {
    (
        $(#[$about:meta])*
        $visible:vis struct $name:ident: $words:literal $(, halves $halves:literal)? {
            $( $(#[$doc:meta])* $field:ident: $type:ty = ($word:literal, $shift:literal), )*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible struct $name {
            $( $(#[$doc])* pub $field: $type, )*
        }

        impl $name {
            /// Its words.
            pub(crate) const LAYOUT: crate::fields::Layout = crate::fields::Layout {
                words: $words,
                halves: 0 $( | $halves )?,
                fields: &[$(
                    crate::fields::FieldLayout {
                        name: stringify!($field),
                        word: $word,
                        shift: $shift,
                        bits: <$type as crate::fields::Field>::BITS,
                        words: <$type as crate::fields::Field>::WORDS,
                        meaning: <$type as crate::fields::Field>::MEANING,
                    },
                )*],
            };

            /// Adds the fields to words in which their bits are 0.
            #[inline(always)]
            pub(crate) fn set(&self, words: &mut [u64; $words]) {
                $( crate::fields::Field::put(&self.$field, words, $word, $shift); )*
            }

            #[inline(always)]
            pub(crate) fn get(words: &[u64; crate::words::MAX_WORDS]) -> Self {
                $name { $( $field: crate::fields::Field::take(words, $word, $shift), )* }
            }
        }
    };
}
pub(crate) use record_fields;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::KINDS;
    use crate::record::{START, layout};

    /// The bits of each word that are in use besides the fields: code, time stamp and, in a start,
    /// communicator, handle and parent.
    fn taken(code: u8, layout: &Layout) -> [u64; MAX_WORDS] {
        let mut taken = [0; MAX_WORDS];
        taken[0] = 0xff;
        if code >= START {
            taken[0] |= 0xffff_0000;
            taken[1..layout.words.min(4)].fill(u64::MAX);
        }
        taken
    }

    #[test]
    fn each_field_has_its_own_bits_of_a_word_of_the_record() {
        let mut codes = 0;
        for code in 0..=u8::MAX {
            let Some((name, layout)) = layout(code) else { continue };
            codes += 1;
            let mut taken = taken(code, &layout);
            for field in layout.fields {
                let mask = if field.bits == 64 { u64::MAX } else { (1 << field.bits) - 1 };
                assert!(field.shift + field.bits <= 64, "{name}: {}", field.name);
                assert!(field.word + field.words <= layout.words, "{name}: {}", field.name);
                let words = taken.iter_mut().enumerate().skip(field.word).take(field.words);
                for (word, taken) in words {
                    assert_eq!(*taken & mask << field.shift, 0, "{name}: {}", field.name);
                    *taken |= mask << field.shift;
                    let crosses = field.shift < 32 && field.shift + field.bits > 32;
                    let is_halves = layout.halves >> word & 1 != 0;
                    assert!(!(crosses && is_halves), "{name}: {}", field.name);
                }
            }
        }
        assert_eq!(codes, 13 + KINDS - 1, "a step has no start");
    }
}
