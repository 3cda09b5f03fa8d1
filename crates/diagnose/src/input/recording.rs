// SPDX-License-Identifier: Apache-2.0
/*!
Recordings of ncclscope: the progress of one process at the end of its recording, or now.

The counts are those of the last [`Progress`] record, which count from the communicator's first
operation, plus the events after it. Operations are numbered backwards from the last. Where
recording was stopped or sampled, or events were lost, only the counts of the record are used; calls
are compared if none of them was lost.

Ages count up to the latest recorded time of the process; `assemble` adds the time after it.

Only the end of a recording is read: as much as reaches back to the oldest operation in flight and
the latest call. The end of a recording has the number of earlier sends and receives. If it does not
have it, but all of them are in the recording, they are counted there.
*/

use super::activity::{Activities, Activity};
use super::losses::has_all_calls;
use super::older::{MOST, OlderComm, OlderPairs};
use super::options::InputOptions;
pub use super::snapshot::Snapshot;
use super::snapshot::{Member, P2pCall, PairSide};
use crate::job::{Call, InFlightOp, Job, ThreadState};
use ncclscope_findings::rank::{self, Pending, Transfer};
use ncclscope_operations::bandwidth::size_bytes;
use ncclscope_operations::ends::arrives_early;
use ncclscope_operations::operation::Completion;
use ncclscope_operations::parallel::in_order;
use ncclscope_operations::pxn::{Pxn, Work};
use ncclscope_operations::stats::to_u64;
use ncclscope_operations::steps::StepExt;
use ncclscope_operations::threads::{Role, has_api};
use ncclscope_operations::timeline::comm_name;
use ncclscope_operations::{Event, EventId, Operation, Timeline, Whole, human};
use ncclscope_trace::progress::{
    Checkpoints, Heartbeat, OpProgress, Progress, Thread, count_matters, progress_flags as flags,
};
use ncclscope_trace::record::{ApiCall, Coll};
use ncclscope_trace::runs::{NAMELESS, ProcessFacts};
use ncclscope_trace::{Comm, Detail, EventKind, Handle, Record, Recording, State};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Minimum time between two samples of a thread that show whether it runs, ns.
const MIN_SAMPLE_GAP_NS: u64 = 100_000_000;
/// Maximum number of the latest calls of a communicator that are kept for comparison.
const MAX_CALLS: usize = 64;

/// Minimum number of segments read from the end of a recording's ring. If they are too few, the
/// number is multiplied by `MORE_SEGMENTS`, so that little is read twice.
const LEAST_SEGMENTS: usize = 2;
const MORE_SEGMENTS: usize = 8;

/// Maximum number of sizes kept; one side is rarely further ahead of the other.
const MAX_SIZES: usize = 8;

/// The job that the recordings show.
///
/// # Errors
/// One sentence, if no recording can be read.
pub fn job(
    paths: &[PathBuf],
    settings: &InputOptions,
    warnings: &mut Vec<String>,
) -> Result<Job, String> {
    let mut snapshots = Vec::new();
    in_order(
        paths,
        |path| snapshot(path, None),
        |at, read| {
            match read {
                Ok(snapshot) => snapshots.push(snapshot),
                Err(error) => {
                    warnings.push(format!("cannot read {}: {error}", paths[at].display()));
                }
            }
            settings.progress.set(at + 1, paths.len());
        },
    );
    if snapshots.is_empty() {
        return Err(warnings.pop().unwrap_or_else(|| "no recording can be read".into()));
    }
    if snapshots.iter().any(|one| !one.facts.is_nameless) {
        snapshots.retain(|one| {
            if one.facts.is_nameless {
                warnings.push(format!("{} {NAMELESS}", one.facts.path.display()));
            }
            !one.facts.is_nameless
        });
    }
    if snapshots.iter().any(Snapshot::has_foreign) {
        snapshots = with_pxn(paths);
    }
    assemble(snapshots, settings)
}

/// The progress of the processes if proxy threads work for other processes (PXN): that work is
/// assigned to the process whose operation it is.
fn with_pxn(paths: &[PathBuf]) -> Vec<Snapshot> {
    let ends: Vec<Recording> = paths.iter().filter_map(|path| open_end(path).ok()).collect();
    let pxn = Pxn::read(&ends.iter().collect::<Vec<_>>());
    let numbers: Vec<usize> = (0..ends.len()).collect();
    let mut snapshots = Vec::new();
    in_order(&numbers, |&at| of(&ends[at], pxn.work(at)), |_, one| snapshots.push(one));
    snapshots
}

