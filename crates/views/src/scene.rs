// SPDX-License-Identifier: Apache-2.0
//! One process as a trace shows it: its events with names and times, one view for each rank.

use crate::ident::{Hash, Map};
use crate::matching::Names;
use ncclscope_operations::steps::{StepExt, states};
use ncclscope_operations::timeline::comm_name;
use ncclscope_operations::{
    Completion, Event, EventId, GpuClock, Operation, Parent, Timeline, operations,
};
use ncclscope_trace::record::{KernelCh, KernelPhase, step_flags};
use ncclscope_trace::{Comm, Detail, EventKind, State, StrId, What as Mark};
use std::collections::{HashMap, HashSet};

/// What a slice shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// An event, from its start to its own stop.
    Event(EventId),
    /// An operation, from its start to its completion: index of [`Scene::operation`].
    Operation(u32),
    /// A network step: index of [`Timeline::steps`].
    Step(u32),
    /// A mark, and where it says that a training step begins, that step: index of
    /// [`ncclscope_trace::Recording::marks`].
    Mark(u32),
}

/// A stretch of time on a track; `CLOCK_REALTIME` in ns.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Its start.
    pub start: u64,
    /// Its end, not before its start.
    pub end: u64,
    /// What it shows.
    pub what: What,
    /// It was not over; `end` is the end of the recording.
    pub open: bool,
}

/// The states of a step in their order: name, start and end in ns.
pub type States = [Option<(State, u64, u64)>; 3];

/// What a slice is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
    /// An operation: its function.
    Operation(StrId),
    /// An event: NCCL's word for its kind, and the function that it works for, or none.
    Event(EventKind, StrId),
    /// A state of a step: NCCL's word for it.
    State(State),
    /// What a mark says.
    Note(StrId),
    /// What a mark means.
    Mark(Mark),
}

impl Name {
    /// Another number for each name.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Name::Operation(func) => u64::from(func.0),
            Name::Event(kind, func) => (kind.index() as u64 + 1) << 16 | u64::from(func.0),
            Name::State(state) => (u64::from(state.0) + 0x100) << 16,
            Name::Note(text) => 0x200 << 16 | u64::from(text.0),
            Name::Mark(Mark::Start) => 0x300 << 16,
            Name::Mark(Mark::Stop) => 0x301 << 16,
            Name::Mark(Mark::Step) => 0x302 << 16,
            Name::Mark(_) => 0x303 << 16,
        }
    }
}

/// A rank: one process of the trace.
#[derive(Clone, Debug)]
pub struct View {
    /// Its communicators; several come as groups of tracks.
    pub groups: Vec<Group>,
    /// Unique over all recordings.
    pub uuid: u64,
    /// Process number in the trace. Several ranks may share a process, and several hosts a process
    /// number, so it is not the process's own; it is at least 2^30, and no track's number.
    pub pid: u32,
    /// `rank 0 (host 4711, GPU 3)`: the rank in the job; where that is not known, in the largest
    /// communicator.
    pub name: String,
}

/// A rank's part in one communicator.
#[derive(Clone, Debug)]
pub struct Group {
    /// Position of the communicator; `None` for events of no known one.
    pub comm: Option<usize>,
    /// Unique over all recordings.
    pub uuid: u64,
    /// `world 0x1f2e3d4c: rank 0 of 2`.
    pub name: String,
}

/// A process, ready to be shown.
#[derive(Debug)]
pub struct Scene<'t, 'r> {
    timeline: &'t Timeline<'r>,
    operations: Vec<Operation>,
    by_event: Map<EventId, u32>,
    clocks: Vec<Option<GpuClock>>,
    steps_by_op: Map<EventId, Vec<u32>>,
    names: Names,
    end_ns: u64,
    uuid: u64,
}

