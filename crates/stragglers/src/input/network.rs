// SPDX-License-Identifier: Apache-2.0
//! What the network steps of one process show: the wire times of its links, and when it waited for
//! its GPU.

use super::both_ends::{End, STEPS, Samples};
use super::comm_id::{CommKey, LinkId, comm_id};
use super::gpu_waits::{GpuWaits, Span, waited};
use super::link_times::LinkTimes;
use super::plan::JobPlan;
use super::shortages::ShortTimes;
use ncclscope_limits::links;
use ncclscope_operations::ends::arrives_early;
use ncclscope_operations::event_id::NewNumbers;
use ncclscope_operations::hash::Map;
use ncclscope_operations::stats::to_u64;
use ncclscope_operations::steps::StepExt;
use ncclscope_operations::{Event, EventId, Timeline};
use ncclscope_trace::record::{ProxyOp, step_flags};
use ncclscope_trace::{Detail, Recording, Start, Step, TickMap};
use std::collections::BTreeMap;

/// What one process's network steps show, collected while reading.
#[derive(Debug)]
pub(super) struct Network<'p> {
    comms: BTreeMap<u16, CommKey>,
    clock: TickMap,
    numbers: BTreeMap<LinkId, u32>,
    links: Vec<NetworkLink<'p>>,
    /// The place of each ProxyOp in `ops`, by event number, so that a step needs no lookup.
    places: Vec<u32>,
    ops: Vec<Steps>,
    /// The first steps of ProxyOps whose operation has not ended ([`Steps::sampled`]), and the
    /// places of those whose operation has.
    sampled: Vec<Sampled>,
    free: Vec<u32>,
    samples: Samples,
    /// Number of processes of the job.
    processes: usize,
    /// Number of ProxyOps that sent and received on each link.
    counts: BTreeMap<(LinkId, bool), u64>,
    /// When steps waited for the GPU.
    waited: Vec<Waited>,
    /// For each communicator by index, when a step last completed, in ticks.
    active: Vec<u64>,
    /// [`links::IDLE`] in ticks.
    idle: u64,
}

/// An index of nothing.
const NONE: u32 = u32::MAX;

/// The first steps of a ProxyOp.
#[derive(Debug, Default)]
struct Sampled {
    link: LinkId,
    /// Which one it is among those of the link in this direction.
    number: u64,
    ends: Vec<End>,
}

/// When steps of a ProxyOp waited for the GPU, in ticks: of overlapping times the union.
#[derive(Debug)]
struct Waited {
    /// Its place in [`Network::ops`].
    op: u32,
    from: u64,
    to: u64,
}

/// The steps of a ProxyOp. A recording has many.
#[derive(Clone, Copy, Debug)]
struct Steps {
    of: StepsOf,
    rank: i32,
    /// Index of the communicator.
    comm: u16,
    channel: u8,
    is_send: bool,
    completed: u32,
    /// When the GPU had delivered the data of the latest completed step of a send, in ticks;
    /// [`u64::MAX`] if that is unknown of one.
    delivered: u64,
    /// Index of its latest time in [`Network::waited`]; [`NONE`] without one.
    latest: u32,
    /// Index of its first steps in [`Network::sampled`]; [`NONE`] without them.
    sampled: u32,
    bytes: u64,
    /// Number of its operation; [`NONE`] until that is known.
    operation: u32,
    /// The operation is a collective.
    is_collective: bool,
}

/// A link, and when the processes at its ends were short of processor time.
#[derive(Debug)]
struct NetworkLink<'p> {
    times: LinkTimes,
    /// The transfers that begin after an idle time.
    firsts: LinkTimes,
    ends: [Option<&'p ShortTimes>; 2],
}

/// What the steps of a ProxyOp belong to.
#[derive(Clone, Copy, Debug)]
enum StepsOf {
    /// No known communicator.
    Nothing,
    /// The link with this index.
    Send(u32),
    Receive,
}