/// The job of these processes.
///
/// # Errors
/// One sentence, if there is no run with the requested name.
pub fn assemble(snapshots: Vec<Snapshot>, settings: &InputOptions) -> Result<Job, String> {
    super::assemble::job(snapshots, settings)
}

/// The progress of a recording's process, including what others did for it (PXN). Only the end of
/// the recording is read if that is enough.
///
/// # Errors
/// If the file cannot be read.
pub fn snapshot(path: &Path, work: Option<&Work>) -> Result<Snapshot, ncclscope_trace::Error> {
    Ok(of(&open_end(path)?, work))
}

/// Reads as much of the end of a recording as is needed.
fn open_end(path: &Path) -> Result<Recording, ncclscope_trace::Error> {
    let mut segments = LEAST_SEGMENTS;
    loop {
        let recording = Recording::open_end(path, segments)?.with_content()?;
        if reaches_back(&recording) {
            return Ok(recording);
        }
        segments = segments.saturating_mul(MORE_SEGMENTS);
    }
}

fn of(recording: &Recording, work: Option<&Work>) -> Snapshot {
    let mut reader = SnapshotReader::default();
    let timeline = Timeline::read_with(recording, work, |lane, record, _| {
        reader.record(lane, record);
    });
    reader.finish(&Whole::of(timeline))
}

/// True if the part of a recording that was read contains the start of all operations in flight and
/// of the latest call.
fn reaches_back(recording: &Recording) -> bool {
    let header = recording.header();
    if recording.is_whole() {
        return true;
    }
    let mut latest: HashMap<u16, Progress> = HashMap::new();
    for heartbeat in recording.heartbeats() {
        if let Heartbeat::Progress(progress) = heartbeat {
            latest.insert(progress.comm, *progress);
        }
    }
    let first = recording.first_ticks();
    let margin = header.hz;
    let is_covered = |comm: &Comm| match latest.get(&comm.index) {
        _ if recording.comm_end(comm.index).is_some() => true,
        Some(progress) if progress.flags & flags::ENDED != 0 => true,
        Some(progress) => {
            let age = u64::from(progress.age_ms).saturating_mul(header.hz / 1000);
            progress.ticks.saturating_sub(age).saturating_sub(margin) > first
        }
        None => false,
    };
    let call = latest.values().map(|progress| progress.beat).max().unwrap_or(0);
    call.saturating_sub(margin) > first && recording.comms().iter().all(is_covered)
}

/// Collects, while a recording is decoded, the facts that its events do not contain.
#[derive(Debug, Default)]
pub struct SnapshotReader(GroupEnds);

impl SnapshotReader {
    /// Takes a record of a lane, as [`Timeline::read_with`] passes it.
    pub fn record(&mut self, lane: usize, record: &Record) {
        self.0.add(lane, record);
    }

    /// The progress of the process, after all records.
    #[must_use]
    pub fn finish(self, whole: &Whole<'_>) -> Snapshot {
        Progression::new(whole, &self.0).snapshot()
    }
}

/// Derives a process's progress from its recording.
struct Progression<'t, 'a> {
    recording: &'a Recording,
    timeline: &'t Timeline<'a>,
    operations: &'t [Operation],
    /// The data of each communicator, by position; a process may have thousands of communicators.
    comms: Vec<OfComm>,
    /// The last recorded state of transfers in flight, by handle.
    in_progress_ops: HashMap<u64, OpProgress>,
    group_ends: &'t GroupEnds,
    /// Groups that the application has ended but in which NCCL has launched nothing, because it
    /// connects to other ranks; with the time at which they were ended, ns.
    connecting: Vec<(EventId, u64)>,
    activities: Activities,
    is_partial: bool,
    /// What is known about the part that was not read.
    older: OlderPairs,
}

/// The operations, calls and progress of one communicator.
#[derive(Clone, Debug, Default)]
struct OfComm {
    /// Positions of its operations, in order of start.
    operations: Vec<usize>,
    /// Ids of its recorded calls of collectives, in order.
    calls: Vec<EventId>,
    progress: Option<Progress>,
    checkpoints: Option<Checkpoints>,
}

