// SPDX-License-Identifier: Apache-2.0
//! Marks that the application, or a client of the control socket, puts between the events.

use crate::fields::{Field, Meaning, record_fields};
use crate::string::StrId;
use crate::words::{MARK, MAX_WORDS, Sink};

record_fields! {
    /// A moment that the application or a user marked.
    pub struct Mark: 3 {
        /// When, in ticks.
        ticks: u64 = (1, 0),
        /// Its kind.
        what: MarkKind = (0, 8),
        /// Its text, for [`MarkKind::Note`].
        name: StrId = (0, 16),
        /// Its number: the step of [`MarkKind::Step`]; for [`MarkKind::Start`] N if every Nth
        /// operation is recorded.
        value: u64 = (2, 0),
    }
}

/// What happened at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// Operations issued from here on are recorded.
    Start,
    /// Operations issued from here on are left out.
    Stop,
    /// A text (`ncclscope_mark`).
    Note,
    /// A training step begins (`ncclscope_set_step`).
    Step,
    /// A number that this version does not know.
    Other(u8),
}

impl MarkKind {
    const fn number(self) -> u8 {
        match self {
            MarkKind::Start => 1,
            MarkKind::Stop => 2,
            MarkKind::Note => 3,
            MarkKind::Step => 4,
            MarkKind::Other(number) => number,
        }
    }

    const fn from_number(number: u8) -> MarkKind {
        match number {
            1 => MarkKind::Start,
            2 => MarkKind::Stop,
            3 => MarkKind::Note,
            4 => MarkKind::Step,
            other => MarkKind::Other(other),
        }
    }
}

impl Field for MarkKind {
    const BITS: u32 = 8;
    const MEANING: Meaning = Meaning::Unsigned;

    #[inline(always)]
    fn put(&self, words: &mut [u64], word: usize, shift: u32) {
        self.number().put(words, word, shift);
    }

    #[inline(always)]
    fn take(words: &[u64; MAX_WORDS], word: usize, shift: u32) -> Self {
        MarkKind::from_number(u8::take(words, word, shift))
    }
}

impl Mark {
    /// Passes the record's words to `sink`.
    #[inline(always)]
    pub fn put<S: Sink>(&self, sink: S) -> S::Out {
        sink.put(self.words())
    }

    /// The record's words.
    #[must_use]
    #[inline(always)]
    pub fn words(&self) -> [u64; 3] {
        let mut words = [MARK.into(), 0, 0];
        self.set(&mut words);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn a_mark_comes_back() {
        for number in 0..=255 {
            let what = MarkKind::from_number(number);
            let mark = Mark { ticks: 7, what, name: StrId(0xfffe), value: u64::MAX };
            assert_eq!(Record::unpack(&mark.words()), Some(Record::Mark(mark)));
        }
    }
}
