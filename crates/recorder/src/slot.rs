// SPDX-License-Identifier: Apache-2.0
/*!
One slot: a ProxyOp and its steps in flight, and how a handle leads to it.

[`crate::slots`] explains why there are slots and which thread writes what. Byte offsets are those
of [`ncclscope_trace::scratch::slot`].
*/

use crate::lane::Lane;
use crate::region::Region;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use core::mem::{offset_of, size_of};
use ncclscope_trace::handle::{Handle, STEPS_IN_FLIGHT};
use ncclscope_trace::kind::State;
use ncclscope_trace::layout::SLOT_BYTES;
use ncclscope_trace::record::{STEP_SHIFT, Step, step_flags};
use ncclscope_trace::scratch::{STEP_TIME_MASK, slot as offsets};

/// A ProxyOp in flight.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    pub(crate) handle: AtomicU64,
    pub(crate) start: AtomicU64,
    pub(crate) flags: AtomicU32,
    pub(crate) next: AtomicU32,
    pub(crate) generation: AtomicU64,
    /// The operation's handle while the slot is in a list of abandoned slots, else 0.
    pub(crate) abandoned: AtomicU64,
    /// Number (index plus one) of the next slot in that list; 0 at its end.
    pub(crate) next_abandoned: AtomicU32,
    _0: [u32; 5],
    steps: [StepSlot; STEPS_IN_FLIGHT],
}

/// The state of a step in flight.
#[derive(Debug)]
#[repr(C, align(32))]
pub struct StepSlot {
    /// Start in ticks (lower 48 bits), and number of repeats of the second state (16 bits,
    /// saturating).
    start: AtomicU64,
    states: [AtomicU32; 3],
    size: AtomicU32,
    number: AtomicU32,
    /// [`Handle::step_tag`] | state bits | live.
    tag: AtomicU32,
}

const _: () = {
    assert!(size_of::<Slot>() == SLOT_BYTES);
    assert!(offset_of!(Slot, handle) == offsets::HANDLE);
    assert!(offset_of!(Slot, start) == offsets::START);
    assert!(offset_of!(Slot, flags) == offsets::FLAGS);
    assert!(offset_of!(Slot, next) == offsets::NEXT);
    assert!(offset_of!(Slot, steps) == offsets::STEPS);
    assert!(size_of::<StepSlot>() == offsets::STEP_BYTES);
    assert!(offset_of!(StepSlot, states) == offsets::STEP_STATES);
    assert!(offset_of!(StepSlot, size) == offsets::STEP_SIZE);
    assert!(offset_of!(StepSlot, number) == offsets::STEP_NUMBER);
    assert!(offset_of!(StepSlot, tag) == offsets::STEP_TAG);
};

const IS_SEND: u32 = step_flags::IS_SEND as u32;
pub(crate) const COMM_SHIFT: u32 = 16;
const REPEAT: u64 = 1 << 48;
/// Ticks by which a step may start after a time that another thread has read: minutes.
const MOST_AHEAD: u64 = 1 << 40;
// The state bits of a tag are the flags of a record, shifted right by one.
const FIRST: u32 = step_flags::FIRST as u32 >> 1;
const SECOND: u32 = step_flags::SECOND as u32 >> 1;
const THIRD: u32 = step_flags::THIRD as u32 >> 1;
const SIZED: u32 = step_flags::SIZED as u32 >> 1;
const LIVE: u32 = offsets::LIVE;

/// What a state of a step changes, four bits for each state from [`FIRST_STATE`] on: the number of
/// its time (1 to 3; 0 for a state that steps do not have), [`HAS_SIZE`] and [`HAS_TIME`]. A
/// constant and not a `match`, which becomes an indirect jump that the processor often mispredicts.
const PLANS: u64 = {
    const fn plan(state: State, plan: u64) -> u64 {
        plan << (4 * (state.0 - FIRST_STATE))
    }
    // NCCL reports the first in the same branch as the start, so that its time is that of the
    // start.
    plan(State::STEP_SEND_GPU_WAIT, 1)
        | plan(State::STEP_SEND_PEER_WAIT, 2 | HAS_TIME)
        | plan(State::STEP_SEND_WAIT, 3 | HAS_TIME | HAS_SIZE)
        | plan(State::STEP_RECV_WAIT, 1 | HAS_TIME)
        | plan(State::STEP_RECV_FLUSH_WAIT, 2 | HAS_TIME | HAS_SIZE)
        | plan(State::STEP_RECV_GPU_WAIT, 3 | HAS_TIME)
};
const FIRST_STATE: u8 = State::STEP_SEND_GPU_WAIT.0;
/// That of the state that NCCL reports again at each poll.
const LAST_PLACE: u32 = (State::STEP_SEND_PEER_WAIT.0 - FIRST_STATE) as u32;
/// The state reports a number of bytes.
const HAS_SIZE: u64 = 4;
/// The state has a time of its own.
const HAS_TIME: u64 = 8;
// The bit of time `n` in a tag is `1 << n`.
const _: () = assert!(FIRST == 1 << 1 && SECOND == 1 << 2 && THIRD == 1 << 3);