impl OfComm {
    /// True if recording was stopped or sampled.
    fn is_partial(&self) -> bool {
        self.progress.is_some_and(|progress| progress.flags & flags::PARTIAL != 0)
    }

    /// The data of each communicator of a recording.
    fn all(timeline: &Timeline<'_>, operations: &[Operation]) -> Vec<OfComm> {
        let recording = timeline.recording();
        let mut comms = vec![OfComm::default(); recording.comms().len()];
        let mut by_start: Vec<usize> = (0..operations.len()).collect();
        by_start.sort_by_key(|&at| timeline.event(operations[at].event).start.ticks);
        for at in by_start {
            if let Some(comm) = operations[at].comm.and_then(|comm| comms.get_mut(comm)) {
                comm.operations.push(at);
            }
        }
        let mut calls: Vec<(EventId, &Event)> =
            timeline.events().filter(|(_, event)| event.kind() == EventKind::CollApi).collect();
        calls.sort_by_key(|(_, event)| event.start.ticks);
        for (id, event) in calls {
            if let Some(comm) = timeline.comm_of(event).and_then(|comm| comms.get_mut(comm)) {
                comm.calls.push(id);
            }
        }
        let places = recording.comms().iter().zip(0..).map(|(comm, at)| (comm.index, at));
        let places: HashMap<u16, usize> = places.collect();
        for heartbeat in recording.heartbeats() {
            match heartbeat {
                Heartbeat::Progress(progress) => {
                    if let Some(&at) = places.get(&progress.comm) {
                        comms[at].progress = Some(*progress);
                    }
                }
                Heartbeat::Checkpoints(points) => {
                    if let Some(&at) = places.get(&points.comm) {
                        comms[at].checkpoints = Some(*points);
                    }
                }
                _ => {}
            }
        }
        comms
    }
}

