// SPDX-License-Identifier: Apache-2.0
/*!
Jobs from recordings: what each rank's plugin wrote.

A process with several ranks is as many workers. Collectives are matched by the communicator's hash,
the function and NCCL's sequence number; the n-th send between two ranks is matched with the n-th
receive. Arrival and end are those of the
kernel if the recording has its times (`KernelCh`), converted to the host's clock; else those of the
enqueueing and of the last network step.
*/

use super::comm_id::{CommId, comm_id};
use super::gpu_waits::{GpuWaits, Span, waited};
use super::link_times::{LinkTimes, Traffic};
use super::shortages::ShortTimes;
use crate::Limits;
use crate::model::{
    Collective, CollectiveClass, CpuShortage, EndSync, GpuStall, Job, Launch, LinkTraffic,
    P2pBatch, Part, Worker,
};
use ncclscope_operations::ends::arrives_early;
use ncclscope_operations::function::is_rooted;
use ncclscope_operations::launches::{self, launches};
use ncclscope_operations::pxn::Pxn;
use ncclscope_operations::stats::{to_f64, to_u64};
use ncclscope_operations::steps::StepExt;
use ncclscope_operations::timeline::comm_name;
use ncclscope_operations::windows::is_windowed;
use ncclscope_operations::{Completion, Event, EventId, Operation, Timeline, Timing, operations};
use ncclscope_trace::record::{ProxyOp, step_flags};
use ncclscope_trace::runs::{self, ProcessFacts};
use ncclscope_trace::{
    Comm, Detail, EventKind, Handle, MarkKind, Record, Recording, Start, Step, TickMap,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A collective: communicator, function, number, and position among those with the same number.
type CollId = (CommId, String, u64, usize);

/// How often a rank of a communicator did a function with one number.
type Seen = BTreeMap<(CommId, i32, String, u64), usize>;

/// The job of these recordings, one per process, in any order.
#[must_use]
pub fn job(recordings: &[Recording]) -> Job {
    let facts: Vec<ProcessFacts> = recordings.iter().map(ProcessFacts::of).collect();
    let ranks = runs::ranks(&facts.iter().collect::<Vec<_>>());
    let mut ranked: Vec<(u32, &ProcessFacts, &Recording)> = ranks
        .into_iter()
        .zip(&facts)
        .zip(recordings)
        .map(|((rank, facts), recording)| (rank, facts, recording))
        .collect();
    ranked.sort_by_cached_key(|(rank, facts, _)| {
        (*rank, facts.identity.process(), facts.begin_ns, facts.path.clone())
    });
    let ranked: Vec<(u32, &Recording)> =
        ranked.into_iter().map(|(rank, _, recording)| (rank, recording)).collect();
    let mut build = JobBuilder::new(&ranked);
    let recordings: Vec<&Recording> = ranked.iter().map(|(_, recording)| *recording).collect();
    let pxn = Pxn::read(&recordings);
    for process in 0..recordings.len() {
        build.add(process, &recordings, &pxn);
    }
    build.finish()
}

/// A link: communicator, sender, receiver, channel.
type LinkId = (CommId, i32, i32, u8);
/// A part, its step, whether its start is that of its kernel, and whether its end is known.
type PlacedPart = (Part, Option<i64>, bool, bool);

/// When a kernel ended, ns since 1970, where `(start, end)` is the span of its channels, and
/// whether that is exact: the events of some kernels stop early.
fn end_of(
    operations: &[&Operation],
    launch: &launches::Launch,
    (start, end): (i64, i64),
) -> (i64, bool) {
    let early = || operations.iter().filter(|o| o.stops_early);
    let event_ns = |o: &&Operation| o.duration_ns.filter(|_| o.timing == Timing::Event);
    if early().next().is_none() {
        (end, true)
    } else if early().all(|o| o.timing == Timing::Proxy) {
        // Its network part has host times.
        (end.max(launch.end_ns), true)
    } else if let Some(ns) = early().find_map(event_ns) {
        (start.saturating_add(signed(to_u64(ns))), true)
    } else {
        (end, false)
    }
}

#[derive(Default)]
struct JobBuilder {
    job: Job,
    origin: i64,
    /// The worker of each communicator of each process, by their positions.
    workers: Vec<Vec<usize>>,
    /// The process of each worker.
    processes: Vec<usize>,
    /// The worker of each rank of a communicator.
    members: BTreeMap<(CommId, i32), usize>,
    names: BTreeMap<CommId, String>,
    collectives: BTreeMap<CollId, (CollectiveClass, String, Vec<PlacedPart>)>,
    batches: Vec<PlacedPart>,
    partners: Vec<Vec<usize>>,
    /// Batches of sends, and of receives, from one rank to another in a communicator, in order.
    sends: BTreeMap<(CommId, i32, i32), Vec<usize>>,
    receives: BTreeMap<(CommId, i32, i32), Vec<usize>>,
    /// Processes whose sends and receives are incomplete, so that they cannot be counted.
    is_partial: bool,
    /// Network sends to ranks that were not recorded.
    strangers: u64,
    /// When each process was short of processor time, far more than the others.
    short: Vec<ShortTimes>,
    /// Some process was.
    has_short: bool,
    /// Links of which all transfers, or all but a few, were in such a time.
    unjudged: usize,
}

/// One process while its operations are added.
struct Process<'a> {
    /// The worker of each communicator, by its position.
    workers: &'a [usize],
    timeline: Timeline<'a>,
    operations: Vec<Operation>,
    /// The starts of its steps, ns since 1970, with their numbers.
    steps: Vec<(i64, i64)>,
}

