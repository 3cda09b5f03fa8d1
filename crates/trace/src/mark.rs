// SPDX-License-Identifier: Apache-2.0
//! What the application, or whoever controls the recording, puts between the events.

use crate::define::StrId;
use crate::record::{MARK, Sink, head};

/// A moment that means something to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When, in ticks.
    pub ticks: u64,
    /// What.
    pub what: What,
    /// Its text, for [`What::Note`].
    pub name: StrId,
    /// Its number: the step of [`What::Step`]; of [`What::Start`] every how many-th operation is
    /// recorded.
    pub value: u64,
}

/// The kind of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
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

impl What {
    const fn number(self) -> u8 {
        match self {
            What::Start => 1,
            What::Stop => 2,
            What::Note => 3,
            What::Step => 4,
            What::Other(number) => number,
        }
    }

    const fn from_number(number: u8) -> What {
        match number {
            1 => What::Start,
            2 => What::Stop,
            3 => What::Note,
            4 => What::Step,
            other => What::Other(other),
        }
    }
}

impl Mark {
    /// Gives the record's words to `sink`.
    #[inline(always)]
    pub fn put<S: Sink>(&self, sink: S) -> S::Out {
        sink.put(self.words())
    }

    /// The record's words: `a` of word 0 is what it is, `b` the name; word 2 is the number.
    #[must_use]
    #[inline(always)]
    pub const fn words(&self) -> [u64; 3] {
        [head(MARK, self.what.number(), self.name.0, 0), self.ticks, self.value]
    }

    pub(crate) const fn unpack([first, ticks, value]: [u64; 3]) -> Mark {
        let bytes = first.to_le_bytes();
        Mark {
            ticks,
            what: What::from_number(bytes[1]),
            name: StrId(u16::from_le_bytes([bytes[2], bytes[3]])),
            value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn a_mark_comes_back() {
        for number in 0..=255 {
            let what = What::from_number(number);
            let mark = Mark { ticks: 7, what, name: StrId(0xfffe), value: u64::MAX };
            assert_eq!(Record::unpack(&mark.words()), Some(Record::Mark(mark)));
        }
    }
}
