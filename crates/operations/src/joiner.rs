// SPDX-License-Identifier: Apache-2.0
/*!
Joins the records of a recording to operations, in memory that does not grow with its length.

# The problem

The records of an operation are in several lanes: the API call and the Coll in the lane of the
thread that calls NCCL, the ProxyOps, their steps and the kernel channels in the lane of the proxy
thread. No record is marked as the last of its operation. A recording of an hour may have a hundred
million operations, and most consumers need sums only.

# Reading order

[`Recording::visit`] reads the lane whose next block begins first. So the records of all lanes come
roughly in the order in which they were pushed, and there is always a time before which all records
are read (`reached`). The delay with which the drain thread emptied a lane does not matter.

# What is in flight

[`Timeline`] is the state: the events that were read and not forgotten, by handle. A sweep checks
all of them. The next sweep comes when as many events were added as the last one left, and at least
`SWEEP`, so each event is checked a constant number of times on average. A sweep

1. joins records: stops and states that were read before their event's start, and children with
   parents;
2. compares the kernels' times ([`crate::stamps`]), and notes what operations imply about others
   ([`crate::order`], CUDA events by group);
3. judges each operation by the rule of [`crate::ends`], the same as for a whole [`Timeline`];
4. passes operations of which no more records are expected to the [`Consumer`], and forgets them
   with their children; a group of API calls is forgotten together with all its descendants.

# When nothing more is expected

An operation must be over and unchanged for `QUIET_NS` before `reached`, because NCCL starts
ProxyOps and kernel channels some time after the operation was enqueued. It also waits

- for the rest of its kernel's channels, until a later kernel of the communicator has started;
- for later kernels on the same channels (at most 128), until they can no longer prove that the
  times of its kernel are another kernel's;
- for the CUDA events of its group: `MEASURED_NS` if the recording has none so far, unless its
  identity says that they are off;
- `UNSEEN_NS` if no record shows its end; to the end of the recording if the kernel of its
  communicator that would be the first of its kind may still start, while those of others are
  recorded.

An API call that was captured into a CUDA graph is kept, because each launch of the graph creates
operations with it as parent; these are passed on and forgotten one by one.

At the end of the recording all operations are judged once more, and passed to the consumer even if
they have not ended.

# What bounds the memory

If more than `LIVE` events are kept, the oldest groups are passed on in their present state, but not
those with an operation or a call that has not ended: these may hang, and others may go on for long
after them. The same holds for captured calls, and for the operation with a communicator's first
kernel. Groups in which something changed in the last `QUIET_NS` stay, too. Only above `MOST`
events such groups are passed on, too; [`Joined::cut_short`] counts their open operations. A child
that is read after its operation was forgotten counts as one with an unknown parent.

The results are the same as those of [`crate::operations()`], which keeps everything until the end;
a test compares both, with sweeps of a few events.
*/

use crate::doubts::Doubts;
use crate::event_id::NewNumbers;
use crate::operation::{Completion, Judge, Judged, Operation, Timing};
use crate::ptimer::{ClockFits, launch_of};
use crate::pxn::Work;
use crate::timeline::{Buffers, marks};
use crate::{Event, EventId, Facts, GpuClocks, Parent, Timeline};
use ncclscope_trace::kind::Part;
use ncclscope_trace::{EventKind, Record, Recording, Visitor};
use std::cell::Cell;

/// Least number of events that are added between two sweeps.
const SWEEP: usize = 8 << 10;
/// Most events that are kept after a sweep, without operations and calls that have not ended.
const LIVE: usize = 128 << 10;
/// Most events that are kept after a sweep.
const MOST: usize = 1 << 20;

/// How long an operation that is over must be unchanged, ns.
const QUIET_NS: f64 = 100e6;
/// As `QUIET_NS`, for an operation that a CUDA event may time, while the recording had none so far,
/// ns.
const MEASURED_NS: f64 = 1e9;
/// As `QUIET_NS`, if no record shows the end of an operation, or a CUDA event is missing, ns.
const UNSEEN_NS: f64 = 10e9;

