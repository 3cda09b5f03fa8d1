// SPDX-License-Identifier: Apache-2.0
/*!
Operations: Coll, P2p and CeColl events, with the end and the duration that their children show.

NCCL stops a Coll when it is *enqueued*. The operation is over when the last of its children is:
ProxyOp, KernelCh, CeSync or CeBatch. For some algorithms, and for sends and receives, a KernelCh
stops before the kernel does (`ends.rs`). The duration comes from the best available source:

- [`Timing::Kernel`]: all channels' KernelCh have valid pTimers, and their stop is the end; from the
  first channel's start to the last channel's stop, by the GPU's timer.
- [`Timing::Event`]: from the moment at which the stream reaches the launch to the kernel's end, by
  two CUDA events (docs/probe.md), if the launch was for one operation, or for several sends and
  receives without a network part. It includes the wait for free SMs.
- [`Timing::Proxy`]: from the operation's start to its last child's stop, by the host's clock. It
  includes the launch and, for a receive, the wait for the sender.
- [`Timing::KernelLead`]: like `Kernel`, if the stop is not the end: a lower bound.
- [`Timing::Enqueue`]: from the operation's start to its own stop, or to that of its copy-engine
  parts. This is the time that the host took to enqueue it, **not** the operation's duration.

# Arrival

The host enqueues an operation long before the GPU runs it. The rank *arrives* when its kernel
starts. The time from the arrival to the end consists of the wait for ranks that arrive later and
the transfer ([`Evidence::with_waiting`]); the rank that arrives last does not wait. `Kernel` and
`Event` begin with the arrival. With `Proxy` the arrival is the first start of a kernel channel by
the host's clock, else the time when the GPU delivered the first data to send, if that is the rank's
own ([`crate::ends::sends_own_first`]).
*/

use crate::ends::{Over, Signs};
use crate::facts::{Facts, Launched};
use crate::hash::Map;
use crate::order::{KernelOrder, StreamOrder};
use crate::peers::LinkKey;
use crate::ptimer::group_api_of;
use crate::stats::to_f64;
use crate::steps::earliest;
use crate::{Event, EventId, Parent, Timeline};
use ncclscope_trace::record::KernelCh;
use ncclscope_trace::{Detail, EventKind, StrId};

/// The sources of an operation's duration, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Timing {
    /// The GPU's timer.
    Kernel,
    /// CUDA events around the launch.
    Event,
    /// The host's clock, up to the last child's stop.
    Proxy,
    /// The GPU's timer, up to a stop that comes before the end: a lower bound.
    KernelLead,
    /// The host's clock, from start to stop of the enqueuing.
    Enqueue,
}

impl Timing {
    /// All sources, best first.
    pub const ALL: [Timing; 5] =
        [Timing::Kernel, Timing::Event, Timing::Proxy, Timing::KernelLead, Timing::Enqueue];

    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Timing::Kernel => "kernel",
            Timing::Event => "cuda_event",
            Timing::Proxy => "proxy",
            Timing::KernelLead => "kernel_lead",
            Timing::Enqueue => "enqueue",
        }
    }

    /// Whether the duration is that of the whole operation, so that a bandwidth can be computed.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        !matches!(self, Timing::KernelLead | Timing::Enqueue)
    }
}

/// The end of an operation, by the clock of its duration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The GPU's timer, ns.
    Gpu(u64),
    /// The host's clock, ticks.
    Host(u64),
}