impl Process<'_> {
    fn step(&self, ns: i64) -> Option<i64> {
        let next = self.steps.partition_point(|(start, _)| *start <= ns);
        next.checked_sub(1).map(|at| self.steps[at].1)
    }

    /// The network may report data of its receives before it came.
    fn arrives_early(&self, operation: &Operation) -> bool {
        let has_net_plugin = self.timeline.recording().identity().net_plugin.is_some();
        arrives_early(has_net_plugin, self.timeline.string(operation.proto))
    }

    /// The worker that an operation is of.
    fn worker(&self, comm: Option<usize>) -> usize {
        let worker = comm.and_then(|comm| self.workers.get(comm));
        let worker = worker.or_else(|| self.workers.first());
        worker.copied().unwrap_or_default()
    }

    fn handle(&self, operation: &Operation) -> Handle {
        self.timeline.event(operation.event).start.handle
    }

    fn comm(&self, operation: &Operation) -> Option<&Comm> {
        operation.comm.map(|comm| self.timeline.comm(comm))
    }

    /// Some of its sends and receives are missing, or were recorded only for a time.
    fn is_partial(&self) -> bool {
        let recording = self.timeline.recording();
        recording.header().overwritten[EventKind::P2p.index()] != 0
            || is_lossy(recording, &[EventKind::P2p])
            || is_windowed(recording)
    }

    /// The time from which nothing is overwritten, ns since 1970; `None` if nothing was.
    fn whole_from(&self, first: &LatestFirst) -> Option<i64> {
        let recording = self.timeline.recording();
        if recording.header().overwritten.iter().all(|&count| count == 0) {
            return None;
        }
        // The oldest records of a lane are overwritten first: all after its first remaining record
        // are complete. A lane that began late counts too, since nothing shows that it did.
        let mark = recording.marks().first().map(|mark| mark.ticks);
        first.ticks.max(mark).map(|ticks| signed(self.timeline.ns(ticks)))
    }
}

/// Some events of these kinds were not recorded, at unknown times.
fn is_lossy(recording: &Recording, kinds: &[EventKind]) -> bool {
    let header = recording.header();
    kinds.iter().map(|kind| kind.index()).any(|kind| {
        header.without_memory()[kind] != 0
            || header.unwritten[kind] != 0
            || recording.lanes().iter().any(|lane| lane.header.lost[kind] != 0)
    })
}

impl JobBuilder {
    fn new(recordings: &[(u32, &Recording)]) -> JobBuilder {
        let mut build = JobBuilder::default();
        let starts = recordings.iter().map(|(_, r)| r.tick_map().realtime_ns(first_ticks(r)));
        build.origin = starts.min().map_or(0, signed);
        for &(rank, recording) in recordings {
            build.add_workers(rank, recording);
        }
        let (shortages, short) = ShortTimes::of_all(recordings);
        build.short = short;
        let of_worker = |(worker, &process)| CpuShortage { worker, ..shortages[process] };
        build.job.shortages = build.processes.iter().enumerate().map(of_worker).collect();
        build.has_short = build.short.iter().any(|times| !times.is_empty());
        build
    }