/// Receives the records, operations and events of a recording.
pub trait Consumer {
    /// Called for each record of a lane, after the timeline has it; those of a lane come in their
    /// order. A step comes with its ProxyOp, if that was already read.
    #[inline]
    fn record(&mut self, at: &At<'_, '_>, record: &Record) {
        let _ = (at, record);
    }
    /// Called for each operation when no more records of it are expected, for those of one sweep in
    /// the order of their starts. Its children and its API call are in the timeline.
    fn operation(&mut self, timeline: &Timeline<'_>, operation: &Operation);
    /// Called for each event of any kind before it is forgotten; after its operation, if it belongs
    /// to one.
    fn event(&mut self, timeline: &Timeline<'_>, id: EventId, event: &Event);
    /// Called when events were forgotten and more records are to come: the others have new numbers.
    fn renumber(&mut self, numbers: &NewNumbers) {
        let _ = numbers;
    }
}

/// Two consumers of one recording.
impl<A: Consumer, B: Consumer> Consumer for (A, B) {
    #[inline]
    fn record(&mut self, at: &At<'_, '_>, record: &Record) {
        self.0.record(at, record);
        self.1.record(at, record);
    }

    fn operation(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
        self.0.operation(timeline, operation);
        self.1.operation(timeline, operation);
    }

    fn event(&mut self, timeline: &Timeline<'_>, id: EventId, event: &Event) {
        self.0.event(timeline, id, event);
        self.1.event(timeline, id, event);
    }

    fn renumber(&mut self, numbers: &NewNumbers) {
        self.0.renumber(numbers);
        self.1.renumber(numbers);
    }
}

/// A consumer that may be missing.
impl<C: Consumer> Consumer for Option<C> {
    #[inline]
    fn record(&mut self, at: &At<'_, '_>, record: &Record) {
        if let Some(consumer) = self {
            consumer.record(at, record);
        }
    }

    fn operation(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
        if let Some(consumer) = self {
            consumer.operation(timeline, operation);
        }
    }

    fn event(&mut self, timeline: &Timeline<'_>, id: EventId, event: &Event) {
        if let Some(consumer) = self {
            consumer.event(timeline, id, event);
        }
    }

    fn renumber(&mut self, numbers: &NewNumbers) {
        if let Some(consumer) = self {
            consumer.renumber(numbers);
        }
    }
}

/// Where a record is.
#[derive(Clone, Copy, Debug)]
pub struct At<'t, 'a> {
    /// The events so far.
    pub timeline: &'t Timeline<'a>,
    /// The record's lane.
    pub lane: usize,
    /// The ProxyOp of a step.
    pub op: Option<EventId>,
}

thread_local! {
    /// The buffers of the recording that this thread joined last. A tool joins thousands of short
    /// recordings, and memory of this size comes from the kernel, page by page.
    static BUFFERS: Cell<(Buffers, Vec<Judged>)> = Cell::default();
}

/// The state after all records of a recording were read.
#[derive(Debug)]
pub struct Joined<'a> {
    /// The timeline, with counts, links and losses, but without events.
    pub timeline: Timeline<'a>,
    /// The clocks of its GPUs.
    pub clocks: GpuClocks,
    /// Number of operations that were passed on before they were over, because of the limit.
    pub cut_short: u64,
}

/// Reads a recording, and passes each operation to `consumer` as soon as no more records of it are
/// expected; the module's documentation has the rule. `work` has the ProxyOps that other processes
/// ran for this one (PXN).
pub fn join<'a>(
    recording: &'a Recording,
    work: Option<&Work>,
    consumer: &mut impl Consumer,
) -> Joined<'a> {
    let room = Room { sweep: SWEEP, live: LIVE, most: MOST };
    let mut joiner = Joiner::new(recording, room, consumer);
    if let Some(work) = work {
        work.links.iter().for_each(|links| joiner.timeline.adopt_links(links));
        joiner.others = &work.ops;
    }
    let (buffers, judged) = BUFFERS.take();
    joiner.judged = judged;
    joiner.timeline.lend(buffers);
    joiner.timeline.make_room(SWEEP);
    recording.visit(&mut joiner);
    let (mut joined, judged) = joiner.finish();
    BUFFERS.set((joined.timeline.take_buffers(), judged));
    joined
}