/// Whether an operation has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// Its last child stopped at these ticks.
    Done(u64),
    /// A part of it has not stopped.
    Open,
    /// It was enqueued, and no record shows its end.
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
    /// The caller's datatype if the API call is known, else the event's.
    pub datatype: StrId,
    /// Algorithm; none for P2p and CeColl.
    pub algo: StrId,
    /// Protocol; none for P2p and CeColl.
    pub proto: StrId,
    /// Size in bytes as nccl-tests define it; `None` if the datatype is unknown.
    pub bytes: Option<u64>,
    /// Number of channels; `None` if unknown.
    pub channels: Option<u16>,
    /// NCCL's sequence number; `None` for P2p.
    pub seq: Option<u64>,
    /// The other rank of a P2p.
    pub peer: Option<i32>,
    /// A buffer is not aligned to 16 bytes, so that NCCL's kernels copy it in smaller pieces.
    pub is_unaligned: bool,
    /// Its end.
    pub completion: Completion,
    /// CUDA events show that it is over. If no other record shows its end, it is unknown when it
    /// was ([`Completion::Unseen`]).
    pub has_ended: bool,
    /// The source of the duration.
    pub timing: Timing,
    /// The duration, ns; `None` while the operation is open.
    pub duration_ns: Option<f64>,
    /// From the rank's arrival to the end, ns, including the wait for ranks that arrive later.
    /// `None` if arrival or end is unknown.
    pub with_waiting_ns: Option<f64>,
    /// Its end, by the clock of `with_waiting_ns`; `None` if that comes from CUDA events, or is
    /// unknown.
    pub end: Option<End>,
    /// All channels of its kernel have valid times of the GPU's timer.
    pub has_gpu_times: bool,
    /// The first channel's start and the last channel's stop by the GPU's timer, ns; `None` unless
    /// `has_gpu_times`.
    pub gpu_span: Option<(u64, u64)>,
    /// The stop of its kernel is not its end.
    pub stops_early: bool,
    /// Its children that have not stopped and keep it open.
    pub open: Vec<EventId>,
}

/// The operations of a timeline, in the order of [`Timeline::events`].
#[must_use]
pub fn operations(timeline: &Timeline<'_>) -> Vec<Operation> {
    let mut judge = Judge::new(timeline);
    judge.note(timeline);
    judge.note_all_channels(timeline);
    let operations = timeline.events().filter_map(|(id, event)| {
        let facts = Facts::of(&event.start.detail)?;
        Some(judge.operation(timeline, (id, event), &facts).operation)
    });
    operations.collect()
}

/// Facts about other operations that decide the state of an operation.
#[derive(Debug)]
pub(crate) struct Judge {
    /// By position of the communicator; `None` if kernel events were lost, because a missing kernel
    /// then proves nothing.
    orders: Option<Map<usize, KernelOrder>>,
    /// Whether kernels of any communicator were recorded.
    has_kernels: bool,
    streams: StreamOrder,
    /// By group call and communicator; empty if no launch was measured by CUDA events.
    launches: Map<(EventId, u16), Launches>,
    /// Start of the last measured launch of each communicator, in ticks.
    measured: Map<u16, u64>,
}

/// An operation in its present state, and whether that may still change.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) operation: Operation,
    /// Its kernel, or channels of its kernel, may still be reported, because no later kernel of its
    /// communicator has started.
    pub(crate) may_lack_kernels: bool,
    /// Set if its kernel may be the first of its kind in its communicator, which no record shows
    /// before it starts; true for the oldest such operation.
    pub(crate) first_kernel: Option<bool>,
    /// Whether its launches have ended, by CUDA events; `None` if unknown.
    pub(crate) event: Option<bool>,
}

/// Collects the facts about an operation's end, and applies the rules of the module's
/// documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence {
    /// Start of the operation, in ticks.
    start: u64,
    /// Stop of its own event, in ticks.
    stop: Option<u64>,
    /// Least number of channels on which its kernel should be recorded.
    wanted: usize,
    /// Number of children that have not stopped.
    open: usize,
    children: usize,
    kernels: usize,
    is_timeless: bool,
    ptimers: Option<(u64, u64)>,
    last_stop: Option<u64>,
    /// First start of a kernel channel by the host's clock, in ticks.
    kernel_start: Option<u64>,
    /// When the GPU had delivered the first data to send, if that is the rank's own, in ticks.
    ready: Option<u64>,
    event: LaunchEnd,
    /// Its kernel, or channels of its kernel, should be reported and are not.
    awaits: bool,
    /// The stop of its kernel is not its end.
    leads: bool,
    /// A later kernel of its communicator has started.
    followed: bool,
    /// A later kernel of its stream has started.
    passed: bool,
    /// A later operation of its communicator waits for its kernel.
    awaited: bool,
}