    /// Adds the workers of a process; one that has a single rank is this rank of the job.
    fn add_workers(&mut self, rank: u32, recording: &Recording) {
        let comms = recording.comms();
        let (first, process) = (self.job.workers.len(), self.workers.len());
        let numbers = recording.local_ranks();
        let mut ranks: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        match &numbers {
            None => drop(ranks.insert(0, (0..comms.len()).collect())),
            Some(numbers) => {
                numbers
                    .iter()
                    .enumerate()
                    .for_each(|(at, &n)| ranks.entry(n).or_default().push(at));
            }
        }
        let mut workers = vec![first; comms.len().max(1)];
        for of in ranks.into_values() {
            let worker = self.job.workers.len();
            let world = of.iter().max_by_key(|&&at| comms[at].ranks).filter(|_| numbers.is_some());
            let rank = world.map_or(rank, |&at| comms[at].rank.cast_unsigned());
            let mut placed = Worker::new(rank, recording.header().host.clone());
            placed.machine = recording.identity().machine().to_owned();
            for at in of {
                workers[at] = worker;
                self.add_member(worker, (recording, &comms[at]), &mut placed);
            }
            self.job.workers.push(placed);
            self.processes.push(process);
        }
        self.workers.push(workers);
    }

    /// Adds a worker's place in a communicator.
    fn add_member(
        &mut self,
        worker: usize,
        (recording, comm): (&Recording, &Comm),
        placed: &mut Worker,
    ) {
        self.members.insert((comm_id(comm), comm.rank), worker);
        let role = recording.role(comm).or(comm.name.as_deref());
        let name =
            role.map_or_else(|| comm_name(comm), |role| format!("{} \"{role}\"", comm_name(comm)));
        self.names.insert(comm_id(comm), name);
        let place = u32::try_from(comm.rank).ok().filter(|_| comm.ranks > 1);
        match role.map(str::to_ascii_lowercase).as_deref() {
            Some("pp") => placed.stage = place,
            Some("dp") => placed.dp_rank = place,
            _ => {}
        }
    }

    /// Adds a process with what others did for it (PXN).
    fn add(&mut self, process: usize, recordings: &[&Recording], pxn: &Pxn) {
        let recording = recordings[process];
        let workers = std::mem::take(&mut self.workers[process]);
        let all: BTreeSet<usize> = workers.iter().copied().collect();

        let mut network = Network::new(recording);
        let mut first = LatestFirst::default();
        let owner = |start: &Start, op: &ProxyOp| {
            let comms = recordings[pxn.owner_of(process, start, op)?].comms();
            comms.iter().find(|comm| comm.index == start.comm).map(comm_id)
        };
        let timeline = Timeline::read_with(recording, pxn.work(process), |lane, record, op| {
            first.add(lane, record);
            if let (Record::Step(step), Some((id, event))) = (record, op) {
                let short_times = |comm, rank| self.short_times(comm, rank);
                network.add((id, event), step, owner, short_times);
            }
        });
        let operations = operations(&timeline);
        let marks = recording.marks().iter().filter(|mark| mark.what == MarkKind::Step);
        let mut steps: Vec<(i64, i64)> =
            marks.map(|mark| (signed(timeline.ns(mark.ticks)), signed(mark.value))).collect();
        steps.sort_unstable();
        let process = Process { workers: &workers, timeline, operations, steps };
        self.is_partial |= process.is_partial();
        let is_damaged = !recording.damage().is_empty() || recording.unreadable() != 0;
        if is_damaged
            || is_lossy(recording, &[EventKind::Coll, EventKind::P2p, EventKind::KernelCh])
        {
            self.job.gappy.extend(&all);
        }
        let whole = process.whole_from(&first);
        if whole.is_some() {
            self.job.whole_from.extend(all.iter().map(|&worker| (worker, f64::MAX)));
        }
        let mut seen = Seen::new();
        let mut kernels: HashMap<Handle, Span> = HashMap::new();
        for launch in launches(&process.timeline, &process.operations) {
            let arrival = self.add_launch(&process, &launch, &mut seen);
            if let Some(kernel) = launch.gpu {
                let handle = |&at: &usize| process.handle(&process.operations[at]);
                // What a receive says that may be told early is not a wait for the GPU.
                let counts = |&&at: &&usize| !process.arrives_early(&process.operations[at]);
                let counted = launch.operations.iter().filter(counts);
                kernels.extend(counted.map(|at| (handle(at), kernel)));
            }
            let worker = process.worker(launch.comm);
            if let Some(first) = self.job.whole_from.get_mut(&worker)
                && whole.is_some_and(|whole| launch.call_ns >= whole)
            {
                *first = first.min(arrival.unwrap_or(f64::MAX));
            }
        }
        self.add_network(&process, network, &kernels);
    }

