// SPDX-License-Identifier: Apache-2.0
/*!
The events of one process, joined from its records.

A start, its stop and its states may lie in different lanes, because NCCL's threads share events;
they are joined by handle after all lanes are read. Steps are folded into their ProxyOp, which
started on the same lane, unless the caller asks to keep them. A parent counts as known only if its
handle is this process's and its start is in the recording.
*/

use crate::counts::Counts;
use crate::doubts::Doubts;
use crate::hash::Map;
use crate::peers::Links;
use crate::steps::OpSteps;
use ncclscope_trace::handle::LANES;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::record::KernelCh;
use ncclscope_trace::{
    Comm, Detail, EventKind, Handle, Record, Recording, Start, State, Step, StrId, TickMap,
};
use std::collections::BTreeMap;

/// Number of an event in its [`Timeline`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct EventId(u32);

impl EventId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// An event's parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parent {
    /// NCCL named none, or the kind of event has none.
    None,
    /// In this timeline.
    Known(EventId),
    /// NCCL named one that is not in the recording: stale, another process's, or lost.
    Unknown,
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
    /// When it changed state for the first time, in ticks: a ProxyOp's first progress, the return
    /// of ncclGroupStart, the end of a KernelCh.
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

    /// A ProxyOp that belongs to another process.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        matches!(self.start.detail, Detail::ProxyOp(op) if op.foreign)
    }
}

/// The events of one process.
#[derive(Debug)]
pub struct Timeline<'a> {
    recording: &'a Recording,
    clock: TickMap,
    positions: Map<u16, usize>,
    events: Vec<Event>,
    by_handle: Map<Handle, EventId>,
    first_child: Vec<u32>,
    children: Vec<EventId>,
    counts: Vec<Counts>,
    unattributed: Counts,
    unmatched_ends: [u64; KINDS],
    orphan_steps: u64,
    links: Links,
    keep_steps: bool,
    steps: Vec<(EventId, Step)>,
    external_ids: Map<EventId, u64>,
    launches_ns: Map<EventId, u64>,
    doubts: Doubts,
    unknown: BTreeMap<u8, u64>,
    records: u64,
}

/// A ProxyOp of the lane that is read.
#[derive(Clone, Copy, Debug)]
struct OpenOp {
    id: EventId,
    /// Position of its communicator.
    comm: Option<usize>,
    /// Number of its link, from its first step on.
    link: Option<usize>,
}

