// SPDX-License-Identifier: Apache-2.0
//! The network step: one transfer of a ProxyOp, recorded whole.

use crate::record::{Pack, Packed, STEP, STEP_LONG, Sink, halves, head};

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

/// A network step: one transfer of a ProxyOp, whole.
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

impl Step {
    /// The record's words.
    #[must_use]
    pub fn pack(&self) -> Packed {
        self.put(Pack)
    }

    /// Gives the record's words to `sink`: the short form where every duration fits 32 bits.
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
        let [d0, d1, d2] = self.states;
        if (d0 | d1 | d2 | self.end) >> 32 != 0 {
            return None;
        }
        let w0 = head(STEP, self.flags, self.repeats, self.step);
        let (a, b) = (halves(d0 as u32, d1 as u32), halves(d2 as u32, self.end as u32));
        Some([w0, self.ticks, halves(self.op_ref, self.size), a, b])
    }

    #[cold]
    #[inline(never)]
    fn put_long<S: Sink>(&self, sink: S) -> S::Out {
        let [d0, d1, d2] = self.states;
        let w0 = head(STEP_LONG, self.flags, self.repeats, self.step);
        sink.put([w0, self.ticks, halves(self.op_ref, self.size), d0, d1, d2, self.end])
    }

    /// True if the bits of `flag` are set.
    #[must_use]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}