/// The slot that the handle of a ProxyOp or a step leads to; `None` if its slab is not committed.
/// Any 64 bits are safe.
#[must_use]
#[inline(always)]
pub fn at(region: &Region, handle: Handle) -> Option<&Slot> {
    numbered(region, handle.slot())
}

#[inline(always)]
pub(crate) fn numbered(region: &Region, index: usize) -> Option<&Slot> {
    if !region.has_slot(index) {
        return None;
    }
    // SAFETY: slot `index` lies in a committed slab.
    let slot = unsafe { region.slots_base().add(index * SLOT_BYTES) };
    // SAFETY: a mapped address is not null.
    unsafe { core::hint::assert_unchecked(!slot.is_null()) };
    // SAFETY: aligned to 64 (slabs are page-aligned, slots 320 bytes), initialised (zero is valid),
    // mapped for the rest of the process; all access is atomic.
    Some(unsafe { &*slot.cast::<Slot>() })
}

/// The slot of a number (index plus one), with its index; `None` for 0.
#[inline(always)]
pub(crate) fn numbered_plus_one(region: &Region, number: u32) -> Option<(usize, &Slot)> {
    let index = (number as usize).checked_sub(1)?;
    Some((index, numbered(region, index)?))
}

impl Slot {
    /// True if the slot holds the ProxyOp of this handle.
    #[must_use]
    #[inline(always)]
    pub fn holds(&self, handle: Handle) -> bool {
        self.handle.load(Ordering::Relaxed) == handle.0
    }

    /// The step slot of a step index or number, which is taken modulo the steps in flight.
    #[must_use]
    #[inline(always)]
    pub fn step(&self, index: usize) -> &StepSlot {
        &self.steps[index & (STEPS_IN_FLIGHT - 1)]
    }

    /// True for a send operation.
    #[must_use]
    #[inline(always)]
    pub fn is_send(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & IS_SEND != 0
    }

    /// True if any step has started and not ended.
    #[inline(always)]
    pub(crate) fn has_live_steps(&self) -> bool {
        let tags = self.steps.iter().map(|step| step.tag.load(Ordering::Relaxed));
        tags.fold(0, |all, tag| all | tag) & LIVE != 0
    }

    /// The communicator of the ProxyOp.
    pub(crate) fn comm(&self) -> u16 {
        (self.flags.load(Ordering::Relaxed) >> COMM_SHIFT) as u16
    }

    /// The handle of the ProxyOp that the slot holds; null if the slot is free.
    pub(crate) fn handle(&self) -> Handle {
        Handle(self.handle.load(Ordering::Acquire))
    }

    /// Takes the ProxyOp out of its slot, from any thread. False if the slot no longer holds it.
    /// From then on the handle is stale, and the caller must give back the slot.
    #[cold]
    pub fn take_out(&self, handle: Handle) -> bool {
        let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
        !handle.is_null() && self.handle.compare_exchange(handle.0, 0, release, relaxed).is_ok()
    }

    /// Frees the slot on the thread of its lane. From then on the ProxyOp's handle is stale.
    #[inline(always)]
    pub(crate) fn close_own(&self, handle: Handle, lane: &Lane<'_>) {
        self.handle.store(0, Ordering::Release);
        self.free_own(number_of(handle), lane);
    }

    /// Puts the slot, which holds nothing, into its lane's free list, on the thread of that lane.
    #[inline(always)]
    pub(crate) fn free_own(&self, number: u32, lane: &Lane<'_>) {
        let list = lane.header().slots();
        self.next.store(list.free.load(Ordering::Relaxed), Ordering::Relaxed);
        list.free.store(number, Ordering::Relaxed);
    }

    /// Returns a slot whose ProxyOp was taken out to its lane, from another thread. After four lost
    /// races the slot stays unused, which wastes 320 bytes.
    #[cold]
    pub fn give_back(&self, handle: Handle, region: &Region) {
        let number = number_of(handle);
        let Some(owner) = region.lane_header(handle.lane()) else { return };
        let returned = owner.slots().returned;
        let mut first = returned.load(Ordering::Relaxed);
        for _ in 0..4 {
            self.next.store(first, Ordering::Relaxed);
            match returned.compare_exchange(first, number, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => first = other,
            }
        }
    }
}

/// Number (index plus one) of the slot that a handle leads to.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "15 bits")]
pub(crate) const fn number_of(handle: Handle) -> u32 {
    handle.slot() as u32 + 1
}