impl<'t, 'a> Progression<'t, 'a> {
    fn new(whole: &'t Whole<'a>, group_ends: &'t GroupEnds) -> Progression<'t, 'a> {
        let Whole { timeline, operations, .. } = whole;
        let recording = timeline.recording();
        let mut in_progress_ops = HashMap::new();
        for heartbeat in recording.heartbeats() {
            if let Heartbeat::Op(op) = heartbeat {
                in_progress_ops.insert(op.handle.0, *op);
            }
        }
        let is_partial = timeline.has_gaps() || recording.has_hole();
        let connecting = connecting(timeline, group_ends);
        let comms = OfComm::all(timeline, operations);
        let beats: Vec<u64> =
            comms.iter().map(|of| of.progress.map_or(0, |progress| progress.beat)).collect();
        Progression {
            recording,
            timeline,
            operations,
            comms,
            in_progress_ops,
            group_ends,
            connecting,
            activities: Activities::of(timeline, &beats, is_partial),
            is_partial,
            older: OlderPairs::of(recording),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let header = self.recording.header();
        let Activity { call, change } = self.activities.process;
        let damage = self.recording.damage_in_short().into_iter();
        let at = |ticks: u64| self.ns_or_never(ticks);
        let reports = self.recording.hangs().iter().rev();
        let reported = reports.clone().map(|(ticks, _)| *ticks).max();
        Snapshot {
            rank: 0,
            host: header.host.clone(),
            pid: header.pid,
            facts: ProcessFacts::of(self.recording),
            blocks: header.next_block,
            damage: damage.chain(self.older.damage.iter().cloned()).collect(),
            part: self.recording.part().filter(|_| !self.older.is_read),
            end_ns: at(self.recording.last_ticks()),
            change_ns: at(change),
            last_call_ns: at(call),
            is_closed: header.closed && !header.copy,
            is_copy: header.copy,
            comms: (0..self.recording.comms().len()).filter_map(|at| self.member(at)).collect(),
            has_foreign: self.timeline.events().any(|(_, event)| event.is_foreign()),
            entered: self.pending_call(),
            lacks_events: self.is_partial || self.comms.iter().any(OfComm::is_partial),
            hides_calls: self.recording.comms().iter().any(|comm| comm.api_version < 5),
            threads: self.threads(),
            reports: reports
                .filter_map(|(_, text)| Some(text.lines().next()?.to_owned()))
                .collect(),
            reported_ns: at(reported.unwrap_or(0)),
        }
    }

    /// A time in ns; 0, as in ticks, is never.
    fn ns_or_never(&self, ticks: u64) -> u64 {
        if ticks == 0 { 0 } else { self.timeline.ns(ticks).min(MOST) }
    }

    fn member(&self, position: usize) -> Option<Member> {
        let comm = &self.recording.comms()[position];
        let rank = u32::try_from(self.timeline.rank(position)?).ok()?;
        let progress = self.comms[position].progress.map(believable).unwrap_or_else(|| Progress {
            flags: if comm.api_version < 5 { flags::NO_API } else { 0 } | flags::NO_KERNEL,
            ..Progress::default()
        });
        let Activity { call, change } = self.activities.comms[position];
        let mut member = Member {
            hash: comm.hash,
            last_call_ns: self.ns_or_never(call),
            change_ns: self.ns_or_never(change),
            is_reported: progress.flags & flags::STUCK != 0,
            name: comm_name(comm),
            comm_name: comm.name.clone(),
            role: self.recording.role(comm).map(str::to_owned).or_else(|| comm.name.clone()),
            nranks: comm.ranks,
            rank,
            device: self.recording.comm_device(comm.index).map(|device| device.index),
            ..Member::default()
        };
        self.fill_counts(position, &progress, &mut member);
        if self.recording.comm_end(comm.index).is_some() || progress.flags & flags::ENDED != 0 {
            // Operations that look open were aborted with the communicator.
            (member.done, member.is_blind, member.has_left) = (member.enqueued, true, true);
        } else {
            self.fill_connecting(position, &mut member);
        }
        self.fill_pairs(position, &progress, &mut member);
        self.fill_hashes(position, &progress, &mut member);
        Some(member)
    }

    fn operations_of(&self, position: usize) -> impl Iterator<Item = (&Operation, &Event)> {
        self.comms[position].operations.iter().map(|&at| {
            let operation = &self.operations[at];
            (operation, self.timeline.event(operation.event))
        })
    }

    fn fill_counts(&self, position: usize, progress: &Progress, member: &mut Member) {
        let colls: Vec<(&Operation, &Event)> =
            self.operations_of(position).filter(|(op, _)| op.peer.is_none()).collect();
        let is_new = |event: &Event| event.start.ticks > progress.ticks;
        let new = |list: &[(&Operation, &Event)]| {
            list.iter().filter(|(_, event)| is_new(event)).count() as u64
        };
        let calls = self.api_calls(position);
        let new_calls = calls.iter().filter(|(event, _)| is_new(event)).count() as u64;
        let is_partial = self.is_partial || progress.flags & flags::PARTIAL != 0;
        member.enqueued = progress.enqueued + new(&colls);
        member.is_captured =
            progress.flags & flags::CAPTURED != 0 || calls.iter().any(|(_, call)| call.graph);
        member.api = match progress.flags & flags::NO_API != 0 || member.is_captured {
            true => member.enqueued,
            false => (progress.api + new_calls).max(member.enqueued),
        };
        member.sees_kernels = progress.flags & flags::NO_KERNEL == 0;
        member.started = member.sees_kernels.then_some(progress.started);
        member.done = progress.done + new(&colls);
        member.is_blind = progress.flags & flags::NO_END != 0;
        let first = member.enqueued + 1 - colls.len().min(usize_of(member.enqueued)) as u64;
        // A captured call is enqueued at each replay. The enqueued operations are numbered alike on
        // all ranks, but the calls are not.
        let calls = if member.is_captured { Vec::new() } else { calls };
        if progress.flags & flags::PARTIAL == 0 && has_all_calls(self.recording) {
            member.calls = self.latest_calls((member.api, &calls), (first, &colls));
        }
        if is_partial {
            // Without the age, the rank would look as if it waited for nothing.
            let age_ns = u64::from(progress.age_ms) * 1_000_000;
            let since = self.timeline.ns(progress.ticks).saturating_sub(age_ns);
            member.since_ns = (member.is_inside() && age_ns > 0).then_some(since);
            member.born_ns = member.since_ns;
            return;
        }
        let numbered = || (first..).zip(&colls);
        let with_kernel =
            numbered().filter(|(_, (op, _))| self.kernel(op).is_some_and(|k| k.1 > 0));
        if let Some((latest, _)) = with_kernel.last() {
            member.started = Some(latest.max(progress.started));
            member.sees_kernels = true;
        }
        let latest = member.started;
        let is_open = |&(number, (op, event)): &(u64, &(&Operation, &Event))| {
            // A kernel with events on only some channels may not be over: others may still start.
            let lacks = self.kernel(op).is_some_and(|(all, some, _)| 0 < some && some < all);
            // The rank itself may know that a network part or a kernel is still missing.
            let is_unseen = op.completion == Completion::Unseen && !is_new(event);
            let is_awaited = is_unseen && progress.done < number;
            op.completion == Completion::Open || is_awaited || lacks && latest == Some(number)
        };
        let open = numbered().find(is_open);
        member.is_blind = open.is_none()
            && colls.last().is_some_and(|(op, _)| op.completion == Completion::Unseen);
        member.done = open.map_or(member.enqueued, |(number, _)| number - 1);
        if let Some((at, (op, event))) = open {
            // On its stream, the operation waits for the one before it.
            let ended = |(op, _): &(&Operation, &Event)| match op.completion {
                Completion::Done(ticks) => Some(ticks),
                Completion::Open | Completion::Unseen => None,
            };
            let before = colls.iter().take(usize_of(at - first)).filter_map(ended).max();
            let turn = before.map_or(0, |ticks| self.timeline.ns(ticks));
            member.since_ns = Some(self.since(op, event).max(turn));
            member.born_ns = Some(self.timeline.ns(event.start.ticks));
            let call = self.call(op, event);
            member.flight = Some(InFlightOp { call, ..self.flight(op) });
        }
    }

    /// The latest calls with their numbers: API calls, of which the number of the last one is
    /// known, else enqueued operations, of which that of the first one is known.
    fn latest_calls(
        &self,
        (last, calls): (u64, &[(&Event, ApiCall)]),
        (first, colls): (u64, &[(&Operation, &Event)]),
    ) -> BTreeMap<u64, Call> {
        if calls.is_empty() {
            let kept = colls.len().saturating_sub(MAX_CALLS);
            let list = (first..).zip(colls).skip(kept);
            return list.map(|(at, (op, event))| (at, self.call(op, event))).collect();
        }
        let numbered = ((last + 1).saturating_sub(calls.len() as u64)..).zip(calls);
        let kept = calls.len().saturating_sub(MAX_CALLS);
        numbered.skip(kept).map(|(at, (event, call))| (at, self.api_call(event, call))).collect()
    }

    /// The recorded calls of collectives, in order.
    fn api_calls(&self, position: usize) -> Vec<(&Event, ApiCall)> {
        let events = self.comms[position].calls.iter().map(|&id| self.timeline.event(id));
        let call = |event: &'_ Event| match event.start.detail {
            Detail::CollApi(call) => Some(call),
            _ => None,
        };
        events.filter_map(|event| Some((event, call(event)?))).collect()
    }

