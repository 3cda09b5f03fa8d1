// SPDX-License-Identifier: Apache-2.0
//! Notes, while a recording is read, what shows the progress of its process: each operation when no
//! more records of it are expected, and each call.

use super::activity::Activities;
use crate::job::InFlightOp;
use ncclscope_findings::rank::Transfer;
use ncclscope_operations::ends::arrives_early;
use ncclscope_operations::event_id::NewNumbers;
use ncclscope_operations::facts::Facts;
use ncclscope_operations::hash::Map;
use ncclscope_operations::joiner::{At, Consumer};
use ncclscope_operations::operation::Completion;
use ncclscope_operations::steps::StepExt;
use ncclscope_operations::{Event, EventId, Operation, Timeline};
use ncclscope_trace::progress::{Checkpoints, Heartbeat, OpProgress, Progress, progress_flags};
use ncclscope_trace::record::{ApiCall, Coll};
use ncclscope_trace::{Detail, EventKind, Handle, Record, Recording, State, StrId};

/// Maximum number of the latest calls of a communicator that are kept for comparison.
pub(super) const MAX_CALLS: usize = 64;

/// Number of ends of groups that are kept for each lane.
const ENDS: usize = 8;

/// What is noted of an operation. A recording has many.
#[derive(Clone, Debug)]
pub(super) struct OpNote {
    /// Its start, in ticks.
    pub(super) start: u64,
    pub(super) completion: Completion,
    /// The other rank of a send or receive.
    pub(super) peer: Option<i32>,
    pub(super) is_send: bool,
    pub(super) bytes: Option<u64>,
    /// Its kernel is recorded on at least one channel.
    pub(super) has_kernel: bool,
    /// Its kernel is recorded, but not on all channels: others may still start.
    pub(super) lacks_channels: bool,
    /// Its parts, unless it is over.
    pub(super) open: Option<Box<OpenNote>>,
}

/// What is noted of an operation that is not known to be over.
#[derive(Clone, Debug)]
pub(super) struct OpenNote {
    pub(super) call: CallNote,
    /// When it last advanced, in ticks.
    pub(super) since: u64,
    /// Without its call.
    pub(super) flight: InFlightOp,
    /// All its data was moved and only stops are missing: NCCL stops its transfers together with
    /// those to other peers in the same kernel.
    pub(super) is_only_unstopped: bool,
}

/// The arguments of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallNote {
    pub(super) func: StrId,
    pub(super) datatype: StrId,
    pub(super) bytes: Option<u64>,
    pub(super) count: Option<u64>,
    pub(super) root: Option<i32>,
    /// Algorithm and protocol; none for copy-engine collectives.
    pub(super) ways: [StrId; 2],
    /// As NCCL announces them, which does not depend on what was recorded of the kernel.
    pub(super) channels: Option<u16>,
}

impl CallNote {
    fn of(op: &Operation, event: &Event) -> CallNote {
        let (count, root) = match event.start.detail {
            Detail::Coll(Coll { count, root, .. }) => (Some(count), Some(root)),
            Detail::CeColl(ce) => (Some(ce.count), Some(ce.root)),
            _ => (None, None),
        };
        CallNote {
            func: op.func,
            datatype: op.datatype,
            bytes: op.bytes,
            count,
            root,
            ways: [op.algo, op.proto],
            channels: Facts::of(&event.start.detail)
                .map(|facts| facts.channels)
                .filter(|&channels| channels != 0),
        }
    }
}

/// The latest of many, by their start in ticks.
#[derive(Clone, Debug)]
pub(super) struct Latest<T>(Vec<(u64, T)>);

impl<T> Default for Latest<T> {
    fn default() -> Latest<T> {
        Latest(Vec::new())
    }
}

impl<T> Latest<T> {
    fn add(&mut self, start: u64, one: T) {
        self.0.push((start, one));
        if self.0.len() > 8 * MAX_CALLS {
            self.sort();
        }
    }

    fn sort(&mut self) {
        self.0.sort_by_key(|(start, _)| *start);
        self.0.drain(..self.0.len().saturating_sub(MAX_CALLS));
    }

    /// At most [`MAX_CALLS`], in order, after all were added.
    pub(super) fn all(&self) -> &[(u64, T)] {
        &self.0
    }
}