/// What CUDA events show about the launches of an operation's group.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaunchEnd {
    /// Duration of the launch, if it was for this operation alone, ns.
    pub ns: Option<u64>,
    /// Duration of the launch, if it was for several sends and receives, ns.
    pub shared_ns: Option<u64>,
    /// Whether the launches have ended; `None` if unknown.
    pub ended: Option<bool>,
}

impl Evidence {
    /// The evidence of an operation whose own event started and stopped at these ticks.
    /// `stops_early`: the stop of its kernel is not its end.
    pub fn new(start: u64, stop: Option<u64>, facts: &Facts, stops_early: bool) -> Evidence {
        Evidence {
            start,
            stop,
            wanted: facts.wanted.into(),
            leads: stops_early,
            ..Evidence::default()
        }
    }

    /// Adds a ProxyOp that moves data, or a part of a copy-engine collective.
    pub fn add_child(&mut self, stop: Option<u64>) {
        self.children += 1;
        self.open += usize::from(stop.is_none());
        self.last_stop = self.last_stop.max(stop);
    }

    /// Adds the time when the GPU had delivered the rank's own data to send, in ticks.
    pub fn add_ready(&mut self, ready: Option<u64>) {
        self.ready = earliest(self.ready, ready);
    }

    /// Adds a KernelCh with its pTimers.
    pub fn add_kernel(&mut self, (start, stop): (u64, Option<u64>), ptimers: (u64, Option<u64>)) {
        self.add_child(stop);
        self.kernel_start = earliest(self.kernel_start, Some(start));
        self.kernels += 1;
        match valid_ptimers(ptimers) {
            None => self.is_timeless = true,
            Some((start, stop)) => {
                let (first, last) = self.ptimers.unwrap_or((start, stop));
                self.ptimers = Some((first.min(start), last.max(stop)));
            }
        }
    }

    /// Adds the facts from CUDA events about its launch.
    pub fn add_launch(&mut self, event: LaunchEnd) {
        self.event = event;
    }

    /// Adds the conclusions from other kernels of its communicator. Call it after the children and
    /// the launch are added.
    pub fn add_order(&mut self, order: &KernelOrder, facts: &Facts, own: Launched) {
        (self.followed, self.awaited) = order.later(own);
        self.awaits = match self.kernels {
            0 => self.is_childless() && order.awaits(facts, own),
            seen => self.event.ended != Some(true) && order.awaits_channels(seen, facts, own),
        };
    }

    /// Adds whether a later kernel of its CUDA stream has started.
    pub fn add_stream(&mut self, is_followed: bool) {
        self.passed = is_followed;
    }

    /// Number of channels on which its kernel was recorded.
    pub const fn kernels(&self) -> usize {
        self.kernels
    }

    /// Number of channels: those that NCCL announces in one byte, or those of its kernel if these
    /// are more than a byte can hold; 0 if unknown.
    pub fn channels(&self, facts: &Facts) -> u16 {
        let seen = u16::try_from(self.kernels).unwrap_or(u16::MAX);
        if seen > u16::from(u8::MAX) { seen.max(facts.channels) } else { facts.channels }
    }

    /// `None` if its kernel was recorded on all wanted channels; else whether it was recorded on
    /// any.
    pub fn lacks_kernels(&self) -> Option<bool> {
        (self.kernels < self.wanted).then_some(self.kernels > 0)
    }

    /// Whether it has no children.
    pub fn is_childless(&self) -> bool {
        self.children == 0
    }

