// SPDX-License-Identifier: Apache-2.0
/*!
Recordings of ncclscope: the progress of one process at the end of its recording, or now.

The counts are those of the last [`Progress`] record, which count from the communicator's first
operation, plus the events after it. Operations are numbered backwards from the last. Where
recording was stopped or sampled, or events were lost, only the counts of the record are used, and
calls are not compared.

Ages count up to the latest recorded time of the process; `assemble` adds the time after it.
*/

use super::InputOptions;
use crate::job::{Call, InFlightOp, Job, ThreadState};
use ncclscope_findings::rank::{self, Pending, Transfer};
use ncclscope_operations::operation::Completion;
use ncclscope_operations::stats::to_u64;
use ncclscope_operations::steps::StepExt;
use ncclscope_operations::timeline::comm_name;
use ncclscope_operations::{Event, Operation, Timeline, human, operations};
use ncclscope_trace::progress::{
    CHECKPOINT_EVERY, Heartbeat, OpProgress, Progress, Thread, count_matters,
    progress_flags as flags,
};
use ncclscope_trace::record::{ApiCall, Coll};
use ncclscope_trace::{Detail, EventKind, Identity, MarkKind, Recording, State};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;

/// Two samples of a thread must be at least this far apart to show whether it works, ns.
const MIN_SAMPLE_GAP_NS: u64 = 100_000_000;
/// How many of the latest calls of a communicator are kept for comparison.
const MAX_CALLS: usize = 64;

/// The progress of one process.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) identity: Identity,
    /// The latest recorded time, by the host's clock, ns.
    pub(super) end_ns: u64,
    /// When the application last called NCCL, or an event last completed.
    pub(super) change_ns: u64,
    /// When the application last called NCCL.
    pub(super) last_call_ns: u64,
    pub(super) is_closed: bool,
    pub(super) is_copy: bool,
    pub(super) comms: Vec<Member>,
    pub(super) entered: Option<Pending>,
    pub(super) threads: Vec<ThreadState>,
    pub(super) reports: Vec<String>,
}

/// A process in a communicator.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) hash: u64,
    pub(super) name: String,
    pub(super) role: Option<String>,
    pub(super) nranks: u32,
    pub(super) rank: u32,
    pub(super) api: u64,
    pub(super) enqueued: u64,
    pub(super) started: Option<u64>,
    pub(super) done: u64,
    /// When the operation that it is in last advanced, ns.
    pub(super) since_ns: Option<u64>,
    /// When that operation was issued, ns.
    pub(super) born_ns: Option<u64>,
    pub(super) is_blind: bool,
    /// Kernels of the communicator are recorded.
    pub(super) sees_kernels: bool,
    pub(super) flight: Option<InFlightOp>,
    pub(super) hashes: Vec<(u64, u64)>,
    pub(super) calls: BTreeMap<u64, Call>,
    /// Sends and receives, by (is a send, rank of the other side).
    pub(super) pairs: BTreeMap<(bool, u32), PairSide>,
    /// All sends and receives are in the recording, so that they can be counted.
    pub(super) counts_pairs: bool,
}

/// One side of the sends from a rank to another.
#[derive(Debug, Default, Clone)]
pub(super) struct PairSide {
    pub(super) issued: u64,
    pub(super) done: u64,
    pub(super) open: u64,
    pub(super) since_ns: Option<u64>,
    pub(super) born_ns: Option<u64>,
    pub(super) flight: InFlightOp,
    /// (number, bytes) of the latest.
    pub(super) sizes: VecDeque<(u64, u64)>,
}

/// How many sizes are kept: one side is rarely further ahead of the other.
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
    for path in paths {
        match Recording::open(path) {
            Ok(recording) => snapshots.push(SnapshotReader::new(&recording).snapshot()),
            Err(error) => warnings.push(format!("cannot read {}: {error}", path.display())),
        }
    }
    if snapshots.is_empty() {
        return Err(warnings.pop().unwrap_or_else(|| "no recording can be read".into()));
    }
    Ok(super::assemble::job(snapshots, settings))
}