/// What is noted of a communicator.
#[derive(Clone, Debug, Default)]
pub(super) struct CommNotes {
    /// Its operations; by start, once all records are read.
    pub(super) operations: Vec<OpNote>,
    /// Its latest collectives, as NCCL enqueued them.
    pub(super) latest: Latest<CallNote>,
    /// Its latest calls of collectives.
    pub(super) calls: Latest<ApiCall>,
    /// Number of calls after its latest heartbeat.
    pub(super) new_calls: u64,
    /// A call was captured into a CUDA graph.
    pub(super) is_captured: bool,
    /// Its latest heartbeats.
    pub(super) progress: Option<Progress>,
    pub(super) checkpoints: Option<Checkpoints>,
}

impl CommNotes {
    /// True if recording was stopped or sampled.
    pub(super) fn is_partial(&self) -> bool {
        self.progress.is_some_and(|progress| progress.flags & progress_flags::PARTIAL != 0)
    }

    fn add_call(&mut self, start: u64, call: ApiCall) {
        self.is_captured |= call.graph;
        self.new_calls += u64::from(start > self.progress.map_or(0, |progress| progress.ticks));
        self.calls.add(start, call);
    }

    /// The notes of each communicator of a recording, with its heartbeats.
    fn all(recording: &Recording) -> Vec<CommNotes> {
        let mut comms = vec![CommNotes::default(); recording.comms().len()];
        let places = recording.comms().iter().zip(0..).map(|(comm, at)| (comm.index, at));
        let places: Map<u16, usize> = places.collect();
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

/// The latest group of API calls of a thread.
#[derive(Clone, Debug)]
pub(super) struct GroupNote {
    /// Its start, in ticks.
    pub(super) start: u64,
    handle: Handle,
    pub(super) has_stopped: bool,
    /// NCCL has launched something in it.
    pub(super) is_launched: bool,
    /// Its calls, if it has not stopped: position of the communicator, and whether it is a send;
    /// `None` for a collective.
    pub(super) calls: Vec<(usize, Option<bool>)>,
}

/// What is noted of a thread.
#[derive(Debug, Default)]
struct LaneNotes {
    group: Option<GroupNote>,
    /// The groups that the application ended last, and when, in ticks.
    ends: Vec<(Handle, u64)>,
}

/// Collects what shows the progress of a process while its recording is read.
#[derive(Debug)]
pub struct SnapshotReader<'a> {
    pub(super) recording: &'a Recording,
    /// By position; a process may have thousands of communicators.
    pub(super) comms: Vec<CommNotes>,
    /// Number of operations of each communicator before the latest sweep.
    swept: Vec<usize>,
    pub(super) activities: Activities,
    /// By lane; most processes use few.
    lanes: Vec<LaneNotes>,
    /// Start of the latest launch of a kernel, in ticks, and whether it has stopped.
    pub(super) latest_launch: Option<(u64, bool)>,
    /// Some ProxyOps are for other processes (PXN).
    pub(super) has_foreign: bool,
    /// The last recorded state of transfers in flight, by handle.
    in_progress_ops: Map<u64, OpProgress>,
}

impl<'a> SnapshotReader<'a> {
    /// A reader of a recording.
    #[must_use]
    pub fn new(recording: &'a Recording) -> SnapshotReader<'a> {
        let comms = recording.comms().len();
        let mut in_progress_ops = Map::default();
        for heartbeat in recording.heartbeats() {
            if let Heartbeat::Op(op) = heartbeat {
                in_progress_ops.insert(op.handle.0, *op);
            }
        }
        SnapshotReader {
            recording,
            comms: CommNotes::all(recording),
            swept: vec![0; comms],
            activities: Activities::new(comms),
            lanes: Vec::new(),
            latest_launch: None,
            has_foreign: false,
            in_progress_ops,
        }
    }

    /// Puts everything in order, after all records.
    pub(super) fn sort(&mut self) {
        for comm in &mut self.comms {
            comm.operations.sort_by_key(|op| op.start);
            comm.latest.sort();
            comm.calls.sort();
        }
    }

    /// The latest group of each thread.
    pub(super) fn groups(&self) -> impl Iterator<Item = &GroupNote> {
        self.lanes.iter().filter_map(|lane| lane.group.as_ref())
    }

    /// When the application ended this group, in ticks; `None` if it has not.
    pub(super) fn end_of(&self, group: &GroupNote) -> Option<u64> {
        let mut ends = self.lanes.iter().flat_map(|lane| &lane.ends).rev();
        ends.find(|(handle, _)| *handle == group.handle).map(|(_, end)| *end)
    }

    fn lane(&mut self, lane: usize) -> &mut LaneNotes {
        if self.lanes.len() <= lane {
            self.lanes.resize_with(lane + 1, LaneNotes::default);
        }
        &mut self.lanes[lane]
    }

    fn add_group(&mut self, timeline: &Timeline<'_>, (id, event): (EventId, &Event)) {
        let latest = &mut self.lane(usize::from(event.lane)).group;
        if latest.as_ref().is_some_and(|latest| latest.start >= event.start.ticks) {
            return;
        }
        let (start, handle) = (event.start.ticks, event.start.handle);
        let has_stopped = event.stop.is_some();
        let group = GroupNote { start, handle, has_stopped, is_launched: false, calls: vec![] };
        let group = latest.insert(group);
        for &id in if has_stopped { &[] } else { timeline.children(id) } {
            let child = timeline.event(id);
            group.is_launched |=
                timeline.has_children(id) || child.kind() == EventKind::KernelLaunch;
            let is_send = match child.start.detail {
                Detail::CollApi(_) => None,
                Detail::P2pApi(call) => Some(timeline.string(call.func) == "Send"),
                _ => continue,
            };
            group.calls.extend(timeline.comm_of(child).map(|comm| (comm, is_send)));
        }
    }

    fn note(&self, timeline: &Timeline<'_>, op: &Operation, call: CallNote) -> OpNote {
        let kernel = kernel(timeline, op);
        let (all, some, _) = kernel.unwrap_or_default();
        let lacks_channels = 0 < some && some < all;
        let is_over = matches!(op.completion, Completion::Done(_)) && !lacks_channels;
        let open = || OpenNote {
            call,
            since: self.since(timeline, op),
            flight: InFlightOp {
                // A kernel without any events may just not have been recorded.
                kernel: kernel.filter(|kernel| kernel.1 > 0),
                transfers: self.transfers(timeline, op),
                is_enqueuing: timeline.event(op.event).stop.is_none(),
                ..InFlightOp::default()
            },
            is_only_unstopped: self.is_only_unstopped(timeline, op),
        };
        let start = timeline.event(op.event).start.ticks;
        OpNote {
            start,
            completion: match op.completion {
                // Its end was after its start, which is all that is known of the time.
                Completion::Unseen if op.has_ended => Completion::Done(start),
                completion => completion,
            },
            peer: op.peer,
            is_send: op.peer.is_some() && timeline.string(op.func) == "Send",
            bytes: op.bytes,
            has_kernel: some > 0,
            lacks_channels,
            open: (!is_over).then(|| Box::new(open())),
        }
    }

    fn transfers(&self, timeline: &Timeline<'_>, op: &Operation) -> Vec<Transfer> {
        let children = timeline.children(op.event);
        let transfers = children.iter().filter_map(|&id| {
            let event = timeline.event(id);
            let counts = event.stop.is_some() || op.open.contains(&id);
            counts.then(|| self.transfer(timeline, op, event)).flatten()
        });
        transfers.collect()
    }

    fn is_only_unstopped(&self, timeline: &Timeline<'_>, op: &Operation) -> bool {
        let is_moved = |&id: &EventId| {
            let transfer = self.transfer(timeline, op, timeline.event(id));
            transfer.is_some_and(|it| it.steps > 0 && !it.is_open())
        };
        !op.open.is_empty() && op.open.iter().all(is_moved)
    }

    fn transfer(&self, timeline: &Timeline<'_>, of: &Operation, event: &Event) -> Option<Transfer> {
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
            still_ns: self.age(timeline, since),
            in_progress: event.first_state.is_some()
                || steps.is_some()
                || event.stop.is_some()
                || self.recording.comms().iter().any(|comm| comm.api_version < 4),
            may_be_early: arrives_early(has_net_plugin, timeline.string(of.proto)),
        })
    }

