// SPDX-License-Identifier: Apache-2.0
/*!
Takes back slots of ProxyOps that NCCL never stops, and idle slots that another lane needs.

NCCL starts ProxyOps for CollNet, shared memory and peer access that it never stops (2.27 on), and
an aborted communicator leaves its ProxyOps open. A thread that finds such an operation *abandons*
it: its slot goes into a list of its lane. The lane's thread takes the operation out of the slot
when it needs one. Only that thread may do so, because then no stop can come in between, although a
stop takes no lock.

A lane without a thread keeps its slots for the next thread. When no slab is left, lanes that need
slots take them from it in batches.
*/

use crate::lane::{Lane, LaneHeader, SlotList};
use crate::region::Region;
use crate::slot::{Slot, number_of, numbered, numbered_plus_one};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use ncclscope_trace::EventKind;
use ncclscope_trace::handle::{Handle, STEPS_IN_FLIGHT};
use ncclscope_trace::layout::{SLAB_SLOTS, SLABS};

/// Maximum number of abandoned operations that one callback takes out of their slots.
const AT_A_TIME: usize = 8;
/// Maximum number of slots of a batch. [`BATCHES`] is the number of batches, small in a loom model.
const BATCH: usize = SLAB_SLOTS;
const BATCHES: usize = if cfg!(loom) { 2 } else { SLABS };
/// Words of the bitmap of finalized communicators, 64 communicators in each.
const WORDS: usize = 1 << 10;
#[expect(clippy::cast_possible_truncation, reason = "256")]
const SLAB: u32 = SLAB_SLOTS as u32;

/// The state of the slots that all lanes share.
#[derive(Debug)]
pub struct Slots {
    /// Number of slabs that lanes took.
    slabs: AtomicU32,
    /// Lists of spare slots of lanes without a thread: number (index plus one) of the first slot, 0
    /// if empty.
    batches: [AtomicU32; BATCHES],
    /// Bitmap of the finalized communicators. `endings` counts them; `looked` is `endings` at the
    /// time of the last search through the slots.
    ended: [AtomicU64; WORDS],
    endings: AtomicU32,
    looked: AtomicU32,
}

impl Slots {
    /// The state before any slab is taken.
    #[must_use]
    pub const fn new() -> Slots {
        Slots {
            slabs: AtomicU32::new(0),
            batches: [const { AtomicU32::new(0) }; BATCHES],
            ended: [const { AtomicU64::new(0) }; WORDS],
            endings: AtomicU32::new(0),
            looked: AtomicU32::new(0),
        }
    }

    pub(crate) fn slabs_used(&self) -> usize {
        self.slabs.load(Ordering::Relaxed) as usize
    }

    /// Takes a new slab for a lane; returns the number of its first slot. `None` if no slab is
    /// left.
    pub(crate) fn new_slab(&self, region: &Region, list: &SlotList<'_>) -> Option<u32> {
        let relaxed = Ordering::Relaxed;
        for _ in 0..4 {
            let slab = self.slabs.load(relaxed);
            if slab as usize >= region.slabs() {
                return None;
            }
            if self.slabs.compare_exchange(slab, slab + 1, relaxed, relaxed).is_ok() {
                list.next.store(slab * SLAB + 1, relaxed);
                list.last.store((slab + 1) * SLAB, relaxed);
                return Some(slab * SLAB + 1);
            }
        }
        None
    }

    /// Takes a batch of spare slots; returns the number of its first slot, 0 if there is none.
    pub(crate) fn spared(&self) -> u32 {
        let some = self.batches.iter().filter(|batch| batch.load(Ordering::Relaxed) != 0);
        let mut taken = some.map(|batch| batch.swap(0, Ordering::Acquire));
        taken.find(|&first| first != 0).unwrap_or(0)
    }

    pub(crate) fn end_comm(&self, comm: u16) {
        let Some(word) = self.ended.get(usize::from(comm) / 64) else { return };
        let bit = 1 << (comm % 64);
        let mut before = word.load(Ordering::Relaxed);
        while before & bit == 0 {
            match word.compare_exchange(before, before | bit, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    self.endings.fetch_add(1, Ordering::Release);
                    return;
                }
                Err(other) => before = other,
            }
        }
    }

    fn has_ended(&self, comm: u16) -> bool {
        let word = self.ended.get(usize::from(comm) / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (comm % 64) != 0)
    }

    /// Finds slots that can be reused: see [`Recorder::reap`](crate::Recorder::reap).
    pub fn reap(&self, region: &Region) {
        let endings = self.endings.load(Ordering::Acquire);
        if endings != self.looked.swap(endings, Ordering::Relaxed) {
            self.abandon_ended(region);
        }
        if self.slabs_used() >= region.slabs() {
            self.share_out(region);
        }
    }

    fn abandon_ended(&self, region: &Region) {
        for (_, slot) in (0..self.slabs_used() * SLAB_SLOTS).filter_map(|at| by_index(region, at)) {
            let handle = slot.handle();
            // If the slot was reused meanwhile, its communicator is a later one's and `handle` is
            // stale.
            if !handle.is_null() && self.has_ended(slot.comm()) {
                slot.abandon(handle, region);
            }
        }
    }

    /// Moves the slots of lanes without a thread into the batches.
    fn share_out(&self, region: &Region) {
        for index in 0..region.rings() {
            let (Some(header), Some(ring)) = (region.lane_header(index), region.ring(index)) else {
                return;
            };
            // With holder 0, no thread can take the lane for its own in the meantime.
            if header.claim(0) {
                if has_slots(header) {
                    self.spare(region, &Lane::new(header, ring, index));
                }
                header.release();
            }
        }
    }

    /// Moves free slots of a lane, which the caller claimed, to the batches that are empty.
    fn spare(&self, region: &Region, lane: &Lane<'_>) {
        gather(region, lane);
        let list = lane.header().slots();
        for batch in self.batches.iter().filter(|batch| batch.load(Ordering::Relaxed) == 0) {
            let first = list.free.load(Ordering::Relaxed);
            let mut last = numbered_plus_one(region, first);
            for _ in 1..BATCH {
                let next = last.map_or(0, |(_, slot)| slot.next.load(Ordering::Relaxed));
                last = numbered_plus_one(region, next).or(last);
            }
            let Some((_, last)) = last else { return };
            let rest = last.next.swap(0, Ordering::Relaxed);
            let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
            if batch.compare_exchange(0, first, release, relaxed).is_ok() {
                list.free.store(rest, relaxed);
            } else {
                last.next.store(rest, relaxed);
            }
        }
    }
}

