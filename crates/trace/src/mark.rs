// SPDX-License-Identifier: Apache-2.0
//! Marks that the application, or a client of the control socket, puts between the events.

use crate::fields::{Field, Meaning, record_fields};
use crate::kind::EventKind;
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
        /// operation is recorded; for [`MarkKind::Mask`] the mask, and
        /// bit 32 if it is as requested.
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
    /// NCCL's activation mask was changed by others, or is as requested again. Its time is the
    /// last at which the change may not have happened yet: at most 0.1 s early.
    Mask,
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
            MarkKind::Mask => 5,
            MarkKind::Other(number) => number,
        }
    }

    const fn from_number(number: u8) -> MarkKind {
        match number {
            1 => MarkKind::Start,
            2 => MarkKind::Stop,
            3 => MarkKind::Note,
            4 => MarkKind::Step,
            5 => MarkKind::Mask,
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

/// Bit of the value of [`MarkKind::Mask`]: the mask is as the plugin requested it.
const IS_REQUESTED: u64 = 1 << 32;

impl Mark {
    /// The value of a mark [`MarkKind::Mask`].
    #[must_use]
    pub fn mask_value(mask: u32, is_requested: bool) -> u64 {
        u64::from(mask) | if is_requested { IS_REQUESTED } else { 0 }
    }

    /// Of a mark [`MarkKind::Mask`]: the activation mask that others set, or `None` if it is as
    /// requested again. `None` for other marks.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the mask is in the low half")]
    pub fn others_mask(&self) -> Option<u32> {
        let is_others = self.what == MarkKind::Mask && self.value & IS_REQUESTED == 0;
        is_others.then_some(self.value as u32)
    }

    /// Of a mark [`MarkKind::Mask`]: whether others turned kernel events off. From then on
    /// operations may have none, although they were requested.
    #[must_use]
    pub fn ends_kernels(&self) -> bool {
        self.others_mask().is_some_and(|mask| mask & EventKind::KernelCh.bit() == 0)
    }

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
