// SPDX-License-Identifier: Apache-2.0
/*!
Recordings of ncclscope: the progress of one process at the end of its recording, or now.

The counts are those of the last [`Progress`] record, which count from the communicator's first
operation, plus the events after it. Operations are numbered backwards from the last. Where
recording was stopped or sampled, or events were lost, only the counts of the record are used; calls
are compared if none of them was lost.

Ages count up to the latest recorded time of the process; `recorded` adds the time after
it.

Only the end of a recording is read: as much as reaches back to the oldest operation in flight and
the latest call. The end of a recording has the number of earlier sends and receives. If it does not
have it, but all of them are in the recording, they are counted there.
*/

use super::activity::Activity;
use super::losses::has_all_calls;
use super::older::{MOST, OlderComm, OlderPairs};
use super::options::InputOptions;
pub use super::reader::SnapshotReader;
use super::reader::{CallNote, CommNotes, GroupNote, OpNote};
pub use super::snapshot::Snapshot;
use super::snapshot::{Member, P2pCall, PairSide};
use crate::job::{Call, InFlightOp, Settings, SetupCall, ThreadState};
use ncclscope_findings::rank::{self, Pending};
use ncclscope_operations::bandwidth::size_bytes;
use ncclscope_operations::joiner::{Joined, join};
use ncclscope_operations::operation::Completion;
use ncclscope_operations::parallel::in_order;
use ncclscope_operations::pxn::{Pxn, Work};
use ncclscope_operations::stats::to_u64;
use ncclscope_operations::threads::{Role, has_api};
use ncclscope_operations::timeline::comm_name;
use ncclscope_operations::{Timeline, human};
use ncclscope_trace::progress::{
    Heartbeat, Progress, Thread, count_matters, progress_flags as flags,
};
use ncclscope_trace::record::ApiCall;
use ncclscope_trace::runs::{NAMELESS, ProcessFacts};
use ncclscope_trace::{Comm, HANG_REPORT, Recording, StrId};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Minimum number of segments read from the end of a recording's ring. If they are too few, the
/// number is multiplied by `MORE_SEGMENTS`, so that little is read twice.
const LEAST_SEGMENTS: usize = 2;
const MORE_SEGMENTS: usize = 8;

/// Number of changes from which on the longest pause between them says what is usual: that a
/// further pause is longer than all of 20 like it has a chance of 1 in 21.
const USUAL: u64 = 21;

/// The progress of the processes of these recordings, each by its own, without those of which
/// nothing is left that says which process they are of.
pub(crate) fn snapshots(
    paths: &[PathBuf],
    settings: &InputOptions,
    warnings: &mut Vec<String>,
) -> Vec<Snapshot> {
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
    if snapshots.iter().any(|one| !one.facts.is_nameless) {
        snapshots.retain(|one| {
            if one.facts.is_nameless {
                warnings.push(format!("{} {NAMELESS}", one.facts.path.display()));
            }
            !one.facts.is_nameless
        });
    }
    snapshots
}

/// The progress of the processes of these recordings. If proxy threads work for other processes
/// (PXN), all are read again: that work is assigned to the process whose operation it is.
pub(crate) fn with_pxn(snapshots: Vec<Snapshot>, paths: &[PathBuf]) -> Vec<Snapshot> {
    if !snapshots.iter().any(Snapshot::has_foreign) {
        return snapshots;
    }
    let ends: Vec<Recording> = paths.iter().filter_map(|path| open_end(path).ok()).collect();
    let pxn = Pxn::read(&ends.iter().collect::<Vec<_>>());
    let numbers: Vec<usize> = (0..ends.len()).collect();
    let mut snapshots = Vec::new();
    in_order(&numbers, |&at| of(&ends[at], pxn.work(at)), |_, one| snapshots.push(one));
    snapshots
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
    let mut reader = SnapshotReader::new(recording);
    let joined = join(recording, work, &mut reader);
    reader.finish(&joined)
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

impl SnapshotReader<'_> {
    /// The progress of the process, after all of its records.
    #[must_use]
    pub fn finish(mut self, joined: &Joined<'_>) -> Snapshot {
        self.sort();
        Progression::new(self, &joined.timeline).snapshot()
    }
}

