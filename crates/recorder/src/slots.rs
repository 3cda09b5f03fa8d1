// SPDX-License-Identifier: Apache-2.0
/*!
ProxyOp slots: the operation and its steps in flight, found from a handle by arithmetic.

# Why there are slots

NCCL calls five times for a network step: start, three states, stop. A record for each would be 160
bytes and five pushes; instead the step is kept in a slot while it is in flight, and its stop makes
one record of 40 bytes. All other events have no state here: their records carry the handle, and the
reader joins them.

# From a handle to a slot

`stopEvent` and `recordEventState` have no context: the handle must lead to everything, and NCCL
passes handles that are stale, of another process, or freed. So a handle is never an address. Its
low bits are the slot's number and, of a step, the step's index modulo eight (NCCL keeps at most
eight steps of an operation in flight). Any 64 bits give a number within the slabs, which are never
unmapped, so that reading the slot is always safe ([`at`]).

Whether the slot is still that of the handle is then one comparison: a slot holds the whole handle
of its operation (0 while it is free), in which 22 bits count how often the slot was used. A handle
of an earlier use differs there, one of another process in its process bits. A step is compared by
its tag, 32 bits that hold the same count and the step's states ([`StepSlot::is_live`]): so a step
that was stopped, or whose operation has ended, has no live tag.

After 2^22 uses of one slot a stale handle would be taken for a live one: NCCL would have to keep it
through four million operations in that slot.

# Who writes what

A slot belongs to the lane on which its operation started. Only that lane's thread, the proxy
thread, takes slots and starts, advances and stops steps, so that plain loads and stores suffice.
Only the stop of the operation may come from another thread; it takes the handle out of the slot by
compare-and-swap, so that of two stops one wins, and gives the slot back through a list of the lane
(`returned`), which the owner takes whole when its own list is empty. Slots that NCCL never stops
are another case: [`crate::reclaim`].

The drain thread, the watchdog and a reader after a SIGKILL look at slots while they change. If they
see a live tag of a step they also see its start, because the start is stored before the tag
(release); a state that is just being stored may be missing.

# A lane's lists

Taking a slot is a pop from the lane's own list, without a locked instruction. If the list is empty,
the lane takes slots from these sources, in this order: slots of its slab that were never used,
slots that other threads returned, abandoned slots, a new slab of 256, and spare slots of lanes
without a thread.

# Two habits of NCCL

NCCL starts a receive step again on every poll until the network accepts it, without stopping it in
between, so that starting is idempotent and keeps the first time; and it reports SendPeerWait on
every poll, so that only the first is stamped, and the others are counted in the 16 bits above the
start.
*/

pub use crate::slot::{Slot, StepSlot, at};

use crate::lane::Lane;
use crate::reclaim::{self, Slots};
use crate::region::Region;
use crate::slot::{COMM_SHIFT, numbered, numbered_plus_one};
use crate::sync::Ordering;
use ncclscope_trace::Step;
use ncclscope_trace::handle::{GENERATIONS, Handle, STEPS_IN_FLIGHT};
use ncclscope_trace::layout::SLAB_SLOTS;

/// Takes a slot for a new ProxyOp of communicator `comm` and returns the ProxyOp's handle. `None`
/// if there is no free slot.
#[must_use]
#[inline(always)]
pub fn open(
    region: &Region,
    slots: &Slots,
    lane: &Lane<'_>,
    process: u64,
    (comm, is_send): (u16, bool),
    now: u64,
) -> Option<Handle> {
    let list = lane.header().slots();
    let (index, slot) = match numbered_plus_one(region, list.free.load(Ordering::Relaxed)) {
        Some(free) => free,
        None => take_other(region, slots, lane, now)?,
    };
    list.free.store(slot.next.load(Ordering::Relaxed), Ordering::Relaxed);
    let generation = (slot.generation.load(Ordering::Relaxed) + 1) % GENERATIONS;
    slot.generation.store(generation, Ordering::Relaxed);
    let handle = Handle::slot_op(process, lane.index(), generation, index);
    slot.start.store(now, Ordering::Relaxed);
    slot.flags.store(u32::from(comm) << COMM_SHIFT | u32::from(is_send), Ordering::Relaxed);
    slot.handle.store(handle.0, Ordering::Release);
    Some(handle)
}

/// Finds a slot for a lane whose free list is empty: one that was never used, one that another
/// thread returned, an abandoned one, one of a new slab, or one that a lane without a thread
/// spared. Further slots found with it follow it in its list.
#[cold]
fn take_other<'a>(
    region: &'a Region,
    slots: &Slots,
    lane: &Lane<'_>,
    now: u64,
) -> Option<(usize, &'a Slot)> {
    let list = lane.header().slots();
    let next = list.next.load(Ordering::Relaxed);
    let is_new = next < list.last.load(Ordering::Relaxed);
    let number = if is_new {
        list.next.store(next + 1, Ordering::Relaxed);
        next + 1
    } else {
        let returned = list.returned.swap(0, Ordering::Acquire);
        let kept = || reclaim::take_back(region, lane, now);
        let others = || slots.new_slab(region, &list).unwrap_or_else(|| slots.spared());
        [returned].into_iter().find(|&first| first != 0).or_else(kept).unwrap_or_else(others)
    };
    numbered_plus_one(region, number)
}

/// The steps in flight at `now`, each with its lane. Those that other threads have started since
/// are left out: their age would be below 0, and their start nearly 2^64 ticks.
#[must_use]
pub fn in_flight(region: &Region, now: u64) -> Vec<(usize, Step)> {
    let slots = (0..region.slabs() * SLAB_SLOTS).filter_map(|index| numbered(region, index));
    let mut steps = Vec::new();
    for slot in slots {
        let handle = slot.handle();
        let live = (0..STEPS_IN_FLIGHT)
            .map(|index| slot.step(index))
            .filter(|step| !handle.is_null() && step.is_live(handle) && !step.starts_after(now));
        steps.extend(
            live.map(|step| (handle.lane(), step.observe(handle, slot.is_send(), false, now))),
        );
    }
    steps
}