    fn api_call(&self, event: &Event, call: &ApiCall) -> Call {
        let func = self.timeline.string(call.func).to_owned();
        let datatype = self.timeline.string(call.datatype).to_owned();
        let count = count_matters(&func).then_some(call.count);
        let nranks = self.timeline.comm_of(event).map(|at| self.timeline.comm(at).ranks);
        Call {
            size: format!("{} elements", call.count),
            bytes: size_bytes(&func, &datatype, call.count, nranks.filter(|&ranks| ranks > 0)),
            func,
            datatype,
            count,
            root: Some(call.root),
            called_ns: Some(self.timeline.ns(event.start.ticks)),
        }
    }

    fn call(&self, op: &Operation, event: &Event) -> Call {
        let func = self.timeline.string(op.func).to_owned();
        let (count, root) = match event.start.detail {
            Detail::Coll(Coll { count, root, .. }) => (Some(count), Some(root)),
            Detail::CeColl(ce) => (Some(ce.count), Some(ce.root)),
            _ => (None, None),
        };
        Call {
            count: count.filter(|_| count_matters(&func)),
            root,
            datatype: self.timeline.string(op.datatype).to_owned(),
            size: op.bytes.map(human::bytes).unwrap_or_default(),
            bytes: op.bytes,
            func,
            called_ns: Some(self.timeline.ns(event.start.ticks)),
        }
    }

    /// Channels of the operation's kernel: (all, started, stopped); `None` if not recorded.
    fn kernel(&self, op: &Operation) -> Option<(u32, u32, u32)> {
        let children = self.timeline.children(op.event).iter().map(|&id| self.timeline.event(id));
        let (mut started, mut stopped) = (0, 0);
        for child in children.filter(|child| child.kind() == EventKind::KernelCh) {
            started += 1;
            stopped += u32::from(child.stop.is_some());
        }
        Some((u32::from(op.channels?).max(started), started, stopped))
    }