/// A number of ticks in ns.
fn span_ns(ticks: u64, hz: u64) -> u64 {
    let ns = u128::from(ticks) * 1_000_000_000;
    u64::try_from(ns.checked_div(u128::from(hz)).unwrap_or(0)).unwrap_or(u64::MAX)
}

/// Derives a process's progress from its recording.
struct Progression<'t, 'a> {
    recording: &'a Recording,
    /// Without its events.
    timeline: &'t Timeline<'a>,
    notes: SnapshotReader<'a>,
    /// Groups that the application has ended but in which NCCL has launched nothing, because it
    /// connects to other ranks; with the time at which they were ended, ns.
    connecting: Vec<(GroupNote, u64)>,
    is_partial: bool,
    /// What is known about the part that was not read.
    older: OlderPairs,
}

impl<'t, 'a> Progression<'t, 'a> {
    fn new(mut notes: SnapshotReader<'a>, timeline: &'t Timeline<'a>) -> Progression<'t, 'a> {
        let recording = timeline.recording();
        let is_partial = timeline.has_gaps() || recording.has_hole();
        let calls = notes.comms.iter().map(|of| of.progress.map_or(0, |progress| progress.beat));
        let calls: Vec<u64> = calls.collect();
        // The recorder looks for calls once a second.
        let late = recording.header().hz;
        notes.activities.finish(&calls, late, !is_partial && recording.is_whole());
        // NCCL tells of a communicator while the application creates it, which is a call, too.
        notes.activities.process.call_at(recording.comms().iter().map(|comm| comm.ticks).max());
        Progression {
            recording,
            timeline,
            connecting: connecting(&notes, timeline),
            notes,
            is_partial,
            older: OlderPairs::of(recording),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let header = self.recording.header();
        let Activity { call, change, longest, changes } = self.notes.activities.process;
        let damage = self.recording.damage_in_short().into_iter();
        let at = |ticks: u64| self.ns_or_never(ticks);
        let reports = self.recording.hangs().iter().rev();
        let of_hangs = reports.clone().filter(|(_, text)| text.starts_with(HANG_REPORT));
        let reported = of_hangs.map(|(ticks, _)| *ticks).max();
        Snapshot {
            rank: 0,
            host: header.host.clone(),
            pid: header.pid,
            facts: ProcessFacts::of(self.recording),
            blocks: header.next_block,
            damage: damage.chain(self.older.damage.iter().cloned()).collect(),
            part: self.recording.part().filter(|_| !self.older.is_read),
            end_ns: at(self.recording.last_ticks()),
            sync: self
                .recording
                .last_sync()
                .map(|(last, [from, to])| (at(last), at(to).saturating_sub(at(from)))),
            sync_resumed_ns: self.recording.last_sync().map_or(0, |(_, [_, to])| at(to)),
            change_ns: at(change),
            usual_ns: (changes >= USUAL).then(|| span_ns(longest, header.hz)),
            last_call_ns: at(call),
            is_closed: header.closed && !header.copy,
            is_copy: self.recording.is_copy(),
            comms: (0..self.recording.comms().len()).filter_map(|at| self.member(at)).collect(),
            has_foreign: self.notes.has_foreign,
            entered: self.pending_call(),
            setup: self.setup(call),
            lacks_events: self.is_partial || self.notes.comms.iter().any(CommNotes::is_partial),
            off_since_ns: self.recording.off_since().map(at),
            is_sampled: header.left_out != 0,
            hides_calls: self.recording.comms().iter().any(|comm| comm.api_version < 5),
            threads: self.threads(),
            reports: reports
                .filter_map(|(_, text)| Some(text.lines().next()?.to_owned()))
                .collect(),
            reported_ns: at(reported.unwrap_or(0)),
            sight: None,
        }
    }

    /// A time in ns; 0, as in ticks, is never.
    fn ns_or_never(&self, ticks: u64) -> u64 {
        if ticks == 0 { 0 } else { self.timeline.ns(ticks).min(MOST) }
    }

    fn member(&self, position: usize) -> Option<Member> {
        let comm = &self.recording.comms()[position];
        let rank = u32::try_from(self.timeline.rank(position)?).ok()?;
        let progress =
            self.notes.comms[position].progress.map(believable).unwrap_or_else(|| Progress {
                flags: if comm.api_version < 5 { flags::NO_API } else { 0 } | flags::NO_KERNEL,
                ..Progress::default()
            });
        let Activity { call, change, .. } = self.notes.activities.comms[position];
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

    fn operations_of(&self, position: usize) -> impl Iterator<Item = &OpNote> {
        self.notes.comms[position].operations.iter()
    }

    fn fill_counts(&self, position: usize, progress: &Progress, member: &mut Member) {
        let colls: Vec<&OpNote> =
            self.operations_of(position).filter(|op| op.peer.is_none()).collect();
        let is_new = |start: u64| start > progress.ticks;
        let new = colls.iter().filter(|op| is_new(op.start)).count() as u64;
        let notes = &self.notes.comms[position];
        let is_partial = self.is_partial || progress.flags & flags::PARTIAL != 0;
        member.enqueued = progress.enqueued + new;
        member.is_captured = progress.flags & flags::CAPTURED != 0 || notes.is_captured;
        member.api = match progress.flags & flags::NO_API != 0 || member.is_captured {
            true => member.enqueued,
            false => (progress.api + notes.new_calls).max(member.enqueued),
        };
        member.sees_kernels = progress.flags & flags::NO_KERNEL == 0;
        member.started = member.sees_kernels.then_some(progress.started);
        member.done = progress.done + new;
        member.is_blind = progress.flags & flags::NO_END != 0;
        let first = member.enqueued + 1 - colls.len().min(usize_of(member.enqueued)) as u64;
        // A captured call is enqueued at each replay. The enqueued operations are numbered alike on
        // all ranks, but the calls are not.
        let calls = if member.is_captured { &[][..] } else { notes.calls.all() };
        if progress.flags & flags::PARTIAL == 0 && has_all_calls(self.recording) {
            member.settings = Arc::new(self.latest_settings(position, member));
            let calls = self.latest_calls(position, (member.api, calls), member.enqueued);
            member.calls = Arc::new(calls);
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
        let with_kernel = numbered().filter(|(_, op)| op.has_kernel);
        if let Some((latest, _)) = with_kernel.last() {
            member.started = Some(latest.max(progress.started));
            member.sees_kernels = true;
        }
        let latest = member.started;
        let is_open = |&(number, op): &(u64, &&OpNote)| {
            // A kernel with events on only some channels may not be over: others may still start.
            let lacks = op.lacks_channels;
            // The rank itself may know that a network part or a kernel is still missing.
            let is_unseen = op.completion == Completion::Unseen && !is_new(op.start);
            let is_awaited = is_unseen && progress.done < number;
            op.completion == Completion::Open || is_awaited || lacks && latest == Some(number)
        };
        let open = numbered().find(is_open);
        member.is_blind =
            open.is_none() && colls.last().is_some_and(|op| op.completion == Completion::Unseen);
        member.done = open.map_or(member.enqueued, |(number, _)| number - 1);
        let ended = |op: &&OpNote| match op.completion {
            Completion::Done(ticks) => Some(ticks),
            Completion::Open | Completion::Unseen => None,
        };
        member.completed_ns = self.ns_or_never(colls.iter().filter_map(ended).max().unwrap_or(0));
        if let Some((at, op)) = open {
            // On its stream, the operation waits for the one before it.
            let before = colls.iter().take(usize_of(at - first)).filter_map(ended).max();
            let turn = before.map_or(0, |ticks| self.timeline.ns(ticks));
            member.since_ns = Some(self.since(op).max(turn));
            member.born_ns = Some(self.timeline.ns(op.start));
            member.flight = Some(self.flight(op));
        }
    }

    /// How the latest collectives run, with their numbers. A replay of a graph may run one part of
    /// the captured collectives, so that their numbers differ.
    fn latest_settings(&self, position: usize, member: &Member) -> BTreeMap<u64, Settings> {
        let latest = self.notes.comms[position].latest.all();
        let latest = if member.is_captured { &[] } else { latest };
        let first = (member.enqueued + 1).saturating_sub(latest.len() as u64);
        let text = |id: StrId| self.timeline.string(id).to_owned();
        let settings = |CallNote { ways: [algorithm, protocol], channels, .. }| Settings {
            algorithm: text(algorithm),
            protocol: text(protocol),
            channels,
        };
        let numbered = (first..).zip(latest.iter().map(|&(_, call)| call));
        let all = numbered.filter(|(_, call)| self.are_known(call.ways));
        let all = all.map(|(at, call)| (at, settings(call)));
        all.filter(|(_, settings)| !settings.algorithm.is_empty()).collect()
    }

    /// False if the recording does not have one of these strings of NCCL: it comes after the events
    /// that name it, and the recording of a live process may be read in between.
    fn are_known(&self, ids: [StrId; 2]) -> bool {
        ids.iter().all(|&id| id == StrId::NONE || self.recording.string(id).is_some())
    }

    /// The latest calls with their numbers: API calls, of which the number of the last one is
    /// known, else enqueued operations, of which that of the first one is known.
    fn latest_calls(
        &self,
        position: usize,
        (last, calls): (u64, &[(u64, ApiCall)]),
        enqueued: u64,
    ) -> BTreeMap<u64, Arc<Call>> {
        if calls.is_empty() {
            let latest = self.notes.comms[position].latest.all();
            let first = (enqueued + 1).saturating_sub(latest.len() as u64).max(1);
            let numbered = (first..).zip(latest);
            let known = numbered.filter(|(_, (_, it))| self.are_known([it.func, it.datatype]));
            return known.map(|(at, &(start, call))| (at, self.call(start, call).into())).collect();
        }
        let numbered = ((last + 1).saturating_sub(calls.len() as u64)..).zip(calls);
        let known = numbered.filter(|(_, (_, it))| self.are_known([it.func, it.datatype]));
        known.map(|(at, call)| (at, self.api_call(position, call).into())).collect()
    }

    fn api_call(&self, position: usize, (start, call): &(u64, ApiCall)) -> Call {
        let func = self.timeline.string(call.func).to_owned();
        let datatype = self.timeline.string(call.datatype).to_owned();
        let count = count_matters(&func).then_some(call.count);
        let nranks = Some(self.timeline.comm(position).ranks);
        Call {
            size: format!("{} elements", call.count),
            bytes: size_bytes(&func, &datatype, call.count, nranks.filter(|&ranks| ranks > 0)),
            func,
            datatype,
            count,
            more_counts: Vec::new(),
            root: Some(call.root),
            called_ns: Some(self.timeline.ns(*start)),
        }
    }

    fn call(&self, start: u64, call: CallNote) -> Call {
        let CallNote { func, datatype, bytes, count, root, .. } = call;
        let func = self.timeline.string(func).to_owned();
        Call {
            count: count.filter(|_| count_matters(&func)),
            more_counts: Vec::new(),
            root,
            datatype: self.timeline.string(datatype).to_owned(),
            size: bytes.map(human::bytes).unwrap_or_default(),
            bytes,
            func,
            called_ns: Some(self.timeline.ns(start)),
        }
    }

    /// The call of an operation, and its parts.
    fn flight(&self, op: &OpNote) -> InFlightOp {
        let Some(open) = op.open.as_deref() else { return InFlightOp::default() };
        InFlightOp { call: self.call(op.start, open.call), ..open.flight.clone() }
    }

    /// When an operation last advanced, ns.
    fn since(&self, op: &OpNote) -> u64 {
        self.timeline.ns(op.open.as_ref().map_or(op.start, |open| open.since))
    }

    /// Fills in what the process has called on the communicator while NCCL connects.
    fn fill_connecting(&self, position: usize, member: &mut Member) {
        for &(ref group, since) in &self.connecting {
            for (_, is_send) in group.calls.iter().filter(|(comm, _)| *comm == position) {
                match is_send {
                    None => member.connects = true,
                    Some(is_send) => {
                        let new = P2pCall { since_ns: since, ..P2pCall::default() };
                        let p2p = member.connects_p2p.get_or_insert(new);
                        p2p.has_sends |= is_send;
                        p2p.has_receives |= !is_send;
                    }
                }
                if member.connects && (member.is_blind || member.done >= member.enqueued) {
                    (member.since_ns, member.born_ns) = (Some(since), Some(since));
                }
            }
        }
    }

    /// The state of the latest call, if it has not returned.
    fn pending_call(&self) -> Option<Pending> {
        let group = self.notes.groups().max_by_key(|group| group.start)?;
        if group.has_stopped {
            return None;
        }
        let launch = self.notes.latest_launch.filter(|(start, _)| *start >= group.start);
        Some(match launch {
            Some((_, false)) => Pending::Launch,
            Some((_, true)) => Pending::Launched,
            None if self.notes.end_of(group).is_some() => Pending::Inside,
            None => Pending::OpenGroup,
        })
    }

    fn fill_pairs(&self, position: usize, progress: &Progress, member: &mut Member) {
        let p2ps: Vec<&OpNote> =
            self.operations_of(position).filter(|op| op.peer.is_some()).collect();
        let new = p2ps.iter().filter(|op| op.start > progress.ticks).count();
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
        for (number, op) in (first..).zip(p2ps) {
            let Some(peer) = op.peer.and_then(|peer| u32::try_from(peer).ok()) else { continue };
            if peer == member.rank {
                continue;
            }
            let side = member.pairs.entry((op.is_send, peer)).or_default();
            side.issued += 1;
            side.note_size(op.bytes);
            if op.completion == Completion::Open
                && !op.open.as_ref().is_some_and(|open| open.is_only_unstopped)
            {
                if side.open == 0 {
                    side.number = is_known.then_some(number);
                    side.since_ns = Some(self.since(op));
                    side.born_ns = Some(self.timeline.ns(op.start));
                    side.flight = self.flight(op);
                }
                side.open += 1;
            } else if side.open == 0 {
                side.done += 1;
            }
            side.is_unseen = side.open == 0 && op.completion == Completion::Unseen;
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
        let Some(points) = self.notes.comms[position].checkpoints else { return };
        member.hashes.extend(points.valid().filter(|&(covered, _)| covered != progress.api));
    }

    /// What the latest look at its threads saw, if it was after the last call.
    fn setup(&self, call: u64) -> Option<SetupCall> {
        let looks = self.recording.heartbeats().iter().rev().filter_map(|it| match it {
            Heartbeat::Setup(setup) => Some(setup),
            _ => None,
        });
        let mut looks = looks.take_while(|look| look.ticks > call);
        let last = looks.next()?;
        let first = looks.take_while(|look| last.continues(look)).last().unwrap_or(last);
        let text = |id| self.recording.string(id).unwrap_or_default().to_owned();
        let function = text(last.function);
        let (connects, listens) = (text(last.connects), text(last.listens));
        let age = self.recording.last_ticks().saturating_sub(first.ticks);
        let age_ns = span_ns(age, self.recording.header().hz);
        (!function.is_empty()).then_some(SetupCall { age_ns, function, connects, listens })
    }

    fn threads(&self) -> Vec<ThreadState> {
        let mut samples: BTreeMap<u32, Vec<Thread>> = BTreeMap::new();
        for heartbeat in self.recording.heartbeats() {
            if let Heartbeat::Thread(thread) = heartbeat {
                samples.entry(thread.tid).or_default().push(*thread);
            }
        }
        let least_ns = u64::from(Thread::LEAST_MS) * 1_000_000;
        let has_api = has_api(self.recording.lanes().iter().map(|lane| lane.header.kinds));
        let state = |(tid, samples): (u32, Vec<Thread>)| {
            let last = *samples.last()?;
            let before = samples.iter().rev().take(Thread::LOOKS).next_back().copied()?;
            let clock = self.timeline.clock();
            let wall = to_u64(clock.duration_ns(last.ticks.saturating_sub(before.ticks)));
            let (cpu_ns, delay_ns) = last.since(&before);
            let thread = rank::Thread {
                tid,
                state: last.state,
                place: self.recording.string(last.place).unwrap_or_default().to_owned(),
                // A shorter span shows nothing.
                span_ns: Some(wall).filter(|&wall| wall >= least_ns).unwrap_or(0),
                cpu_ns,
                delay_ns,
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
fn connecting(notes: &SnapshotReader<'_>, timeline: &Timeline<'_>) -> Vec<(GroupNote, u64)> {
    let open = notes.groups().filter(|group| !group.has_stopped && !group.is_launched);
    open.filter_map(|group| Some((group.clone(), timeline.ns(notes.end_of(group)?)))).collect()
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