impl StepSlot {
    /// True if the slot holds a live step of this handle's operation. At most one step per index is
    /// in flight, so that the index need not be compared.
    #[must_use]
    #[inline(always)]
    pub fn is_live(&self, handle: Handle) -> bool {
        let states = FIRST | SECOND | THIRD | SIZED;
        (self.tag.load(Ordering::Relaxed) ^ (handle.step_tag() | LIVE)) & !states == 0
    }

    /// True if a step is in flight here. It belongs to the operation that the slot holds, because
    /// the end of an operation ends its steps.
    #[must_use]
    #[inline(always)]
    pub fn is_started(&self) -> bool {
        self.tag.load(Ordering::Relaxed) & LIVE != 0
    }

    /// True if the slot's step has this number.
    #[must_use]
    #[inline(always)]
    pub fn is_number(&self, number: u32) -> bool {
        self.number.load(Ordering::Relaxed) == number
    }

    /// Starts a step.
    #[inline(always)]
    pub fn start(&self, handle: Handle, number: u32, now: u64) {
        self.start.store(now & STEP_TIME_MASK, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        self.size.store(0, Ordering::Relaxed);
        self.states.iter().for_each(|state| state.store(0, Ordering::Relaxed));
        self.tag.store(handle.step_tag() | LIVE, Ordering::Release);
    }

    /// Records that the step reached `state`; `size` returns the bytes, and is called only for a
    /// state that reports them. False for a state that steps do not have, which is ignored.
    #[inline(always)]
    pub fn reach(
        &self,
        state: State,
        size: impl FnOnce() -> Option<u64>,
        now: impl FnOnce() -> u64,
    ) -> bool {
        let place = u32::from(state.0.wrapping_sub(FIRST_STATE));
        if place > LAST_PLACE {
            return false;
        }
        let plan = PLANS >> (4 * place);
        let time = plan & 3;
        if time == 0 {
            return false;
        }
        let tag = self.tag.load(Ordering::Relaxed);
        if place == LAST_PLACE && tag & SECOND != 0 {
            self.repeat();
            return true;
        }
        let mut tag = tag | 1 << time;
        if plan & HAS_SIZE != 0
            && let Some(size) = size()
        {
            self.size.store(clip(size), Ordering::Relaxed);
            tag |= SIZED;
        }
        if plan & HAS_TIME != 0 {
            let age = clip(self.age(now()) >> STEP_SHIFT);
            self.states[time as usize - 1].store(age, Ordering::Relaxed);
        }
        self.tag.store(tag, Ordering::Relaxed);
        true
    }

    #[inline(always)]
    fn repeat(&self) {
        let start = self.start.load(Ordering::Relaxed);
        if start < !STEP_TIME_MASK {
            self.start.store(start + REPEAT, Ordering::Relaxed);
        }
    }

    /// True if the step started after `now`, which another thread has read before.
    pub(crate) fn starts_after(&self, now: u64) -> bool {
        let ahead = self.start.load(Ordering::Relaxed).wrapping_sub(now) & STEP_TIME_MASK;
        (1..=MOST_AHEAD).contains(&ahead)
    }

    #[inline(always)]
    fn age(&self, now: u64) -> u64 {
        now.wrapping_sub(self.start.load(Ordering::Relaxed)) & STEP_TIME_MASK
    }

    /// Ends the step and returns it.
    #[inline(always)]
    pub fn end(&self, handle: Handle, is_send: bool, stopped: bool, now: u64) -> Step {
        let step = self.observe(handle, is_send, stopped, now);
        self.free(handle);
        step
    }

    /// Marks the step slot as free.
    #[inline(always)]
    pub(crate) fn free(&self, handle: Handle) {
        self.tag.store(handle.step_tag(), Ordering::Relaxed);
    }

    /// The step as a record, with the values at `now`.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "bit fields")]
    pub(crate) fn observe(&self, handle: Handle, is_send: bool, stopped: bool, now: u64) -> Step {
        let bits = self.tag.load(Ordering::Relaxed) as u8 & (31 & !(LIVE as u8));
        let start = self.start.load(Ordering::Relaxed);
        let age = now.wrapping_sub(start) & STEP_TIME_MASK;
        Step {
            ticks: now.wrapping_sub(age),
            flags: (bits << 1) | u8::from(is_send) | (u8::from(stopped) << 1),
            repeats: (start >> 48) as u16,
            step: self.number.load(Ordering::Relaxed),
            op_ref: handle.op_ref(),
            size: self.size.load(Ordering::Relaxed),
            states: self.states.each_ref().map(|state| state.load(Ordering::Relaxed).into()),
            end: age >> STEP_SHIFT,
        }
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the least of both fits")]
fn clip(value: u64) -> u32 {
    value.min(u64::from(u32::MAX)) as u32
}