impl<'t, 'r> Scene<'t, 'r> {
    /// The scene of a timeline, which was read with its steps.
    #[must_use]
    pub fn new(timeline: &'t Timeline<'r>) -> Scene<'t, 'r> {
        let operations = operations(timeline);
        let by_event = (0..).zip(&operations).map(|(at, o)| (o.event, at)).collect();
        let recording = timeline.recording();
        let (comms, header) = (recording.comms(), recording.header());
        let mut steps_by_op: Map<EventId, Vec<u32>> = Map::default();
        for (index, (op, _)) in (0..).zip(timeline.steps()) {
            steps_by_op.entry(*op).or_default().push(index);
        }
        Scene {
            timeline,
            by_event,
            clocks: (0..comms.len()).map(|comm| GpuClock::of_comm(timeline, comm)).collect(),
            names: Names::new(timeline, &operations),
            operations,
            steps_by_op,
            end_ns: timeline.ns(recording.last_ticks()),
            // A host may use a process number again, but not together with a communicator's hash.
            uuid: Hash::new("process")
                .text(&header.host)
                .number(u64::from(header.pid))
                .number(u64::from(header.process))
                .number(comms.first().map_or(0, |comm| comm.hash))
                .id(),
        }
    }

    /// The timeline.
    #[must_use]
    pub fn timeline(&self) -> &'t Timeline<'r> {
        self.timeline
    }
    /// The operations.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }
    /// An operation by its index.
    #[must_use]
    pub fn operation(&self, index: u32) -> &Operation {
        &self.operations[index as usize]
    }
    /// The operation whose own event this is.
    #[must_use]
    pub fn operation_of(&self, event: EventId) -> Option<&Operation> {
        self.by_event.get(&event).map(|&at| self.operation(at))
    }
    /// Unique over all recordings.
    #[must_use]
    pub fn uuid(&self) -> u64 {
        self.uuid
    }
    /// The steps of a ProxyOp: indices of [`Timeline::steps`].
    #[must_use]
    pub fn steps_of(&self, op: EventId) -> &[u32] {
        self.steps_by_op.get(&op).map_or(&[], Vec::as_slice)
    }

    /// What a ProxyOp is known by on both sides; see [`crate::matching`].
    #[must_use]
    pub fn proxy_name(&self, op: EventId) -> Option<u64> {
        self.names.proxy_ops.get(&op).copied()
    }

    /// The ranks of the process. It is one, with all its communicators, unless a communicator has
    /// several members here (several devices in one process), or the API version names none (v1 to
    /// v3): then nobody can tell which communicators belong together, and each is a rank.
    #[must_use]
    pub fn views(&self) -> Vec<View> {
        let timeline = self.timeline;
        let comms = timeline.recording().comms();
        let mut groups: Vec<Group> = (0..comms.len()).map(|at| self.group(Some(at))).collect();
        if comms.is_empty() || timeline.events().any(|(_, e)| timeline.comm_of(e).is_none()) {
            groups.push(self.group(None));
        }
        if has_one_device(comms) {
            return vec![self.view(groups)];
        }
        let mut views: Vec<View> = groups.into_iter().map(|group| self.view(vec![group])).collect();
        // One that was made again may have the name of the first.
        let mut seen: HashMap<String, u32> = HashMap::new();
        for view in &mut views {
            let times = seen.entry(view.name.clone()).or_default();
            *times += 1;
            if *times > 1 {
                view.name.push_str(&format!(" #{times}"));
            }
        }
        views
    }

    fn view(&self, groups: Vec<Group>) -> View {
        let recording = self.timeline.recording();
        let (header, comms) = (recording.header(), recording.comms());
        let identity = recording.identity();
        let device = identity.device.map_or_else(String::new, |index| format!(", GPU {index}"));
        let place = format!("({} {}{device})", header.host, header.pid);
        let ranks = |at: &usize| (comms[*at].ranks, std::cmp::Reverse(*at));
        let largest = groups.iter().filter_map(|group| group.comm).max_by_key(ranks);
        // All communicators of one rank: it may have one in the job.
        let of_job = identity.rank.filter(|_| groups.len() > 1 || comms.len() <= 1);
        let mut name = match (of_job, largest) {
            (Some(rank), _) => format!("rank {rank} {place}"),
            (None, None) => format!("no communicator {place}"),
            (None, Some(at)) => format!("rank {} {place}", self.rank_text(at)),
        };
        let mut id = Hash::new("rank").number(self.uuid);
        if let ([group], true) = (&*groups, comms.len() > 1) {
            id = id.number(group.uuid);
            if let Some(at) = group.comm {
                name.push(' ');
                name.push_str(comms[at].name.as_deref().unwrap_or(&comm_name(&comms[at])));
            }
        }
        View { groups, uuid: id.id(), pid: id.id32() & 0x3fff_ffff | 0x4000_0000, name }
    }

