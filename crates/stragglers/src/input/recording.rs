// SPDX-License-Identifier: Apache-2.0
/*!
Jobs from recordings: what each rank's plugin wrote.

A process with several ranks is as many workers. Collectives are matched by the communicator's hash,
the function and NCCL's sequence number; the n-th send between two ranks is matched with the n-th
receive. Arrival and end are those of the
kernel if the recording has its times (`KernelCh`), converted to the host's clock; else those of the
enqueueing and of the last network step.
*/

use super::both_ends::Samples;
use super::collectives::{CollId, Collectives, Kind, OwnCollectives, OwnPart, PlacedPart};
use super::comm_id::{CommKey, LinkId, comm_id};
use super::first_records::LatestFirst;
use super::gpu_waits::{GpuWaitSum, Span};
use super::link_times::{LinkTimes, Traffic};
use super::network::Network;
use super::plan::JobPlan;
use crate::model::{
    Collective, CollectiveClass, EndSync, GpuStall, Job, Launch, LinkTraffic, P2pBatch, P2pClass,
    Part,
};
use ncclscope_limits::slow;
use ncclscope_operations::ends::arrives_early;
use ncclscope_operations::event_id::NewNumbers;
use ncclscope_operations::function::is_rooted;
use ncclscope_operations::human;
use ncclscope_operations::joiner::{At, Consumer, Joined, join};
use ncclscope_operations::launches::{self, Launches};
use ncclscope_operations::parallel::in_order;
use ncclscope_operations::pxn::Pxn;
use ncclscope_operations::stats::{to_f64, to_u64};
use ncclscope_operations::{Completion, Event, EventId, Operation, Timeline, Timing};
use ncclscope_trace::{Comm, EventKind, MarkKind, Record, Recording, StrId};
use std::collections::{BTreeMap, BTreeSet};

/// The job of these recordings, one per process, in any order.
#[must_use]
pub fn job(recordings: &[Recording]) -> Job {
    let recordings: Vec<&Recording> = recordings.iter().collect();
    let mut reader = JobReader::new(&recordings);
    let mut parts = read(&reader);
    if parts.foreign != 0 {
        reader.take_pxn(Pxn::read(reader.recordings()));
        parts = read(&reader);
    }
    parts.finish()
}

/// Reads all recordings of a job in parallel.
fn read(reader: &JobReader<'_>) -> JobPart {
    let places: Vec<usize> = (0..reader.recordings().len()).collect();
    let read = |&place: &usize| {
        let mut process = reader.process(place, None);
        let (recording, work) = (reader.recordings()[place], reader.pxn().work(place));
        let joined = join(recording, work, &mut process);
        process.finish(&joined)
    };
    let mut all = reader.begin();
    in_order(&places, read, |_, part| all.add(part));
    all
}

/// Reads a job while its recordings are decoded; each recording has a place.
#[derive(Debug)]
pub struct JobReader<'r>(JobPlan<'r>);

impl<'r> JobReader<'r> {
    /// A reader of these recordings, one per process, in any order.
    #[must_use]
    pub fn new(recordings: &[&'r Recording]) -> JobReader<'r> {
        JobReader(JobPlan::new(recordings))
    }

    /// The recordings by place, which is the order of their ranks.
    #[must_use]
    pub fn recordings(&self) -> &[&'r Recording] {
        self.0.recordings()
    }

    /// Sets the work of processes for one another (PXN), by place.
    pub fn take_pxn(&mut self, pxn: Pxn) {
        self.0.pxn = pxn;
    }

    /// The work that was set by [`JobReader::take_pxn`].
    #[must_use]
    pub fn pxn(&self) -> &Pxn {
        &self.0.pxn
    }

    /// Index, among the given recordings, of the recording at each place.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.0.order
    }

    /// Starts reading the recording at a place. Of a long one, only operations that began at `from`
    /// ticks or later are judged.
    #[must_use]
    pub fn process(&self, place: usize, from: Option<u64>) -> ProcessReader<'_> {
        ProcessReader::new(&self.0, place, from)
    }

