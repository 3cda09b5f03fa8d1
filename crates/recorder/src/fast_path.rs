// SPDX-License-Identifier: Apache-2.0
/*!
The common cases of a callback.

Each function either does the whole work of the function of the same name in [`crate::recorder`],
or, in any uncommon case, changes nothing and returns `None`; then the other function does the work.
The functions make no call, so that a callback needs no stack frame for them, which saves a third of
its instructions.
*/

use crate::clock::{self, Counter};
use crate::recorder::Recorder;
use crate::registry;
use crate::slots;
use ncclscope_trace::{EventKind, Handle, Record, State};

impl Recorder {
    /// [`Recorder::start_step`] for a step that is not in flight.
    #[must_use]
    #[inline(always)]
    pub fn start_step_fast(&self, op: Handle, number: u32) -> Option<Handle> {
        let handle = op.step_of(number);
        let slot = slots::at(&self.region, op).filter(|slot| slot.holds(op))?;
        let step = slot.step(number as usize);
        if !self.is_step(handle) || step.is_started() {
            return None;
        }
        step.start(op, number, clock::counter()?);
        Some(handle)
    }

    /// [`Recorder::step_state`] for a step in flight and a state that steps have.
    #[must_use]
    #[inline(always)]
    pub fn step_state_fast(
        &self,
        handle: Handle,
        state: State,
        size: impl FnOnce() -> Option<u64>,
    ) -> Option<()> {
        let step = slots::at(&self.region, handle)?.step(handle.step_index());
        let counter = Counter::get().filter(|_| step.is_live(handle))?;
        step.reach(state, size, || counter.read()).then_some(())
    }

    /// [`Recorder::stop_step`] for the thread that started the operation.
    #[must_use]
    #[inline(always)]
    pub fn stop_step_fast(&self, handle: Handle) -> Option<()> {
        let slot = slots::at(&self.region, handle).filter(|slot| slot.holds(handle.op_of()))?;
        let step = slot.step(handle.step_index());
        let lane = registry::held(&self.region, handle.lane()).filter(|_| step.is_started())?;
        let room = lane.room()?;
        let record = step.observe(handle, slot.is_send(), true, clock::counter()?);
        room.fill(record.short()?);
        step.free(handle);
        Some(())
    }

    /// [`Recorder::stop_other`] for an event other than a ProxyOp, on the thread that started it.
    #[must_use]
    #[inline(always)]
    pub fn stop_other_fast(&self, handle: Handle) -> Option<()> {
        let is_op = handle.kind() == EventKind::ProxyOp;
        if is_op || handle.process() != self.process() {
            return None;
        }
        let lane = registry::held(&self.region, handle.lane())?;
        lane.room()?.fill(Record::stop_words(clock::counter()?, handle));
        Some(())
    }

    /// [`Recorder::stop_op`] for a ProxyOp without steps in flight, on the thread that started it.
    #[must_use]
    #[inline(always)]
    pub fn stop_op_fast(&self, handle: Handle) -> Option<()> {
        let slot = self.slot_of_op(handle).filter(|slot| !slot.has_live_steps())?;
        let lane = registry::held(&self.region, handle.lane())?;
        lane.room()?.fill(Record::stop_words(clock::counter()?, handle));
        slot.close_own(handle, &lane);
        Some(())
    }

    /// [`Recorder::state`] for the thread that started the event.
    #[must_use]
    #[inline(always)]
    pub fn state_fast(&self, handle: Handle, state: State, small: u32, arg: u64) -> Option<()> {
        if handle.process() != self.process() {
            return None;
        }
        let lane = registry::held(&self.region, handle.lane())?;
        lane.room()?.fill(Record::state_words(clock::counter()?, handle, state, (small, arg)));
        Some(())
    }
}
