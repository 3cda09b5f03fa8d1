// SPDX-License-Identifier: Apache-2.0
//! The network step: one transfer of a ProxyOp, stored as one record.

use crate::fields::record_fields;
use crate::words::{MAX_WORDS, Pack, Packed, STEP, STEP_LONG, Sink, halves, head};

/// Which states a step went through, as bits of [`Step::flags`].
pub mod step_flags {
    /// A send (SendGPUWait, SendPeerWait, SendWait); otherwise a receive.
    pub const IS_SEND: u8 = 1;
    /// The step was stopped; otherwise its operation ended first.
    pub const STOPPED: u8 = 2;
    /// The first state (SendGPUWait, RecvWait) was recorded; `d0` is its time.
    pub const FIRST: u8 = 4;
    /// The second state (SendPeerWait, RecvFlushWait) was recorded; `d1` is its time.
    pub const SECOND: u8 = 8;
    /// The third state (SendWait, RecvGPUWait) was recorded; `d2` is its time.
    pub const THIRD: u8 = 16;
    /// `size` was given by NCCL.
    pub const SIZED: u8 = 32;
}

/// A network step: one complete transfer of a ProxyOp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Step {
    /// When the step started, in ticks.
    pub ticks: u64,
    /// See [`step_flags`].
    pub flags: u8,
    /// How often the second state was recorded again, saturating: polls of a peer not ready.
    pub repeats: u16,
    /// NCCL's step number within the operation.
    pub step: u32,
    /// [`crate::Handle::op_ref`] of the ProxyOp, which started on the same lane.
    pub op_ref: u32,
    /// Bytes transferred, where [`step_flags::SIZED`].
    pub size: u32,
    /// Ticks from the start to the first, second and third state, in units of
    /// 2^[`crate::record::STEP_SHIFT`].
    pub states: [u64; 3],
    /// Ticks from the start to the stop (or to the operation's stop), same unit.
    pub end: u64,
}

record_fields! {
    /// A step whose durations fit 32 bits.
    pub(crate) struct Short: 5, halves 0b1_1100 {
        flags: u8 = (0, 8),
        repeats: u16 = (0, 16),
        step: u32 = (0, 32),
        op_ref: u32 = (2, 0),
        size: u32 = (2, 32),
        first: u32 = (3, 0),
        second: u32 = (3, 32),
        third: u32 = (4, 0),
        end: u32 = (4, 32),
    }
}

// `Step::short` contains a hand-written copy of this function.
const _: fn(&Short, &mut [u64; 5]) = Short::set;

record_fields! {
    /// A step that stalled for long.
    pub(crate) struct Long: 7, halves 0b100 {
        flags: u8 = (0, 8),
        repeats: u16 = (0, 16),
        step: u32 = (0, 32),
        op_ref: u32 = (2, 0),
        size: u32 = (2, 32),
        states: [u64; 3] = (3, 0),
        end: u64 = (6, 0),
    }
}

impl Step {
    /// The record's words.
    #[must_use]
    pub fn pack(&self) -> Packed {
        self.put(Pack)
    }

    /// Passes the record's words to `sink`, in the short form if every duration fits 32 bits.
    #[inline(always)]
    pub fn put<S: Sink>(&self, sink: S) -> S::Out {
        match self.short() {
            Some(words) => sink.put(words),
            None => self.put_long(sink),
        }
    }

    /// The words of the short form, if every duration fits 32 bits.
    #[must_use]
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the short form is chosen when all fit")]
    pub fn short(&self) -> Option<[u64; 5]> {
        let Step { ticks, flags, repeats, step, op_ref, size, states, end } = *self;
        let [first, second, third] = states;
        if (first | second | third | end) >> 32 != 0 {
            return None;
        }
        // Written by hand: with the declaration's order the compiler emits four more instructions,
        // in the hottest callback. A test checks that both are equal.
        let w0 = head(STEP, flags, repeats, step);
        let (w2, w3) = (halves(op_ref, size), halves(first as u32, second as u32));
        Some([w0, ticks, w2, w3, halves(third as u32, end as u32)])
    }

    #[cold]
    #[inline(never)]
    fn put_long<S: Sink>(&self, sink: S) -> S::Out {
        let Step { ticks, flags, repeats, step, op_ref, size, states, end } = *self;
        let mut words = [STEP_LONG.into(), ticks, 0, 0, 0, 0, 0];
        Long { flags, repeats, step, op_ref, size, states, end }.set(&mut words);
        sink.put(words)
    }

    /// Decodes the words of the short form.
    #[inline(always)]
    pub(crate) fn of_short(&[head, ticks, what, early, late]: &[u64; 5]) -> Step {
        let mut words = [0; MAX_WORDS];
        [words[0], words[1], words[2], words[3], words[4]] = [head, ticks, what, early, late];
        Step::unpack(&words, false)
    }

    #[inline(always)]
    pub(crate) fn unpack(words: &[u64; MAX_WORDS], is_long: bool) -> Step {
        let ticks = words[1];
        if is_long {
            let Long { flags, repeats, step, op_ref, size, states, end } = Long::get(words);
            return Step { ticks, flags, repeats, step, op_ref, size, states, end };
        }
        let Short { flags, repeats, step, op_ref, size, first, second, third, end } =
            Short::get(words);
        let states = [first, second, third].map(u64::from);
        Step { ticks, flags, repeats, step, op_ref, size, states, end: end.into() }
    }

    /// True if the bits of `flag` are set.
    #[must_use]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_short_form_is_as_it_is_declared(
            (flags, repeats, step, op_ref, size) in any::<(u8, u16, u32, u32, u32)>(),
            (ticks, [first, second, third, end]) in any::<(u64, [u32; 4])>(),
        ) {
            let states = [first, second, third].map(u64::from);
            let it = Step { ticks, flags, repeats, step, op_ref, size, states, end: end.into() };
            let mut words = [STEP.into(), ticks, 0, 0, 0];
            Short { flags, repeats, step, op_ref, size, first, second, third, end }.set(&mut words);
            prop_assert_eq!(it.short(), Some(words));
        }
    }
}
