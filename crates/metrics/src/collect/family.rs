// SPDX-License-Identifier: Apache-2.0
/*!
Joins operations with their children, for any order in which lanes are drained.

A *family* is an operation with its children, and is created when the first of them is read. Stops
and states that are read before their start are kept until it is read. All of this is bounded: at a
limit the older half is dropped.
*/

use super::network::{LinkChannel, Sent};
use ncclscope_operations::Facts;
use ncclscope_operations::hash::Map;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::{EventKind, Handle, Start};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most families, and most children, that are kept (`MAX_FAMILIES`), and most ends without a start.
const MAX_FAMILIES: usize = 1 << 16;
const MAX_PARTS: usize = 1 << 17;
const MAX_ENDS: usize = 1 << 12;
/// Epochs after which events whose start is missing are dropped.
const EXPIRES_AFTER: u32 = 4;

/// An operation with its children.
#[derive(Debug, Default)]
pub(super) struct Family {
    /// The operation; `None` as long as its start was not read.
    pub(super) head: Option<Head>,
    /// Indices of its children.
    pub(super) parts: Vec<usize>,
    /// When it was first seen to be over, in ticks; starts anew with every child.
    pub(super) quiet_since: Option<u64>,
    number: u64,
}

/// A Coll, P2p or CeColl event.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) start: Start,
    /// The stop of its own event, in ticks.
    pub(super) stop: Option<u64>,
    /// The CUDA stream that it runs on; 0 if unknown.
    pub(super) stream: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PartKind {
    /// A ProxyOp.
    Proxy,
    /// A ProxyOp that another process's proxy thread runs for this one (PXN).
    Adopted,
    /// A KernelCh.
    Kernel { channel: u8, ptimer: u64 },
    /// A part of a copy-engine collective.
    Copy,
}

/// A child of an operation.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) handle: Handle,
    pub(super) kind: PartKind,
    pub(super) comm: u16,
    pub(super) lane: u8,
    pub(super) start: u64,
    pub(super) stop: Option<u64>,
    /// Whether a step, a state or its stop was read.
    pub(super) moved: bool,
    pub(super) ptimer_stop: Option<u64>,
    pub(super) place: Option<LinkChannel>,
    pub(super) sent: Sent,
    /// Bytes that its states reported (`told`), and the value of the first of them (API v1 to v3).
    pub(super) told: u64,
    pub(super) told_from: Option<u64>,
    /// Its start, if it is handed over to the process that it belongs to.
    pub(super) foreign: Option<Arc<Start>>,
    /// The epoch of its latest record.
    epoch: u32,
}

/// The stop and states of an event that were read before its start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct End {
    pub(super) stop: Option<u64>,
    /// Time of its first state, in ticks.
    pub(super) state: Option<u64>,
    /// GPU timer at its end, ns.
    pub(super) ptimer_stop: Option<u64>,
    epoch: u32,
}

#[derive(Debug, Default)]
pub(super) struct Families {
    families: Map<Handle, Family>,
    parts: Vec<Option<Part>>,
    free: Vec<usize>,
    by_handle: Map<Handle, usize>,
    by_step: Map<(usize, u32), usize>,
    ends: Map<Handle, End>,
    /// Number of window ends so far, at most one per half second.
    epoch: u32,
    next_number: u64,
    /// Number of events whose start, or whose operation's start, is missing, by kind.
    pub(super) unmatched: [u64; KINDS],
    /// Number of events that were dropped because there were too many, by kind.
    pub(super) overflowed: [u64; KINDS],
    /// Lanes of the dropped ProxyOps that were in progress.
    pub(super) abandoned: Vec<u8>,
}

/// Whether events of a kind are children of operations. All kinds besides these and operations are
/// only counted.
const fn is_part(kind: EventKind) -> bool {
    use EventKind::{CeBatch, CeSync, KernelCh, ProxyOp};
    matches!(kind, ProxyOp | KernelCh | CeSync | CeBatch)
}

impl Families {
    pub(super) fn len(&self) -> usize {
        self.families.len()
    }

