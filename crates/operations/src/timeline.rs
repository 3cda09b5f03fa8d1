// SPDX-License-Identifier: Apache-2.0
/*!
The events of one process, joined from its records.

A start, its stop and its states may be in different lanes, because NCCL's threads share events;
they are joined by handle, in any order. Steps are folded into their ProxyOp, which started on the
same lane, unless the caller keeps them. A parent counts as known only if its handle belongs to this
process and its start is in the recording.

[`Timeline::read`] holds all events of a recording. The joiner ([`crate::joiner`]) uses the same
type as its state: it forgets events (`Timeline::forget`) when nothing more is expected of them.
*/

use crate::counts::Counts;
use crate::event_id::{EventId, NewNumbers};
use crate::hash::Map;
use crate::peers::Links;
use crate::steps::{OpSteps, told_more};
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::record::KernelCh;
use ncclscope_trace::{
    Comm, Detail, EventKind, Handle, Record, Recording, Start, State, Step, StrId, TickMap,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of passes over the events of timelines in this process.
static PASSES: AtomicU64 = AtomicU64::new(0);

/// Number of passes over the events of timelines in this process. For the test that no verb makes a
/// pass for each communicator.
#[doc(hidden)]
pub fn passes() -> u64 {
    PASSES.load(Relaxed)
}

/// An event's parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parent {
    /// NCCL gave no parent, or the kind of event has none.
    None,
    /// The parent is in this timeline. The parent of a NetPlugin event, for NCCL a step, is the
    /// step's ProxyOp.
    Known(EventId),
    /// NCCL gave a parent that is not in the recording: stale, another process's, or lost.
    Unknown,
}

/// The processing state of an event, as bits of [`Event::marks`].
pub(crate) mod marks {
    /// Its parent was looked up.
    pub(crate) const LINKED: u8 = 1;
    /// It has, or had, children.
    pub(crate) const HAS_CHILDREN: u8 = 2;
    /// [`crate::doubts`] has processed its start.
    pub(crate) const NOTED: u8 = 4;
    /// The times of this KernelCh were compared with those before it.
    pub(crate) const COMPARED: u8 = 8;
    /// No later kernel can prove that the times of this KernelCh are another kernel's.
    pub(crate) const PASSED: u8 = 16;
    /// The times of this KernelCh are another kernel's.
    pub(crate) const STRAY: u8 = 32;
}

/// One event other than a step.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its start record.
    pub start: Start,
    /// When it stopped, in ticks.
    pub stop: Option<u64>,
    /// Its parent.
    pub parent: Parent,
    /// The lane it started on.
    pub lane: u8,
    pub(crate) marks: u8,
    /// Time of its first state, in ticks: a ProxyOp's first progress, the return of ncclGroupStart,
    /// the end of a KernelCh.
    pub first_state: Option<u64>,
    /// GPU timer of a KernelCh or KernelPhase at its end, ns, and the callback's time in ticks.
    pub ptimer_stop: Option<(u64, u64)>,
    /// The steps of a ProxyOp, if it had any.
    pub steps: Option<Box<OpSteps>>,
}

impl Event {
    /// The kind of event.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        self.start.detail.kind()
    }

    /// Whether it is a ProxyOp that belongs to another process (PXN).
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        matches!(self.start.detail, Detail::ProxyOp(op) if op.foreign)
    }

    /// Whether it is an API call that was captured into a CUDA graph, whose operations start each
    /// time the graph is launched.
    #[must_use]
    pub fn is_captured(&self) -> bool {
        matches!(self.start.detail, Detail::CollApi(call) | Detail::P2pApi(call) if call.graph)
    }

    pub(crate) const fn has(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    /// Time of its latest record, without its steps, in ticks.
    pub(crate) fn last_change(&self) -> u64 {
        let state = self.first_state.max(self.ptimer_stop.map(|(_, ticks)| ticks));
        self.stop.max(state).unwrap_or(0).max(self.start.ticks)
    }
}