struct SnapshotReader<'a> {
    recording: &'a Recording,
    timeline: Timeline<'a>,
    operations: Vec<Operation>,
    /// Transfers in flight, by handle, as the drain thread last recorded them.
    in_progress_ops: HashMap<u64, OpProgress>,
    is_partial: bool,
}

impl<'a> SnapshotReader<'a> {
    fn new(recording: &'a Recording) -> SnapshotReader<'a> {
        let timeline = Timeline::read(recording, false);
        let mut operations = operations(&timeline);
        operations.sort_by_key(|operation| timeline.event(operation.event).start.ticks);
        let mut in_progress_ops = HashMap::new();
        for heartbeat in recording.heartbeats() {
            if let Heartbeat::Op(op) = heartbeat {
                in_progress_ops.insert(op.handle.0, *op);
            }
        }
        let header = recording.header();
        let lost: u64 = header.unwritten.iter().chain(&header.without_lane).sum();
        let lanes = recording.lanes().iter().map(|lane| &lane.header);
        let lost =
            lost + lanes.map(|l| l.lost.iter().chain(&l.lost_ends).sum::<u64>()).sum::<u64>();
        let is_stopped = recording.marks().iter().any(|mark| mark.what == MarkKind::Stop);
        let is_partial = lost != 0 || header.left_out != 0 || is_stopped;
        SnapshotReader { recording, timeline, operations, in_progress_ops, is_partial }
    }

    fn snapshot(&self) -> Snapshot {
        let header = self.recording.header();
        let last_call = self.last_call();
        let stops = self.timeline.events().filter_map(|(_, event)| event.stop);
        let change = stops.max().unwrap_or(0).max(last_call);
        let at = |ticks: u64| if ticks == 0 { 0 } else { self.timeline.ns(ticks) };
        let reports = self.recording.hangs().iter().rev();
        Snapshot {
            host: header.host.clone(),
            pid: header.pid,
            identity: self.recording.identity().clone(),
            end_ns: at(self.recording.last_ticks()),
            change_ns: at(change),
            last_call_ns: at(last_call),
            is_closed: header.closed && !header.copy,
            is_copy: header.copy,
            comms: (0..self.recording.comms().len()).filter_map(|at| self.member(at)).collect(),
            entered: self.pending_call(),
            threads: self.threads(),
            reports: reports
                .filter_map(|(_, text)| Some(text.lines().next()?.to_owned()))
                .collect(),
        }
    }

    /// When the application last called NCCL.
    fn last_call(&self) -> u64 {
        let progress = self.recording.heartbeats().iter().filter_map(|heartbeat| match heartbeat {
            Heartbeat::Progress(progress) => Some(progress.beat),
            _ => None,
        });
        let calls = self.timeline.events().filter(|(_, event)| {
            matches!(
                event.kind(),
                EventKind::CollApi | EventKind::P2pApi | EventKind::Coll | EventKind::P2p
            )
        });
        progress.chain(calls.map(|(_, event)| event.start.ticks)).max().unwrap_or(0)
    }

    fn member(&self, position: usize) -> Option<Member> {
        let comm = &self.recording.comms()[position];
        let rank = u32::try_from(self.timeline.rank(position)?).ok()?;
        let progress =
            self.recording.heartbeats().iter().rev().find_map(|heartbeat| match heartbeat {
                Heartbeat::Progress(progress) if progress.comm == comm.index => Some(*progress),
                _ => None,
            });
        let progress = progress.unwrap_or_else(|| Progress {
            flags: if comm.api_version < 5 { flags::NO_API } else { 0 } | flags::NO_KERNEL,
            ..Progress::default()
        });
        let mut member = Member {
            hash: comm.hash,
            name: comm_name(comm),
            role: self.recording.role(comm).map(str::to_owned).or_else(|| comm.name.clone()),
            nranks: comm.ranks,
            rank,
            ..Member::default()
        };
        self.fill_counts(position, &progress, &mut member);
        if self.recording.comm_end(comm.index).is_some() || progress.flags & flags::ENDED != 0 {
            // Operations that seem open were aborted with the communicator.
            (member.done, member.is_blind) = (member.enqueued, true);
        }
        self.fill_pairs(position, &mut member);
        self.fill_hashes(comm.index, &progress, &mut member);
        Some(member)
    }

    fn operations_of(&self, position: usize) -> impl Iterator<Item = (&Operation, &Event)> {
        let events = self.operations.iter().map(|op| (op, self.timeline.event(op.event)));
        events.filter(move |(op, _)| op.comm == Some(position))
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
        member.api = match progress.flags & flags::NO_API != 0 {
            true => member.enqueued,
            false => (progress.api + new_calls).max(member.enqueued),
        };
        member.sees_kernels = progress.flags & flags::NO_KERNEL == 0;
        member.started = member.sees_kernels.then_some(progress.started);
        member.done = progress.done + new(&colls);
        member.is_blind = progress.flags & flags::NO_END != 0;
        if is_partial {
            return;
        }
        let first = member.enqueued + 1 - colls.len().min(usize_of(member.enqueued)) as u64;
        let numbered = || (first..).zip(&colls);
        let with_kernel =
            numbered().filter(|(_, (op, _))| self.kernel(op).is_some_and(|k| k.1 > 0));
        if let Some((latest, _)) = with_kernel.last() {
            member.started = Some(latest.max(progress.started));
            member.sees_kernels = true;
        }
        let latest = member.started;
        let is_open = |&(number, (op, _)): &(u64, &(&Operation, &Event))| {
            // A kernel that ran only on some channels is not over: others may still start.
            let lacks = self.kernel(op).is_some_and(|(all, some, _)| 0 < some && some < all);
            op.completion == Completion::Open || lacks && latest == Some(number)
        };
        let open = numbered().find(is_open);
        member.is_blind = open.is_none()
            && colls.last().is_some_and(|(op, _)| op.completion == Completion::Unseen);
        member.done = open.map_or(member.enqueued, |(number, _)| number - 1);
        if let Some((_, (op, event))) = open {
            member.since_ns = Some(self.since(op, event));
            member.born_ns = Some(self.timeline.ns(event.start.ticks));
            let call = self.call(op, event);
            member.flight = Some(InFlightOp { call, ..self.flight(op) });
        }
        let numbered = (member.api + 1 - calls.len() as u64..).zip(&calls);
        let kept = calls.len().saturating_sub(MAX_CALLS);
        let from_api = numbered.skip(kept).map(|(at, (_, call))| (at, self.api_call(call)));
        member.calls = from_api.collect();
        if calls.is_empty() {
            let kept = colls.len().saturating_sub(MAX_CALLS);
            let list = (first..).zip(&colls).skip(kept);
            member.calls = list.map(|(at, (op, event))| (at, self.call(op, event))).collect();
        }
    }

    /// The recorded calls of collectives, in order.
    fn api_calls(&self, position: usize) -> Vec<(&Event, ApiCall)> {
        let events = self.timeline.events().filter_map(|(_, event)| match event.start.detail {
            Detail::CollApi(call) if self.timeline.comm_of(event) == Some(position) => {
                Some((event, call))
            }
            _ => None,
        });
        let mut calls: Vec<(&Event, ApiCall)> = events.collect();
        calls.sort_by_key(|(event, _)| event.start.ticks);
        calls
    }

    fn api_call(&self, call: &ApiCall) -> Call {
        let func = self.timeline.string(call.func).to_owned();
        let datatype = self.timeline.string(call.datatype).to_owned();
        let count = count_matters(&func).then_some(call.count);
        Call {
            size: format!("{} elements", call.count),
            func,
            datatype,
            count,
            root: Some(call.root),
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
            func,
        }
    }

    /// Channels of the operation's kernel: (all, started, stopped).
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
            counts.then(|| self.transfer(event)).flatten()
        });
        // A kernel without any event may just not be recorded.
        let kernel = self.kernel(op).filter(|kernel| kernel.1 > 0);
        InFlightOp { kernel, transfers: transfers.collect(), ..InFlightOp::default() }
    }

    fn transfer(&self, event: &Event) -> Option<Transfer> {
        let Detail::ProxyOp(op) = event.start.detail else { return None };
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
            reached: latest.and_then(|latest| latest.reached).or(reached),
            still_ns: self.age(since),
            in_progress: event.first_state.is_some()
                || steps.is_some()
                || event.stop.is_some()
                || self.recording.comms().iter().any(|comm| comm.api_version < 4),
            is_foreign: op.foreign,
        })
    }

    /// When an operation last advanced, ns.
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

    /// Where the latest call is, if it has not returned.
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
            None if self.has_group_end(group) => Pending::Inside,
            None => Pending::OpenGroup,
        })
    }

    fn has_group_end(&self, group: &Event) -> bool {
        const GROUP_END_API_START: State = State(24);
        self.recording.records(usize::from(group.lane)).any(|record| {
            matches!(record, ncclscope_trace::Record::State { handle, state, .. }
                if handle == group.start.handle && state == GROUP_END_API_START)
        })
    }

    fn fill_pairs(&self, position: usize, member: &mut Member) {
        let header = self.recording.header();
        member.counts_pairs = !self.is_partial && header.overwritten.iter().all(|&n| n == 0);
        for (op, event) in self.operations_of(position) {
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
            if op.completion == Completion::Open {
                if side.open == 0 {
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

    fn fill_hashes(&self, index: u16, progress: &Progress, member: &mut Member) {
        if progress.api != 0 {
            member.hashes.push((progress.api, progress.hash));
        }
        let last = self.recording.heartbeats().iter().rev().find_map(|heartbeat| match heartbeat {
            Heartbeat::Checkpoints(points) if points.comm == index => Some(*points),
            _ => None,
        });
        let Some(points) = last else { return };
        for (distance, hash) in (0..).step_by(usize_of(CHECKPOINT_EVERY)).zip(points.hashes) {
            if points.at > distance && points.at - distance != progress.api {
                member.hashes.push((points.at - distance, hash));
            }
        }
    }

    fn threads(&self) -> Vec<ThreadState> {
        let mut samples: BTreeMap<u32, Vec<Thread>> = BTreeMap::new();
        for heartbeat in self.recording.heartbeats() {
            if let Heartbeat::Thread(thread) = heartbeat {
                samples.entry(thread.tid).or_default().push(*thread);
            }
        }
        let proxy = EventKind::ProxyOp.bit() | EventKind::ProxyStep.bit();
        let api = EventKind::CollApi.bit() | EventKind::P2pApi.bit() | EventKind::GroupApi.bit();
        let plan = EventKind::Coll.bit() | EventKind::P2p.bit() | EventKind::Group.bit();
        let state = |(tid, samples): (u32, Vec<Thread>)| {
            let last = *samples.last()?;
            // About the latest ten seconds.
            let before = samples.iter().rev().nth(10).or_else(|| samples.first()).copied()?;
            let clock = self.timeline.clock();
            let wall = to_u64(clock.duration_ns(last.ticks.saturating_sub(before.ticks)));
            let thread = rank::Thread {
                tid,
                state: last.state,
                place: self.recording.string(last.place).unwrap_or_default().to_owned(),
                // A shorter time shows nothing.
                span_ns: Some(wall).filter(|&wall| wall >= MIN_SAMPLE_GAP_NS).unwrap_or(0),
                cpu_ns: last.cpu_ns.saturating_sub(before.cpu_ns),
                delay_ns: last.run_delay_ns.saturating_sub(before.run_delay_ns),
            };
            let is_proxy = last.kinds & proxy != 0;
            Some(ThreadState { thread, is_proxy, is_api: last.kinds & (api | plan) != 0 })
        };
        samples.into_iter().filter_map(state).collect()
    }
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