    /// When a rank of a communicator was short of processor time; `None` if it was not.
    fn short_times(&self, comm: CommId, rank: i32) -> Option<&ShortTimes> {
        if !self.has_short {
            return None;
        }
        let worker = *self.members.get(&(comm, rank))?;
        self.short.get(*self.processes.get(worker)?).filter(|times| !times.is_empty())
    }

    /// Adds the operations of one kernel. Returns its arrival, if all of them are over.
    fn add_launch(
        &mut self,
        process: &Process<'_>,
        launch: &launches::Launch,
        seen: &mut Seen,
    ) -> Option<f64> {
        let operations: Vec<&Operation> =
            launch.operations.iter().map(|&at| &process.operations[at]).collect();
        let is_done = |o: &&Operation| matches!(o.completion, Completion::Done(_));
        if !operations.iter().all(is_done) {
            return None;
        }
        let kernel = launch.gpu.filter(|_| operations.iter().all(|o| o.has_gpu_times));
        let (start, end) = kernel.unwrap_or((launch.start_ns, launch.end_ns));
        let (end, has_end) = end_of(&operations, launch, (start, end));
        let worker = process.worker(launch.comm);
        let part = Part { worker, start: self.since(start), end: self.since(end) };
        let step = process.step(launch.call_ns);
        if let Some((start, _)) = kernel {
            let delay = self.since(start) - self.since(launch.start_ns);
            self.job.launches.push(Launch { worker, delay });
        }
        let this = (part, step, kernel.is_some(), has_end);
        // Grouped collectives share one kernel: the first one stands for all.
        if let Some(operation) = operations.iter().find(|o| o.seq.is_some()) {
            self.add_collective(process, operation, this, seen);
        }
        let mut transfers = operations.iter().filter(|o| o.peer.is_some()).peekable();
        if transfers.peek().is_some() {
            let batch = self.batches.len();
            self.batches.push(this);
            self.partners.push(Vec::new());
            for operation in transfers {
                self.add_transfer(process, operation, batch);
            }
        }
        Some(part.start)
    }

    fn add_collective(
        &mut self,
        process: &Process<'_>,
        operation: &Operation,
        this: PlacedPart,
        seen: &mut Seen,
    ) {
        let Some((comm, seq)) = process.comm(operation).zip(operation.seq) else { return };
        let text = |id| process.timeline.string(id);
        let (id, func) = (comm_id(comm), text(operation.func).to_owned());
        // Replays of a CUDA graph repeat the number.
        let nth = seen.entry((id, comm.rank, func.clone(), seq)).or_default();
        let key = (id, func.clone(), seq, *nth);
        *nth += 1;
        let shape = format!(
            "{} {}, {} channels",
            text(operation.algo),
            text(operation.proto),
            operation.channels.map_or_else(|| "unknown".into(), |n| n.to_string())
        );
        let class = || CollectiveClass {
            comm: self.names.get(&id).cloned().unwrap_or_default(),
            func,
            bytes: operation.bytes,
            members: comm.ranks,
        };
        let known = self.collectives.entry(key);
        known.or_insert_with(|| (class(), shape, Vec::new())).2.push(this);
    }

    fn add_transfer(&mut self, process: &Process<'_>, operation: &Operation, batch: usize) {
        let Some((comm, peer)) = process.comm(operation).zip(operation.peer) else { return };
        let (id, rank) = (comm_id(comm), comm.rank);
        let is_send = process.timeline.string(operation.func) == "Send";
        if is_send {
            self.sends.entry((id, rank, peer)).or_default().push(batch);
        } else {
            self.receives.entry((id, peer, rank)).or_default().push(batch);
        }
    }