    /// The job without operations. The results of the recordings must be added in the order of
    /// their places.
    #[must_use]
    pub fn begin(&self) -> JobPart {
        JobPart::new(&self.0)
    }
}

/// When a kernel ended, ns since 1970, given the span `(start, end)` of its channels, and whether
/// that is exact: some kernels' events stop early.
fn end_of(
    operations: &[&OpFacts],
    launch: &launches::Launch,
    (start, end): (i64, i64),
) -> (i64, bool) {
    let early = || operations.iter().filter(|o| o.stops_early);
    let event_ns = |o: &&OpFacts| o.duration_ns.filter(|_| o.timing == Timing::Event);
    if early().next().is_none() {
        (end, true)
    } else if early().all(|o| o.timing == Timing::Proxy) {
        // The network part has host times.
        (end.max(launch.end_ns), true)
    } else if let Some(ns) = early().find_map(event_ns) {
        (start.saturating_add(signed(to_u64(ns))), true)
    } else {
        (end, false)
    }
}

/// The earliest and the latest time at which the GPU has done its part in the sends and receives of
/// a kernel, ns since 1970, given the kernel's stop and their end. What it receives arrives before;
/// what it sends may still be in the proxy's buffers. The stop is that of the first thread, which
/// takes part in one of them only: it is exact for a single send.
fn released(
    process: &Process<'_, '_>,
    transfers: &[&OpFacts],
    (stop, end): (i64, i64),
) -> (i64, i64) {
    let is_send = |o: &&OpFacts| process.timeline.string(o.func) == "Send";
    let times = transfers.iter().map(|o| if is_send(o) { o.delivered } else { o.done });
    let known = times.clone().flatten().map(|ticks| signed(process.timeline.ns(ticks)));
    let earliest = known.fold(stop, i64::max).min(end);
    let is_single = transfers.len() == 1 && is_send(&transfers[0]);
    let is_exact = is_single || times.into_iter().all(|ticks| ticks.is_some());
    (earliest, if is_exact { earliest } else { end })
}

/// Sends and receives of one kernel.
#[derive(Debug)]
struct Batch {
    this: PlacedPart,
    /// The earliest and the latest time at which the GPU has done its part, ns.
    released: (f64, f64),
    class: Option<P2pClass>,
}

/// The contribution of one or several processes to a job.
#[derive(Debug, Default)]
pub struct JobPart {
    job: Job,
    /// The collectives of the processes added so far.
    collectives: Collectives,
    own: Vec<OwnPart>,
    names: BTreeMap<CommKey, String>,
    batches: Vec<Batch>,
    /// Batches of sends (and of receives) between two ranks of a communicator, in order.
    sends: BTreeMap<(CommKey, i32, i32), Vec<usize>>,
    receives: BTreeMap<(CommKey, i32, i32), Vec<usize>>,
    /// Samples of the transfers of links, and the links of the job's edges.
    samples: Samples,
    links: Vec<LinkId>,
    /// Some process's sends and receives are incomplete, so that they cannot be counted.
    is_partial: bool,
    /// Some process's collectives are incomplete, so that replays of CUDA graphs cannot be counted.
    has_partial_collectives: bool,
    /// Number of network sends to ranks that were not recorded.
    strangers: u64,
    /// Number of links of which all or almost all transfers fell into a shortage of processor time.
    unjudged: usize,
    /// Number of steps of ProxyOps for other processes (PXN).
    foreign: u64,
}