    fn flight(&self, op: &Operation) -> InFlightOp {
        let children = self.timeline.children(op.event);
        let transfers = children.iter().filter_map(|&id| {
            let event = self.timeline.event(id);
            let counts = event.stop.is_some() || op.open.contains(&id);
            counts.then(|| self.transfer(op, event)).flatten()
        });
        // A kernel without any events may just not have been recorded.
        let kernel = self.kernel(op).filter(|kernel| kernel.1 > 0);
        InFlightOp { kernel, transfers: transfers.collect(), ..InFlightOp::default() }
    }

    /// True if all data of the operation was moved and only stops are missing: NCCL stops its
    /// transfers together with those to other peers in the same kernel.
    fn is_only_unstopped(&self, op: &Operation) -> bool {
        let is_moved = |&id: &EventId| {
            let transfer = self.transfer(op, self.timeline.event(id));
            transfer.is_some_and(|it| it.steps > 0 && !it.is_open())
        };
        !op.open.is_empty() && op.open.iter().all(is_moved)
    }

    fn transfer(&self, of: &Operation, event: &Event) -> Option<Transfer> {
        let Detail::ProxyOp(op) = event.start.detail else { return None };
        let has_net_plugin = self.recording.identity().net_plugin.is_some();
        let latest =
            self.in_progress_ops.get(&event.start.handle.0).filter(|_| event.stop.is_none());
        let steps = event.steps.as_deref();
        let open = steps.map_or(&[][..], |steps| &steps.open);
        let states = |step: &ncclscope_trace::Step| {
            step.state_ticks().iter().rposition(Option::is_some).map_or(0, |at| at + 1)
        };
        let past = |least: usize| {
            let open = open.iter().filter(|step| states(step) >= least).count();
            u32::try_from(open).unwrap_or(u32::MAX)
        };
        let done = steps.map_or(0, |steps| steps.stopped);
        let posted = steps.map_or(0, |steps| steps.started);
        let (ready, transmitted) = (done + past(2), done + past(3));
        let oldest = open.iter().min_by_key(|step| step.step);
        let began = oldest.map(|step| step.current().map_or(step.ticks, |(_, since)| since));
        let since = latest.map(|latest| latest.since).max(began);
        let since = since.or(event.stop).or(event.first_state).unwrap_or(event.start.ticks);
        let reached = oldest.map(|step| u8::try_from(states(step)).unwrap_or(3));
        Some(Transfer {
            is_send: op.is_send,
            channel: op.channel,
            peer: op.peer,
            steps: op.steps,
            posted: latest.map_or(posted, |latest| latest.posted),
            ready: latest.map_or(ready, |latest| latest.ready),
            transmitted: latest.map_or(transmitted, |latest| latest.transmitted),
            done: latest.map_or(done, |latest| latest.done),
            // If the recording contains the steps themselves, they are newer than the heartbeat.
            reached: reached.or_else(|| latest.and_then(|latest| latest.reached)),
            still_ns: self.age(since),
            in_progress: event.first_state.is_some()
                || steps.is_some()
                || event.stop.is_some()
                || self.recording.comms().iter().any(|comm| comm.api_version < 4),
            is_foreign: op.foreign,
            may_be_early: arrives_early(has_net_plugin, self.timeline.string(of.proto)),
        })
    }

    /// When the operation last advanced, ns.
    fn since(&self, op: &Operation, event: &Event) -> u64 {
        let mut latest = event.start.ticks;
        for &id in self.timeline.children(op.event) {
            let child = self.timeline.event(id);
            latest = latest.max(child.start.ticks).max(child.stop.unwrap_or(0));
            let op = self.in_progress_ops.get(&child.start.handle.0);
            let open = child.steps.as_deref().map_or(&[][..], |steps| &steps.open);
            let states = open.iter().filter_map(|step| step.current()).map(|(_, since)| since);
            latest = latest.max(op.map_or(0, |op| op.since)).max(states.max().unwrap_or(0));
        }
        self.timeline.ns(latest)
    }

