// SPDX-License-Identifier: Apache-2.0
/*!
What all records share: their codes, the first words, and the trait of their consumers.

[`crate::record`] and the modules of single records declare the meaning of each record's words.
*/

/// The longest record, in words.
pub const MAX_WORDS: usize = 11;
/// Code of a stop record: `word 2` is the handle.
pub const STOP: u8 = 1;
/// Code of a state record: `a` is the state, `c` a small argument, words 2 and 3 the handle and an
/// argument.
pub const STATE: u8 = 2;
/// Code of a step record whose durations fit 32 bits.
pub const STEP: u8 = 3;
/// Code of a step record with 64-bit durations: a step that stalled for long.
pub const STEP_LONG: u8 = 4;
/// Code of a clock synchronisation: see [`crate::ClockSync`].
pub const CLOCK_SYNC: u8 = 5;
/// Code of a mark: see [`crate::Mark`].
pub const MARK: u8 = 6;
/// Code of [`crate::progress::Progress`].
pub const PROGRESS: u8 = 7;
/// Code of [`crate::progress::Checkpoints`].
pub const CHECKPOINTS: u8 = 8;
/// Code of [`crate::progress::OpProgress`].
pub const OP_PROGRESS: u8 = 9;
/// Code of [`crate::progress::Thread`].
pub const THREAD: u8 = 10;
/// Code of [`crate::progress::Shortage`].
pub const SHORTAGE: u8 = 11;
/// Code of [`crate::pairs::PairCount`].
pub const PAIR_COUNT: u8 = 12;
/// Code of [`crate::progress::Setup`].
pub const SETUP: u8 = 13;
/// Codes `START + kind` are start records, for up to [`crate::kind::MOST_KINDS`] kinds.
pub const START: u8 = 0x10;

/// Durations in step records are in ticks shifted right by this (6 ns at 2.6 GHz, 26 s of range).
pub const STEP_SHIFT: u32 = 4;

/// Takes the words of one record. The number of words is a constant at each call, so that a lane
/// can store them without a loop.
pub trait Sink {
    /// The result of [`Sink::put`].
    type Out;

    /// Takes the words.
    fn put<const N: usize>(self, words: [u64; N]) -> Self::Out;
}

/// A record's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    words: [u64; MAX_WORDS],
    len: usize,
}

impl Packed {
    /// The words of the record.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        self.words.get(..self.len).unwrap_or(&self.words)
    }
}

/// A [`Sink`] that returns the words as a [`Packed`].
pub(crate) struct Pack;

impl Sink for Pack {
    type Out = Packed;

    fn put<const N: usize>(self, given: [u64; N]) -> Packed {
        let mut words = [0; MAX_WORDS];
        for (word, given) in words.iter_mut().zip(given) {
            *word = given;
        }
        Packed { words, len: N }
    }
}

#[inline(always)]
pub(crate) const fn head(code: u8, a: u8, b: u16, c: u32) -> u64 {
    code as u64 | (a as u64) << 8 | (b as u64) << 16 | (c as u64) << 32
}

#[inline(always)]
pub(crate) const fn halves(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}