/// What is kept of an operation until all records are read. A recording has many.
#[derive(Clone, Copy, Debug)]
struct OpFacts {
    comm: Option<u32>,
    func: StrId,
    algo: StrId,
    proto: StrId,
    bytes: Option<u64>,
    channels: Option<u16>,
    seq: Option<u64>,
    peer: Option<i32>,
    /// When its last child stopped, in ticks; `None` if it has not ended.
    done: Option<u64>,
    /// When the GPU had delivered all data of a send, in ticks; `None` if unknown.
    delivered: Option<u64>,
    timing: Timing,
    duration_ns: Option<f64>,
    has_gpu_times: bool,
    stops_early: bool,
}

impl OpFacts {
    fn of(operation: &Operation) -> OpFacts {
        OpFacts {
            comm: operation.comm.and_then(|comm| comm.try_into().ok()),
            func: operation.func,
            algo: operation.algo,
            proto: operation.proto,
            bytes: operation.bytes,
            channels: operation.channels,
            seq: operation.seq,
            peer: operation.peer,
            done: match operation.completion {
                Completion::Done(ticks) => Some(ticks),
                Completion::Open | Completion::Unseen => None,
            },
            delivered: None,
            timing: operation.timing,
            duration_ns: operation.duration_ns,
            has_gpu_times: operation.has_gpu_times,
            stops_early: operation.stops_early,
        }
    }
}

/// The data of one process while its operations are added.
struct Process<'t, 'a> {
    /// Worker of each communicator, by position.
    workers: &'t [usize],
    timeline: &'t Timeline<'a>,
    operations: &'t [OpFacts],
    /// Time from which operations are judged, in ticks, if not all are.
    from: Option<u64>,
    /// (Start, number) of its steps; starts in ns since 1970.
    steps: Vec<(i64, i64)>,
}

impl Process<'_, '_> {
    fn step(&self, ns: i64) -> Option<i64> {
        let next = self.steps.partition_point(|(start, _)| *start <= ns);
        next.checked_sub(1).map(|at| self.steps[at].1)
    }

    /// True if the network may report received data before it has arrived.
    fn arrives_early(&self, operation: &OpFacts) -> bool {
        let has_net_plugin = self.timeline.recording().identity().net_plugin.is_some();
        arrives_early(has_net_plugin, self.timeline.string(operation.proto))
    }

    /// The worker of an operation.
    fn worker(&self, comm: Option<usize>) -> usize {
        let worker = comm.and_then(|comm| self.workers.get(comm));
        let worker = worker.or_else(|| self.workers.first());
        worker.copied().unwrap_or_default()
    }

    fn comm(&self, operation: &OpFacts) -> Option<&Comm> {
        operation.comm.map(|comm| self.timeline.comm(comm as usize))
    }

    /// What a rank sends to itself, as in PyTorch's AllToAll, waits for no other rank, and NCCL
    /// shows no kernel of it.
    fn is_to_itself(&self, operation: &OpFacts) -> bool {
        operation.peer.is_some_and(|to| self.comm(operation).is_some_and(|comm| comm.rank == to))
    }

    /// True if some of its operations of a kind are missing, or it was recorded only for a time.
    fn is_partial(&self, kind: EventKind) -> bool {
        let recording = self.timeline.recording();
        let is_whole = recording.is_whole() && self.from.is_none();
        recording.lacks(kind) || !is_whole || recording.is_windowed()
    }

    /// Time from which nothing is overwritten, ns since 1970; `None` if nothing was overwritten.
    fn whole_from(&self, first: &LatestFirst) -> Option<i64> {
        let recording = self.timeline.recording();
        if let Some(from) = self.from {
            return Some(signed(self.timeline.ns(from)));
        }
        if recording.is_whole() && recording.header().overwritten.iter().all(|&count| count == 0) {
            return None;
        }
        // The oldest records of a lane are overwritten first: everything after its first remaining
        // record is complete. A lane that began late counts too, because nothing shows that it did.
        let mark = recording.marks().first().map(|mark| mark.ticks);
        first.ticks().max(mark).map(|ticks| signed(self.timeline.ns(ticks)))
    }
}