/// The limits of the joiner.
#[derive(Clone, Copy, Debug)]
struct Room {
    sweep: usize,
    live: usize,
    most: usize,
}

struct Joiner<'a, 'c, C> {
    timeline: Timeline<'a>,
    doubts: Doubts,
    judge: Judge,
    /// Room for the operations of a sweep.
    judged: Vec<Judged>,
    consumer: &'c mut C,
    clocks: ClockFits,
    room: Room,
    /// Number of events at which the next sweep is due.
    next: usize,
    cut_short: u64,
    /// ProxyOps that other processes ran for this one and that are not adopted yet, by start.
    others: &'c [Event],
}

impl<C: Consumer> Visitor for Joiner<'_, '_, C> {
    #[inline]
    fn record(&mut self, lane: usize, record: &Record) {
        let op = self.timeline.record(lane, record);
        self.consumer.record(&At { timeline: &self.timeline, lane, op }, record);
    }

    fn reached(&mut self, ticks: u64) {
        self.adopt(ticks);
        if self.timeline.len() >= self.next {
            self.sweep(Some(ticks));
        }
    }
}

impl<'a, 'c, C: Consumer> Joiner<'a, 'c, C> {
    fn new(recording: &'a Recording, room: Room, consumer: &'c mut C) -> Joiner<'a, 'c, C> {
        let timeline = Timeline::new(recording);
        let clocks = ClockFits::new(recording);
        let (doubts, judge) = (Doubts::new(recording), Judge::new(&timeline));
        Joiner {
            timeline,
            doubts,
            judge,
            judged: Vec::new(),
            consumer,
            clocks,
            room,
            next: room.sweep,
            cut_short: 0,
            others: &[],
        }
    }

    /// Adds the ProxyOps that other processes started for this one up to `ticks`.
    fn adopt(&mut self, ticks: u64) {
        let (now, later) =
            self.others.split_at(self.others.partition_point(|op| op.start.ticks <= ticks));
        now.iter().for_each(|op| self.timeline.adopt(op));
        self.others = later;
    }

    /// Ends reading. Beside the result: a buffer.
    fn finish(mut self) -> (Joined<'a>, Vec<Judged>) {
        self.adopt(u64::MAX);
        self.sweep(None);
        let clocks = self.clocks.clocks();
        (Joined { timeline: self.timeline, clocks, cut_short: self.cut_short }, self.judged)
    }

    /// Passes on the operations of which no more records are expected; `None`: all of them.
    fn sweep(&mut self, until: Option<u64>) {
        self.timeline.join(until);
        self.doubts.look(&mut self.timeline, until);
        self.judge.note(&self.timeline);
        if until.is_none() {
            self.judge.note_all_channels(&self.timeline);
        }
        let room = std::mem::take(&mut self.judged);
        let mut plan = match until {
            Some(until) => {
                let state = State { timeline: &self.timeline, judge: &self.judge, until };
                Plan::new(&state, self.room, room)
            }
            None => Plan::of_all(&self.timeline, &self.judge, room),
        };
        self.cut_short += plan.cut_short;
        // An unstable sort needs no memory.
        plan.operations.sort_unstable_by_key(|Judged { operation, .. }| {
            (self.timeline.event(operation.event).start.ticks, operation.event)
        });
        for judged in &plan.operations {
            self.consumer.operation(&self.timeline, &judged.operation);
            self.judge.note_channels(&self.timeline, judged.operation.event);
        }
        for (id, event) in self.timeline.events().filter(|(id, _)| plan.goes[id.index()]) {
            self.consumer.event(&self.timeline, id, event);
            if event.kind() == EventKind::KernelCh {
                self.clocks.add_kernel(&self.timeline, event);
            }
        }
        plan.operations.clear();
        self.judged = plan.operations;
        let numbers = self.timeline.forget(&plan.goes);
        if until.is_some() {
            self.consumer.renumber(&numbers);
        }
        self.next = self.timeline.len() + self.room.sweep.max(self.timeline.len());
    }
}