    /// The network times of sends, by link and channel, and what the GPU held up.
    fn add_network(
        &mut self,
        process: &Process<'_>,
        network: Network,
        kernels: &HashMap<Handle, Span>,
    ) {
        let mut waits = GpuWaits::default();
        for (id, waited) in network.waited {
            let start = &process.timeline.event(id).start;
            if let (Detail::ProxyOp(op), Some(&comm), Some(&kernel)) =
                (&start.detail, network.comms.get(&start.comm), kernels.get(&start.parent))
            {
                waits.add((comm, op), waited, kernel);
            }
        }
        for ((comm, rank), (transfers, ns)) in waits.sums() {
            let worker = self.members.get(&(comm, rank)).copied();
            let comm = self.names.get(&comm).cloned().unwrap_or_default();
            let stall = worker.map(|worker| GpuStall { comm, worker, transfers, ns });
            self.job.stalls.extend(stall);
        }
        for ((comm, src, dst, channel), link) in network.links {
            let Traffic { transfers, bytes, wire_ns } = link.traffic();
            let is_few = transfers < Limits::default().min_samples;
            self.unjudged += usize::from(is_few && link.left_out > 0);
            let ends = (self.members.get(&(comm, src)), self.members.get(&(comm, dst)));
            let (Some(&src), Some(&dst)) = ends else {
                self.strangers += transfers;
                continue;
            };
            let comm = self.names.get(&comm).cloned().unwrap_or_default();
            let edge = LinkTraffic { comm, src, dst, channel, transfers, bytes, wire_ns };
            self.job.edges.push(edge);
        }
    }

    fn since(&self, ns: i64) -> f64 {
        let since = ns.saturating_sub(self.origin);
        let size = to_f64(since.unsigned_abs());
        if since < 0 { -size } else { size }
    }

    fn finish(mut self) -> Job {
        let parts = self.collectives.values().flat_map(|(_, _, parts)| parts);
        let parts = parts.chain(&self.batches);
        let (timed, all) =
            parts.fold((0, 0), |(timed, all), part| (timed + usize::from(part.2), all + 1));
        // Where kernels have times, the few without are ignored.
        self.job.is_kernel_timed = all > 0 && 2 * timed > all;
        let is_timed = self.job.is_kernel_timed;
        self.finish_batches(is_timed);
        let mut classes: BTreeMap<CollectiveClass, usize> = BTreeMap::new();
        for (class, shape, mut parts) in std::mem::take(&mut self.collectives).into_values() {
            parts.retain(|part| part.2 || !is_timed);
            if parts.is_empty() {
                continue;
            }
            let is_rooted = is_rooted(&class.func);
            let has_ends = parts.iter().all(|part| part.3);
            let next = classes.len();
            let class = *classes.entry(class).or_insert(next);
            self.job.collectives.push(Collective {
                class,
                shape: Job::intern(&mut self.job.shapes, shape),
                step: parts.iter().filter_map(|part| part.1).min(),
                ends: if is_rooted || !has_ends { EndSync::Apart } else { EndSync::Together },
                parts: parts.iter().map(|part| part.0).collect(),
            });
        }
        let mut classes: Vec<(CollectiveClass, usize)> = classes.into_iter().collect();
        classes.sort_unstable_by_key(|(_, at)| *at);
        self.job.classes = classes.into_iter().map(|(class, _)| class).collect();
        let end = |c: &Collective| c.parts.iter().map(|p| p.end).fold(f64::MAX, f64::min);
        self.job.collectives.sort_by(|a, b| end(a).total_cmp(&end(b)));
        self.notes();
        self.job
    }

    fn finish_batches(&mut self, is_timed: bool) {
        if !self.is_partial {
            for (pair, sends) in &self.sends {
                let receives = self.receives.get(pair).map_or(&[][..], Vec::as_slice);
                for (&send, &receive) in sends.iter().zip(receives) {
                    if (self.batches[send].2 && self.batches[receive].2) || !is_timed {
                        self.partners[send].push(receive);
                        self.partners[receive].push(send);
                    }
                }
            }
        }
        let batches = self.batches.iter().zip(std::mem::take(&mut self.partners));
        self.job.batches = batches
            .map(|(&(part, step, ..), partners)| P2pBatch { part, step, partners })
            .collect();
    }