/// The marked steps of a process, sorted: start in ns since 1970, and number.
fn marked_steps(timeline: &Timeline<'_>) -> Vec<(i64, i64)> {
    let marks = timeline.recording().marks().iter().filter(|mark| mark.what == MarkKind::Step);
    let mut steps: Vec<(i64, i64)> =
        marks.map(|mark| (signed(timeline.ns(mark.ticks)), signed(mark.value))).collect();
    steps.sort_unstable();
    steps
}

/// True if parts of a recording cannot be read.
fn is_damaged(recording: &Recording) -> bool {
    !recording.damage().is_empty() || recording.unreadable() != 0
}

/// True if some events of these kinds were not recorded, at unknown times.
fn is_lossy(recording: &Recording, kinds: &[EventKind]) -> bool {
    kinds.iter().any(|&kind| recording.lost(kind) != 0)
}

impl JobPart {
    /// Number of ProxyOp steps that processes executed for others (PXN).
    #[must_use]
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    /// A job without the operations of its processes.
    fn new(plan: &JobPlan<'_>) -> JobPart {
        let (workers, shortages) = (plan.placed.clone(), plan.shortages.clone());
        let (roles, comms) = (plan.roles.clone(), plan.comms.clone());
        let unrecorded = plan.unrecorded();
        let origin_ns = u64::try_from(plan.origin).ok();
        let job = Job { workers, shortages, roles, comms, unrecorded, origin_ns, ..Job::default() };
        JobPart { job, names: plan.names.clone(), ..JobPart::default() }
    }

    /// Adds the contribution of the process at the next place.
    pub fn add(&mut self, other: JobPart) {
        let first = self.batches.len();
        self.batches.extend(other.batches);
        for (all, of) in [(&mut self.sends, other.sends), (&mut self.receives, other.receives)] {
            for (pair, batches) in of {
                all.entry(pair).or_default().extend(batches.into_iter().map(|at| first + at));
            }
        }
        self.collectives.add(other.own);
        self.is_partial |= other.is_partial;
        self.has_partial_collectives |= other.has_partial_collectives;
        self.strangers += other.strangers;
        self.unjudged += other.unjudged;
        self.foreign += other.foreign;
        self.job.launches.extend(other.job.launches);
        self.job.stalls.extend(other.job.stalls);
        self.job.edges.extend(other.job.edges);
        self.links.extend(other.links);
        self.samples.merge(other.samples);
        self.job.gappy.extend(other.job.gappy);
        self.job.unmarked.extend(other.job.unmarked);
        self.job.whole_from.extend(other.job.whole_from);
    }
}

/// Collects what a process contributes while its recording is read.
#[derive(Debug)]
pub struct ProcessReader<'p> {
    plan: &'p JobPlan<'p>,
    place: usize,
    /// Operations that began before are not judged, in ticks.
    from: Option<u64>,
    network: Network<'p>,
    first: LatestFirst,
    foreign: u64,
    operations: Vec<OpFacts>,
    launches: Launches,
}

impl<'p> ProcessReader<'p> {
    fn new(plan: &'p JobPlan<'p>, place: usize, from: Option<u64>) -> ProcessReader<'p> {
        ProcessReader {
            plan,
            place,
            from,
            network: Network::new(plan.recordings()[place], plan.recordings().len()),
            first: LatestFirst::default(),
            foreign: 0,
            operations: Vec::new(),
            launches: Launches::default(),
        }
    }

    fn is_judged(&self, event: &Event) -> bool {
        self.from.is_none_or(|from| event.start.ticks >= from)
    }

    /// The process's contribution, after all of its records.
    #[must_use]
    pub fn finish(self, joined: &Joined<'_>) -> JobPart {
        let mut adding = Adding { plan: self.plan, part: JobPart::default() };
        adding.add(self, joined);
        adding.part
    }
}