/// The events of one process.
#[derive(Debug)]
pub struct Timeline<'a> {
    recording: &'a Recording,
    clock: TickMap,
    /// Position of each communicator by its index; `NO_COMM` if the index is not in use.
    positions: Vec<u32>,
    /// This process's rank by position of the communicator; `None` if unknown.
    ranks: Vec<Option<i32>>,
    events: Vec<Event>,
    by_handle: Map<Handle, EventId>,
    /// The ProxyOps to which steps may still be added.
    ops: OpenOps,
    /// Stops and states whose event's start was not read yet.
    early_ends: Vec<Record>,
    /// The forgotten events that had stopped, with the position of their communicator; only if
    /// recording was stopped at times, after which NCCL may stop events again.
    stopped: Map<Handle, u32>,
    first_child: Vec<u32>,
    children: Vec<EventId>,
    counts: Vec<Counts>,
    unattributed: Counts,
    unmatched_ends: [u64; KINDS],
    orphan_steps: u64,
    links: Links,
    steps: Vec<(EventId, Step)>,
    external_ids: Map<EventId, u64>,
    launches_ns: Map<EventId, u64>,
    has_cuda_events: bool,
    /// Launch of the first kernel of each group of API calls, in ticks.
    launches: Map<EventId, u64>,
    /// Time from which the kernel channels of a communicator are not used, in ticks, by position
    /// ([`crate::kernels`]).
    kernels_until: Vec<Option<u64>>,
    stray_kernels: u64,
    unknown: BTreeMap<u8, u64>,
    records: u64,
}

const NO_COMM: u32 = u32::MAX;
/// Number of forgotten events that are kept by handle, about.
const STOPPED: usize = 256 << 10;

/// Room for the events of a timeline, without any.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    events: Vec<Event>,
    by_handle: Map<Handle, EventId>,
    slots: Vec<Option<OpenOp>>,
}

/// A ProxyOp to which steps may be added.
#[derive(Clone, Copy, Debug)]
struct OpenOp {
    lane: u8,
    op_ref: u32,
    id: EventId,
    /// Position of its communicator.
    comm: Option<u32>,
    /// Number of its link, once it has a step.
    link: Option<usize>,
}

/// ProxyOps by the slot that a step names. A slot is used again after its ProxyOp stopped. If steps
/// of the earlier ProxyOp may still be unread, it is kept in `displaced`.
#[derive(Debug, Default)]
struct OpenOps {
    slots: Vec<Option<OpenOp>>,
    displaced: Map<(u8, u32), OpenOp>,
}

impl OpenOps {
    /// The slot's number is in the low bits.
    const fn slot(op_ref: u32) -> usize {
        Handle((op_ref as u64) << 3).slot()
    }

    /// Adds a ProxyOp; `has_stopped` says whether the earlier one of the slot has stopped.
    fn insert(&mut self, op: OpenOp, has_stopped: impl Fn(EventId) -> bool) {
        let slot = OpenOps::slot(op.op_ref);
        if slot >= self.slots.len() {
            self.slots.resize(slot + 1, None);
        }
        if let Some(before) = self.slots[slot].replace(op)
            && (before.lane != op.lane || !has_stopped(before.id))
        {
            self.displaced.insert((before.lane, before.op_ref), before);
        }
    }

    /// The latest ProxyOp that a lane started with this [`Handle::op_ref`].
    fn get(&mut self, lane: u8, op_ref: u32) -> Option<&mut OpenOp> {
        match self.slots.get_mut(OpenOps::slot(op_ref)) {
            Some(Some(op)) if op.lane == lane && op.op_ref == op_ref => Some(op),
            _ if self.displaced.is_empty() => None,
            _ => self.displaced.get_mut(&(lane, op_ref)),
        }
    }

    /// Renumbers the events.
    fn renumber(&mut self, new: impl Fn(EventId) -> Option<EventId>) {
        for slot in &mut self.slots {
            *slot = slot.and_then(|op| Some(OpenOp { id: new(op.id)?, ..op }));
        }
        self.displaced.retain(|_, op| new(op.id).map(|id| op.id = id).is_some());
    }
}

