// SPDX-License-Identifier: Apache-2.0
/*!
Converts a process's records to tracks and slices, the same for all trace formats.

# Records to slices

[`Timeline`] has joined the records of a process to events by their handles. Each event becomes a
[`Slice`]: a time range with a name ([`Name`]), a category ([`Scene::category`]) and arguments
([`crate::args`]):

| slice | from | to |
| --- | --- | --- |
| an event | its start record | its own stop record |
| a kernel channel or phase | the GPU's stamp of its start | that of its end, on the host's clock |
| an operation | see below | |
| a network step | its start | its end; inside it lie its states, the three waits |
| a mark | its time | the same; a training step lasts to the next one |

The slice of an event that has not stopped lasts to the end of the recording, and has the argument
`open`. But NCCL also starts ProxyOps for shared memory and peer access, and never advances or stops
them. Their slices last to the known end of their operation, so that they can share tracks.

A Coll event ends when NCCL has *enqueued* the operation, so its length is not the operation's
duration. It is on the track "Groups", and the operation has a separate slice on "Operations", whose
length is the duration in `report` ([`Operation::duration_ns`]):

- If the GPU's timer measured it (timing `kernel`, `kernel_lead`), the slice begins with the first
  kernel channel, and so covers the channels' slices exactly.
- If CUDA events measured it (`cuda_event`), the slice ends with the last part of the operation, but
  does not begin before NCCL enqueued it.
- If it is by the host's clock (`proxy`, `enqueue`), the slice begins when NCCL enqueued the
  operation.
- Without a duration, the slice lasts from the operation's start to its known end.

# Slices to tracks

The track of a slice depends on its event ([`crate::tracks`]): on the level (calls, groups,
operations) and below that on channel and peer. Viewers drop slices of a track that cross, or show
wrong durations. So slices that cross are distributed over several tracks of one name; the steps of
a ProxyOp stay under its slice.

# Ranks

A process of the trace is a rank ([`Scene::views`]), with a group of tracks for each communicator
that it has a part in.

# Time

All times are nanoseconds on the axis of the trace ([`Axis`]). For a trace of ours that is
`CLOCK_REALTIME`. In a profile that PyTorch wrote, it is the profile's clock: the host's times are
shifted by the offset that the join found, the GPU's by the offset of its kernels, and slices
outside of the profile's time are not shown.
*/

use crate::ident::{Hash, Map};
use crate::matching::Names;
use ncclscope_operations::operation::valid_ptimers;
use ncclscope_operations::stats::to_u64;
use ncclscope_operations::steps::{StepExt, states};
use ncclscope_operations::timeline::comm_name;
use ncclscope_operations::{
    Completion, Event, EventId, GpuClocks, Operation, Parent, Selection, Timeline, Timing,
    operations,
};
use ncclscope_trace::handle::STEPS_IN_FLIGHT;
use ncclscope_trace::record::{KernelCh, KernelPhase, step_flags};
use ncclscope_trace::vectors::origin_number;
use ncclscope_trace::{Comm, Detail, EventKind, MarkKind, State, Step, StrId};

/// What a slice shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SliceSource {
    /// An event, from its start to its own stop.
    Event(EventId),
    /// An operation: index of [`Scene::operation`].
    Operation(u32),
    /// A network step: index of [`Timeline::steps`].
    Step(u32),
    /// A mark, or the training step that begins at it: index of
    /// [`ncclscope_trace::Recording::marks`].
    Mark(u32),
}

/// A time range on a track; ns on the trace's axis.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Its start.
    pub start: u64,
    /// Its end, not before its start.
    pub end: u64,
    /// What it shows.
    pub what: SliceSource,
    /// It has not stopped; `end` is the end of the recording, or of the operation that it belongs
    /// to.
    pub open: bool,
}

/// The time axis of a trace, and the time that it shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Added to the host's times (`CLOCK_REALTIME`), ns.
    pub host_ns: i64,
    /// Added to the GPU's times after their conversion to the host's clock, ns.
    pub gpu_ns: i64,
    /// First and last time that is shown, ns on the axis.
    pub window: (u64, u64),
}

impl Default for Axis {
    /// `CLOCK_REALTIME`, without a limit of time.
    fn default() -> Axis {
        Axis { host_ns: 0, gpu_ns: 0, window: (0, u64::MAX) }
    }
}

/// The states of a step in their order: name, start and end in ns.
pub type States = [Option<(State, u64, u64)>; 3];