    /// When the operation last advanced, in ticks.
    fn since(&self, timeline: &Timeline<'_>, op: &Operation) -> u64 {
        let mut latest = timeline.event(op.event).start.ticks;
        for &id in timeline.children(op.event) {
            let child = timeline.event(id);
            latest = latest.max(child.start.ticks).max(child.stop.unwrap_or(0));
            let op = self.in_progress_ops.get(&child.start.handle.0);
            let open = child.steps.as_deref().map_or(&[][..], |steps| &steps.open);
            let states = open.iter().filter_map(|step| step.current()).map(|(_, since)| since);
            latest = latest.max(op.map_or(0, |op| op.since)).max(states.max().unwrap_or(0));
        }
        latest
    }

    fn age(&self, timeline: &Timeline<'_>, ticks: u64) -> u64 {
        let end = timeline.ns(self.recording.last_ticks());
        end.saturating_sub(timeline.ns(ticks))
    }
}

impl Consumer for SnapshotReader<'_> {
    #[inline]
    fn record(&mut self, at: &At<'_, '_>, record: &Record) {
        if let Record::State { handle, ticks, state: State::GROUP_END_API_START, .. } = *record {
            let ends = &mut self.lane(at.lane).ends;
            // The records of a later group may be lost.
            if ends.len() == ENDS {
                ends.remove(0);
            }
            ends.push((handle, ticks));
        }
    }

    fn operation(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
        if let Some(comm) = operation.comm {
            let event = timeline.event(operation.event);
            let call = CallNote::of(operation, event);
            let note = self.note(timeline, operation, call);
            let comm = &mut self.comms[comm];
            comm.operations.push(note);
            if operation.peer.is_none() {
                comm.latest.add(event.start.ticks, call);
            }
        }
    }

    fn event(&mut self, timeline: &Timeline<'_>, id: EventId, event: &Event) {
        let comm = timeline.comm_of(event);
        self.activities.add(event, comm);
        self.has_foreign |= event.is_foreign();
        match event.start.detail {
            Detail::CollApi(call) => {
                let comm = comm.and_then(|comm| self.comms.get_mut(comm));
                comm.into_iter().for_each(|comm| comm.add_call(event.start.ticks, call));
            }
            Detail::GroupApi(_) => self.add_group(timeline, (id, event)),
            Detail::KernelLaunch(_) => {
                let latest = self.latest_launch.map_or(0, |(start, _)| start);
                if event.start.ticks >= latest {
                    self.latest_launch = Some((event.start.ticks, event.stop.is_some()));
                }
            }
            _ => {}
        }
    }

    /// An operation that is open although records are to come was passed on because too many were
    /// in flight; its end may still come.
    fn renumber(&mut self, _: &NewNumbers) {
        for (comm, swept) in self.comms.iter_mut().zip(&mut self.swept) {
            for op in comm.operations.iter_mut().skip(*swept) {
                if op.completion == Completion::Open {
                    op.completion = Completion::Unseen;
                }
            }
            *swept = comm.operations.len();
        }
    }
}