impl Consumer for ProcessReader<'_> {
    #[inline]
    fn record(&mut self, at: &At<'_, '_>, record: &Record) {
        self.first.add(at.lane, record);
        if let (Record::Step(step), Some(id)) = (record, at.op) {
            let event = at.timeline.event(id);
            self.foreign += u64::from(event.is_foreign());
            if self.is_judged(event) {
                self.network.add((id, event), step, (self.plan, self.place));
            }
        }
    }

    fn operation(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
        if self.is_judged(timeline.event(operation.event)) {
            let number = u32::try_from(self.operations.len()).unwrap_or(u32::MAX);
            self.network.end(timeline, operation.event, number);
            self.launches.add(timeline, operation);
            self.operations.push(OpFacts::of(operation));
        }
    }

    fn event(&mut self, _: &Timeline<'_>, _: EventId, event: &Event) {
        if self.is_judged(event) {
            self.launches.add_group(event);
        }
    }

    fn renumber(&mut self, numbers: &NewNumbers) {
        self.network.renumber(numbers);
    }
}

/// A process's contribution while it is being built.
struct Adding<'p> {
    plan: &'p JobPlan<'p>,
    part: JobPart,
}

impl Adding<'_> {
    fn add(&mut self, reader: ProcessReader<'_>, Joined { timeline, clocks, .. }: &Joined<'_>) {
        let ProcessReader {
            place, from, network, first, foreign, mut operations, launches, ..
        } = reader;
        let recording = timeline.recording();
        if !is_lossy(recording, &[EventKind::ProxyStep]) {
            for (number, ticks) in network.delivered() {
                operations[number as usize].delivered = Some(ticks);
            }
        }
        self.part.foreign = foreign;
        let workers = self.plan.workers(place);
        let all: BTreeSet<usize> = workers.iter().copied().collect();
        let steps = marked_steps(timeline);
        if steps.is_empty() {
            self.part.job.unmarked.extend(&all);
        }
        let operations = &operations;
        let process = Process { workers, timeline, operations, from, steps };
        self.part.is_partial |= process.is_partial(EventKind::P2p);
        self.part.has_partial_collectives |= process.is_partial(EventKind::Coll);
        if is_damaged(recording)
            || is_lossy(recording, &[EventKind::Coll, EventKind::P2p, EventKind::KernelCh])
        {
            self.part.job.gappy.extend(&all);
        }
        let whole = process.whole_from(&first);
        if whole.is_some() {
            self.part.job.whole_from.extend(all.iter().map(|&worker| (worker, f64::MAX)));
        }
        let mut seen = OwnCollectives::default();
        // The kernel of each operation.
        let mut kernels: Vec<Option<Span>> = vec![None; operations.len()];
        for launch in launches.finish(clocks) {
            let arrival = self.add_launch(&process, &launch, &mut seen);
            if let Some(kernel) = launch.gpu {
                // If a receive may be reported early, its state does not show a wait for the GPU.
                let counts = |&&at: &&usize| !process.arrives_early(&process.operations[at]);
                let counted = launch.operations.iter().filter(counts);
                counted.for_each(|&at| kernels[at] = Some(kernel));
            }
            let worker = process.worker(launch.comm);
            if let Some(first) = self.part.job.whole_from.get_mut(&worker)
                && whole.is_some_and(|whole| launch.call_ns >= whole)
            {
                *first = first.min(arrival.unwrap_or(f64::MAX));
            }
        }
        self.add_network(network, recording, &kernels);
    }

    /// Adds the operations of one kernel. Returns its arrival if all of them have ended.
    fn add_launch(
        &mut self,
        process: &Process<'_, '_>,
        launch: &launches::Launch,
        seen: &mut OwnCollectives,
    ) -> Option<f64> {
        let operations = launch.operations.iter().map(|&at| &process.operations[at]);
        let operations: Vec<&OpFacts> = operations.filter(|o| !process.is_to_itself(o)).collect();
        if !operations.iter().all(|o| o.done.is_some()) {
            return None;
        }
        let kernel = launch.gpu.filter(|_| operations.iter().all(|o| o.has_gpu_times));
        let span @ (start, _) = kernel.unwrap_or((launch.start_ns, launch.end_ns));
        let (end, has_end) = end_of(&operations, launch, span);
        let worker = process.worker(launch.comm);
        let part = Part { worker, start: self.since(start), end: self.since(end) };
        let step = process.step(launch.call_ns);
        if let Some((start, _)) = kernel {
            let delay = self.since(start) - self.since(launch.start_ns);
            self.part.job.launches.push(Launch { worker, delay });
        }
        let this = (part, step, kernel.is_some(), has_end);
        // Grouped collectives share one kernel; the first one represents them.
        if let Some(operation) = operations.iter().find(|o| o.seq.is_some()) {
            self.add_collective(process, operation, this, seen);
        }
        let transfers: Vec<&OpFacts> =
            operations.iter().copied().filter(|o| o.peer.is_some()).collect();
        if !transfers.is_empty() {
            let batch = self.part.batches.len();
            let released =
                kernel.map_or((end, end), |(_, stop)| released(process, &transfers, (stop, end)));
            let released = (self.since(released.0), self.since(released.1));
            let class = self.p2p_class(process, &transfers);
            self.part.batches.push(Batch { this, released, class });
            transfers.iter().for_each(|o| self.add_transfer(process, o, batch));
        }
        Some(part.start)
    }

    fn add_collective(
        &mut self,
        process: &Process<'_, '_>,
        operation: &OpFacts,
        this: PlacedPart,
        seen: &mut OwnCollectives,
    ) {
        let Some((comm, seq)) = process.comm(operation).zip(operation.seq) else { return };
        let text = |id| process.timeline.string(id);
        let func = (operation.func, text(operation.func));
        let id = seen.next((comm_id(comm), comm.rank), func, seq);
        let shape = seen.shape((operation.algo, operation.proto, operation.channels), || {
            format!(
                "{} {}, {} channels",
                text(operation.algo),
                text(operation.proto),
                operation.channels.map_or_else(|| "unknown".into(), |n| n.to_string())
            )
        });
        let kind = Kind { bytes: operation.bytes, members: comm.ranks, shape };
        self.part.own.push((id, kind, this));
    }

    /// The class of the sends and receives of one kernel.
    fn p2p_class(&self, process: &Process<'_, '_>, transfers: &[&OpFacts]) -> Option<P2pClass> {
        let comm = process.comm(transfers.first()?)?;
        let of = |is_send: bool| {
            let is_send_of =
                move |o: &&&OpFacts| (process.timeline.string(o.func) == "Send") == is_send;
            let mut of = transfers.iter().filter(is_send_of).map(|o| o.bytes).peekable();
            let is_some = of.peek().is_some();
            is_some.then(|| of.try_fold(0u64, |sum, bytes| sum.checked_add(bytes?)))
        };
        let (sends, receives) = (of(true), of(false));
        let func = match (sends, receives) {
            (Some(_), Some(_)) => "SendRecv",
            (Some(_), None) => "Send",
            (None, _) => "Recv",
        };
        let comm = self.plan.names.get(&comm_id(comm)).cloned().unwrap_or_default();
        Some(P2pClass { comm, func, bytes: sends.or(receives).flatten() })
    }

    fn add_transfer(&mut self, process: &Process<'_, '_>, operation: &OpFacts, batch: usize) {
        let Some((comm, peer)) = process.comm(operation).zip(operation.peer) else { return };
        let (id, rank) = (comm_id(comm), comm.rank);
        let is_send = process.timeline.string(operation.func) == "Send";
        if is_send {
            self.part.sends.entry((id, rank, peer)).or_default().push(batch);
        } else {
            self.part.receives.entry((id, peer, rank)).or_default().push(batch);
        }
    }

    /// Adds the network times of sends, by link and channel, and the waits for the GPU.
    fn add_network(
        &mut self,
        mut network: Network<'_>,
        recording: &Recording,
        kernels: &[Option<Span>],
    ) {
        self.part.samples = network.samples();
        if self.part.is_partial
            || is_damaged(recording)
            || is_lossy(recording, &[EventKind::ProxyStep])
        {
            self.part.samples.without_p2p();
        }
        for ((comm, rank), sum) in network.gpu_waits(kernels).sums() {
            let worker = self.plan.members.get(&(comm, rank)).copied();
            let comm = self.plan.names.get(&comm).cloned().unwrap_or_default();
            let GpuWaitSum { transfers, bytes, ns, blocks, shown } = sum;
            let stall =
                worker.map(|worker| GpuStall { comm, worker, transfers, bytes, ns, blocks, shown });
            self.part.job.stalls.extend(stall);
        }
        let min_samples = slow::SAMPLES;
        for (id @ (comm, src, dst, channel), [link, firsts]) in network.links() {
            let is_few = link.traffic().transfers < min_samples;
            self.part.unjudged += usize::from(is_few && link.left_out > 0);
            let ends = (self.plan.members.get(&(comm, src)), self.plan.members.get(&(comm, dst)));
            let (Some(&src), Some(&dst)) = ends else {
                self.part.strangers += link.traffic().transfers + firsts.traffic().transfers;
                continue;
            };
            let comm = self.plan.names.get(&comm).cloned().unwrap_or_default();
            let edge = |of: LinkTimes, is_first: bool| {
                let Traffic { transfers, bytes, wire_ns } = of.traffic();
                LinkTraffic {
                    comm: comm.clone(),
                    src,
                    dst,
                    channel,
                    transfers,
                    bytes,
                    wire_ns,
                    pace: of.pace,
                    blocks: of.blocks,
                    sample: Vec::new(),
                    is_first,
                }
            };
            let both = [edge(link, false), edge(firsts, true)];
            self.part.job.edges.extend(both.into_iter().filter(|edge| edge.transfers > 0));
            self.part.links.resize(self.part.job.edges.len(), id);
        }
    }

    fn since(&self, ns: i64) -> f64 {
        let since = ns.saturating_sub(self.plan.origin);
        let size = to_f64(since.unsigned_abs());
        if since < 0 { -size } else { size }
    }
}