    /// Adds an operation on a stream, with its stop if that was already read. Returns the operation
    /// if its kernel was already read.
    pub(super) fn add_head(&mut self, start: Start, stream: u64) -> Option<&Head> {
        let end = self.take_end(start.handle).unwrap_or_default();
        self.make_room();
        let kind = start.handle.kind().index();
        let head = Head { start, stop: end.stop, stream };
        let family = family_of(&mut self.families, &mut self.next_number, start.handle);
        // Two operations with one handle are a defect of the program that wrote the records.
        self.unmatched[kind] += u64::from(family.head.is_some());
        family.head = Some(head);
        let is_kernel = |part: &Part| matches!(part.kind, PartKind::Kernel { .. });
        let mut parts = family.parts.iter().filter_map(|&at| self.parts.get(at)?.as_ref());
        parts.any(is_kernel).then_some(family.head.as_ref()).flatten()
    }

    /// Adds a child to the family of `parent` (its own handle if it has no parent). Returns the
    /// operation if its start was read.
    pub(super) fn add_part(&mut self, mut part: Part, parent: Handle) -> Option<&Head> {
        self.make_room();
        part.epoch = self.epoch;
        let family = family_of(&mut self.families, &mut self.next_number, parent);
        family.quiet_since = None;
        let at = self.free.pop().unwrap_or(self.parts.len());
        family.parts.push(at);
        self.by_handle.insert(part.handle, at);
        if matches!(part.kind, PartKind::Proxy) {
            self.by_step.insert((part.lane.into(), part.handle.op_ref()), at);
        }
        match self.parts.get_mut(at) {
            Some(place) => *place = Some(part),
            None => self.parts.push(Some(part)),
        }
        family.head.as_ref()
    }

    /// The operation with this handle.
    pub(super) fn head_mut(&mut self, handle: Handle) -> Option<&mut Head> {
        self.families.get_mut(&handle)?.head.as_mut()
    }

    /// The child at an index.
    pub(super) fn part(&self, at: usize) -> Option<&Part> {
        self.parts.get(at)?.as_ref()
    }

    /// The child with this handle; marks it as current, because a record of it was read.
    pub(super) fn part_mut(&mut self, handle: Handle) -> Option<&mut Part> {
        let part = self.parts.get_mut(*self.by_handle.get(&handle)?)?.as_mut()?;
        part.epoch = self.epoch;
        Some(part)
    }

    /// The ProxyOp of a step; marks it as current.
    #[inline]
    pub(super) fn part_of_step(&mut self, lane: usize, op_ref: u32) -> Option<&mut Part> {
        let part = self.parts.get_mut(*self.by_step.get(&(lane, op_ref))?)?.as_mut()?;
        part.epoch = self.epoch;
        Some(part)
    }

    /// The entry for the stop and states of an event whose start was not read; `None` for events
    /// that are only counted, and at the limit.
    pub(super) fn end_mut(&mut self, handle: Handle) -> Option<&mut End> {
        let kind = handle.kind();
        if !Facts::is_operation(kind) && !is_part(kind) {
            return None;
        }
        if self.ends.len() >= MAX_ENDS && !self.ends.contains_key(&handle) {
            self.unmatched[kind.index()] += 1;
            return None;
        }
        let end = self.ends.entry(handle).or_default();
        end.epoch = self.epoch;
        Some(end)
    }

    /// Removes and returns the stop and states of an event that were read before its start.
    pub(super) fn take_end(&mut self, handle: Handle) -> Option<End> {
        if self.ends.is_empty() { None } else { self.ends.remove(&handle) }
    }

    /// Calls `is_over` for each operation, and removes it with its children if it returns true.
    pub(super) fn settle(&mut self, mut is_over: impl FnMut(&Families, &mut Family) -> bool) {
        let mut families = std::mem::take(&mut self.families);
        families.retain(|_, family| {
            let over = family.head.is_some() && is_over(self, family);
            if over {
                self.release(&family.parts, |_, _| ());
            }
            !over
        });
        self.families = families;
    }

