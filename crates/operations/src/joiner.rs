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
- `UNSEEN_NS` if no record shows its end.

An API call that was captured into a CUDA graph is kept, because each launch of the graph creates
operations with it as parent.

At the end of the recording all operations are judged once more, and passed to the consumer even if
they have not ended.

# What bounds the memory

If more than `LIVE` events are kept, the oldest groups are passed on in their present state, but not
those with an operation or a call that has not ended: these may hang, and others may go on for long
after them. Groups in which something changed in the last `QUIET_NS` stay, too. Only above `MOST`
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
use ncclscope_trace::{Detail, EventKind, Record, Recording, Visitor};
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
            // together.
            operations.retain(|judged: &Judged| !is_held(judged.operation.event));
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

    /// Whether an event is an operation or a call that has not ended, or just changed, so that
    /// more records of it may come.
    fn is_open(&self, id: EventId, event: &Event) -> bool {
        if self.quiet_ns(event.last_change()) < QUIET_NS {
            return true;
        }
        match Facts::of(&event.start.detail) {
            Some(facts) => {
                let judged = self.judge.operation(self.timeline, (id, event), &facts);
                judged.operation.completion == Completion::Open
            }
            None => event.stop.is_none() && event.kind().part() == Part::Api,
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
        let is_captured = match event.start.detail {
            Detail::CollApi(call) | Detail::P2pApi(call) => call.graph,
            _ => false,
        };
        event.stop.is_some()
            && event.has(marks::LINKED)
            && !is_captured
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
            Completion::Unseen if judged.event != Some(true) => UNSEEN_NS,
            Completion::Done(_) if judged.may_lack_kernels => UNSEEN_NS,
            _ if judged.operation.timing == Timing::Kernel || judged.event == Some(true) => 0.0,
            _ if timeline.has_cuda_events() => UNSEEN_NS,
            _ if timeline.recording().identity().cuda_events.as_deref() == Some("off") => 0.0,
            // The first CUDA event may still come.
            _ if launch_of(timeline, event).is_some() => MEASURED_NS,
            _ => 0.0,
        };
        (quiet_ns >= wait_ns).then_some(judged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::{Comm, Mark, MarkKind};
    use proptest::prelude::*;
    use scripts::{API, Call, Fault, Process};

    /// What a consumer receives, operations with the handle of their event.
    #[derive(Debug, Default)]
    struct Told {
        operations: Vec<(u64, String)>,
        /// Events by kind, and those that have children.
        events: std::collections::BTreeMap<&'static str, (u64, u64)>,
    }

    impl Consumer for Told {
        fn operation(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
            let handle = |id: EventId| timeline.event(id).start.handle.0;
            let mut open: Vec<u64> = operation.open.iter().map(|&id| handle(id)).collect();
            open.sort_unstable();
            let (of, zero) = (operation.event, EventId::of_index(0));
            let told = Operation { event: zero, open: Vec::new(), ..operation.clone() };
            self.operations.push((handle(of), format!("{told:?} {open:?}")));
        }

        fn event(&mut self, timeline: &Timeline<'_>, id: EventId, event: &Event) {
            let (all, parents) = self.events.entry(event.kind().name()).or_default();
            *all += 1;
            *parents += u64::from(timeline.has_children(id));
        }
    }

    fn counted(timeline: &Timeline<'_>, clocks: &GpuClocks) -> String {
        let counts: Vec<_> =
            (0..timeline.recording().comms().len()).map(|at| timeline.counts(at)).collect();
        let rest = (timeline.unattributed(), timeline.unmatched_ends(), timeline.orphan_steps());
        let links: Vec<_> = timeline.links().iter().collect();
        let stray = timeline.stray_kernels();
        format!("{counts:?} {rest:?} {links:?} {stray} {:?} {clocks:?}", timeline.rank(0))
    }

    /// Passes the records in the order of time, and reports each time as reached.
    fn feed(recording: &Recording, joiner: &mut Joiner<'_, '_, Told>) {
        let mut lanes = [0, 1].map(|lane| recording.records(lane).peekable());
        loop {
            let next = lanes.iter_mut().enumerate();
            let next = next.filter_map(|(lane, records)| Some((records.peek()?.ticks(), lane)));
            let Some((ticks, lane)) = next.min() else { break };
            joiner.reached(ticks);
            let record = lanes[lane].next().unwrap();
            joiner.record(lane, &record);
            let (held, Room { sweep, live, most }) = (joiner.timeline.len(), joiner.room);
            assert!(held <= 2 * live.max(most).max(sweep) + sweep, "{held} events");
        }
    }

    /// Passes the operations and events of a whole timeline to a consumer.
    fn pass_on(timeline: &Timeline<'_>, consumer: &mut impl Consumer) {
        let mut operations = crate::operations(timeline);
        operations.sort_by_key(|operation| timeline.event(operation.event).start.ticks);
        operations.iter().for_each(|operation| consumer.operation(timeline, operation));
        timeline.events().for_each(|(id, event)| consumer.event(timeline, id, event));
    }

    /// What a consumer receives from a whole timeline, and from records one by one.
    fn both(process: &Process, room: Room) -> [(Told, String); 2] {
        let dir = tempfile::tempdir().unwrap();
        let recording = Recording::open(&process.write(dir.path()).unwrap()).unwrap();
        let mut whole = Told::default();
        let timeline = Timeline::read(&recording, false);
        pass_on(&timeline, &mut whole);
        let counts = counted(&timeline, &GpuClocks::of(&timeline));

        let mut parts = Told::default();
        let mut joiner = Joiner::new(&recording, room, &mut parts);
        feed(&recording, &mut joiner);
        let (joined, _) = joiner.finish();
        assert_eq!((joined.cut_short, joined.timeline.len()), (0, 0));
        whole.operations.sort();
        parts.operations.sort();
        [(whole, counts), (parts, counted(&joined.timeline, &joined.clocks))]
    }

    fn play(process: &mut Process, (what, steps, pause): (u8, u32, u64)) {
        let fault = match what {
            0 | 1 => Fault::NoKernel,
            2 => Fault::Local,
            3 => Fault::Enqueued,
            _ => Fault::None,
        };
        let channels = 1 + what % 3;
        let func = ["AllReduce", "AllGather", "Broadcast"][usize::from(what / 3 % 3)];
        match what {
            9 => process.send_recv(1, 100),
            _ => process.collective(Call { func, steps, channels, fault, ..Call::ALL_REDUCE }),
        }
        process.now += pause;
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn what_is_handed_over_early_is_what_it_is_at_the_end(
            plays in proptest::collection::vec((0u8..10, 0u32..4, 0u64..600_000_000), 1..60),
            (sweep, version, hangs) in (1usize..40, 0usize..3, any::<bool>()),
        ) {
            let mut process = Process::new(0, 2);
            (process.comm.api_version, process.comm.nccl_version) =
                [(5, 22_809), (4, 22_304), (6, 23_007)][version];
            plays.iter().for_each(|&one| play(&mut process, one));
            if hangs {
                process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
            }
            let [(whole, counts), (parts, counts_of_parts)] =
                both(&process, Room { sweep, live: LIVE, most: MOST });
            prop_assert_eq!(whole.operations, parts.operations);
            prop_assert_eq!(whole.events, parts.events);
            prop_assert_eq!(counts, counts_of_parts);
        }
    }

    /// The starts of operations in the order in which a consumer receives them.
    #[derive(Debug, Default)]
    struct Starts(Vec<u64>);

    impl Consumer for Starts {
        fn operation(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
            self.0.push(timeline.event(operation.event).start.ticks);
        }

        fn event(&mut self, _: &Timeline<'_>, _: EventId, _: &Event) {}
    }

    /// For example, PyTorch calls NCCL from the main thread and from that of autograd.
    #[test]
    fn operations_of_two_threads_come_in_the_order_of_their_starts() {
        let mut process = Process::new(0, 2);
        for at in 0..400 {
            let detail = Detail::Coll(ncclscope_trace::record::Coll::default());
            let coll = process.start(at / 2 % 2, ncclscope_trace::Handle::NULL, detail);
            process.stop(at / 2 % 2, coll);
        }
        let dir = tempfile::tempdir().unwrap();
        let recording = Recording::open(&process.write(dir.path()).unwrap()).unwrap();
        let (mut whole, mut parts) = (Starts::default(), Starts::default());
        pass_on(&Timeline::read(&recording, false), &mut whole);
        join(&recording, None, &mut parts);
        assert_eq!(whole.0.len(), 400);
        assert!(whole.0.is_sorted() && whole.0 == parts.0);
    }

    #[test]
    fn a_long_recording_needs_no_more_room_than_what_is_in_flight() {
        let mut process = Process::new(0, 2);
        for _ in 0..2_000 {
            process.collective(Call::ALL_REDUCE);
            process.now += 5_000_000;
        }
        let [whole, parts] = both(&process, Room { sweep: 64, live: 4_000, most: 4_000 });
        assert_eq!(whole.0.operations, parts.0.operations);
        assert_eq!(whole.1, parts.1);
    }

    /// NCCL may stop an event again after recording was stopped and started.
    #[test]
    fn a_second_stop_long_after_the_first_is_no_stop_without_a_start() {
        let mut process = Process::new(0, 2);
        let (what, name) = (MarkKind::Stop, ncclscope_trace::StrId(0));
        let stop = Mark { ticks: process.now, what, name, value: 0 };
        process.marks.push(stop);
        let group = process.start(API, ncclscope_trace::Handle::NULL, Detail::Group);
        process.stop(API, group);
        for _ in 0..300 {
            process.collective(Call::ALL_REDUCE);
            process.now += 5_000_000;
        }
        process.stop(API, group);
        let [whole, parts] = both(&process, Room { sweep: 64, live: 4_000, most: 4_000 });
        assert_eq!(whole.1, parts.1);
    }

    /// A send may hang while other operations, whose end no record shows, go on for minutes.
    #[test]
    fn what_hangs_outlives_what_may_be_over() {
        let mut process = Process::new(0, 2);
        process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
        let first = process.comm.clone();
        process.comm = Comm { index: first.index + 1, hash: first.hash + 1, ..first.clone() };
        process.other_comms.push(first);
        for _ in 0..500 {
            process.collective(Call { fault: Fault::Local, ..Call::ALL_REDUCE });
            process.now += 5_000_000;
        }
        let dir = tempfile::tempdir().unwrap();
        let recording = Recording::open(&process.write(dir.path()).unwrap()).unwrap();
        let mut told = Told::default();
        let mut joiner =
            Joiner::new(&recording, Room { sweep: 50, live: 200, most: 1_000 }, &mut told);
        feed(&recording, &mut joiner);
        let before_last = joiner.consumer.operations.len();
        let (joined, _) = joiner.finish();
        assert_eq!((joined.cut_short, told.operations.len()), (0, 501));
        let open: Vec<usize> =
            (0..501).filter(|&at| told.operations[at].1.contains("Open")).collect();
        assert!(matches!(*open, [at] if at >= before_last && before_last > 300), "{open:?}");
    }

    #[test]
    fn what_finds_no_room_is_handed_over_as_it_is() {
        let mut process = Process::new(0, 2);
        // Calls that never return: none of their events ends.
        for _ in 0..500 {
            process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
        }
        let dir = tempfile::tempdir().unwrap();
        let recording = Recording::open(&process.write(dir.path()).unwrap()).unwrap();
        let mut told = Told::default();
        let mut joiner =
            Joiner::new(&recording, Room { sweep: 50, live: 200, most: 200 }, &mut told);
        feed(&recording, &mut joiner);
        let (joined, _) = joiner.finish();
        assert!(joined.cut_short > 400, "{}", joined.cut_short);
        assert_eq!(told.operations.len(), 500);
    }
}
