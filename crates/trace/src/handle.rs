// SPDX-License-Identifier: Apache-2.0
/*!
Event handles: 64 bits that are decoded by arithmetic and never dereferenced.

```text
 63      54 53    48 47    40 39                                         0
+----------+--------+--------+-------------------------------------------+
| process  | kind   | lane   | sequence (40)                             |  value handle
+----------+--------+--------+------------------------+------------+-----+
| process  | kind   | lane   | generation (22)        | slot (15)  | i(3)|  slot handle
+----------+--------+--------+------------------------+------------+-----+
```

A *value handle* names an event for which the producer keeps no state; it has a sequence number of
its lane. A *slot handle* names a ProxyOp (`i` is 0) or one of its eight steps in flight (`i` is the
step modulo 8) and leads to the memory that holds it; the generation distinguishes a live slot from
an earlier use. The process bits distinguish a handle of this process from one that NCCL carried
over from another (PXN). A handle is never 0, since the process bits are not.
*/

use crate::kind::{EventKind, MOST_KINDS};
use std::fmt;

/// Number of lanes a handle can name.
pub const LANES: usize = 256;
/// Number of ProxyOp slots a handle can name.
pub const SLOTS: usize = 1 << 15;
/// Most steps of one ProxyOp that NCCL keeps in flight: `NCCL_STEPS` of NCCL's
/// `src/include/device.h`.
pub const STEPS_IN_FLIGHT: usize = 8;
/// Generations of a slot before they repeat.
pub const GENERATIONS: u64 = 1 << 22;

const PROCESS_SHIFT: u32 = 54;
const KIND_SHIFT: u32 = 48;
const LANE_SHIFT: u32 = 40;
const SEQUENCE_MASK: u64 = (1 << LANE_SHIFT) - 1;
const GENERATION_SHIFT: u32 = 18;
const SLOT_SHIFT: u32 = 3;

/// A handle as given to NCCL; the module's documentation describes its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Handle(pub u64);

impl Handle {
    /// NCCL's "not profiled".
    pub const NULL: Handle = Handle(0);

    /// "Left out on purpose": the handle of an event outside of the recorded window or the sample.
    /// Events with this parent are left out too, and not counted as lost, unlike those with the
    /// parent [`Handle::NULL`]. It is the same value in all processes.
    pub const REFUSED: Handle = Handle(0x5ef0_5ed1);

    /// A handle for an event without producer state. `process` is 1..=1023, `lane` below [`LANES`].
    #[must_use]
    #[inline(always)]
    pub const fn value(process: u64, kind: EventKind, lane: usize, sequence: u64) -> Handle {
        Handle(
            process << PROCESS_SHIFT
                | (kind as u64) << KIND_SHIFT
                | (lane as u64) << LANE_SHIFT
                | sequence & SEQUENCE_MASK,
        )
    }

    /// A handle of a ProxyOp in `slot`, in that slot's `generation`.
    #[must_use]
    #[inline(always)]
    pub const fn slot_op(process: u64, lane: usize, generation: u64, slot: usize) -> Handle {
        Handle::value(
            process,
            EventKind::ProxyOp,
            lane,
            (generation & (GENERATIONS - 1)) << GENERATION_SHIFT | (slot as u64) << SLOT_SHIFT,
        )
    }

    /// The handle of a step of this ProxyOp.
    #[must_use]
    #[inline(always)]
    pub const fn step_of(self, step: u32) -> Handle {
        let flip = (EventKind::ProxyOp as u64 ^ EventKind::ProxyStep as u64) << KIND_SHIFT;
        Handle(self.0 ^ flip | (step as u64 & 7))
    }

    /// The handle of the ProxyOp of this step.
    #[must_use]
    #[inline(always)]
    pub const fn op_of(self) -> Handle {
        let flip = (EventKind::ProxyOp as u64 ^ EventKind::ProxyStep as u64) << KIND_SHIFT;
        Handle((self.0 ^ flip) & !7)
    }