/// The name of a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
    /// An operation: its function.
    Operation(StrId),
    /// An event: NCCL's word for its kind, and the function of its operation, if there is one.
    Event(EventKind, StrId),
    /// A state of a step: NCCL's word for it.
    State(State),
    /// The text of a mark.
    Note(StrId),
    /// A mark: its kind.
    Mark(MarkKind),
}

impl Name {
    /// A number that is different for each name.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Name::Operation(func) => u64::from(func.0),
            Name::Event(kind, func) => (kind.index() as u64 + 1) << 16 | u64::from(func.0),
            Name::State(state) => (u64::from(state.0) + 0x100) << 16,
            Name::Note(text) => 0x200 << 16 | u64::from(text.0),
            Name::Mark(MarkKind::Start) => 0x300 << 16,
            Name::Mark(MarkKind::Stop) => 0x301 << 16,
            Name::Mark(MarkKind::Mask) => 0x304 << 16,
            Name::Mark(MarkKind::Step) => 0x302 << 16,
            Name::Mark(_) => 0x303 << 16,
        }
    }
}

/// The operations and events of a communicator.
#[derive(Debug, Default)]
pub(crate) struct CommParts {
    /// Its operations, by index.
    pub(crate) operations: Vec<u32>,
    pub(crate) events: Vec<EventId>,
}

/// A process, ready to be shown.
#[derive(Debug)]
pub struct Scene<'t, 'r> {
    timeline: &'t Timeline<'r>,
    operations: Vec<Operation>,
    by_event: Map<EventId, u32>,
    by_comm: Map<Option<usize>, CommParts>,
    clocks: GpuClocks,
    steps_by_op: Map<EventId, Vec<u32>>,
    names: Names,
    /// The hash or name of each communicator in reports, and this process's rank in it.
    members: Vec<(String, Option<i32>)>,
    /// The GPU's time at which each operation's first kernel channel began; 0 if unknown.
    first_ptimers: Vec<u64>,
    axis: Axis,
    selection: Selection,
    end_ns: u64,
    uuid: u64,
}