    fn age(&self, ticks: u64) -> u64 {
        let end = self.timeline.ns(self.recording.last_ticks());
        end.saturating_sub(self.timeline.ns(ticks))
    }

    /// Fills in what the process has called on the communicator while NCCL connects.
    fn fill_connecting(&self, position: usize, member: &mut Member) {
        for &(group, since) in &self.connecting {
            let calls = self.timeline.children(group).iter().map(|&id| self.timeline.event(id));
            for call in calls.filter(|call| self.timeline.comm_of(call) == Some(position)) {
                match call.start.detail {
                    Detail::CollApi(_) => member.connects = true,
                    Detail::P2pApi(call) => {
                        let new = P2pCall { since_ns: since, ..P2pCall::default() };
                        let p2p = member.connects_p2p.get_or_insert(new);
                        let is_send = self.timeline.string(call.func) == "Send";
                        p2p.has_sends |= is_send;
                        p2p.has_receives |= !is_send;
                    }
                    _ => continue,
                }
                if member.connects && (member.is_blind || member.done >= member.enqueued) {
                    (member.since_ns, member.born_ns) = (Some(since), Some(since));
                }
            }
        }
    }

    /// The state of the latest call, if it has not returned.
    fn pending_call(&self) -> Option<Pending> {
        let of = |kind: EventKind| self.timeline.events().filter(move |(_, e)| e.kind() == kind);
        let (_, group) = of(EventKind::GroupApi).max_by_key(|(_, event)| event.start.ticks)?;
        if group.stop.is_some() {
            return None;
        }
        let launches = of(EventKind::KernelLaunch).map(|(_, event)| event);
        let launches = launches.filter(|event| event.start.ticks >= group.start.ticks);
        Some(match launches.max_by_key(|event| event.start.ticks) {
            Some(launch) if launch.stop.is_none() => Pending::Launch,
            Some(_) => Pending::Launched,
            None if self.group_ends.at(group).is_some() => Pending::Inside,
            None => Pending::OpenGroup,
        })
    }

    fn fill_pairs(&self, position: usize, progress: &Progress, member: &mut Member) {
        let p2ps: Vec<(&Operation, &Event)> =
            self.operations_of(position).filter(|(op, _)| op.peer.is_some()).collect();
        let new = p2ps.iter().filter(|(_, event)| event.start.ticks > progress.ticks).count();
        let latest = progress.p2p_enqueued + new as u64;
        let first = (latest + 1).saturating_sub(p2ps.len() as u64);
        let older = self.older.of_comm(self.recording.comms()[position].index);
        member.counts_pairs = !self.is_partial && self.has_all_pairs(first, progress, older);
        let before = older.into_iter().flat_map(|older| &older.pairs);
        for (&pair, &count) in before.filter(|((_, peer), _)| *peer != member.rank) {
            let side = PairSide { issued: count, done: count, ..PairSide::default() };
            member.pairs.insert(pair, side);
        }
        // Without a record of the counts, they start with the recording.
        let is_partial = self.is_partial || progress.flags & flags::PARTIAL != 0;
        let is_known = !is_partial && first > 0 && (progress.ticks > 0 || member.counts_pairs);
        member.p2p_enqueued = is_known.then_some(latest);
        for (number, (op, event)) in (first..).zip(p2ps) {
            let Some(peer) = op.peer.and_then(|peer| u32::try_from(peer).ok()) else { continue };
            if peer == member.rank {
                continue;
            }
            let is_send = self.timeline.string(op.func) == "Send";
            let side = member.pairs.entry((is_send, peer)).or_default();
            side.issued += 1;
            side.sizes.extend(op.bytes.map(|bytes| (side.issued, bytes)));
            if side.sizes.len() > MAX_SIZES {
                side.sizes.pop_front();
            }
            if op.completion == Completion::Open && !self.is_only_unstopped(op) {
                if side.open == 0 {
                    side.number = is_known.then_some(number);
                    side.since_ns = Some(self.since(op, event));
                    side.born_ns = Some(self.timeline.ns(event.start.ticks));
                    side.flight = InFlightOp { call: self.call(op, event), ..self.flight(op) };
                }
                side.open += 1;
            } else if side.open == 0 {
                side.done += 1;
            }
        }
    }