    fn group(&self, comm: Option<usize>) -> Group {
        let id = Hash::new("communicator").number(self.uuid);
        let Some(at) = comm else {
            return Group { comm, uuid: id.id(), name: "no known communicator".into() };
        };
        let comm = &self.timeline.recording().comms()[at];
        let known = |number: u32| if number == 0 { "?".into() } else { number.to_string() };
        let name = format!(
            "{}{}: rank {} of {}",
            comm.name.as_ref().map_or(String::new(), |name| format!("{name} ")),
            comm_name(comm),
            self.rank_text(at),
            known(comm.ranks)
        );
        let uuid = id.number(comm.hash).number(u64::from(comm.index) + 1).id();
        Group { comm: Some(at), uuid, name }
    }

    fn rank_text(&self, comm: usize) -> String {
        self.timeline.rank(comm).map_or_else(|| "?".into(), |rank| rank.to_string())
    }

    /// The slice of an event. KernelCh and KernelPhase lie where the GPU's timer says, if it does.
    #[must_use]
    pub fn event_slice(&self, id: EventId) -> Slice {
        let event = self.timeline.event(id);
        let start = self.start_ns(event);
        let stop = self.gpu_stop_ns(event).or_else(|| event.stop.map(|t| self.timeline.ns(t)));
        let what = What::Event(id);
        let open = event.stop.is_none();
        Slice { start, end: stop.unwrap_or(self.end_ns).max(start), what, open }
    }

    /// When an event started.
    #[must_use]
    pub fn start_ns(&self, event: &Event) -> u64 {
        self.gpu_ns(event, ptimer(event)).unwrap_or_else(|| self.timeline.ns(event.start.ticks))
    }

    fn gpu_stop_ns(&self, event: &Event) -> Option<u64> {
        let (start, (stop, _)) = (ptimer(event), event.ptimer_stop?);
        event.stop?;
        self.gpu_ns(event, start).filter(|_| stop >= start)?;
        self.gpu_ns(event, stop)
    }

    fn gpu_ns(&self, event: &Event, ptimer: u64) -> Option<u64> {
        let clock = self.clocks.get(self.timeline.comm_of(event)?)?.as_ref()?;
        (ptimer != 0).then(|| clock.host_ns(ptimer))
    }

    /// The slice of an operation: to its completion, or to its own stop where that is not seen.
    #[must_use]
    pub fn operation_slice(&self, index: u32) -> Slice {
        let operation = self.operation(index);
        let event = self.timeline.event(operation.event);
        let start = self.timeline.ns(event.start.ticks);
        let end = match operation.completion {
            Completion::Done(ticks) => Some(ticks),
            Completion::Unseen => event.stop,
            Completion::Open => None,
        };
        let open = operation.completion == Completion::Open;
        let end = end.map_or(self.end_ns, |ticks| self.timeline.ns(ticks));
        Slice { start, end: end.max(start), what: What::Operation(index), open }
    }

    /// The states of the step `index`, with start and end in ns, inside its `slice`. Those that
    /// took no time are left out.
    #[must_use]
    pub fn step_states(&self, index: u32, slice: &Slice) -> States {
        let (_, step) = &self.timeline.steps()[index as usize];
        let (ticks, waits) = (step.state_ticks(), step.waits());
        let states = states(step.has(step_flags::IS_SEND));
        let (from, to) = (slice.start, slice.end);
        let (start, length) = (step.ticks, step.end_ticks().saturating_sub(step.ticks).max(1));
        // In proportion, which is exact but where the clock was compared within the step.
        let ns = |ticks: u64| {
            let part = u128::from(ticks.saturating_sub(start)) * u128::from(to - from);
            let ns = u64::try_from(part / u128::from(length)).unwrap_or(u64::MAX);
            from.saturating_add(ns).min(to)
        };
        std::array::from_fn(|at| {
            let start = ticks[at].filter(|_| waits[at] != 0)?;
            let (start, end) = (ns(start), ns(start + waits[at]));
            (start < end).then_some((states[at], start, end))
        })
    }