    /// The completion of a collective, send or receive.
    pub fn completion(&self) -> Completion {
        let signs = Signs {
            enqueued: self.stop.is_some(),
            open: self.open,
            kernels: self.kernels,
            network: self.has_network(),
            awaits: self.awaits,
            event: self.event.ended,
            stops_early: self.leads,
            followed: self.followed || self.passed,
            awaited: self.awaited,
            ..Signs::default()
        };
        match signs.over() {
            Over::Yes => Completion::Done(self.last_stop.max(self.stop).unwrap_or(self.start)),
            Over::No => Completion::Open,
            Over::Unknown => Completion::Unseen,
        }
    }

    fn has_network(&self) -> bool {
        self.children > self.kernels
    }

    /// The completion of a copy-engine collective.
    pub fn ce_completion(&self) -> Completion {
        match self.stop {
            Some(own) if self.open == 0 => Completion::Done(self.last_stop.unwrap_or(0).max(own)),
            _ => Completion::Open,
        }
    }

    /// [`Evidence::duration`] of a copy-engine collective.
    pub fn ce_duration(&self, ns_per_tick: f64) -> (Timing, Option<f64>) {
        let ns = match self.ce_completion() {
            Completion::Done(stop) => Some(self.host_ns(stop, ns_per_tick)),
            _ => None,
        };
        (Timing::Enqueue, ns)
    }

