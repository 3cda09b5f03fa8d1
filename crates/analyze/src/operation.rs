// SPDX-License-Identifier: Apache-2.0
/*!
Operations: Coll, P2p and CeColl events with what their children tell.

NCCL stops a Coll when it is *enqueued*. The operation is over when the last of its children is:
ProxyOp, KernelCh, CeSync or CeBatch. Its duration comes from the best source there is:

- [`Timing::Kernel`]: all channels' KernelCh carry valid pTimers; from the first channel's start to
  the last one's stop, by the GPU's timer.
- [`Timing::Event`]: from the launch's turn in its stream to its kernel's end, by two CUDA events
  (docs/probe.md), where one launch was for one operation. It contains the wait for a place on the
  GPU.
- [`Timing::Proxy`]: from the operation's start to its last child's stop, by the host's clock. It
  contains the launch and, for a receive, the wait for the sender.
- [`Timing::Enqueue`]: from the operation's start to its own (or its copy-engine parts') stop. This
  is the time that the host took to hand it over, **not** the operation's duration.
*/

use crate::bandwidth::size_bytes;
use crate::peers::LinkKey;
use crate::ptimer::group_api_of;
use crate::stats::to_f64;
use crate::{Event, EventId, Parent, Timeline};
use ncclscope_trace::record::{CeColl, Coll, P2p};
use ncclscope_trace::{Detail, EventKind, StrId};
use std::collections::HashMap;

/// Where an operation's duration is known from, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Timing {
    /// The GPU's timer.
    Kernel,
    /// CUDA events around the launch.
    Event,
    /// The host's clock, up to the last child's stop.
    Proxy,
    /// The host's clock, while the operation was enqueued.
    Enqueue,
}

impl Timing {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Timing::Kernel => "kernel",
            Timing::Event => "cuda_event",
            Timing::Proxy => "proxy",
            Timing::Enqueue => "enqueue",
        }
    }
}

/// Whether an operation came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// Its last child stopped at these ticks.
    Done(u64),
    /// Something of it has not stopped.
    Open,
    /// It was enqueued, and nothing in the recording shows its end.
    Unseen,
}

/// A collective, send, receive or copy-engine collective.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its Coll, P2p or CeColl event.
    pub event: EventId,
    /// Position of its communicator.
    pub comm: Option<usize>,
    /// NCCL function name.
    pub func: StrId,
    /// The caller's datatype where the API call is known, else the event's.
    pub datatype: StrId,
    /// Algorithm; none for P2p and CeColl.
    pub algo: StrId,
    /// Protocol; none for P2p and CeColl.
    pub proto: StrId,
    /// Size as nccl-tests define it; `None` where the datatype is unknown.
    pub bytes: Option<u64>,
    /// Channels; `None` unknown.
    pub channels: Option<u8>,
    /// NCCL's sequence number; P2p have none.
    pub seq: Option<u64>,
    /// The other rank of a P2p.
    pub peer: Option<i32>,
    /// Its end.
    pub completion: Completion,
    /// Where the duration is from.
    pub timing: Timing,
    /// The duration; `None` while it is open.
    pub duration_ns: Option<f64>,
    /// Its children that have not stopped, where they say that it is open.
    pub open: Vec<EventId>,
}

/// The operations of a timeline, in the order of [`Timeline::events`].
#[must_use]
pub fn operations(timeline: &Timeline<'_>) -> Vec<Operation> {
    let context = Context::new(timeline);
    let operations = timeline.events().filter_map(|(id, event)| {
        Some(match event.start.detail {
            Detail::Coll(coll) => context.coll(id, event, &coll),
            Detail::P2p(p2p) => context.p2p(id, event, &p2p),
            Detail::CeColl(ce) => context.ce_coll(id, event, &ce),
            _ => return None,
        })
    });
    operations.collect()
}

/// What the judgement of one operation needs to know of all.
struct Context<'t, 'r> {
    timeline: &'t Timeline<'r>,
    /// Ticks of the latest operation of each communicator whose kernel was seen; empty where
    /// kernel events were lost, so that a missing one says nothing.
    last_kernel: HashMap<usize, u64>,
    /// By group call and communicator; empty where nothing was measured by CUDA events.
    launches: HashMap<(EventId, u16), Launches>,
}