    /// The slice of a step.
    #[must_use]
    pub fn step_slice(&self, index: u32) -> Slice {
        let (_, step) = &self.timeline.steps()[index as usize];
        let start = self.timeline.ns(step.ticks);
        let open = !step.has(step_flags::STOPPED);
        let end = self.timeline.ns(step.end_ticks());
        Slice { start, end: end.max(start), what: What::Step(index), open }
    }

    /// A slice's name.
    #[must_use]
    pub fn name(&self, what: What) -> Name {
        match what {
            What::Operation(index) => Name::Operation(self.operation(index).func),
            What::Step(_) => Name::Event(EventKind::ProxyStep, StrId::NONE),
            What::Event(id) => {
                let event = self.timeline.event(id);
                Name::Event(event.kind(), self.function(event))
            }
            What::Mark(index) => match self.timeline.recording().marks()[index as usize] {
                mark if mark.what == Mark::Note => Name::Note(mark.name),
                mark => Name::Mark(mark.what),
            },
        }
    }

    /// The slices of the marks. A training step lasts to the next one; other marks are moments.
    pub fn marks(&self) -> impl Iterator<Item = Slice> {
        let marks = self.timeline.recording().marks();
        let steps = marks.iter().filter(|mark| mark.what == Mark::Step);
        let mut steps: Vec<u64> = steps.map(|mark| mark.ticks).collect();
        steps.sort_unstable();
        (0u32..).zip(marks).map(move |(index, mark)| {
            let (start, what) = (self.timeline.ns(mark.ticks), What::Mark(index));
            if mark.what != Mark::Step {
                return Slice { start, end: start, what, open: false };
            }
            let next = steps.get(steps.partition_point(|&ticks| ticks <= mark.ticks));
            let end = next.map_or(self.end_ns, |&ticks| self.timeline.ns(ticks));
            Slice { start, end: end.max(start), what, open: next.is_none() }
        })
    }

    fn function(&self, event: &Event) -> StrId {
        match event.start.detail {
            Detail::Coll(coll) => coll.func,
            Detail::P2p(p2p) => p2p.func,
            Detail::CeColl(ce) => ce.func,
            Detail::CollApi(call) | Detail::P2pApi(call) => call.func,
            Detail::KernelPhase(KernelPhase { name, .. }) => name,
            Detail::ProxyOp(_) | Detail::KernelCh(_) => match event.parent {
                Parent::Known(id) => self.operation_of(id).map_or(StrId::NONE, |o| o.func),
                _ => StrId::NONE,
            },
            _ => StrId::NONE,
        }
    }

    /// A name as text.
    #[must_use]
    pub fn name_text(&self, name: Name) -> String {
        let string = |func| self.timeline.recording().string(func);
        match name {
            Name::Operation(func) => string(func).unwrap_or("operation").into(),
            Name::Event(kind, func) => match string(func) {
                None => kind.name().into(),
                Some(func) => format!("{kind} {func}"),
            },
            Name::Note(text) => string(text).unwrap_or("mark").into(),
            Name::Mark(Mark::Start) => "recording starts".into(),
            Name::Mark(Mark::Stop) => "recording stops".into(),
            Name::Mark(Mark::Step) => "training step".into(),
            Name::Mark(_) => "mark".into(),
            Name::State(state) => state.to_string().trim_start_matches("ProxyStep").into(),
        }
    }

    /// What ties a collective's slices over all ranks together; see [`crate::matching`].
    #[must_use]
    pub fn correlation(&self, what: What) -> Option<u64> {
        let operation = match what {
            What::Operation(index) => self.operation(index).event,
            What::Event(id) => match self.timeline.event(id) {
                event if event.kind() != EventKind::KernelCh => return None,
                Event { parent: Parent::Known(operation), .. } => *operation,
                _ => return None,
            },
            What::Step(_) | What::Mark(_) => return None,
        };
        self.names.collectives.get(&operation).copied()
    }
}

/// All communicators of the process must be of one device: no two are parts of the same.
fn has_one_device(comms: &[Comm]) -> bool {
    let mut seen = HashSet::new();
    comms.len() <= 1 || comms.iter().all(|comm| comm.hash != 0 && seen.insert(comm.hash))
}

fn ptimer(event: &Event) -> u64 {
    match event.start.detail {
        Detail::KernelCh(KernelCh { ptimer, .. })
        | Detail::KernelPhase(KernelPhase { ptimer, .. }) => ptimer,
        _ => 0,
    }
}