    /// Process bits and kind together, for one comparison; see [`Handle::family_of`].
    #[must_use]
    #[inline(always)]
    pub const fn family(self) -> u64 {
        self.0 >> KIND_SHIFT
    }

    /// What [`Handle::family`] is for handles of this process and kind.
    #[must_use]
    #[inline(always)]
    pub const fn family_of(process: u64, kind: EventKind) -> u64 {
        process << (PROCESS_SHIFT - KIND_SHIFT) | kind as u64
    }

    /// Process bits.
    #[must_use]
    #[inline(always)]
    pub const fn process(self) -> u64 {
        self.0 >> PROCESS_SHIFT
    }

    /// The number of the kind; [`crate::kind::KINDS`] or more for a kind of a later version.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "six bits of it")]
    pub const fn kind_number(self) -> u8 {
        (self.0 >> KIND_SHIFT) as u8 & (MOST_KINDS as u8 - 1)
    }

    /// The kind of event. It must be a kind of this version: readers omit stops and states of other
    /// kinds.
    #[must_use]
    #[inline(always)]
    pub const fn kind(self) -> EventKind {
        EventKind::from_low_bits(self.0 >> KIND_SHIFT)
    }

    /// The lane that made the handle.
    #[must_use]
    #[inline(always)]
    pub const fn lane(self) -> usize {
        (self.0 >> LANE_SHIFT) as usize & (LANES - 1)
    }

    /// The slot of a slot handle, below [`SLOTS`] for any bits.
    #[must_use]
    #[inline(always)]
    pub const fn slot(self) -> usize {
        (self.slot_bits() >> SLOT_SHIFT) & (SLOTS - 1)
    }

    #[inline(always)]
    const fn slot_bits(self) -> usize {
        (self.0 & ((1 << GENERATION_SHIFT) - 1)) as usize
    }

    /// The step index (step modulo 8) of a step handle.
    #[must_use]
    #[inline(always)]
    pub const fn step_index(self) -> usize {
        self.slot_bits() & (STEPS_IN_FLIGHT - 1)
    }