impl Default for Slots {
    fn default() -> Slots {
        Slots::new()
    }
}

impl Slot {
    /// Adds the slot of a ProxyOp that NCCL will not stop to its lane's list of abandoned slots,
    /// unless it is in that list already.
    pub(crate) fn abandon(&self, handle: Handle, region: &Region) {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let Some(owner) = region.lane_header(handle.lane()) else { return };
        if self.abandoned.compare_exchange(0, handle.0, acquire, relaxed).is_err() {
            return;
        }
        let list = owner.slots().abandoned;
        let mut first = list.load(relaxed);
        loop {
            self.next_abandoned.store(first, relaxed);
            let number = number_of(handle);
            match list.compare_exchange(first, number, Ordering::Release, relaxed) {
                Ok(_) => return,
                Err(other) => first = other,
            }
        }
    }
}

fn by_index(region: &Region, index: usize) -> Option<(usize, &Slot)> {
    numbered(region, index).map(|slot| (index, slot))
}

/// Frees the slots of some of the lane's abandoned operations. Returns the number of the lane's
/// first free slot, if any. Steps of the operations that are still in flight are ended.
pub(crate) fn take_back(region: &Region, lane: &Lane<'_>, now: u64) -> Option<u32> {
    let list = lane.header().slots();
    let mut number = list.abandoned_rest.load(Ordering::Relaxed);
    if number == 0 && list.abandoned.load(Ordering::Relaxed) != 0 {
        number = list.abandoned.swap(0, Ordering::Acquire);
    }
    for _ in 0..AT_A_TIME {
        let Some((_, slot)) = numbered_plus_one(region, number) else { break };
        let this = core::mem::replace(&mut number, slot.next_abandoned.load(Ordering::Relaxed));
        let handle = Handle(slot.abandoned.load(Ordering::Relaxed));
        // The operation may have stopped since, and the slot may hold another one.
        if slot.take_out(handle) {
            end_steps(slot, handle, lane, now);
            slot.free_own(this, lane);
        }
        slot.abandoned.store(0, Ordering::Release);
    }
    list.abandoned_rest.store(number, Ordering::Relaxed);
    Some(list.free.load(Ordering::Relaxed)).filter(|&first| first != 0)
}

fn end_steps(slot: &Slot, handle: Handle, lane: &Lane<'_>, now: u64) {
    for step in (0..STEPS_IN_FLIGHT).map(|index| slot.step(index)) {
        if step.is_live(handle) && !step.end(handle, slot.is_send(), false, now).put(*lane) {
            lane.header().lose(EventKind::ProxyStep);
        }
    }
}

/// True if the lane has free slots, or slots that can be freed.
fn has_slots(header: &LaneHeader) -> bool {
    let list = header.slots();
    let lists = [list.free, list.returned, list.abandoned, list.abandoned_rest];
    lists.iter().any(|list| list.load(Ordering::Relaxed) != 0)
        || list.next.load(Ordering::Relaxed) != list.last.load(Ordering::Relaxed)
}

/// Puts all free and abandoned slots of a lane into its free list. The caller has claimed the lane.
fn gather(region: &Region, lane: &Lane<'_>) {
    let list = lane.header().slots();
    let now = crate::clock::now();
    while list.abandoned.load(Ordering::Relaxed) | list.abandoned_rest.load(Ordering::Relaxed) != 0
    {
        take_back(region, lane, now);
    }
    let mut returned = list.returned.swap(0, Ordering::Acquire);
    while let Some((_, slot)) = numbered_plus_one(region, returned) {
        let this = core::mem::replace(&mut returned, slot.next.load(Ordering::Relaxed));
        slot.free_own(this, lane);
    }
    let (next, last) = (list.next.load(Ordering::Relaxed), list.last.load(Ordering::Relaxed));
    for index in next..last {
        let unused = numbered_plus_one(region, index + 1);
        unused.into_iter().for_each(|(_, slot)| slot.free_own(index + 1, lane));
    }
    list.next.store(last, Ordering::Relaxed);
}