impl JobPart {
    /// The job, after all processes were added.
    #[must_use]
    pub fn finish(mut self) -> Job {
        let parts = self.collectives.parts().chain(self.batches.iter().map(|batch| &batch.this));
        let (timed, all) =
            parts.fold((0, 0), |(timed, all), part| (timed + usize::from(part.2), all + 1));
        // If most kernels have times, the few without are ignored.
        self.job.is_kernel_timed = all > 0 && 2 * timed > all;
        let is_timed = self.job.is_kernel_timed;
        self.finish_batches(is_timed);
        self.finish_links();
        if self.has_partial_collectives {
            self.job.unmatched_replays = self.collectives.remove_replays();
        }
        let mut classes: BTreeMap<CollectiveClass, usize> = BTreeMap::new();
        for (id, (kind, mut parts)) in self.collectives.take() {
            parts.retain(|part| part.2 || !is_timed);
            if parts.is_empty() {
                continue;
            }
            let is_rooted = is_rooted(&id.func);
            let has_ends = parts.iter().all(|part| part.3);
            let next = classes.len();
            let class = *classes.entry(self.class(id, &kind)).or_insert(next);
            self.job.collectives.push(Collective {
                class,
                shape: Job::intern(&mut self.job.shapes, kind.shape.as_ref().to_owned()),
                step: parts.iter().filter_map(|part| part.1).min(),
                ends: if is_rooted || !has_ends { EndSync::Apart } else { EndSync::Together },
                has_ends,
                parts: parts.iter().map(|part| part.0).collect(),
            });
        }
        self.job.classes = by_index(classes);
        let end = |c: &Collective| c.parts.iter().map(|p| p.end).fold(f64::MAX, f64::min);
        self.job.collectives.sort_by(|a, b| end(a).total_cmp(&end(b)));
        self.notes();
        self.job
    }