    fn notes(&mut self) {
        if self.is_partial && !self.batches.is_empty() {
            self.job.notes.push(
                "sends and receives are ignored: some were not recorded, so that the others \
                 cannot be matched by counting"
                    .into(),
            );
        }
        let overwritten = self.job.whole_from.len();
        if overwritten > 0 {
            self.job.notes.push(format!(
                "the oldest operations of {overwritten} processes were overwritten: steps that are \
                 not whole in all recordings are left out"
            ));
        }
        if !self.job.gappy.is_empty() {
            self.job.notes.push(format!(
                "some operations of {} processes were not recorded: these are not called slow",
                self.job.gappy.len()
            ));
        }
        if self.unjudged > 0 {
            self.job.notes.push(format!(
                "{} links are not judged: in most of their transfers one of the two processes was \
                 short of processor time",
                self.unjudged
            ));
        }
        if self.strangers > 0 {
            self.job.notes.push(format!(
                "{} network transfers to ranks that were not recorded are ignored",
                self.strangers
            ));
        }
    }
}

/// The latest time at which a lane's first record was pushed, in ticks, found as they are read.
#[derive(Default)]
struct LatestFirst {
    lane: Option<usize>,
    ticks: Option<u64>,
}

impl LatestFirst {
    fn add(&mut self, lane: usize, record: &Record) {
        // Records come lane by lane.
        if self.lane.replace(lane) != Some(lane) {
            self.ticks = self.ticks.max(Some(record.ticks()));
        }
    }
}

/// What one process's network steps show, gathered as they are read.
struct Network {
    comms: BTreeMap<u16, CommId>,
    clock: TickMap,
    links: BTreeMap<LinkId, LinkTimes>,
    /// Of each step that is over, its ProxyOp and when it waited for the GPU.
    waited: Vec<(EventId, Option<Span>)>,
}

impl Network {
    fn new(recording: &Recording) -> Network {
        let comms = recording.comms().iter().map(|comm| (comm.index, comm_id(comm)));
        Network {
            comms: comms.collect(),
            clock: recording.tick_map(),
            links: BTreeMap::new(),
            waited: Vec::new(),
        }
    }

    /// Adds a step of a ProxyOp. `owner` finds the communicator of one that is another process's
    /// (PXN); `short_times` are those of a rank of a communicator.
    fn add<'s>(
        &mut self,
        (id, event): (EventId, &Event),
        step: &Step,
        owner: impl Fn(&Start, &ProxyOp) -> Option<CommId>,
        short_times: impl Fn(CommId, i32) -> Option<&'s ShortTimes>,
    ) {
        let Detail::ProxyOp(op) = event.start.detail else { return };
        let comm = if op.foreign {
            owner(&event.start, &op)
        } else {
            self.comms.get(&event.start.comm).copied()
        };
        let Some(comm) = comm else { return };
        if op.is_send {
            let link = self.links.entry((comm, op.rank, op.peer, op.channel)).or_default();
            let ends = [op.rank, op.peer].map(|rank| short_times(comm, rank));
            add_send(link, step, &self.clock, ends);
        }
        if step.has(step_flags::STOPPED) && !op.foreign {
            let ns = |ticks| signed(self.clock.realtime_ns(ticks));
            self.waited.push((id, waited(step, op.is_send, ns)));
        }
    }
}

/// Adds a completed send: its wire time without the time that it queued behind another.
/// Transfers while one of its `ends` was short of processor time are left out.
fn add_send(link: &mut LinkTimes, step: &Step, clock: &TickMap, ends: [Option<&ShortTimes>; 2]) {
    const WANTED: u8 = step_flags::STOPPED | step_flags::SIZED | step_flags::THIRD;
    if step.flags & WANTED != WANTED || !step.has(step_flags::IS_SEND) {
        return;
    }
    let Some(sent) = step.state_ticks()[2] else { return };
    let end = step.end_ticks();
    let ns = |ticks| clock.realtime_ns(ticks);
    if ends.into_iter().flatten().any(|times| times.contain(ns(sent), ns(end))) {
        link.left_out += 1;
    } else {
        link.add(step.size, clock.duration_ns(end.saturating_sub(sent.max(link.last))));
    }
    link.last = link.last.max(end);
}

fn first_ticks(recording: &Recording) -> u64 {
    recording.comms().iter().map(|comm| comm.ticks).min().unwrap_or(0)
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