    /// Distinguishes the steps of a slot's successive operations, in the upper 27 of 32 bits: the
    /// generation, and the lowest bits of the lane, because masking them off would cost more.
    #[must_use]
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "32 bits of it")]
    pub const fn step_tag(self) -> u32 {
        (self.0 >> (GENERATION_SHIFT - 5)) as u32 & !0x1f
    }

    /// The generation of a slot handle.
    #[must_use]
    #[inline(always)]
    pub const fn generation(self) -> u64 {
        (self.0 >> GENERATION_SHIFT) & (GENERATIONS - 1)
    }

    /// The part of the operation's handle that step records contain: slot and the low bits of the
    /// generation. It is unique among the last 2^17 uses of a slot.
    #[must_use]
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the low 32 bits are the point")]
    pub const fn op_ref(self) -> u32 {
        (self.0 >> SLOT_SHIFT) as u32
    }

    /// True for the handle NCCL uses for "not profiled".
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:x}", self.kind(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any process, lane, generation and slot.
    fn named() -> impl Strategy<Value = (u64, usize, u64, usize)> {
        (1u64..1024, 0..LANES, 0..GENERATIONS, 0..SLOTS)
    }

    proptest! {
        #[test]
        fn slot_handles_decode(
            (process, lane, generation, slot) in named(), step: u32
        ) {
            let op = Handle::slot_op(process, lane, generation, slot);
            prop_assert_eq!(op.kind(), EventKind::ProxyOp);
            let fields = |h: Handle| (h.process(), h.lane(), h.generation(), h.slot());
            prop_assert_eq!(fields(op), (process, lane, generation, slot));
            prop_assert_eq!(op.step_index(), 0);
            let s = op.step_of(step);
            prop_assert_eq!(s.kind(), EventKind::ProxyStep);
            prop_assert_eq!(fields(s), (process, lane, generation, slot));
            prop_assert_eq!(s.step_index(), (step & 7) as usize);
            prop_assert_eq!(s.op_ref(), op.op_ref());
            prop_assert_eq!(s.family(), Handle::family_of(process, EventKind::ProxyStep));
        }

        #[test]
        fn value_handles_decode(
            process in 1u64..1024, lane in 0..LANES, sequence: u64, kind in 0u64..16
        ) {
            let kind = EventKind::from_low_bits(kind);
            let h = Handle::value(process, kind, lane, sequence);
            prop_assert_eq!((h.process(), h.kind(), h.lane()), (process, kind, lane));
            prop_assert!(!h.is_null());
        }

        #[test]
        fn any_bits_decode_within_bounds(bits: u64) {
            let h = Handle(bits);
            prop_assert!(h.slot() < SLOTS && h.lane() < LANES && h.step_index() < STEPS_IN_FLIGHT);
        }

        /// A handle of arbitrary bits names a slot, and equals the handle that is built of its
        /// fields.
        #[test]
        fn any_bits_that_look_like_ours_are_made_of_their_fields(bits: u64) {
            let h = Handle(bits);
            let op = |h: Handle| Handle::slot_op(h.process(), h.lane(), h.generation(), h.slot());
            let bits = bits & !(0x3f << KIND_SHIFT);
            let of = |kind: EventKind| Handle(bits | (kind as u64) << KIND_SHIFT);
            let step = of(EventKind::ProxyStep);
            let index = u32::try_from(step.step_index()).unwrap();
            prop_assert_eq!(step.op_of(), op(step));
            prop_assert_eq!(step.op_of().step_of(index), step);
            let own = of(EventKind::ProxyOp);
            prop_assert_eq!(own == op(own), own.step_index() == 0);
            let known = of(h.kind());
            prop_assert_eq!(known.family(), Handle::family_of(h.process(), h.kind()));
        }

        #[test]
        fn handles_are_equal_only_if_all_they_name_is(a in named(), b in named(), same in 0u8..16) {
            // All fields but one are equal, so that one alone must distinguish the handles.
            let (from, mut to) = (a, b);
            if same & 1 != 0 { to.0 = from.0 }
            if same & 2 != 0 { to.1 = from.1 }
            if same & 4 != 0 { to.2 = from.2 }
            if same & 8 != 0 { to.3 = from.3 }
            let op = |(process, lane, generation, slot)| {
                Handle::slot_op(process, lane, generation, slot)
            };
            prop_assert_eq!(op(from) == op(to), from == to);
            prop_assert_eq!(op(from).step_of(3) == op(to).step_of(3), from == to);
            prop_assert!(op(from) != op(to).step_of(0), "an operation is no step");
        }

        #[test]
        fn generations_and_sequences_wrap(slot in named(), kind in 0u64..16, by in 1u64..1 << 20) {
            let (process, lane, generation, slot) = slot;
            let op = |generation| Handle::slot_op(process, lane, generation, slot);
            prop_assert_eq!(op(generation + GENERATIONS), op(generation));
            let wrapped = op(GENERATIONS - 1 + by);
            prop_assert_eq!(wrapped.generation(), by - 1);
            prop_assert_eq!((wrapped.process(), wrapped.slot()), (process, slot));
            // Readers join steps to operations by the low bits.
            let is_far = by.is_multiple_of(1 << 17);
            prop_assert_eq!(op(generation).op_ref() == op(generation + by).op_ref(), is_far);
            let kind = EventKind::from_low_bits(kind);
            let value = |sequence| Handle::value(process, kind, lane, sequence);
            prop_assert_eq!(value(by + (1 << LANE_SHIFT)), value(by));
            prop_assert!(value(by) != value(by - 1));
        }
    }
}