    /// True if all sends and receives of a communicator are known: the number not read must equal
    /// the number that heartbeats count, which includes what was not recorded. `first` is the
    /// number of the first one that was read.
    fn has_all_pairs(&self, first: u64, progress: &Progress, older: Option<&OlderComm>) -> bool {
        let before = older.map_or(0, |older| older.all);
        let is_all_there = self.recording.is_whole() && self.older.is_empty();
        let is_number = first == before + 1;
        match self.older.is_complete {
            true => is_all_there || is_number,
            false => is_number && before == 0 && progress.ticks > 0,
        }
    }

    fn fill_hashes(&self, position: usize, progress: &Progress, member: &mut Member) {
        if progress.api != 0 {
            member.hashes.push((progress.api, progress.hash));
        }
        let Some(points) = self.comms[position].checkpoints else { return };
        member.hashes.extend(points.valid().filter(|&(covered, _)| covered != progress.api));
    }

    fn threads(&self) -> Vec<ThreadState> {
        let mut samples: BTreeMap<u32, Vec<Thread>> = BTreeMap::new();
        for heartbeat in self.recording.heartbeats() {
            if let Heartbeat::Thread(thread) = heartbeat {
                samples.entry(thread.tid).or_default().push(*thread);
            }
        }
        let has_api = has_api(self.recording.lanes().iter().map(|lane| lane.header.kinds));
        let state = |(tid, samples): (u32, Vec<Thread>)| {
            let last = *samples.last()?;
            // The span covers about the latest ten seconds.
            let before = samples.iter().rev().nth(10).or_else(|| samples.first()).copied()?;
            let clock = self.timeline.clock();
            let wall = to_u64(clock.duration_ns(last.ticks.saturating_sub(before.ticks)));
            let thread = rank::Thread {
                tid,
                state: last.state,
                place: self.recording.string(last.place).unwrap_or_default().to_owned(),
                // A shorter span shows nothing.
                span_ns: Some(wall).filter(|&wall| wall >= MIN_SAMPLE_GAP_NS).unwrap_or(0),
                cpu_ns: last.cpu_ns.saturating_sub(before.cpu_ns),
                delay_ns: last.run_delay_ns.saturating_sub(before.run_delay_ns),
            };
            Some(ThreadState { thread, role: Role::of(last.kinds, has_api) })
        };
        samples.into_iter().filter_map(state).collect()
    }
}

fn believable(progress: Progress) -> Progress {
    Progress {
        api: progress.api.min(MOST),
        enqueued: progress.enqueued.min(MOST),
        started: progress.started.min(MOST),
        done: progress.done.min(MOST),
        p2p_enqueued: progress.p2p_enqueued.min(MOST),
        ..progress
    }
}

/// The latest group of each thread, if the application has ended it and NCCL has launched nothing
/// in it; with the time of its end, ns.
fn connecting(timeline: &Timeline<'_>, ends: &GroupEnds) -> Vec<(EventId, u64)> {
    let mut latest: BTreeMap<u8, (EventId, &Event)> = BTreeMap::new();
    let groups = timeline.events().filter(|(_, event)| event.kind() == EventKind::GroupApi);
    for (id, event) in groups {
        let last = latest.entry(event.lane).or_insert((id, event));
        if last.1.start.ticks < event.start.ticks {
            *last = (id, event);
        }
    }
    let open = latest.into_values().filter(|(_, event)| event.stop.is_none());
    let is_launched = |id: EventId| {
        timeline.has_children(id) || timeline.event(id).kind() == EventKind::KernelLaunch
    };
    let ended = open.filter_map(|(id, event)| Some((id, timeline.ns(ends.at(event)?))));
    ended.filter(|(id, _)| !timeline.children(*id).iter().any(|&id| is_launched(id))).collect()
}

/// The ends of groups: (lane, handle of the group, ticks). Many; few of them are looked up.
#[derive(Debug, Default)]
struct GroupEnds(Vec<(usize, Handle, u64)>);

impl GroupEnds {
    fn add(&mut self, lane: usize, record: &Record) {
        if let Record::State { handle, ticks, state: State::GROUP_END_API_START, .. } = *record {
            self.0.push((lane, handle, ticks));
        }
    }

    /// When the application ended this group, in ticks; `None` if it has not.
    fn at(&self, group: &Event) -> Option<u64> {
        let is_it = |end: &&(usize, Handle, u64)| {
            (end.0, end.1) == (usize::from(group.lane), group.start.handle)
        };
        self.0.iter().rev().find(is_it).map(|end| end.2)
    }
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