/// The input of a sweep.
struct State<'s, 'a> {
    timeline: &'s Timeline<'a>,
    judge: &'s Judge,
    /// Time before which all records are read, in ticks.
    until: u64,
}

/// Which events a sweep forgets, and which operations it passes on.
struct Plan {
    goes: Vec<bool>,
    operations: Vec<Judged>,
    cut_short: u64,
}

impl Plan {
    /// The last plan: all operations are passed on and all events are forgotten.
    fn of_all(timeline: &Timeline<'_>, judge: &Judge, mut operations: Vec<Judged>) -> Plan {
        operations.extend(timeline.events().filter_map(|(id, event)| {
            Some(judge.operation(timeline, (id, event), &Facts::of(&event.start.detail)?))
        }));
        Plan { operations, goes: vec![true; timeline.len()], cut_short: 0 }
    }

    fn new(state: &State<'_, '_>, room: Room, mut operations: Vec<Judged>) -> Plan {
        let timeline = state.timeline;
        let roots = roots(timeline);
        let mut is_held = vec![false; timeline.len()];
        for (id, event) in timeline.events() {
            let goes = match Facts::of(&event.start.detail) {
                Some(facts) => {
                    let judged = state.judge_final((id, event), &facts);
                    let is_final = judged.is_some();
                    operations.extend(judged);
                    is_final
                }
                None => state.is_final(event),
            };
            if !goes {
                is_held[roots[id.index()].index()] = true;
            }
        }
        let is_held = |id: EventId| is_held[roots[id.index()].index()];
        if timeline.has_cuda_events() {
            // The time of one launch may belong to several operations, so these are passed on
            // together. Launches of a graph are not measured.
            operations.retain(|judged: &Judged| {
                let event = judged.operation.event;
                !is_held(event) || timeline.is_replay(timeline.event(event))
            });
        }
        let mut goes: Vec<bool> = timeline.ids().map(|id| !is_held(id)).collect();
        for judged in &operations {
            go(timeline, judged.operation.event, &mut goes);
        }
        let mut plan = Plan { goes, operations, cut_short: 0 };
        plan.make_room(state, &roots, room);
        plan
    }

    /// If too many events stay, passes on and forgets the oldest groups in their present state.
    fn make_room(&mut self, state: &State<'_, '_>, roots: &[EventId], room: Room) {
        if self.staying() <= room.live {
            return;
        }
        let mut is_open = vec![false; self.goes.len()];
        for (id, event) in state.timeline.events().filter(|(id, _)| !self.goes[id.index()]) {
            is_open[roots[id.index()].index()] |= state.is_open(id, event);
        }
        self.drop_oldest(state, roots, room.live / 2, |root| !is_open[root.index()]);
        if self.staying() > room.most {
            self.drop_oldest(state, roots, room.most / 2, |_| true);
        }
    }

    /// Number of events that stay.
    fn staying(&self) -> usize {
        self.goes.iter().filter(|&&goes| !goes).count()
    }

    /// Drops the oldest groups that `may_go`, by their topmost event, until `rest` events stay.
    fn drop_oldest(
        &mut self,
        state: &State<'_, '_>,
        roots: &[EventId],
        rest: usize,
        may_go: impl Fn(EventId) -> bool,
    ) {
        let drop = self.staying().saturating_sub(rest);
        let staying = roots.iter().zip(&self.goes).enumerate();
        let mut staying = staying.filter(|(_, (root, goes))| !**goes && may_go(**root));
        let first_kept = staying.nth(drop).map_or(usize::MAX, |(index, _)| index);
        for (id, event) in state.timeline.events() {
            let root = roots[id.index()];
            if self.goes[id.index()] || !may_go(root) || root.index() >= first_kept {
                continue;
            }
            self.goes[id.index()] = true;
            if let Some(facts) = Facts::of(&event.start.detail) {
                let judged = state.judge.operation(state.timeline, (id, event), &facts);
                let is_open = judged.operation.completion == Completion::Open;
                self.cut_short += u64::from(is_open);
                self.operations.push(judged);
            }
        }
    }
}