impl<'a> Timeline<'a> {
    /// A timeline without any event.
    pub(crate) fn new(recording: &'a Recording) -> Timeline<'a> {
        let comms = recording.comms();
        let indices = comms.iter().map(|comm| usize::from(comm.index) + 1).max().unwrap_or(0);
        let mut positions = vec![NO_COMM; indices];
        for (at, comm) in (0..).zip(comms) {
            positions[usize::from(comm.index)] = at;
        }
        Timeline {
            recording,
            clock: recording.tick_map(),
            positions,
            ranks: comms.iter().map(|comm| Some(comm.rank).filter(|&rank| rank >= 0)).collect(),
            events: Vec::new(),
            by_handle: Map::default(),
            ops: OpenOps::default(),
            early_ends: Vec::new(),
            stopped: Map::default(),
            first_child: Vec::new(),
            children: Vec::new(),
            counts: vec![Counts::default(); comms.len()],
            unattributed: Counts::default(),
            unmatched_ends: [0; KINDS],
            orphan_steps: 0,
            links: Links::default(),
            steps: Vec::new(),
            external_ids: Map::default(),
            launches_ns: Map::default(),
            has_cuda_events: false,
            launches: Map::default(),
            kernels_until: vec![None; comms.len()],
            stray_kernels: 0,
            unknown: recording.unknown_records().clone(),
            records: 0,
        }
    }

    /// Makes room for a number of events.
    pub(crate) fn make_room(&mut self, events: usize) {
        self.events.reserve(events);
    }

    /// Uses the buffers of an earlier timeline.
    pub(crate) fn lend(&mut self, Buffers { events, by_handle, slots }: Buffers) {
        (self.events, self.by_handle, self.ops.slots) = (events, by_handle, slots);
    }

    /// Forgets all events, and returns the buffers.
    pub(crate) fn take_buffers(&mut self) -> Buffers {
        let mut buffers = Buffers {
            events: std::mem::take(&mut self.events),
            by_handle: std::mem::take(&mut self.by_handle),
            slots: std::mem::take(&mut self.ops).slots,
        };
        (self.first_child, self.children) = Default::default();
        buffers.events.clear();
        buffers.by_handle.clear();
        buffers.slots.clear();
        buffers
    }

    /// Takes a record of a lane, in the lane's order. For a step, returns its ProxyOp if that is
    /// known.
    #[inline]
    pub(crate) fn record(&mut self, lane: usize, record: &Record) -> Option<EventId> {
        self.records += 1;
        match record {
            Record::Step(step) => return self.add_step(lane, step),
            Record::Start(start) => self.add_start(start, lane),
            Record::Stop { .. } | Record::State { .. } => {
                if !self.join_known(record) {
                    self.early_ends.push(*record);
                }
            }
            Record::Unknown { code, .. } => *self.unknown.entry(*code).or_default() += 1,
            Record::ClockSync(_)
            | Record::Mark(_)
            | Record::Heartbeat(_)
            | Record::PairCount(_) => {}
        }
        None
    }

    /// Joins stops and states that were read before their event's start, and children with parents.
    /// Every record that was pushed before `until` ticks has been read; `None`: all records.
    pub(crate) fn join(&mut self, until: Option<u64>) {
        for end in std::mem::take(&mut self.early_ends) {
            if self.join_known(&end) {
                continue;
            }
            if until.is_some_and(|until| end.ticks() >= until) {
                self.early_ends.push(end);
            } else if let Record::Stop { handle, .. } | Record::State { handle, .. } = end {
                match self.stopped.get(&handle) {
                    // A CUDA event is read long after the launch, which may be forgotten by then.
                    None if matches!(end, Record::State { state: State::CUDA_EVENT, .. }) => {}
                    None => self.unmatched_ends[handle.kind().index()] += 1,
                    Some(&comm) => {
                        let comm = (comm != NO_COMM).then_some(comm as usize);
                        self.counts_mut(comm).kind_mut(handle.kind()).stale += 1;
                    }
                }
            }
        }
        if until.is_none() {
            self.links.finish(&self.clock);
        }
        self.link_parents(until);
        self.index_children();
    }

    fn add_start(&mut self, start: &Start, lane: usize) {
        let id = EventId::of_index(self.events.len());
        let lane = u8::try_from(lane).unwrap_or(u8::MAX);
        let comm = self.position(start);
        if let Some(rank) = comm.and_then(|comm| self.ranks.get_mut(comm))
            && rank.is_none()
        {
            *rank = match start.detail {
                Detail::Coll(coll) => Some(coll.rank),
                Detail::ProxyOp(op) => Some(op.rank),
                _ => None,
            };
        }
        let kind = start.detail.kind();
        self.counts_mut(comm).kind_mut(kind).started += 1;
        if kind == EventKind::ProxyOp {
            let (op_ref, comm) = (start.handle.op_ref(), comm.and_then(|at| at.try_into().ok()));
            let events = &self.events;
            let has_stopped = |id: EventId| events[id.index()].stop.is_some();
            self.ops.insert(OpenOp { lane, op_ref, id, comm, link: None }, has_stopped);
        }
        self.by_handle.insert(start.handle, id);
        self.events.push(Event {
            start: *start,
            stop: None,
            parent: Parent::None,
            lane,
            marks: 0,
            first_state: None,
            ptimer_stop: None,
            steps: None,
        });
    }

    /// Adds a ProxyOp that another process's proxy thread did for this one (PXN).
    pub(crate) fn adopt(&mut self, event: &Event) {
        let id = EventId::of_index(self.events.len());
        self.by_handle.insert(event.start.handle, id);
        self.events.push(event.clone());
    }

    /// Adds the links of the ProxyOps of [`Timeline::adopt`], by the index of the communicator.
    pub(crate) fn adopt_links(&mut self, links: &Links) {
        let positions = &self.positions;
        self.links.merge(links, |index| {
            positions.get(index).filter(|&&at| at != NO_COMM).map(|&at| at as usize)
        });
    }

    #[inline]
    fn add_step(&mut self, lane: usize, step: &Step) -> Option<EventId> {
        let lane = u8::try_from(lane).unwrap_or(u8::MAX);
        let Some(op) = self.ops.get(lane, step.op_ref) else {
            self.orphan_steps += 1;
            self.unattributed.add_step(step);
            return None;
        };
        let id = op.id;
        let event = &mut self.events[op.id.index()];
        event.steps.get_or_insert_default().add(step);
        let comm = op.comm.map(|comm| comm as usize);
        if let (Some(comm), Detail::ProxyOp(detail)) = (comm, &event.start.detail) {
            let links = &mut self.links;
            let link = *op.link.get_or_insert_with(|| links.number(comm, detail));
            self.links.add(link, step, &self.clock);
        }
        self.counts_mut(comm).add_step(step);
        Some(id)
    }

    /// Adds the bytes that a state of a ProxyOp reports as moved so far (API v1 to v3).
    fn add_told(&mut self, id: EventId, bytes: u64) {
        let comm = self.comm_of(&self.events[id.index()]);
        let event = &mut self.events[id.index()];
        let (Some(comm), Detail::ProxyOp(op)) = (comm, &event.start.detail) else { return };
        let steps = event.steps.get_or_insert_default();
        let more = told_more(&mut steps.told_from, steps.bytes, bytes);
        if more > 0 {
            steps.bytes += more;
            self.links.add_told(comm, op, more);
        }
    }

    /// Joins a stop or state with its event; false if the event is unknown.
    fn join_known(&mut self, end: &Record) -> bool {
        let (handle, ticks) = match *end {
            Record::Stop { ticks, handle } | Record::State { ticks, handle, .. } => (handle, ticks),
            _ => return true,
        };
        let Some(&id) = self.by_handle.get(&handle) else { return false };
        let event = &mut self.events[id.index()];
        let Record::State { state, arg, .. } = *end else {
            let (kind, first) = (event.kind(), event.stop.is_none());
            // Of two stops in different lanes the earlier one counts.
            event.stop = Some(event.stop.map_or(ticks, |stop| stop.min(ticks)));
            let comm = self.comm_of(&self.events[id.index()]);
            let count = self.counts_mut(comm).kind_mut(kind);
            count.stopped += u64::from(first);
            count.stale += u64::from(!first);
            return true;
        };
        if state == State::EXTERNAL_ID {
            self.external_ids.insert(id, arg);
        } else if state == State::CUDA_EVENT {
            self.launches_ns.insert(id, arg);
            self.has_cuda_events = true;
        } else {
            event.first_state = Some(event.first_state.map_or(ticks, |t| t.min(ticks)));
            if state == State::KERNEL_CH_STOP || state == State::KERNEL_PHASE_STOP {
                event.ptimer_stop = Some((arg, ticks));
            }
            if state.0 <= State::PROXY_OP_RECV_DONE.0 {
                self.add_told(id, arg);
            }
            let comm = self.comm_of(&self.events[id.index()]);
            self.counts_mut(comm).add_state(state, 1);
        }
        true
    }

    /// Finds the parents of new events. A missing parent may still be unread if its child started
    /// at `until` or later.
    fn link_parents(&mut self, until: Option<u64>) {
        let process = u64::from(self.recording.header().process);
        for index in 0..self.events.len() {
            let event = &self.events[index];
            if event.has(marks::LINKED) {
                continue;
            }
            let mut handle = event.start.parent;
            if handle.kind() == EventKind::ProxyStep {
                // The parent of a NetPlugin event is a step, which is not an event; its ProxyOp is
                // used instead.
                handle = handle.op_of();
            }
            let parent = match self.by_handle.get(&handle) {
                _ if handle.is_null() || event.is_foreign() => Parent::None,
                Some(&id) if handle.process() == process => Parent::Known(id),
                _ => Parent::Unknown,
            };
            match parent {
                Parent::Known(id) => {
                    if event.kind() == EventKind::KernelLaunch {
                        let first = self.launches.entry(id).or_insert(event.start.ticks);
                        *first = event.start.ticks.min(*first);
                    }
                    self.events[id.index()].marks |= marks::HAS_CHILDREN;
                }
                Parent::Unknown if until.is_some_and(|until| event.start.ticks >= until) => {
                    continue;
                }
                Parent::Unknown => {
                    let (comm, kind) = (self.comm_of(event), event.kind());
                    self.counts_mut(comm).kind_mut(kind).unknown_parent += 1;
                }
                Parent::None => {}
            }
            let event = &mut self.events[index];
            (event.parent, event.marks) = (parent, event.marks | marks::LINKED);
        }
    }

    fn index_children(&mut self) {
        let first_child = &mut self.first_child;
        first_child.clear();
        first_child.resize(self.events.len() + 2, 0);
        let known = || {
            self.events.iter().enumerate().filter_map(|(index, event)| match event.parent {
                Parent::Known(parent) => Some((index, parent.index())),
                _ => None,
            })
        };
        // Counts are stored two indices further on, so that after filling in the children each
        // entry is the start of its range.
        for (_, parent) in known() {
            first_child[parent + 2] += 1;
        }
        for index in 2..first_child.len() {
            first_child[index] += first_child[index - 1];
        }
        self.children.clear();
        self.children.resize(first_child.last().map_or(0, |&n| n as usize), EventId::of_index(0));
        for (index, parent) in known() {
            let place = &mut first_child[parent + 1];
            self.children[*place as usize] = EventId::of_index(index);
            *place += 1;
        }
    }

    /// Notes which of the events that go have stopped, without those that went long ago.
    fn note_stopped(&mut self, goes: &[bool]) {
        if self.stopped.len() > STOPPED {
            self.stopped.clear();
        }
        let gone =
            self.events.iter().zip(goes).filter(|(event, goes)| **goes && event.stop.is_some());
        for (event, _) in gone {
            let comm = self.comm_of(event).and_then(|comm| comm.try_into().ok());
            self.stopped.insert(event.start.handle, comm.unwrap_or(NO_COMM));
        }
    }

    /// Forgets the events for whose index `goes` is true. The others are renumbered.
    pub(crate) fn forget(&mut self, goes: &[bool]) -> NewNumbers {
        if self.recording.has_pauses() {
            self.note_stopped(goes);
        }
        let numbers = NewNumbers::of(goes);
        let new = |id: EventId| numbers.of_event(id);
        let mut at = 0;
        self.events.retain_mut(|event| {
            at += 1;
            if let Parent::Known(parent) = event.parent {
                event.parent = new(parent).map_or(Parent::Unknown, Parent::Known);
            }
            !goes[at - 1]
        });
        // Rebuilding the map is faster than removing entries, which would leave tombstones.
        self.by_handle.clear();
        for (index, event) in self.events.iter().enumerate() {
            self.by_handle.insert(event.start.handle, EventId::of_index(index));
        }
        self.ops.renumber(new);
        for values in [&mut self.external_ids, &mut self.launches_ns, &mut self.launches] {
            let kept = values.iter().filter_map(|(&id, &value)| Some((new(id)?, value)));
            *values = kept.collect();
        }
        self.first_child.clear();
        self.children.clear();
        numbers
    }

    /// Drops the times of a KernelCh, which are not its own.
    pub(crate) fn drop_times(&mut self, kernel: EventId) {
        let event = &mut self.events[kernel.index()];
        if let Detail::KernelCh(KernelCh { ptimer, .. }) = &mut event.start.detail {
            *ptimer = 0;
        }
        event.ptimer_stop = None;
        event.marks |= marks::STRAY | marks::PASSED;
    }

    /// Sets the time from which the kernel channels of each communicator are not used, and the
    /// number of kernels whose times were dropped so far.
    pub(crate) fn doubt_kernels(&mut self, until: Vec<Option<u64>>, stray: u64) {
        (self.kernels_until, self.stray_kernels) = (until, stray);
    }

    /// Stores the steps, each with its ProxyOp.
    pub(crate) fn keep_steps(&mut self, steps: Vec<(EventId, Step)>) {
        self.steps = steps;
    }

    pub(crate) fn mark(&mut self, id: EventId, mark: u8) {
        self.events[id.index()].marks |= mark;
    }

    pub(crate) fn find(&self, handle: Handle) -> Option<EventId> {
        self.by_handle.get(&handle).copied()
    }

    /// Number of events.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = EventId> + use<> {
        (0..self.events.len()).map(EventId::of_index)
    }

