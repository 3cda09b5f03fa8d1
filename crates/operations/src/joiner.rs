// SPDX-License-Identifier: Apache-2.0
/*!
From the records of a recording to operations, in memory that does not grow with its length.

# The problem

What is known of an operation lies in records of several lanes: the API call and the Coll in the
lane of the thread that calls NCCL, the ProxyOps, their steps and the kernel channels in the lane of
the proxy thread. Nothing in the recording says "this was the last record of this operation". A
recording of an hour has a hundred million operations, and most consumers want sums.

# Reading order

[`Recording::visit`] reads the lane whose next block begins first. So the records of all lanes come
roughly in the order in which they were pushed, and there is always a time before which nothing is
unread (`reached`). How late the drain thread read a lane plays no part in it.

# What is in flight

[`Timeline`] is the state: the events that were read and not forgotten, by handle. A sweep
looks at all of them whenever as many were added as it left behind, and at least [`SWEEP`]. So each
event is looked at a constant number of times on average. A sweep

1. joins what was read: ends that came before their event, children with parents;
2. compares the kernels' times ([`crate::stamps`]), and notes what operations show of others
   ([`crate::order`], CUDA events by group);
3. judges each operation by the rule of [`crate::ends`], the same as for a whole [`Timeline`];
4. hands those to the [`Consumer`] of which nothing more is expected, and forgets them with their
   children; a group of API calls is forgotten with all that is below it.

# When nothing more is expected

An operation must be over, and nothing of it may have changed for [`QUIET_NS`] before `reached`:
NCCL starts ProxyOps and kernel channels after the operation was enqueued, each in its own time.
It also waits

- for the rest of its kernel's channels, until a later kernel of the communicator has started;
- for later kernels on the same channels, until they can no longer show that the times of its kernel
  are another's (at most 128 of them);
- for the CUDA events of its group, [`MEASURED_NS`] where none has come yet;
- [`UNSEEN_NS`] where nothing shows its end.

An API call that was captured into a CUDA graph is kept: each launch of the graph makes operations
below it.

At the end of the recording everything is judged once more, and what has not ended is handed over as
it is.

# What bounds the memory

Of more than [`LIVE`] events the oldest groups are handed over as they look then.
[`Joined::cut_short`] counts the operations among them that were not over. A child that comes
after its operation was forgotten counts as one whose parent is unknown.

With everything kept until the end the results are those of [`crate::operations()`]; a test compares
both, with sweeps of a few events.
*/

use crate::hash::Map;
use crate::operation::{Completion, Judge, Judged, Operation, Timing};
use crate::ptimer::{ClockFit, group_api_of, launches_by_group};
use crate::timeline::marks;
use crate::{Event, EventId, Facts, GpuClock, Parent, Timeline};
use ncclscope_trace::{Detail, EventKind, Record, Recording, Visitor};

/// Events that are added between two sweeps, at least.
const SWEEP: usize = 8 << 10;
/// Events that are kept at most after a sweep.
const LIVE: usize = 128 << 10;

/// For so long nothing of what is over may have changed, ns.
const QUIET_NS: f64 = 100e6;
/// The same while no CUDA event has come, for an operation that one might time, ns.
const MEASURED_NS: f64 = 1e9;
/// The same where nothing shows the end of an operation, or one CUDA event is missing, ns.
const UNSEEN_NS: f64 = 10e9;

/// Takes what comes of a recording.
pub trait Consumer {
    /// An operation, of which nothing more is expected. Its children, and its API call, are in the
    /// timeline.
    fn operation(&mut self, timeline: &Timeline<'_>, operation: &Operation);
    /// An event of any kind, before it is forgotten: after its operation, if it belongs to one.
    fn event(&mut self, timeline: &Timeline<'_>, id: EventId, event: &Event);
}

/// What is left of a recording when all of it was read.
#[derive(Debug)]
pub struct Joined<'a> {
    /// The counts, links and losses. It has no events any more.
    pub timeline: Timeline<'a>,
    /// The clock of the GPU of each communicator, by position; `None` without time stamps.
    pub clocks: Vec<Option<GpuClock>>,
    /// Operations that had to be handed over before they were over, for want of room.
    pub cut_short: u64,
}

/// Reads a recording, and gives each operation to `consumer` as soon as nothing more is expected
/// of it: the module page has the rule.
pub fn join<'a>(recording: &'a Recording, consumer: &mut impl Consumer) -> Joined<'a> {
    join_within(recording, Room { sweep: SWEEP, live: LIVE }, consumer)
}

/// What the joiner may keep.
#[derive(Clone, Copy, Debug)]
struct Room {
    sweep: usize,
    live: usize,
}

fn join_within<'a>(
    recording: &'a Recording,
    room: Room,
    consumer: &mut impl Consumer,
) -> Joined<'a> {
    let timeline = Timeline::new(recording, false);
    let mut clocks = Vec::new();
    clocks.resize_with(recording.comms().len(), ClockFit::default);
    let judge = Judge::new(&timeline);
    let next = room.sweep;
    let mut joiner =
        Joiner { timeline, judge, consumer, clocks, room, next, reached: 0, cut_short: 0 };
    recording.visit(&mut joiner);
    joiner.sweep(None);
    let Joiner { timeline, mut clocks, cut_short, .. } = joiner;
    let clocks = clocks.iter_mut().map(ClockFit::clock).collect();
    Joined { timeline, clocks, cut_short }
}