/// What is known of an operation's end: the rules of the module page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evidence {
    /// When it started, in ticks.
    start: u64,
    /// When its own event stopped.
    stop: Option<u64>,
    /// Channels that its kernel works on at least.
    wanted: usize,
    /// It has no child at all, and its kernel must be outstanding.
    kernel_missing: bool,
    /// Children that have not stopped.
    open: usize,
    children: usize,
    kernels: usize,
    is_timeless: bool,
    ptimers: Option<(u64, u64)>,
    last_stop: Option<u64>,
    event_ns: Option<u64>,
}

impl Evidence {
    /// Of an operation whose own event started and stopped at these ticks, and whose kernel works
    /// on at least `wanted` channels.
    pub(crate) fn new(start: u64, stop: Option<u64>, wanted: usize) -> Evidence {
        Evidence { start, stop, wanted, ..Evidence::default() }
    }

    /// Adds a ProxyOp that moves something, or a part of a copy-engine collective.
    pub(crate) fn add_child(&mut self, stop: Option<u64>) {
        self.children += 1;
        self.open += usize::from(stop.is_none());
        self.last_stop = self.last_stop.max(stop);
    }

    /// Adds a KernelCh with its pTimers.
    pub(crate) fn add_kernel(&mut self, stop: Option<u64>, ptimers: (u64, Option<u64>)) {
        self.add_child(stop);
        self.kernels += 1;
        match valid_ptimers(ptimers) {
            None => self.is_timeless = true,
            Some((start, stop)) => {
                let (first, last) = self.ptimers.unwrap_or((start, stop));
                self.ptimers = Some((first.min(start), last.max(stop)));
            }
        }
    }

    /// Adds the time that the launch took, which was for this operation alone, ns.
    pub(crate) fn add_launch(&mut self, ns: Option<u64>) {
        self.event_ns = ns;
    }

    /// To be told last: the kernel of an operation without any child may be outstanding.
    pub(crate) fn await_kernel(&mut self, is_awaited: bool) {
        self.kernel_missing = is_awaited && self.is_childless() && self.wanted > 0;
    }

    /// Fewer channels of its kernel were seen than it works on; with whether any was.
    pub(crate) fn lacks_kernels(&self) -> Option<bool> {
        (self.kernels < self.wanted).then_some(self.kernels > 0)
    }

    /// Nothing but its own event is known.
    pub(crate) fn is_childless(&self) -> bool {
        self.children == 0
    }

    /// The completion of a collective, send or receive.
    pub(crate) fn completion(&self) -> Completion {
        let Some(own) = self.stop else { return Completion::Open };
        if self.kernel_missing || self.open != 0 {
            return Completion::Open;
        }
        self.last_stop.map_or(Completion::Unseen, |stop| Completion::Done(stop.max(own)))
    }

    /// The completion of a copy-engine collective.
    pub(crate) fn ce_completion(&self) -> Completion {
        match self.stop {
            Some(own) if self.open == 0 => Completion::Done(self.last_stop.unwrap_or(0).max(own)),
            _ => Completion::Open,
        }
    }

    /// Where the duration is from, and the duration in ns; `None` while the operation is open.
    pub(crate) fn duration(&self, ns_per_tick: f64) -> (Timing, Option<f64>) {
        let completion = self.completion();
        if let Some(ns) = self.kernel_ns()
            && completion != Completion::Open
        {
            return (Timing::Kernel, Some(ns));
        }
        if let Some(ns) = self.event_ns
            && completion != Completion::Open
        {
            return (Timing::Event, Some(to_f64(ns)));
        }
        match completion {
            Completion::Open if self.is_childless() => (Timing::Enqueue, None),
            Completion::Open => (Timing::Proxy, None),
            Completion::Done(stop) => (Timing::Proxy, Some(self.host_ns(stop, ns_per_tick))),
            Completion::Unseen => {
                (Timing::Enqueue, self.stop.map(|stop| self.host_ns(stop, ns_per_tick)))
            }
        }
    }

    /// From its start to `stop`, by the host's clock, ns.
    pub(crate) fn host_ns(&self, stop: u64, ns_per_tick: f64) -> f64 {
        to_f64(stop.saturating_sub(self.start)) * ns_per_tick
    }