/// Channels of the operation's kernel: (all, started, stopped); `None` if not recorded.
fn kernel(timeline: &Timeline<'_>, op: &Operation) -> Option<(u32, u32, u32)> {
    let children = timeline.children(op.event).iter().map(|&id| timeline.event(id));
    let (mut started, mut stopped) = (0, 0);
    for child in children.filter(|child| child.kind() == EventKind::KernelCh) {
        started += 1;
        stopped += u32::from(child.stop.is_some());
    }
    Some((u32::from(op.channels?).max(started), started, stopped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::recording::snapshot;
    use ncclscope_operations::joiner::join;
    use scripts::{Call, Fault, Process};

    /// The joiner forgets events of a recording of this length several times.
    #[test]
    fn the_end_of_a_long_recording_is_that_of_a_short_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Process::new(0, 2);
        for _ in 0..1_500 {
            process.collective(Call::ALL_REDUCE);
            process.send_recv(1, 100);
            process.now += 5_000_000;
        }
        process.collective(Call { fault: Fault::Hang, ..Call::ALL_REDUCE });
        let path = process.write(dir.path()).unwrap();

        let recording = Recording::open(&path).unwrap();
        let mut reader = SnapshotReader::new(&recording);
        let joined = join(&recording, None, &mut reader);
        assert!(reader.swept[0] > 1_000, "{:?}", reader.swept);
        let long = reader.finish(&joined);
        let [member] = &*long.comms else { panic!("{long:?}") };
        assert_eq!((member.api, member.enqueued, member.done), (1_501, 1_501, 1_500));
        let numbers: Vec<u64> = member.calls.keys().copied().collect();
        assert!(numbers.into_iter().eq(1_501 - 63..=1_501));
        let flight = member.flight.as_ref().unwrap();
        assert!(flight.transfers.iter().any(Transfer::is_open), "{flight:?}");
        assert_eq!(flight.call.count, member.calls[&1_501].count);
        let sides: Vec<(u64, u64)> = member.pairs.values().map(|it| (it.issued, it.done)).collect();
        assert_eq!(sides, [(1_500, 1_500); 2]);

        let end = snapshot(&path, None).unwrap();
        assert_eq!(format!("{long:?}"), format!("{end:?}"));
    }
}