impl<'p> Network<'p> {
    pub(super) fn new(recording: &Recording, processes: usize) -> Network<'p> {
        let comms = recording.comms().iter().map(|comm| (comm.index, comm_id(comm)));
        Network {
            comms: comms.collect(),
            clock: recording.tick_map(),
            numbers: BTreeMap::new(),
            links: Vec::new(),
            places: Vec::new(),
            ops: Vec::new(),
            sampled: Vec::new(),
            free: Vec::new(),
            samples: Samples::default(),
            processes,
            counts: BTreeMap::new(),
            waited: Vec::new(),
            active: Vec::new(),
            idle: to_u64(links::IDLE / recording.tick_map().ns_per_tick()),
        }
    }

    /// Adds a step of a ProxyOp of the process at a place.
    pub(super) fn add(
        &mut self,
        (id, event): (EventId, &Event),
        step: &Step,
        (plan, place): (&'p JobPlan<'p>, usize),
    ) {
        let Detail::ProxyOp(op) = &event.start.detail else { return };
        let at = self.place(id, (&event.start, op), (plan, place));
        let active = active(&mut self.active, event.start.comm);
        let mut is_first = false;
        match self.ops[at].of {
            StepsOf::Send(link) => {
                let quiet = active.saturating_add(self.idle);
                let link = &mut self.links[link as usize];
                is_first = add_send(link, step, quiet, &self.clock);
            }
            StepsOf::Receive => {}
            StepsOf::Nothing => return,
        }
        if step.has(step_flags::STOPPED) {
            *active = step.end_ticks().max(*active);
        }
        if step.has(step_flags::STOPPED) && !op.foreign {
            self.add_stopped(at, step);
            self.add_end((at, event.start.comm), op, step, is_first);
        }
    }

    /// The place of a ProxyOp in `ops`.
    fn place(
        &mut self,
        id: EventId,
        (start, op): (&Start, &ProxyOp),
        of: (&'p JobPlan<'p>, usize),
    ) -> usize {
        if id.index() >= self.places.len() {
            self.places.resize(id.index() + 1, NONE);
        }
        if self.places[id.index()] == NONE {
            self.places[id.index()] = index(self.ops.len());
            let steps = Steps {
                of: self.steps_of(start, op, of),
                rank: op.rank,
                comm: start.comm,
                channel: op.channel,
                is_send: op.is_send,
                completed: 0,
                delivered: 0,
                latest: NONE,
                sampled: NONE,
                bytes: 0,
                operation: NONE,
                is_collective: false,
            };
            self.ops.push(steps);
        }
        self.places[id.index()] as usize
    }

    /// Adds the bytes and the wait of a completed step.
    fn add_stopped(&mut self, at: usize, step: &Step) {
        let steps = &mut self.ops[at];
        steps.completed += 1;
        steps.delivered = step.ready().map_or(u64::MAX, |ticks| ticks.max(steps.delivered));
        if step.has(step_flags::SIZED) {
            steps.bytes = steps.bytes.saturating_add(step.size.into());
        }
        let Some((from, to)) = waited(step, steps.is_send).filter(|(from, to)| from < to) else {
            return;
        };
        match self.waited.get_mut(steps.latest as usize) {
            Some(last) if (last.from..=last.to).contains(&from) => last.to = last.to.max(to),
            _ => {
                steps.latest = index(self.waited.len());
                self.waited.push(Waited { op: index(at), from, to });
            }
        }
    }

    /// Keeps the end of a completed step, if it is one of the first of its ProxyOp.
    fn add_end(&mut self, (at, comm): (usize, u16), op: &ProxyOp, step: &Step, is_first: bool) {
        if self.ops[at].completed as usize > STEPS {
            return;
        }
        if self.ops[at].sampled == NONE {
            let Some(comm) = self.comms.get(&comm) else { return };
            let [src, dst] = if op.is_send { [op.rank, op.peer] } else { [op.peer, op.rank] };
            self.ops[at].sampled = self.sample((*comm, src, dst, op.channel), op.is_send);
        }
        let ends = &mut self.sampled[self.ops[at].sampled as usize].ends;
        ends.extend(End::of(step, (op.is_send, is_first)));
    }

    /// Where the first steps of a link's next ProxyOp go.
    fn sample(&mut self, link: LinkId, is_send: bool) -> u32 {
        let number = self.counts.entry((link, is_send)).or_default();
        *number += 1;
        let at = self.free.pop().unwrap_or_else(|| {
            self.sampled.push(Sampled::default());
            index(self.sampled.len() - 1)
        });
        let sampled = &mut self.sampled[at as usize];
        (sampled.link, sampled.number) = (link, *number);
        sampled.ends.clear();
        at
    }

    /// Notes which ProxyOps belong to an operation, and the operation's number.
    pub(super) fn end(&mut self, timeline: &Timeline<'_>, operation: EventId, number: u32) {
        let detail = &timeline.event(operation).start.detail;
        let (func, proto, seq) = match detail {
            Detail::Coll(coll) => {
                (timeline.string(coll.func), timeline.string(coll.proto), Some(coll.seq))
            }
            _ => ("", "", None),
        };
        let has_net_plugin = timeline.recording().identity().net_plugin.is_some();
        let is_early = arrives_early(has_net_plugin, proto);
        for child in timeline.children(operation) {
            let Some(&place) = self.places.get(child.index()) else { continue };
            let place = place as usize;
            let Some(steps) = self.ops.get_mut(place) else { continue };
            steps.operation = number;
            steps.is_collective = seq.is_some();
            let at = std::mem::replace(&mut steps.sampled, NONE);
            let Some(Sampled { link, number, ends }) = self.sampled.get(at as usize) else {
                continue;
            };
            self.free.push(at);
            if !is_early {
                let key = (*link, seq.is_some());
                let operation = (func, seq.unwrap_or(*number));
                let ends = ends.iter().map(|end| end.in_ns(&self.clock));
                self.samples.add(key, (steps.is_send, ends), operation, self.processes);
            }
        }
    }

    /// Gives the events their new numbers.
    pub(super) fn renumber(&mut self, numbers: &NewNumbers) {
        numbers.keep(&mut self.places);
    }

    /// Looks up what the steps of a ProxyOp belong to, which may be another process (PXN).
    fn steps_of(
        &mut self,
        start: &Start,
        op: &ProxyOp,
        (plan, place): (&'p JobPlan<'p>, usize),
    ) -> StepsOf {
        let comm = match op.foreign {
            true => plan.owner(place, start, op),
            false => self.comms.get(&start.comm).copied(),
        };
        match comm {
            None => StepsOf::Nothing,
            Some(_) if !op.is_send => StepsOf::Receive,
            Some(comm) => {
                let id = (comm, op.rank, op.peer, op.channel);
                StepsOf::Send(*self.numbers.entry(id).or_insert_with(|| {
                    let ends = [op.rank, op.peer].map(|rank| plan.short_times(comm, rank));
                    let [times, firsts] = [LinkTimes::default(), LinkTimes::default()];
                    self.links.push(NetworkLink { times, firsts, ends });
                    index(self.links.len() - 1)
                }))
            }
        }
    }

    /// The waits for the GPU of the steps whose ProxyOp belongs to a known kernel, by the number of
    /// its operation. Only a collective sends what it receives: a receive and a send of a pipeline
    /// wait each for its own turn.
    pub(super) fn gpu_waits(&self, kernels: &[Option<Span>]) -> GpuWaits {
        let mut waits = GpuWaits::default();
        let several = self.several();
        let mut channel = |steps: &Steps| {
            let kernel = (*kernels.get(steps.operation as usize)?)?;
            if several.contains_key(&(steps.operation, steps.channel)) {
                return None;
            }
            let key = (*self.comms.get(&steps.comm)?, steps.rank, steps.channel);
            let sums = (steps.completed.into(), steps.bytes);
            let channel = waits.channel(key, (steps.operation, steps.is_send), sums);
            Some((channel, steps.is_send, kernel))
        };
        let channels = self.ops.iter();
        let channels: Vec<Option<(usize, bool, Span)>> =
            channels.map(|of| (of.completed > 0).then(|| channel(of)).flatten()).collect();
        let ns = |ticks| i64::try_from(self.clock.realtime_ns(ticks)).unwrap_or(i64::MAX);
        for Waited { op, from, to } in &self.waited {
            let place = *op as usize;
            if let Some((channel, is_send, kernel)) = channels[place]
                && self.ops[place].is_collective
            {
                waits.add(channel, is_send, (ns(*from), ns(*to)), kernel);
            }
        }
        waits
    }

    /// The operations and channels with several ProxyOps in one direction. Within a tree, a GPU
    /// waits for the data of both children, so that data of one is no sign that it does nothing.
    fn several(&self) -> Map<(u32, u8), ()> {
        let mut seen: Map<(u32, u8), [bool; 2]> = Map::default();
        let mut several = Map::default();
        for steps in self.ops.iter().filter(|steps| steps.operation != NONE) {
            let key = (steps.operation, steps.channel);
            let seen = &mut seen.entry(key).or_default()[usize::from(steps.is_send)];
            if std::mem::replace(seen, true) {
                several.insert(key, ());
            }
        }
        several
    }

    /// When the GPU had delivered all data of each send, in ticks, by the operation's number. It
    /// lacks those of which that is not known.
    pub(super) fn delivered(&self) -> Map<u32, u64> {
        let mut delivered: Map<u32, u64> = Map::default();
        let sends = self.ops.iter().filter(|of| of.is_send && !of.is_collective);
        for steps in sends.filter(|of| of.operation != NONE) {
            let known = if steps.completed > 0 { steps.delivered } else { u64::MAX };
            let latest = delivered.entry(steps.operation).or_default();
            *latest = known.max(*latest);
        }
        delivered.retain(|_, ticks| *ticks != u64::MAX);
        delivered
    }

    /// Samples of the transfers, at this end of their links.
    pub(super) fn samples(&mut self) -> Samples {
        std::mem::take(&mut self.samples)
    }

    /// The links over which the process sent: the transfers, and those after an idle time.
    pub(super) fn links(mut self) -> impl Iterator<Item = (LinkId, [LinkTimes; 2])> {
        let numbers = self.numbers.into_iter();
        numbers.map(move |(id, at)| {
            let NetworkLink { times, firsts, .. } = &mut self.links[at as usize];
            (id, [times, firsts].map(std::mem::take))
        })
    }
}