    /// From the first pTimer to the last; `None` unless there are enough and all make sense.
    fn kernel_ns(&self) -> Option<f64> {
        let (first, last) = self.ptimers?;
        (self.kernels >= self.wanted && !self.is_timeless).then(|| to_f64(last - first))
    }
}

/// The GPU's time stamps of a KernelCh, ns, if they make sense.
pub(crate) fn valid_ptimers((start, stop): (u64, Option<u64>)) -> Option<(u64, u64)> {
    // NCCL's ring of 64 time stamps may have been overtaken.
    stop.filter(|&stop| start != 0 && stop >= start).map(|stop| (start, stop))
}

impl<'t> Context<'t, '_> {
    fn new<'r>(timeline: &'t Timeline<'r>) -> Context<'t, 'r> {
        let mut last_kernel = HashMap::new();
        let kernels = timeline.events().filter(|(_, e)| e.kind() == EventKind::KernelCh);
        for (_, kernel) in kernels.filter(|_| !lost_kernels(timeline)) {
            if let (Some(comm), Parent::Known(op)) = (timeline.comm_of(kernel), kernel.parent) {
                let ticks = timeline.event(op).start.ticks;
                let last = last_kernel.entry(comm).or_insert(ticks);
                *last = ticks.max(*last);
            }
        }
        Context { timeline, last_kernel, launches: launches(timeline) }
    }

    fn coll(&self, id: EventId, event: &Event, coll: &Coll) -> Operation {
        let channels = (coll.channels != 0).then_some(coll.channels);
        let wanted = if coll.symmetric { 0 } else { usize::from(coll.channels) };
        Operation {
            algo: coll.algo,
            proto: coll.proto,
            channels,
            seq: Some(coll.seq),
            ..self.operation(id, event, coll.func, (coll.datatype, coll.count), wanted)
        }
    }

    fn p2p(&self, id: EventId, event: &Event, p2p: &P2p) -> Operation {
        Operation {
            channels: (p2p.channels != 0).then_some(p2p.channels),
            peer: Some(p2p.peer),
            // A small send uses fewer channels than it may.
            ..self.operation(id, event, p2p.func, (p2p.datatype, p2p.count), 1)
        }
    }

    fn ce_coll(&self, id: EventId, event: &Event, ce: &CeColl) -> Operation {
        let (start, stop) = (event.start.ticks, event.stop);
        let mut evidence = Evidence::new(start, stop, 0);
        let mut open = Vec::new();
        for &part in self.timeline.children(id) {
            let stop = self.timeline.event(part).stop;
            evidence.add_child(stop);
            if stop.is_none() {
                open.push(part);
            }
        }
        let completion = evidence.ce_completion();
        let duration_ns = match completion {
            Completion::Done(stop) => {
                Some(evidence.host_ns(stop, self.timeline.clock().ns_per_tick()))
            }
            _ => None,
        };
        let base = self.operation(id, event, ce.func, (ce.datatype, ce.count), 0);
        let timing = Timing::Enqueue;
        Operation { seq: Some(ce.seq), completion, timing, duration_ns, open, ..base }
    }

    /// An operation whose kernel works on at least `wanted` channels.
    fn operation(
        &self,
        id: EventId,
        event: &Event,
        func: StrId,
        (datatype, count): (StrId, u64),
        wanted: usize,
    ) -> Operation {
        let timeline = self.timeline;
        let comm = timeline.comm_of(event);
        let nranks = comm.map(|comm| timeline.comm(comm).ranks).filter(|&ranks| ranks != 0);
        let name = timeline.string(func);
        let (evidence, open) = self.evidence(id, event, wanted);
        let (timing, duration_ns) = evidence.duration(timeline.clock().ns_per_tick());
        Operation {
            event: id,
            comm,
            func,
            datatype: self.callers_datatype(event).unwrap_or(datatype),
            algo: StrId::NONE,
            proto: StrId::NONE,
            bytes: size_bytes(name, timeline.string(datatype), count, nranks),
            channels: None,
            seq: None,
            peer: None,
            completion: evidence.completion(),
            timing,
            duration_ns,
            open,
        }
    }

    /// What the children say, and which of them are open.
    fn evidence(&self, id: EventId, event: &Event, wanted: usize) -> (Evidence, Vec<EventId>) {
        let (start, stop) = (event.start.ticks, event.stop);
        let mut evidence = Evidence::new(start, stop, wanted);
        let mut open = Vec::new();
        for &id in self.timeline.children(id) {
            let child = self.timeline.event(id);
            match child.start.detail {
                Detail::ProxyOp(_) if self.is_network(child) => evidence.add_child(child.stop),
                Detail::KernelCh { ptimer, .. } => {
                    let stop = child.ptimer_stop.map(|(stop, _)| stop);
                    evidence.add_kernel(child.stop, (ptimer, stop));
                }
                _ => continue,
            }
            if child.stop.is_none() {
                open.push(id);
            }
        }
        let comm = self.timeline.comm_of(event);
        let last = comm.and_then(|comm| self.last_kernel.get(&comm));
        // The kernels of one communicator run in order: only the last ones can be outstanding.
        let is_last = last.is_some_and(|&last| start >= last);
        evidence.await_kernel(is_last);
        evidence.add_launch(self.launch_ns(event));
        (evidence, open)
    }

    /// How long the launch took that was for this operation alone.
    fn launch_ns(&self, event: &Event) -> Option<u64> {
        if self.launches.is_empty() {
            return None;
        }
        let group = group_api_of(self.timeline, event)?;
        self.launches.get(&(group, event.start.comm))?.of_one()
    }

    /// False for the ProxyOps of shared memory, peer access and CollNet: NCCL starts them, never
    /// moves them on and never stops them (from 2.27 on).
    fn is_network(&self, op: &Event) -> bool {
        if op.stop.is_some() || op.first_state.is_some() || op.steps.is_some() {
            return true;
        }
        let (Detail::ProxyOp(detail), Some(comm)) = (op.start.detail, self.timeline.comm_of(op))
        else {
            return false;
        };
        let (rank, peer, is_send) = (detail.rank, detail.peer, detail.is_send);
        self.timeline.links().contains(&LinkKey { comm, rank, peer, is_send })
    }

    /// AllGather and Broadcast count bytes in their Coll event; the API call tells more.
    fn callers_datatype(&self, event: &Event) -> Option<StrId> {
        let Parent::Known(parent) = event.parent else { return None };
        match self.timeline.event(parent).start.detail {
            Detail::CollApi(call) | Detail::P2pApi(call) => {
                (call.datatype != StrId::NONE).then_some(call.datatype)
            }
            _ => None,
        }
    }
}

