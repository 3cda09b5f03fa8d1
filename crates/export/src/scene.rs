// SPDX-License-Identifier: Apache-2.0
//! One process as a trace shows it: its events with names and times, one view for each rank.

use crate::flows;
use crate::ident::Hash;
use ncclscope_analyze::steps::StepExt;
use ncclscope_analyze::timeline::comm_name;
use ncclscope_analyze::{
    Completion, Event, EventId, GpuClock, Operation, Parent, Timeline, operations,
};
use ncclscope_trace::record::step_flags;
use ncclscope_trace::{Detail, EventKind, StrId};
use std::collections::HashMap;

/// What a slice shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// An event, from its start to its own stop.
    Event(EventId),
    /// An operation, from its start to its completion: index of [`Scene::operation`].
    Operation(u32),
    /// A network step: index of [`Timeline::steps`].
    Step(u32),
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

/// A slice's name: NCCL's word for the event, and the function that it works for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    /// Kind of event; empty where the function says it all.
    pub kind: &'static str,
    /// Function, or none.
    pub func: StrId,
}

/// A rank of the process: one process of the trace.
#[derive(Clone, Debug)]
pub struct View {
    /// Position of its communicator; `None` for events of no known one.
    pub comm: Option<usize>,
    /// Unique over all recordings.
    pub uuid: u64,
    /// Process number in the trace. Several ranks may share a process, and several hosts a process
    /// number, so it is not the process's own; it is at least 2^30, and no track's number.
    pub pid: u32,
    /// `rank 0 (host 4711)`, with the communicator's name where the process has several.
    pub name: String,
    /// The communicator.
    pub comm_name: String,
}

/// A process, ready to be shown.
#[derive(Debug)]
pub struct Scene<'t, 'r> {
    timeline: &'t Timeline<'r>,
    operations: Vec<Operation>,
    by_event: HashMap<EventId, u32>,
    clocks: Vec<Option<GpuClock>>,
    step_keys: HashMap<EventId, u64>,
    end_ns: u64,
    uuid: u64,
}

impl<'t, 'r> Scene<'t, 'r> {
    /// The scene of a timeline, which was read with its steps.
    #[must_use]
    pub fn new(timeline: &'t Timeline<'r>) -> Scene<'t, 'r> {
        let operations = operations(timeline);
        let by_event = (0..).zip(&operations).map(|(at, o)| (o.event, at)).collect();
        let comms = timeline.recording().comms().len();
        let header = timeline.recording().header();
        Scene {
            timeline,
            by_event,
            clocks: (0..comms).map(|comm| GpuClock::of_comm(timeline, comm)).collect(),
            step_keys: flows::step_keys(timeline, &operations),
            operations,
            end_ns: timeline.ns(timeline.recording().last_ticks()),
            uuid: Hash::new("process")
                .text(&header.host)
                .number(u64::from(header.pid))
                .number(u64::from(header.process))
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
    /// What the steps of a ProxyOp are known by on both sides; see [`flows::step_keys`].
    #[must_use]
    pub fn step_key(&self, op: EventId) -> Option<u64> {
        self.step_keys.get(&op).copied()
    }

    /// The ranks of the process, and where there are any, the events of no known communicator.
    #[must_use]
    pub fn views(&self) -> Vec<View> {
        let timeline = self.timeline;
        let comms = timeline.recording().comms();
        let mut views: Vec<View> = (0..comms.len()).map(|at| self.view(Some(at))).collect();
        if comms.is_empty() || timeline.events().any(|(_, e)| timeline.comm_of(e).is_none()) {
            views.push(self.view(None));
        }
        views
    }

    fn view(&self, comm: Option<usize>) -> View {
        let recording = self.timeline.recording();
        let header = recording.header();
        let place = format!("({} {})", header.host, header.pid);
        let id = Hash::new("rank").number(self.uuid);
        let (id, name, comm_name) = match comm.map(|at| (at, &recording.comms()[at])) {
            None => (id, format!("no communicator {place}"), String::new()),
            Some((at, comm)) => {
                let rank =
                    self.timeline.rank(at).map_or_else(|| "?".into(), |rank| rank.to_string());
                let comm_name = comm_name(comm);
                let mut name = format!("rank {rank} {place}");
                if recording.comms().len() > 1 {
                    name.push(' ');
                    name.push_str(comm.name.as_deref().unwrap_or(&comm_name));
                }
                (id.number(comm.hash).number(u64::from(comm.index) + 1), name, comm_name)
            }
        };
        let pid = id.id32() & 0x3fff_ffff | 0x4000_0000;
        View { comm, uuid: id.id(), pid, name, comm_name }
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
            What::Operation(index) => Name { kind: "", func: self.operation(index).func },
            What::Step(_) => Name { kind: EventKind::ProxyStep.name(), func: StrId::NONE },
            What::Event(id) => {
                let event = self.timeline.event(id);
                Name { kind: event.kind().name(), func: self.function(event) }
            }
        }
    }

    fn function(&self, event: &Event) -> StrId {
        match event.start.detail {
            Detail::Coll(coll) => coll.func,
            Detail::P2p(p2p) => p2p.func,
            Detail::CeColl(ce) => ce.func,
            Detail::CollApi(call) | Detail::P2pApi(call) => call.func,
            Detail::KernelPhase { name, .. } => name,
            Detail::ProxyOp(_) | Detail::KernelCh { .. } => match event.parent {
                Parent::Known(id) => self.operation_of(id).map_or(StrId::NONE, |o| o.func),
                _ => StrId::NONE,
            },
            _ => StrId::NONE,
        }
    }

    /// A name as text.
    #[must_use]
    pub fn name_text(&self, name: Name) -> String {
        let func = self.timeline.recording().string(name.func);
        match (name.kind, func) {
            ("", func) => func.unwrap_or("operation").into(),
            (kind, None) => kind.into(),
            (kind, Some(func)) => format!("{kind} {func}"),
        }
    }

    /// What ties a collective's slices over all ranks together: the communicator, the function and
    /// the sequence number. Operations without one have none.
    #[must_use]
    pub fn correlation(&self, what: What) -> Option<u64> {
        let operation = match what {
            What::Operation(index) => self.operation(index),
            What::Event(id) => {
                match (self.timeline.event(id).kind(), self.timeline.event(id).parent) {
                    (EventKind::KernelCh, Parent::Known(op)) => self.operation_of(op)?,
                    _ => return None,
                }
            }
            What::Step(_) => return None,
        };
        let comm = self.timeline.comm(operation.comm?);
        let func = self.timeline.string(operation.func);
        let hash = Hash::new("collective").text(&comm_name(comm)).text(func);
        Some(hash.number(operation.seq?).id())
    }
}

fn ptimer(event: &Event) -> u64 {
    match event.start.detail {
        Detail::KernelCh { ptimer, .. } | Detail::KernelPhase { ptimer, .. } => ptimer,
        _ => 0,
    }
}