struct Joiner<'a, 'c, C> {
    timeline: Timeline<'a>,
    judge: Judge,
    consumer: &'c mut C,
    /// By position of the communicator.
    clocks: Vec<ClockFit>,
    room: Room,
    /// How many events the next sweep waits for.
    next: usize,
    reached: u64,
    cut_short: u64,
}

impl<C: Consumer> Visitor for Joiner<'_, '_, C> {
    #[inline]
    fn record(&mut self, lane: usize, record: &Record) {
        self.timeline.record(lane, record);
    }

    fn reached(&mut self, ticks: u64) {
        self.reached = ticks;
        if self.timeline.len() >= self.next {
            self.sweep(Some(ticks));
        }
    }
}

impl<C: Consumer> Joiner<'_, '_, C> {
    /// Hands over what nothing more is expected of; `None`: everything.
    fn sweep(&mut self, until: Option<u64>) {
        self.timeline.join(until);
        self.judge.note(&self.timeline);
        if until.is_none() {
            self.judge.note_all_channels(&self.timeline);
        }
        let launches = launches_by_group(&self.timeline);
        let plan = match until {
            Some(until) => {
                let state = State { timeline: &self.timeline, judge: &self.judge, until };
                Plan::new(&state, &launches, self.room)
            }
            None => Plan::of_all(&self.timeline, &self.judge),
        };
        self.cut_short += plan.cut_short;
        for judged in &plan.operations {
            self.consumer.operation(&self.timeline, &judged.operation);
            self.judge.note_channels(&self.timeline, judged.operation.event);
        }
        for (id, event) in self.timeline.events().filter(|(id, _)| plan.goes[id.index()]) {
            self.consumer.event(&self.timeline, id, event);
            if event.kind() == EventKind::KernelCh
                && let Some(comm) = self.timeline.comm_of(event)
            {
                self.clocks[comm].add_kernel(&self.timeline, event, &launches);
            }
        }
        self.timeline.forget(&plan.goes);
        self.next = self.timeline.len() + self.room.sweep.max(self.timeline.len());
    }
}

/// What a sweep looks at.
struct State<'s, 'a> {
    timeline: &'s Timeline<'a>,
    judge: &'s Judge,
    /// Nothing before is unread, in ticks.
    until: u64,
}

/// Which events a sweep forgets, and which operations it hands over.
struct Plan {
    goes: Vec<bool>,
    operations: Vec<Judged>,
    cut_short: u64,
}

impl Plan {
    /// Everything goes.
    fn of_all(timeline: &Timeline<'_>, judge: &Judge) -> Plan {
        let operations = timeline.events().filter_map(|(id, event)| {
            Some(judge.operation(timeline, (id, event), &Facts::of(&event.start.detail)?))
        });
        Plan { operations: operations.collect(), goes: vec![true; timeline.len()], cut_short: 0 }
    }

    fn new(state: &State<'_, '_>, launches: &Map<EventId, u64>, room: Room) -> Plan {
        let timeline = state.timeline;
        let roots = roots(timeline);
        let mut is_held = vec![false; timeline.len()];
        let mut operations = Vec::new();
        for (id, event) in timeline.events() {
            let goes = match Facts::of(&event.start.detail) {
                Some(facts) => {
                    let judged = state.judge_final((id, event), &facts, launches);
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
            // What one launch took may be told of several operations.
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

    /// Lets the oldest groups go as they are, if too much stays.
    fn make_room(&mut self, state: &State<'_, '_>, roots: &[EventId], room: Room) {
        let stays = self.goes.iter().filter(|&&goes| !goes).count();
        if stays <= room.live {
            return;
        }
        let staying = self.goes.iter().enumerate().filter(|(_, goes)| !**goes);
        let first_kept = staying.map(|(index, _)| index).nth(stays - room.live / 2);
        let first_kept = first_kept.unwrap_or(usize::MAX);
        for (id, event) in state.timeline.events() {
            if self.goes[id.index()] || roots[id.index()].index() >= first_kept {
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

/// The topmost event above each one.
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

/// An operation goes, and all below it.
fn go(timeline: &Timeline<'_>, id: EventId, goes: &mut [bool]) {
    goes[id.index()] = true;
    for &child in timeline.children(id) {
        go(timeline, child, goes);
    }
}

impl State<'_, '_> {
    /// How long nothing has changed, ns.
    fn quiet_ns(&self, changed: u64) -> f64 {
        self.timeline.clock().duration_ns(self.until.saturating_sub(changed))
    }

    /// Whether nothing more is expected of an event that is no operation.
    fn is_final(&self, event: &Event) -> bool {
        if let Parent::Known(parent) = event.parent
            && Facts::is_operation(self.timeline.event(parent).kind())
        {
            // It goes with its operation.
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

    /// An operation, if nothing more is expected of it.
    fn judge_final(
        &self,
        (id, event): (EventId, &Event),
        facts: &Facts,
        launches: &Map<EventId, u64>,
    ) -> Option<Judged> {
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
            // The first CUDA event may be on its way.
            _ if group_api_of(timeline, event).is_some_and(|g| launches.contains_key(&g)) => {
                MEASURED_NS
            }
            _ => 0.0,
        };
        (quiet_ns >= wait_ns).then_some(judged)
    }
}