    fn counts_mut(&mut self, comm: Option<usize>) -> &mut Counts {
        match comm.and_then(|comm| self.counts.get_mut(comm)) {
            Some(counts) => counts,
            None => &mut self.unattributed,
        }
    }

    /// The number of records read, steps included.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Records that this version does not know: name and number for each code.
    pub fn unknown_records(&self) -> impl Iterator<Item = (String, u64)> {
        let name = |code| self.recording.record_name(code).map(String::from);
        let named = move |code| name(code).unwrap_or_else(|| format!("code {code}"));
        self.unknown.iter().map(move |(&code, &count)| (named(code), count))
    }

    /// The recording.
    #[must_use]
    pub fn recording(&self) -> &'a Recording {
        self.recording
    }
    /// The map from ticks to time.
    #[must_use]
    pub fn clock(&self) -> &TickMap {
        &self.clock
    }
    /// The events with their numbers, lane by lane in the order of their starts.
    pub fn events(&self) -> impl Iterator<Item = (EventId, &Event)> {
        PASSES.fetch_add(1, Relaxed);
        self.ids().zip(&self.events)
    }
    /// An event. Ids of another timeline are a defect of the caller.
    #[must_use]
    pub fn event(&self, id: EventId) -> &Event {
        &self.events[id.index()]
    }
    /// The events that name `id` as their parent, in the order of [`Timeline::events`].
    #[must_use]
    pub fn children(&self, id: EventId) -> &[EventId] {
        let place = |index: usize| self.first_child.get(index).map_or(0, |&at| at as usize);
        self.children.get(place(id.index())..place(id.index() + 1)).unwrap_or(&[])
    }
    /// Whether any event names or named `id` as its parent, including events that are forgotten.
    #[must_use]
    pub fn has_children(&self, id: EventId) -> bool {
        self.event(id).has(marks::HAS_CHILDREN)
    }
    /// The steps with their ProxyOp, if they were requested.
    #[must_use]
    pub fn steps(&self) -> &[(EventId, Step)] {
        &self.steps
    }
    /// The application's own id of an API call (PyTorch's `External id`), if it gave one: see
    /// [`State::EXTERNAL_ID`].
    #[must_use]
    pub fn external_id(&self, id: EventId) -> Option<u64> {
        self.external_ids.get(&id).copied()
    }
    /// Duration of the kernel of a KernelLaunch from CUDA events, ns: see [`State::CUDA_EVENT`].
    #[must_use]
    pub fn launch_ns(&self, id: EventId) -> Option<u64> {
        self.launches_ns.get(&id).copied()
    }
    /// Launch of the first kernel of each group of API calls, in ticks, by the id of its GroupApi.
    pub(crate) fn launches(&self) -> &Map<EventId, u64> {
        &self.launches
    }
    /// Whether an operation is one of a launch of a CUDA graph. CUDA events measure only launches
    /// by calls.
    #[must_use]
    pub fn is_replay(&self, operation: &Event) -> bool {
        matches!(operation.parent, Parent::Known(call) if self.event(call).is_captured())
    }
    /// Whether CUDA events may measure the launch of an operation, by the process's setting.
    pub(crate) fn may_be_measured(&self, operation: &Event) -> bool {
        let of = self.recording;
        let setting = of.identity().cuda_events.as_deref();
        let is_off = |comm| !self.comm(comm).may_be_measured(of.header().mask, setting);
        !self.comm_of(operation).is_some_and(is_off)
    }
    /// Whether any launch was measured by CUDA events.
    #[must_use]
    pub fn has_cuda_events(&self) -> bool {
        self.has_cuda_events
    }
    /// Whether the kernel channels of an operation have the times of others and are not used
    /// ([`crate::kernels`]).
    #[must_use]
    pub fn is_kernel_doubted(&self, operation: &Event) -> bool {
        let since = self.comm_of(operation).and_then(|comm| self.kernels_until(comm));
        since.is_some_and(|since| operation.start.ticks >= since)
    }
    /// Time from which the kernel channels of a communicator are not used, in ticks.
    #[must_use]
    pub(crate) fn kernels_until(&self, comm: usize) -> Option<u64> {
        self.kernels_until.get(comm).copied().flatten()
    }
    /// Number of kernel channels whose times were dropped because they were another work's, or that
    /// are missing because NCCL waits for another work's.
    #[must_use]
    pub fn stray_kernels(&self) -> u64 {
        self.stray_kernels
    }
    /// The position in [`Recording::comms`] of an event's communicator. `None` if its definition is
    /// missing, and for a ProxyOp of another process.
    #[must_use]
    pub fn comm_of(&self, event: &Event) -> Option<usize> {
        self.position(&event.start)
    }

    fn position(&self, start: &Start) -> Option<usize> {
        let is_foreign = matches!(start.detail, Detail::ProxyOp(op) if op.foreign);
        let position = self.positions.get(usize::from(start.comm));
        position.filter(|&&at| at != NO_COMM && !is_foreign).map(|&at| at as usize)
    }

    /// The communicator at a position.
    #[must_use]
    pub fn comm(&self, position: usize) -> &'a Comm {
        &self.recording.comms()[position]
    }
    /// The process's rank in a communicator: from `init`, or from its events (API v1 to v3).
    #[must_use]
    pub fn rank(&self, position: usize) -> Option<i32> {
        self.ranks[position]
    }
    /// Whether events are missing between others: lost, left out by sampling, or not recorded while
    /// recording was stopped.
    #[must_use]
    pub fn has_gaps(&self) -> bool {
        let lanes = self.recording.lanes().iter().map(|lane| &lane.header);
        self.recording.has_pauses()
            || EventKind::ALL.iter().any(|&kind| self.recording.lost(kind) != 0)
            || lanes.flat_map(|lane| lane.lost_ends).any(|lost| lost != 0)
    }
    /// The counts of the communicator at a position.
    #[must_use]
    pub fn counts(&self, position: usize) -> &Counts {
        &self.counts[position]
    }
    /// Counts of events without a known communicator: those of other processes (PXN), and steps
    /// whose ProxyOp's start is missing.
    #[must_use]
    pub fn unattributed(&self) -> &Counts {
        &self.unattributed
    }
    /// Stops and states, by kind, of events whose start is not in the recording.
    #[must_use]
    pub fn unmatched_ends(&self) -> &[u64; KINDS] {
        &self.unmatched_ends
    }
    /// Number of steps whose ProxyOp's start is not in the recording.
    #[must_use]
    pub fn orphan_steps(&self) -> u64 {
        self.orphan_steps
    }
    /// The network links used.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.links
    }
    /// A string of NCCL's; "unknown" if it gave none.
    #[must_use]
    pub fn string(&self, id: StrId) -> &'a str {
        self.recording.string(id).unwrap_or("unknown")
    }
    /// `CLOCK_REALTIME` at `ticks`, ns.
    #[must_use]
    pub fn ns(&self, ticks: u64) -> u64 {
        self.clock.realtime_ns(ticks)
    }
}

/// The role of a communicator in reports: `said`, the role or name that the application gave it,
/// else one by its size.
#[must_use]
pub fn role_or_size(said: Option<&str>, ranks: Option<u32>) -> String {
    match (said, ranks) {
        (Some(role), _) => role.to_owned(),
        (None, Some(ranks)) => format!("{ranks} ranks"),
        (None, None) => "unknown".to_owned(),
    }
}

/// The name of a communicator in reports: its hash, or if the API version gives none (v1 to v3),
/// `unknown-N` by the order of `init`.
#[must_use]
pub fn comm_name(comm: &Comm) -> String {
    if comm.hash == 0 { format!("unknown-{}", comm.index) } else { format!("{:#x}", comm.hash) }
}