impl<'t, 'r> Scene<'t, 'r> {
    /// The scene of a timeline, on `CLOCK_REALTIME`. The timeline must have been read with its
    /// steps.
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
            by_comm: by_comm(timeline, &operations),
            clocks: GpuClocks::of(timeline),
            names: Names::new(timeline, &operations),
            members: (0..).zip(comms).map(|(at, comm)| member(timeline, at, comm)).collect(),
            first_ptimers: operations.iter().map(|o| first_ptimer(timeline, o)).collect(),
            axis: Axis::default(),
            selection: Selection::default(),
            operations,
            steps_by_op,
            end_ns: timeline.ns(recording.last_ticks()),
            // Containers may share a host name and a process id, and a recording may lack its
            // process's identity; the first communicator then distinguishes it.
            uuid: Hash::new("process")
                .number(origin_number(recording.identity()))
                .number(u64::from(header.process))
                .number(comms.first().map_or(0, |comm| comm.hash))
                .rank(comms.first().map_or(-1, |comm| comm.rank))
                .id(),
        }
    }

    /// Changes the axis.
    #[must_use]
    pub fn on(self, axis: Axis) -> Scene<'t, 'r> {
        let mut scene = Scene { axis, ..self };
        scene.end_ns = scene.ns(scene.timeline.recording().last_ticks());
        scene
    }

    /// Restricts it to a selection.
    #[must_use]
    pub fn of(mut self, selection: &Selection) -> Scene<'t, 'r> {
        let (timeline, operations) = (self.timeline, &self.operations);
        for (&comm, parts) in &mut self.by_comm {
            if !selection.has_comm(comm) {
                *parts = CommParts::default();
                continue;
            }
            parts.operations.retain(|&at| {
                let operation = &operations[at as usize];
                selection.has_event(timeline, timeline.event(operation.event))
            });
            parts.events.retain(|&id| selection.has_event(timeline, timeline.event(id)));
        }
        let shift = |ns: u64| match ns {
            0 | u64::MAX => ns,
            ns => ns.saturating_add_signed(self.axis.host_ns),
        };
        let ((first, last), (from, to)) = (selection.window(), self.axis.window);
        self.axis.window = (shift(first).max(from), shift(last).min(to));
        self.selection = selection.clone();
        self
    }

    /// Whether the trace shows network steps.
    #[must_use]
    pub fn shows_steps(&self) -> bool {
        self.selection.has_kind(EventKind::ProxyStep)
    }

    /// Whether the trace shows a communicator, or for `None`, events without a known one.
    pub(crate) fn shows_comm(&self, comm: Option<usize>) -> bool {
        self.selection.has_comm(comm)
    }

    /// Converts host ticks to ns on the axis.
    #[must_use]
    pub fn ns(&self, ticks: u64) -> u64 {
        self.timeline.ns(ticks).saturating_add_signed(self.axis.host_ns)
    }

    /// Whether the trace shows the time of a slice.
    #[must_use]
    pub fn is_shown(&self, slice: &Slice) -> bool {
        self.is_in_window(slice.start, slice.end)
    }

    /// Whether the trace shows a part of this time.
    pub(crate) fn is_in_window(&self, start: u64, end: u64) -> bool {
        let (first, last) = self.axis.window;
        start <= last && end >= first
    }

    /// The timeline.
    #[must_use]
    pub fn timeline(&self) -> &'t Timeline<'r> {
        self.timeline
    }
    /// The clocks of the GPUs.
    #[must_use]
    pub fn clocks(&self) -> &GpuClocks {
        &self.clocks
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
    /// The index of the operation whose own event this is.
    #[must_use]
    pub fn operation_at(&self, event: EventId) -> Option<u32> {
        self.by_event.get(&event).copied()
    }
    /// The operation whose own event this is.
    #[must_use]
    pub fn operation_of(&self, event: EventId) -> Option<&Operation> {
        self.operation_at(event).map(|at| self.operation(at))
    }
    /// The name that the application gave a communicator, else its hash.
    #[must_use]
    pub fn comm_name(&self, position: usize) -> &str {
        self.named(position).unwrap_or_else(|| self.comm(position))
    }
    /// The hash of a communicator.
    #[must_use]
    pub fn comm(&self, position: usize) -> &str {
        &self.members[position].0
    }
    /// The name that the application gave a communicator.
    #[must_use]
    pub fn named(&self, position: usize) -> Option<&str> {
        self.timeline.comm(position).name.as_deref()
    }
    /// The role of a communicator, such as `tp`, if the application set one.
    #[must_use]
    pub fn role(&self, position: usize) -> Option<&str> {
        self.timeline.recording().role(self.timeline.comm(position))
    }
    /// The rank in a communicator.
    #[must_use]
    pub fn rank(&self, position: usize) -> Option<i32> {
        self.members[position].1
    }
    /// Unique over all recordings.
    #[must_use]
    pub fn uuid(&self) -> u64 {
        self.uuid
    }
    /// The operations and events of the communicator at a position, or for `None`, of no known one.
    pub(crate) fn of_comm(&self, comm: Option<usize>) -> &CommParts {
        const NOTHING: &CommParts = &CommParts { operations: Vec::new(), events: Vec::new() };
        self.by_comm.get(&comm).unwrap_or(NOTHING)
    }

    /// The steps of a ProxyOp: indices of [`Timeline::steps`].
    #[must_use]
    pub fn steps_of(&self, op: EventId) -> &[u32] {
        self.steps_by_op.get(&op).map_or(&[], Vec::as_slice)
    }

    /// The step that an event of the network plugin belongs to; `None` if it is not recorded. The
    /// event's parent handle has the step's number modulo 8, and the event began during the step.
    #[must_use]
    pub fn step_of_net(&self, event: &Event) -> Option<&Step> {
        let (Parent::Known(op), step) = (event.parent, event.start.parent) else { return None };
        if step.kind() != EventKind::ProxyStep {
            return None;
        }
        let steps = self.steps_of(op).iter().map(|&at| &self.timeline.steps()[at as usize].1);
        let mut its = steps.filter(|of| u64::from(of.step) % STEPS_IN_FLIGHT as u64 == step.0 & 7);
        its.find(|of| of.ticks <= event.start.ticks && event.start.ticks <= of.end_ticks())
    }

    /// The name of a ProxyOp, the same on both sides; see the module `matching`.
    #[must_use]
    pub fn proxy_name(&self, op: EventId) -> Option<u64> {
        self.names.proxy_ops.get(&op).copied()
    }

    /// The slice of an event. KernelCh and KernelPhase have the times of the GPU's timer if these
    /// are known.
    #[must_use]
    pub fn event_slice(&self, id: EventId) -> Slice {
        let event = self.timeline.event(id);
        let start = self.start_ns(event);
        let stop = self.gpu_stop_ns(event).or_else(|| event.stop.map(|ticks| self.ns(ticks)));
        let what = SliceSource::Event(id);
        let open = event.stop.is_none();
        let end = stop.unwrap_or_else(|| self.end_without_stop(event));
        Slice { start, end: end.max(start), what, open }
    }

    /// The end of the slice of an event that has not stopped: that of its operation, for a ProxyOp
    /// that NCCL has not advanced and whose operation is over; else the end of the recording.
    fn end_without_stop(&self, event: &Event) -> u64 {
        let is_moved = event.first_state.is_some() || event.steps.is_some();
        let operation = match event.parent {
            Parent::Known(id) if event.kind() == EventKind::ProxyOp && !is_moved => {
                self.operation_of(id)
            }
            _ => None,
        };
        let last = operation.and_then(|operation| self.last_of(operation));
        last.map_or(self.end_ns, |ticks| self.ns(ticks))
    }

    /// The known end of an operation, in ticks; `None` while it is open.
    fn last_of(&self, operation: &Operation) -> Option<u64> {
        match operation.completion {
            Completion::Done(ticks) => Some(ticks),
            Completion::Unseen => self.timeline.event(operation.event).stop,
            Completion::Open => None,
        }
    }

    /// When an event started.
    #[must_use]
    pub fn start_ns(&self, event: &Event) -> u64 {
        self.gpu_ns(event, ptimer(event)).unwrap_or_else(|| self.ns(event.start.ticks))
    }

    fn gpu_stop_ns(&self, event: &Event) -> Option<u64> {
        let (start, (stop, _)) = (ptimer(event), event.ptimer_stop?);
        event.stop?;
        self.gpu_ns(event, start).filter(|_| stop >= start)?;
        self.gpu_ns(event, stop)
    }

    fn gpu_ns(&self, event: &Event, ptimer: u64) -> Option<u64> {
        let clock = self.clocks.of_comm(self.timeline.comm_of(event)?)?;
        (ptimer != 0).then(|| clock.host_ns(ptimer).saturating_add_signed(self.axis.gpu_ns))
    }

    /// The slice of an operation. Its length is the duration in `report`; see the module's
    /// documentation.
    #[must_use]
    pub fn operation_slice(&self, index: u32) -> Slice {
        let operation = self.operation(index);
        let event = self.timeline.event(operation.event);
        let (what, start) = (SliceSource::Operation(index), self.ns(event.start.ticks));
        let last = self.last_of(operation);
        let end = last.map_or(self.end_ns, |ticks| self.ns(ticks)).max(start);
        let open = operation.completion == Completion::Open;
        let Some(length) = operation.duration_ns.map(to_u64) else {
            return Slice { start, end, what, open };
        };
        let before_end = || end.saturating_sub(length).max(start);
        let start = match operation.timing {
            Timing::Proxy | Timing::Enqueue => start,
            Timing::Event => before_end(),
            Timing::Kernel | Timing::KernelLead => {
                let ptimer = self.first_ptimers[index as usize];
                self.gpu_ns(event, ptimer).unwrap_or_else(before_end)
            }
        };
        Slice { start, end: start.saturating_add(length), what, open }
    }

    /// The states of the step `index`, with start and end in ns, inside of its `slice`. States that
    /// took no time are left out.
    #[must_use]
    pub fn step_states(&self, index: u32, slice: &Slice) -> States {
        let (_, step) = &self.timeline.steps()[index as usize];
        let (ticks, waits) = (step.state_ticks(), step.waits());
        let states = states(step.has(step_flags::IS_SEND));
        let (from, to) = (slice.start, slice.end);
        let (start, length) = (step.ticks, step.end_ticks().saturating_sub(step.ticks).max(1));
        // Interpolated in the slice, which is exact unless the clocks were compared during the
        // step.
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
        let (start, end) = (self.ns(step.ticks), self.ns(step.end_ticks()));
        let open = !step.has(step_flags::STOPPED);
        Slice { start, end: end.max(start), what: SliceSource::Step(index), open }
    }

    /// The start of a slice, as [`Slice::start`], without computing the whole slice.
    #[must_use]
    pub fn start_of(&self, what: SliceSource) -> u64 {
        match what {
            SliceSource::Event(id) => self.start_ns(self.timeline.event(id)),
            SliceSource::Operation(index) => self.operation_slice(index).start,
            SliceSource::Step(index) => self.ns(self.timeline.steps()[index as usize].1.ticks),
            SliceSource::Mark(index) => {
                self.ns(self.timeline.recording().marks()[index as usize].ticks)
            }
        }
    }

    /// The category of a slice, by which viewers filter. The states of a step have the step's.
    #[must_use]
    pub fn category(&self, what: SliceSource) -> &'static str {
        match what {
            SliceSource::Operation(_) => "operation",
            SliceSource::Step(_) => "step",
            SliceSource::Mark(_) => "mark",
            SliceSource::Event(id) => self.timeline.event(id).kind().part().category(),
        }
    }

    /// A slice's name.
    #[must_use]
    pub fn name(&self, what: SliceSource) -> Name {
        match what {
            SliceSource::Operation(index) => Name::Operation(self.operation(index).func),
            SliceSource::Step(_) => Name::Event(EventKind::ProxyStep, StrId::NONE),
            SliceSource::Event(id) => {
                let event = self.timeline.event(id);
                Name::Event(event.kind(), self.function(event))
            }
            SliceSource::Mark(index) => match self.timeline.recording().marks()[index as usize] {
                mark if mark.what == MarkKind::Note => Name::Note(mark.name),
                mark => Name::Mark(mark.what),
            },
        }
    }

    /// The slices of the marks. A training step lasts to the next one; other marks are moments.
    pub fn marks(&self) -> impl Iterator<Item = Slice> {
        let marks = self.timeline.recording().marks();
        let steps = marks.iter().filter(|mark| mark.what == MarkKind::Step);
        let mut steps: Vec<u64> = steps.map(|mark| mark.ticks).collect();
        steps.sort_unstable();
        (0u32..).zip(marks).map(move |(index, mark)| {
            let (start, what) = (self.ns(mark.ticks), SliceSource::Mark(index));
            if mark.what != MarkKind::Step {
                return Slice { start, end: start, what, open: false };
            }
            let next = steps.get(steps.partition_point(|&ticks| ticks <= mark.ticks));
            let end = next.map_or(self.end_ns, |&ticks| self.ns(ticks));
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
            Name::Mark(MarkKind::Start) => "recording starts".into(),
            Name::Mark(MarkKind::Stop) => "recording stops".into(),
            Name::Mark(MarkKind::Mask) => "activation mask changes from outside".into(),
            Name::Mark(MarkKind::Step) => "training step".into(),
            Name::Mark(_) => "mark".into(),
            Name::State(state) => state.to_string().trim_start_matches("ProxyStep").into(),
        }
    }

    /// A number that a collective's slices share on all ranks; see the module `matching`.
    #[must_use]
    pub fn correlation(&self, what: SliceSource) -> Option<u64> {
        let operation = match what {
            SliceSource::Operation(index) => self.operation(index).event,
            SliceSource::Event(id) => match self.timeline.event(id) {
                event if event.kind() != EventKind::KernelCh => return None,
                Event { parent: Parent::Known(operation), .. } => *operation,
                _ => return None,
            },
            SliceSource::Step(_) | SliceSource::Mark(_) => return None,
        };
        self.names.collectives.get(&operation).copied()
    }
}