/// What one call of NCCL launched on one communicator, and for how many operations.
#[derive(Clone, Copy, Debug, Default)]
struct Launches {
    launches: u32,
    operations: u32,
    /// Of the launch that was measured last.
    ns: Option<u64>,
}

impl Launches {
    /// The time of an operation that had a launch of its own.
    fn of_one(&self) -> Option<u64> {
        self.ns.filter(|_| (self.launches, self.operations) == (1, 1))
    }
}

fn launches(timeline: &Timeline<'_>) -> HashMap<(EventId, u16), Launches> {
    let mut launches = HashMap::new();
    if !timeline.has_cuda_events() {
        return launches;
    }
    for (id, event) in timeline.events() {
        let is_launch = event.kind() == EventKind::KernelLaunch;
        let is_operation = matches!(event.kind(), EventKind::Coll | EventKind::P2p);
        if let Some(group) = group_api_of(timeline, event)
            && (is_launch || is_operation)
        {
            let entry: &mut Launches = launches.entry((group, event.start.comm)).or_default();
            entry.launches += u32::from(is_launch);
            entry.operations += u32::from(is_operation);
            entry.ns = timeline.launch_ns(id).or(entry.ns);
        }
    }
    launches
}

fn lost_kernels(timeline: &Timeline<'_>) -> bool {
    let kind = EventKind::KernelCh.index();
    let (header, lanes) = (timeline.recording().header(), timeline.recording().lanes());
    let by_cause = [header.without_lane, header.overwritten, header.unwritten];
    by_cause.iter().any(|lost| lost[kind] != 0)
        || lanes.iter().any(|lane| lane.header.lost[kind] != 0)
}