/// The topmost ancestor of each event.
fn roots(timeline: &Timeline<'_>) -> Vec<EventId> {
    let mut roots: Vec<EventId> = Vec::with_capacity(timeline.len());
    for (id, event) in timeline.events() {
        let (mut root, mut above) = (id, event.parent);
        while let Parent::Known(parent) = above {
            if let Some(&known) = roots.get(parent.index()) {
                root = known;
                break;
            }
            (root, above) = (parent, timeline.event(parent).parent);
        }
        roots.push(root);
    }
    roots
}

/// Marks an operation and all its descendants to be forgotten.
fn go(timeline: &Timeline<'_>, id: EventId, goes: &mut [bool]) {
    goes[id.index()] = true;
    for &child in timeline.children(id) {
        go(timeline, child, goes);
    }
}

impl State<'_, '_> {
    /// Time since `changed`, ns.
    fn quiet_ns(&self, changed: u64) -> f64 {
        self.timeline.clock().duration_ns(self.until.saturating_sub(changed))
    }

    /// Whether more records of an event may come: it is an operation or a call that has not ended
    /// or was captured, or it just changed.
    fn is_open(&self, id: EventId, event: &Event) -> bool {
        if self.quiet_ns(event.last_change()) < QUIET_NS {
            return true;
        }
        match Facts::of(&event.start.detail) {
            Some(facts) => {
                let judged = self.judge.operation(self.timeline, (id, event), &facts);
                judged.operation.completion == Completion::Open
                    || judged.operation.completion == Completion::Unseen
                        && judged.first_kernel == Some(true)
            }
            None => {
                let is_call = event.kind().part() == Part::Api;
                is_call && (event.stop.is_none() || event.is_captured())
            }
        }
    }

    /// Whether no more records are expected of an event that is not an operation.
    fn is_final(&self, event: &Event) -> bool {
        if let Parent::Known(parent) = event.parent
            && Facts::is_operation(self.timeline.event(parent).kind())
        {
            // It is forgotten together with its operation.
            return true;
        }
        event.stop.is_some()
            && event.has(marks::LINKED)
            && !event.is_captured()
            && (event.kind() != EventKind::KernelCh || event.has(marks::PASSED))
            && self.quiet_ns(event.last_change()) >= QUIET_NS
    }

    /// Judges an operation; `None` if more records of it are expected.
    fn judge_final(&self, (id, event): (EventId, &Event), facts: &Facts) -> Option<Judged> {
        let timeline = self.timeline;
        let children = || timeline.children(id).iter().map(|&child| timeline.event(child));
        let changed = children().map(Event::last_change).max().unwrap_or(0);
        let quiet_ns = self.quiet_ns(changed.max(event.last_change()));
        let may_be = event.has(marks::LINKED) && event.stop.is_some() && quiet_ns >= QUIET_NS;
        let is_known =
            |child: &Event| child.kind() != EventKind::KernelCh || child.has(marks::PASSED);
        if !may_be || !children().all(is_known) {
            return None;
        }
        let judged = self.judge.operation(timeline, (id, event), facts);
        let wait_ns = match judged.operation.completion {
            Completion::Open => f64::INFINITY,
            Completion::Unseen if judged.first_kernel.is_some() => f64::INFINITY,
            Completion::Unseen if judged.event != Some(true) => UNSEEN_NS,
            Completion::Done(_) if judged.may_lack_kernels => UNSEEN_NS,
            _ if judged.operation.timing == Timing::Kernel || judged.event == Some(true) => 0.0,
            _ if timeline.is_replay(event) => 0.0,
            _ if !timeline.may_be_measured(event) => 0.0,
            _ if timeline.has_cuda_events() => UNSEEN_NS,
            // The first CUDA event may still come.
            _ if launch_of(timeline, event).is_some() => MEASURED_NS,
            _ => 0.0,
        };
        (quiet_ns >= wait_ns).then_some(judged)
    }
}

#[cfg(test)]
mod tests;