/// The operations and events of each communicator, in one pass, because there may be as many
/// communicators as operations.
fn by_comm(timeline: &Timeline<'_>, operations: &[Operation]) -> Map<Option<usize>, CommParts> {
    let mut parts: Map<Option<usize>, CommParts> = Map::default();
    for (index, operation) in (0..).zip(operations) {
        parts.entry(operation.comm).or_default().operations.push(index);
    }
    for (id, event) in timeline.events() {
        parts.entry(timeline.comm_of(event)).or_default().events.push(id);
    }
    parts
}

fn member(timeline: &Timeline<'_>, position: usize, comm: &Comm) -> (String, Option<i32>) {
    (comm_name(comm), timeline.rank(position))
}

/// The GPU's time at which the first kernel channel of an operation began; 0 if unknown.
fn first_ptimer(timeline: &Timeline<'_>, operation: &Operation) -> u64 {
    let children = timeline.children(operation.event).iter().map(|&id| timeline.event(id));
    let starts = children.filter_map(|child| match child.start.detail {
        Detail::KernelCh(KernelCh { ptimer, .. }) => {
            let times = (ptimer, child.ptimer_stop.map(|(stop, _)| stop));
            valid_ptimers(times).map(|(start, _)| start)
        }
        _ => None,
    });
    starts.min().unwrap_or(0)
}

fn ptimer(event: &Event) -> u64 {
    match event.start.detail {
        Detail::KernelCh(KernelCh { ptimer, .. })
        | Detail::KernelPhase(KernelPhase { ptimer, .. }) => ptimer,
        _ => 0,
    }
}