    /// Communicators of operations that have not settled.
    pub(super) fn comms(&self) -> BTreeSet<u16> {
        let heads = self.families.values().filter_map(|family| family.head.as_ref());
        heads.map(|head| head.start.comm).collect()
    }

    /// Removes the places of children of these communicators.
    pub(super) fn forget_places(&mut self, comms: &BTreeSet<u16>) {
        for part in self.parts.iter_mut().flatten().filter(|part| comms.contains(&part.comm)) {
            part.place = None;
        }
    }

    /// Begins an epoch: drops events whose start has been missing for too long.
    pub(super) fn next_epoch(&mut self) {
        self.epoch = self.epoch.saturating_add(1);
        let oldest = self.epoch.saturating_sub(EXPIRES_AFTER);
        self.ends.retain(|handle, end| {
            let expired = end.epoch < oldest;
            self.unmatched[handle.kind().index()] += u64::from(expired);
            !expired
        });
        let mut families = std::mem::take(&mut self.families);
        families.retain(|&handle, family| {
            let is_done =
                |part: &Part| part.epoch < oldest || part.handle == handle && part.stop.is_some();
            let mut parts = family.parts.iter().filter_map(|&at| self.part(at));
            let keep = family.head.is_some() || !parts.all(is_done);
            if !keep {
                self.release(&family.parts, |families, part| {
                    let is_orphan = part.handle != handle;
                    families.unmatched[part.handle.kind().index()] += u64::from(is_orphan);
                });
            }
            keep
        });
        self.families = families;
    }

    /// Frees children, after calling `each` for them.
    fn release(&mut self, parts: &[usize], each: impl Fn(&mut Families, &Part)) {
        for &at in parts {
            let Some(part) = self.parts.get_mut(at).and_then(Option::take) else { continue };
            each(self, &part);
            if self.by_handle.get(&part.handle) == Some(&at) {
                self.by_handle.remove(&part.handle);
            }
            let step = (part.lane.into(), part.handle.op_ref());
            if self.by_step.get(&step) == Some(&at) {
                self.by_step.remove(&step);
            }
            let is_proxy = matches!(part.kind, PartKind::Proxy);
            if is_proxy && part.moved && part.stop.is_none() {
                self.abandoned.push(part.lane);
            }
            self.free.push(at);
        }
    }

    /// At the limit, drops the older half of the families.
    fn make_room(&mut self) {
        let parts = self.parts.len() - self.free.len();
        if self.families.len() < MAX_FAMILIES && parts < MAX_PARTS {
            return;
        }
        let mut numbers: Vec<u64> = self.families.values().map(|family| family.number).collect();
        numbers.sort_unstable();
        let median = numbers.get(numbers.len() / 2).copied().unwrap_or(0);
        let mut families = std::mem::take(&mut self.families);
        families.retain(|_, family| {
            let keep = family.number > median;
            if !keep {
                if let Some(head) = &family.head {
                    self.overflowed[head.start.handle.kind().index()] += 1;
                }
                self.release(&family.parts, |families, part| {
                    families.overflowed[part.handle.kind().index()] += 1;
                });
            }
            keep
        });
        self.families = families;
    }
}

fn family_of<'a>(
    families: &'a mut Map<Handle, Family>,
    next_number: &mut u64,
    handle: Handle,
) -> &'a mut Family {
    families.entry(handle).or_insert_with(|| {
        *next_number += 1;
        Family { number: *next_number, ..Family::default() }
    })
}

impl Part {
    /// A child, from its start and the records that were read before it.
    pub(super) fn new(start: &Start, kind: PartKind, lane: u8, end: End) -> Part {
        Part {
            handle: start.handle,
            kind,
            comm: start.comm,
            lane,
            start: start.ticks,
            stop: end.stop,
            moved: end.stop.is_some() || end.state.is_some(),
            ptimer_stop: end.ptimer_stop,
            place: None,
            sent: Sent::default(),
            told: 0,
            told_from: None,
            foreign: None,
            epoch: 0,
        }
    }
}