impl<'a> Timeline<'a> {
    /// Reads every record of a recording. Steps are kept one by one only with `keep_steps`; they
    /// are most of a recording.
    #[must_use]
    pub fn read(recording: &'a Recording, keep_steps: bool) -> Timeline<'a> {
        let comms = recording.comms();
        let mut timeline = Timeline {
            recording,
            clock: recording.tick_map(),
            positions: comms.iter().enumerate().map(|(at, comm)| (comm.index, at)).collect(),
            events: Vec::new(),
            by_handle: Map::default(),
            first_child: Vec::new(),
            children: Vec::new(),
            counts: vec![Counts::default(); comms.len()],
            unattributed: Counts::default(),
            unmatched_ends: [0; KINDS],
            orphan_steps: 0,
            links: Links::default(),
            keep_steps,
            steps: Vec::new(),
            external_ids: Map::default(),
            launches_ns: Map::default(),
            doubts: Doubts::default(),
            unknown: recording.unknown_records().clone(),
            records: 0,
        };
        let mut ends = Vec::new();
        for lane in 0..LANES {
            timeline.read_lane(lane, &mut ends);
        }
        for end in ends {
            timeline.join_end(&end);
        }
        timeline.links.finish(&timeline.clock);
        timeline.link_parents();
        let doubts = Doubts::of(&timeline);
        timeline.doubt(doubts);
        timeline
    }

    /// Reads a lane's starts and steps, and joins what ends events that it knows by then; the
    /// ends of other lanes' events go to `ends`.
    fn read_lane(&mut self, lane: usize, ends: &mut Vec<Record>) {
        // An operation's short name may be used again: the latest start before the step counts.
        let mut ops: Map<u32, OpenOp> = Map::default();
        for record in self.recording.records(lane) {
            self.records += 1;
            match record {
                Record::Start(start) => {
                    let id = self.add_start(start, lane);
                    if start.handle.kind() == EventKind::ProxyOp {
                        let comm = self.comm_of(self.event(id));
                        ops.insert(start.handle.op_ref(), OpenOp { id, comm, link: None });
                    }
                }
                Record::Step(step) => {
                    self.add_step(ops.get_mut(&step.op_ref), &step);
                }
                Record::Stop { .. } | Record::State { .. } => {
                    if !self.join_known(&record) {
                        ends.push(record);
                    }
                }
                Record::Unknown { code, .. } => *self.unknown.entry(code).or_default() += 1,
                Record::ClockSync(_) | Record::Mark(_) | Record::Vital(_) => {}
            }
        }
    }

    fn add_start(&mut self, start: Start, lane: usize) -> EventId {
        let id = EventId(u32::try_from(self.events.len()).unwrap_or(u32::MAX));
        let event = Event {
            start,
            stop: None,
            parent: Parent::None,
            lane: u8::try_from(lane).unwrap_or(u8::MAX),
            first_state: None,
            ptimer_stop: None,
            steps: None,
        };
        let comm = self.comm_of(&event);
        self.counts_mut(comm).kind_mut(event.kind()).started += 1;
        self.events.push(event);
        self.by_handle.insert(start.handle, id);
        id
    }

    fn add_step(&mut self, op: Option<&mut OpenOp>, step: &Step) {
        let Some(op) = op else {
            self.orphan_steps += 1;
            self.unattributed.add_step(step);
            return;
        };
        let event = &mut self.events[op.id.index()];
        event.steps.get_or_insert_default().add(step);
        if let (Some(comm), Detail::ProxyOp(detail)) = (op.comm, event.start.detail) {
            let link = *op.link.get_or_insert_with(|| self.links.number(comm, &detail));
            self.links.add(link, step, &self.clock);
        }
        self.counts_mut(op.comm).add_step(step);
        if self.keep_steps {
            self.steps.push((op.id, *step));
        }
    }

    fn join_end(&mut self, end: &Record) {
        if !self.join_known(end) {
            let handle = match end {
                Record::Stop { handle, .. } | Record::State { handle, .. } => *handle,
                _ => return,
            };
            self.unmatched_ends[handle.kind().index()] += 1;
        }
    }

    /// Joins a stop or state with its event; false if the event is not known.
    fn join_known(&mut self, end: &Record) -> bool {
        match *end {
            Record::Stop { ticks, handle } => {
                let Some(&id) = self.by_handle.get(&handle) else { return false };
                let event = &mut self.events[id.index()];
                let (kind, first) = (event.kind(), event.stop.is_none());
                // Of two stops in different lanes the earlier one is the event's.
                event.stop = Some(event.stop.map_or(ticks, |stop| stop.min(ticks)));
                let comm = self.comm_of(&self.events[id.index()]);
                let count = self.counts_mut(comm).kind_mut(kind);
                count.stopped += u64::from(first);
                count.stale += u64::from(!first);
                true
            }
            Record::State { ticks, handle, state, arg, .. } => {
                let Some(&id) = self.by_handle.get(&handle) else { return false };
                if state == State::EXTERNAL_ID {
                    self.external_ids.insert(id, arg);
                    return true;
                }
                if state == State::CUDA_EVENT {
                    self.launches_ns.insert(id, arg);
                    return true;
                }
                let event = &mut self.events[id.index()];
                event.first_state = Some(event.first_state.map_or(ticks, |t| t.min(ticks)));
                if state == State::KERNEL_CH_STOP || state == State::KERNEL_PHASE_STOP {
                    event.ptimer_stop = Some((arg, ticks));
                }
                let comm = self.comm_of(&self.events[id.index()]);
                self.counts_mut(comm).add_state(state, 1);
                true
            }
            _ => true,
        }
    }

    fn link_parents(&mut self) {
        let process = u64::from(self.recording.header().process);
        let mut first_child = vec![0u32; self.events.len() + 1];
        for index in 0..self.events.len() {
            let event = &self.events[index];
            let handle = event.start.parent;
            let parent = match self.by_handle.get(&handle) {
                _ if handle.is_null() || event.is_foreign() => Parent::None,
                Some(&id) if handle.process() == process => Parent::Known(id),
                _ => Parent::Unknown,
            };
            match parent {
                Parent::Known(id) => first_child[id.index() + 1] += 1,
                Parent::Unknown => {
                    let (comm, kind) = (self.comm_of(event), event.kind());
                    self.counts_mut(comm).kind_mut(kind).unknown_parent += 1;
                }
                Parent::None => {}
            }
            self.events[index].parent = parent;
        }
        for index in 1..first_child.len() {
            first_child[index] += first_child[index - 1];
        }
        let mut next = first_child.clone();
        self.children = vec![EventId(0); first_child.last().map_or(0, |&n| n as usize)];
        for (id, event) in self.ids().zip(&self.events) {
            if let Parent::Known(parent) = event.parent {
                let place = &mut next[parent.index()];
                self.children[*place as usize] = id;
                *place += 1;
            }
        }
        self.first_child = first_child;
    }

    /// Takes the times of kernels away that are not their own.
    fn doubt(&mut self, doubts: Doubts) {
        for id in &doubts.stray {
            let event = &mut self.events[id.index()];
            if let Detail::KernelCh(KernelCh { ptimer, .. }) = &mut event.start.detail {
                *ptimer = 0;
            }
            event.ptimer_stop = None;
        }
        self.doubts = doubts;
    }

    fn ids(&self) -> impl Iterator<Item = EventId> + use<> {
        (0..u32::try_from(self.events.len()).unwrap_or(u32::MAX)).map(EventId)
    }

    fn counts_mut(&mut self, comm: Option<usize>) -> &mut Counts {
        match comm.and_then(|comm| self.counts.get_mut(comm)) {
            Some(counts) => counts,
            None => &mut self.unattributed,
        }
    }

    /// How many records were read, steps included.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Records that this version does not know: the name and number of each sort.
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
        let from = self.first_child[id.index()] as usize;
        let to = self.first_child[id.index() + 1] as usize;
        &self.children[from..to]
    }
    /// The steps with their ProxyOp, if they were asked for.
    #[must_use]
    pub fn steps(&self) -> &[(EventId, Step)] {
        &self.steps
    }
    /// The application's own id of an API call (PyTorch's `External id`), where it told one: see
    /// [`State::EXTERNAL_ID`].
    #[must_use]
    pub fn external_id(&self, id: EventId) -> Option<u64> {
        self.external_ids.get(&id).copied()
    }
    /// How long a KernelLaunch's kernel took by CUDA events, ns: see [`State::CUDA_EVENT`].
    #[must_use]
    pub fn launch_ns(&self, id: EventId) -> Option<u64> {
        self.launches_ns.get(&id).copied()
    }
    /// Whether any launch was measured by CUDA events.
    #[must_use]
    pub fn has_cuda_events(&self) -> bool {
        !self.launches_ns.is_empty()
    }
    /// Whether the kernel channels of an operation are another one's, so that they say nothing
    /// ([`crate::kernels`]).
    #[must_use]
    pub fn is_kernel_doubted(&self, operation: &Event) -> bool {
        let since = self.comm_of(operation).and_then(|comm| self.doubts.since(comm));
        since.is_some_and(|since| operation.start.ticks >= since)
    }
    /// From these ticks on no kernel channel of a communicator is believed.
    #[must_use]
    pub(crate) fn kernels_until(&self, comm: usize) -> Option<u64> {
        self.doubts.since(comm)
    }
    /// Kernel channels whose times were another work's, and were dropped, or that never came
    /// because NCCL waits for another work's.
    #[must_use]
    pub fn stray_kernels(&self) -> u64 {
        self.doubts.stray.len() as u64 + self.doubts.missing
    }
    /// The position in [`Recording::comms`] of an event's communicator. `None` where its
    /// definition is missing, and for another process's operation.
    #[must_use]
    pub fn comm_of(&self, event: &Event) -> Option<usize> {
        if event.is_foreign() { None } else { self.positions.get(&event.start.comm).copied() }
    }
    /// The communicator at a position.
    #[must_use]
    pub fn comm(&self, position: usize) -> &'a Comm {
        &self.recording.comms()[position]
    }
    /// The process's rank in a communicator: as `init` told, or as its events say (API v1 to v3).
    #[must_use]
    pub fn rank(&self, position: usize) -> Option<i32> {
        let told = self.comm(position).rank;
        if told >= 0 {
            return Some(told);
        }
        self.events.iter().find_map(|event| match event.start.detail {
            Detail::Coll(coll) if self.comm_of(event) == Some(position) => Some(coll.rank),
            Detail::ProxyOp(op) if self.comm_of(event) == Some(position) => Some(op.rank),
            _ => None,
        })
    }
    /// The counts of the communicator at a position.
    #[must_use]
    pub fn counts(&self, position: usize) -> &Counts {
        &self.counts[position]
    }
    /// Counts of events that belong to no known communicator: of other processes (PXN), and steps
    /// whose operation's start is missing.
    #[must_use]
    pub fn unattributed(&self) -> &Counts {
        &self.unattributed
    }
    /// Stops and states, by kind, of events whose start is not in the recording.
    #[must_use]
    pub fn unmatched_ends(&self) -> &[u64; KINDS] {
        &self.unmatched_ends
    }
    /// Steps whose operation's start is not in the recording.
    #[must_use]
    pub fn orphan_steps(&self) -> u64 {
        self.orphan_steps
    }
    /// The network links used.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.links
    }
    /// A string of NCCL's; "unknown" where it gave none.
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

/// What a communicator is called in reports: its hash, or `unknown-N` by the order of `init`
/// where the API version gives none (v1 to v3).
#[must_use]
pub fn comm_name(comm: &Comm) -> String {
    if comm.hash == 0 { format!("unknown-{}", comm.index) } else { format!("{:#x}", comm.hash) }
}