    /// The source of the duration, and the duration in ns; `None` while the operation is open.
    pub fn duration(&self, ns_per_tick: f64) -> (Timing, Option<f64>) {
        let completion = self.completion();
        let kernel = self.kernel_ns().filter(|_| completion != Completion::Open);
        if let Some(ns) = kernel.filter(|_| !self.leads) {
            return (Timing::Kernel, Some(ns));
        }
        let shared = self.event.shared_ns.filter(|_| !self.has_network());
        if let Some(ns) = self.event.ns.or(shared)
            && completion != Completion::Open
        {
            return (Timing::Event, Some(to_f64(ns)));
        }
        if let Some(ns) = kernel.filter(|_| !self.has_network()) {
            return (Timing::KernelLead, Some(ns));
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

    /// From the rank's arrival to the end of a collective, send or receive, ns; `None` if either is
    /// unknown.
    pub fn with_waiting(&self, ns_per_tick: f64) -> Option<f64> {
        match (self.duration(ns_per_tick), self.completion()) {
            ((Timing::Kernel | Timing::Event, ns), _) => ns,
            ((Timing::Proxy, _), Completion::Done(stop)) => {
                let arrival = self.kernel_start.or(self.ready)?;
                Some(to_f64(stop.checked_sub(arrival)?) * ns_per_tick)
            }
            _ => None,
        }
    }

    /// The end of the time that [`Evidence::with_waiting`] measures.
    fn end(&self, timing: Timing) -> Option<End> {
        match (timing, self.completion()) {
            (Timing::Kernel, _) => self.ptimers.map(|(_, last)| End::Gpu(last)),
            (Timing::Proxy, Completion::Done(stop)) => Some(End::Host(stop)),
            _ => None,
        }
    }

    /// Time from its start to `stop` by the host's clock, ns.
    pub fn host_ns(&self, stop: u64, ns_per_tick: f64) -> f64 {
        to_f64(stop.saturating_sub(self.start)) * ns_per_tick
    }

    /// Time from the first pTimer to the last, ns; `None` if a channel is missing or has invalid
    /// pTimers.
    pub fn kernel_ns(&self) -> Option<f64> {
        let (first, last) = self.ptimers?;
        (self.kernels >= self.wanted && !self.is_timeless).then(|| to_f64(last - first))
    }
}

/// The GPU's time stamps of a KernelCh, ns; `None` if they are missing or contradict each other.
pub fn valid_ptimers((start, stop): (u64, Option<u64>)) -> Option<(u64, u64)> {
    // NCCL's ring of 64 time stamps may have been overtaken.
    stop.filter(|&stop| start != 0 && stop >= start).map(|stop| (start, stop))
}

impl Judge {
    pub(crate) fn new(timeline: &Timeline<'_>) -> Judge {
        let orders = (!timeline.recording().lacks(EventKind::KernelCh)).then(Map::default);
        let (launches, measured) = (Map::default(), Map::default());
        let streams = StreamOrder::default();
        Judge { orders, has_kernels: false, streams, launches, measured }
    }

    /// Updates the facts from the events of the timeline. Events may be passed again.
    pub(crate) fn note(&mut self, timeline: &Timeline<'_>) {
        self.note_orders(timeline);
        self.note_launches(timeline);
    }

    pub(crate) fn operation(
        &self,
        timeline: &Timeline<'_>,
        (id, event): (EventId, &Event),
        facts: &Facts,
    ) -> Judged {
        let comm = timeline.comm_of(event);
        let nranks = comm.map(|comm| timeline.comm(comm).ranks).filter(|&ranks| ranks != 0);
        let (evidence, open) = self.evidence(timeline, (id, event), facts);
        let ns_per_tick = timeline.clock().ns_per_tick();
        let (completion, (timing, duration_ns)) = if facts.is_copy() {
            (evidence.ce_completion(), evidence.ce_duration(ns_per_tick))
        } else {
            (evidence.completion(), evidence.duration(ns_per_tick))
        };
        let with_waiting_ns =
            if facts.is_copy() { None } else { evidence.with_waiting(ns_per_tick) };
        let operation = Operation {
            event: id,
            comm,
            func: facts.func,
            datatype: callers_datatype(timeline, event).unwrap_or(facts.datatype),
            algo: facts.algo,
            proto: facts.proto,
            bytes: facts.bytes(|id| timeline.string(id), nranks),
            channels: Some(evidence.channels(facts)).filter(|&channels| channels != 0),
            seq: facts.seq,
            peer: facts.peer,
            is_unaligned: facts.alignment.bytes().is_some_and(|bytes| bytes < 16),
            completion,
            has_ended: evidence.event.ended == Some(true),
            timing,
            duration_ns,
            with_waiting_ns,
            end: with_waiting_ns.and_then(|_| evidence.end(timing)),
            has_gpu_times: evidence.kernel_ns().is_some(),
            gpu_span: evidence.kernel_ns().and(evidence.ptimers),
            stops_early: evidence.leads,
            open,
        };
        let order = comm.and_then(|comm| self.orders.as_ref()?.get(&comm));
        let tells = order.is_some_and(KernelOrder::has_kernels);
        let may_lack_kernels = tells && !evidence.followed && evidence.lacks_kernels().is_some();
        let first_kernel = order
            .filter(|_| self.has_kernels && evidence.is_childless())
            .and_then(|order| order.may_be_first(facts, Launched::of(&event.start)));
        Judged { operation, may_lack_kernels, first_kernel, event: evidence.event.ended }
    }

    /// The facts that the children show, and the open children.
    fn evidence(
        &self,
        timeline: &Timeline<'_>,
        (id, event): (EventId, &Event),
        facts: &Facts,
    ) -> (Evidence, Vec<EventId>) {
        let stops_early = facts.stops_early(|id| timeline.string(id));
        let mut evidence = Evidence::new(event.start.ticks, event.stop, facts, stops_early);
        let mut open = Vec::new();
        let is_doubted = timeline.is_kernel_doubted(event);
        let is_own = facts.sends_own_first(|id| timeline.string(id));
        for &id in timeline.children(id) {
            let child = timeline.event(id);
            match child.start.detail {
                _ if facts.is_copy() => evidence.add_child(child.stop),
                Detail::ProxyOp(_) if is_network(timeline, child) => {
                    evidence.add_child(child.stop);
                    let steps = child.steps.as_ref().filter(|_| is_own);
                    evidence.add_ready(steps.and_then(|steps| steps.ready));
                }
                Detail::KernelCh(_) if is_doubted => continue,
                Detail::KernelCh(KernelCh { ptimer, .. }) => {
                    let stop = child.ptimer_stop.map(|(stop, _)| stop);
                    evidence.add_kernel((child.start.ticks, child.stop), (ptimer, stop));
                }
                _ => continue,
            }
            if child.stop.is_none() {
                open.push(id);
            }
        }
        evidence.add_launch(self.launch_end(timeline, event).unwrap_or_default());
        if let (Some(orders), Some(comm)) = (&self.orders, timeline.comm_of(event))
            && let Some(order) = orders.get(&comm)
        {
            evidence.add_order(order, facts, Launched::of(&event.start));
        }
        let stream = stream_of(timeline, event);
        let own = Launched::of(&event.start);
        evidence.add_stream(stream.is_some_and(|stream| self.streams.is_followed(stream, own)));
        (evidence, open)
    }

    /// The facts from CUDA events about the launches of this operation's group.
    fn launch_end(&self, timeline: &Timeline<'_>, event: &Event) -> Option<LaunchEnd> {
        if self.launches.is_empty() || timeline.is_replay(event) {
            return None;
        }
        let group = group_api_of(timeline, event)?;
        Some(self.launches.get(&(group, event.start.comm))?.end())
    }

    /// Updates the order of each communicator's kernels from the operations of the timeline.
    fn note_orders(&mut self, timeline: &Timeline<'_>) {
        let Some(orders) = &mut self.orders else { return };
        for (id, event) in timeline.events() {
            let Some(facts) = Facts::of(&event.start.detail) else { continue };
            let Some(comm) = timeline.comm_of(event) else { continue };
            let order = orders.entry(comm).or_insert_with(|| {
                let mut order = KernelOrder::default();
                order.api(timeline.comm(comm).api_version);
                order
            });
            timeline.rank(comm).into_iter().for_each(|rank| order.rank(rank));
            order.believe_until(timeline.kernels_until(comm));
            let own = Launched::of(&event.start);
            order.operation(&facts, own);
            let kernels = kernels(timeline, id, event);
            if kernels > 0 {
                self.has_kernels = true;
                order.kernel(own, facts.is_p2p());
                self.streams.kernel(stream_of(timeline, event).unwrap_or(0), own);
            }
            order.saw_channels(kernels, &facts, false);
        }
    }

    /// Counts the kernel channels of an operation of which no more will be reported.
    pub(crate) fn note_channels(&mut self, timeline: &Timeline<'_>, id: EventId) {
        let (event, Some(orders)) = (timeline.event(id), &mut self.orders) else { return };
        let Some(facts) = Facts::of(&event.start.detail) else { return };
        let Some(order) = timeline.comm_of(event).and_then(|comm| orders.get_mut(&comm)) else {
            return;
        };
        let is_over = order.later(Launched::of(&event.start)).0;
        order.saw_channels(kernels(timeline, id, event), &facts, is_over);
    }

    /// [`Judge::note_channels`] for all operations, after the latest one is known.
    pub(crate) fn note_all_channels(&mut self, timeline: &Timeline<'_>) {
        timeline.ids().for_each(|id| self.note_channels(timeline, id));
    }

    fn note_launches(&mut self, timeline: &Timeline<'_>) {
        self.launches.clear();
        if !timeline.has_cuda_events() {
            return;
        }
        let (launches, all_measured) = (&mut self.launches, &mut self.measured);
        for (id, event) in timeline.events() {
            let is_launch = event.kind() == EventKind::KernelLaunch;
            let is_p2p = event.kind() == EventKind::P2p;
            let is_operation = is_p2p || event.kind() == EventKind::Coll;
            let (comm, start) = (event.start.comm, event.start.ticks);
            if (is_launch || is_operation)
                && let Some(group) = group_api_of(timeline, event)
            {
                let entry: &mut Launches = launches.entry((group, comm)).or_default();
                entry.launches += u32::from(is_launch);
                entry.operations += u32::from(is_operation);
                entry.p2ps += u32::from(is_p2p);
                if is_launch {
                    entry.first = Some(entry.first.map_or(start, |first| first.min(start)));
                }
                if let Some(ns) = timeline.launch_ns(id) {
                    (entry.ns, entry.measured) = (Some(ns), entry.measured + 1);
                    let last = all_measured.entry(comm).or_insert(start);
                    *last = start.max(*last);
                }
            }
        }
        // If the process closed the recording, all measurements had time to be written.
        if !timeline.recording().header().closed {
            for ((_, comm), entry) in launches {
                let is_later = |&last: &u64| entry.first.is_some_and(|first| first > last);
                entry.runs = entry.measured == 0 && all_measured.get(comm).is_some_and(is_later);
            }
        }
    }
}

/// The stream that an operation was called with. NCCL makes all streams of a group wait for each
/// other around its kernels. A captured call's kernel runs where its graph is replayed.
fn stream_of(timeline: &Timeline<'_>, event: &Event) -> Option<u64> {
    let Parent::Known(parent) = event.parent else { return None };
    match timeline.event(parent).start.detail {
        Detail::CollApi(call) | Detail::P2pApi(call) => (!call.graph).then_some(call.stream),
        _ => None,
    }
}

/// Number of channels on which the kernel of an operation was recorded; 0 if its kernels have the
/// times of others.
fn kernels(timeline: &Timeline<'_>, id: EventId, event: &Event) -> usize {
    let children = timeline.children(id).iter().map(|&child| timeline.event(child));
    let count = children.filter(|child| child.kind() == EventKind::KernelCh).count();
    if timeline.is_kernel_doubted(event) { 0 } else { count }
}

/// False for the ProxyOps of shared memory, peer access and CollNet, which NCCL starts and (from
/// 2.27 on) never advances or stops.
fn is_network(timeline: &Timeline<'_>, op: &Event) -> bool {
    if op.stop.is_some() || op.first_state.is_some() || op.steps.is_some() {
        return true;
    }
    let (Detail::ProxyOp(detail), Some(comm)) = (op.start.detail, timeline.comm_of(op)) else {
        return false;
    };
    let (rank, peer, is_send) = (detail.rank, detail.peer, detail.is_send);
    timeline.links().contains(&LinkKey { comm, rank, peer, is_send })
}

/// The caller's datatype from the API call, because the Coll events of AllGather and Broadcast have
/// bytes.
fn callers_datatype(timeline: &Timeline<'_>, event: &Event) -> Option<StrId> {
    let Parent::Known(parent) = event.parent else { return None };
    match timeline.event(parent).start.detail {
        Detail::CollApi(call) | Detail::P2pApi(call) => {
            (call.datatype != StrId::NONE).then_some(call.datatype)
        }
        _ => None,
    }
}

/// Counts of the launches and the operations of one group call on one communicator.
#[derive(Clone, Copy, Debug, Default)]
struct Launches {
    launches: u32,
    operations: u32,
    /// Sends and receives among the operations.
    p2ps: u32,
    /// Number of launches that were measured (`measured`), and the duration of the last one in ns.
    measured: u32,
    ns: Option<u64>,
    /// Start of the first launch, in ticks.
    first: Option<u64>,
    /// An earlier launch of the communicator was measured, and neither this nor a later one.
    runs: bool,
}

impl Launches {
    fn end(&self) -> LaunchEnd {
        let is_all = self.launches > 0 && self.measured >= self.launches;
        let ended = if is_all { Some(true) } else { self.runs.then_some(false) };
        let is_one = self.launches == 1;
        let is_p2p = self.p2ps == self.operations && self.operations > 1;
        LaunchEnd {
            ns: self.ns.filter(|_| is_one && self.operations == 1),
            shared_ns: self.ns.filter(|_| is_one && is_p2p),
            ended,
        }
    }
}