    /// Gives links the sample of their transfers that both ends show.
    fn finish_links(&mut self) {
        let origin = self.job.origin_ns.unwrap_or_default();
        let since = |ns: u64| {
            let size = to_f64(ns.abs_diff(origin));
            if ns < origin { -size } else { size }
        };
        for (edge, &link) in self.job.edges.iter_mut().zip(&self.links) {
            let of_link = self.samples.of(link, since).into_iter();
            let alike = of_link.filter(|(_, is_first)| *is_first == edge.is_first);
            edge.sample = alike.map(|(transfer, _)| transfer).collect();
        }
        self.samples = Samples::default();
    }

    fn class(&self, id: CollId, kind: &Kind) -> CollectiveClass {
        CollectiveClass {
            comm: self.names.get(&id.comm).cloned().unwrap_or_default(),
            func: id.func.as_ref().to_owned(),
            bytes: kind.bytes,
            members: kind.members,
        }
    }

    fn finish_batches(&mut self, is_timed: bool) {
        let mut partners = vec![Vec::new(); self.batches.len()];
        // Number of sends and receives of each batch whose other end is unknown.
        let mut lacking = vec![0usize; self.batches.len()];
        if !self.is_partial {
            let all = self.sends.values().chain(self.receives.values()).flatten();
            all.for_each(|&batch| lacking[batch] += 1);
            for (pair, sends) in &self.sends {
                let receives = self.receives.get(pair).map_or(&[][..], Vec::as_slice);
                for (&send, &receive) in sends.iter().zip(receives) {
                    if self.batches[send].this.2 && self.batches[receive].this.2 || !is_timed {
                        for (of, other) in [(send, receive), (receive, send)] {
                            partners[of].push(other);
                            lacking[of] -= 1;
                        }
                    }
                }
            }
        }
        let mut classes: BTreeMap<P2pClass, usize> = BTreeMap::new();
        let ends = partners.into_iter().zip(lacking);
        for (batch, (partners, lacking)) in self.batches.drain(..).zip(ends) {
            let next = classes.len();
            let class = batch.class.map(|class| *classes.entry(class).or_insert(next));
            let (is_lacking, released) = (lacking > 0, batch.released);
            let (part, step, _, has_end) = batch.this;
            let batch = P2pBatch { class, part, released, step, partners, is_lacking, has_end };
            self.job.batches.push(batch);
        }
        self.job.p2p_classes = by_index(classes);
    }

    fn notes(&mut self) {
        if self.is_partial && !self.job.batches.is_empty() {
            self.job.notes.push(
                "sends and receives are ignored: some were not recorded, so that the others \
                 cannot be matched by counting"
                    .into(),
            );
        }
        let overwritten = self.job.whole_from.len();
        if overwritten > 0 {
            self.job.notes.push(format!(
                "the oldest operations of {} were overwritten: steps that are not whole in all \
                 recordings are left out",
                human::count(overwritten, "process")
            ));
        }
        if self.unjudged > 0 {
            self.job.notes.push(format!(
                "{} not judged: in most transfers there one of the two processes was short of \
                 processor time",
                human::are(self.unjudged, "link")
            ));
        }
        if self.strangers > 0 {
            self.job.notes.push(format!(
                "{} ignored: their ranks were not recorded",
                human::are(self.strangers, "network transfer")
            ));
        }
    }
}

/// The classes sorted by index.
fn by_index<T>(classes: BTreeMap<T, usize>) -> Vec<T> {
    let mut classes: Vec<(T, usize)> = classes.into_iter().collect();
    classes.sort_unstable_by_key(|(_, at)| *at);
    classes.into_iter().map(|(class, _)| class).collect()
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