/// When a step of the communicator with this index last completed, in ticks.
fn active(all: &mut Vec<u64>, comm: u16) -> &mut u64 {
    let at = usize::from(comm);
    if at >= all.len() {
        all.resize(at + 1, 0);
    }
    &mut all[at]
}

/// Adds a completed send: its wire time without the time queued behind another send. Left out are
/// transfers while one of the ends was short of processor time; those that begin after an idle time
/// ([`links::IDLE`]), after `quiet` in ticks, are kept apart. Returns whether it is one of those.
fn add_send(link: &mut NetworkLink<'_>, step: &Step, quiet: u64, clock: &TickMap) -> bool {
    const WANTED: u8 = step_flags::STOPPED | step_flags::SIZED | step_flags::THIRD;
    if step.flags & WANTED != WANTED || !step.has(step_flags::IS_SEND) {
        return false;
    }
    let [posted, _, Some(sent)] = step.state_ticks() else { return false };
    let end = step.end_ticks();
    let ns = |ticks| clock.realtime_ns(ticks);
    let NetworkLink { times: link, firsts, ends } = link;
    let (begin, last_sent) = (sent.max(link.last), link.last_sent);
    if ends.iter().flatten().any(|times| times.contain(ns(sent), ns(end))) {
        link.left_out += 1;
    } else {
        let times = if begin > quiet { firsts } else { &mut *link };
        let wire = end.saturating_sub(begin);
        times.add(step.size, clock.duration_ns(wire), ns(end));
        // Sends that follow each other at once were not kept back, nor was one whose buffer became
        // free just before.
        let kept = sent.saturating_sub(posted.unwrap_or(step.ticks).max(last_sent));
        times.pace.held_ns += clock.duration_ns(wire.min(kept));
        times.pace.flight_ns += clock.duration_ns(end.saturating_sub(sent));
    }
    link.last = link.last.max(end);
    link.last_sent = link.last_sent.max(sent);
    begin > quiet
}

fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(NONE)
}
