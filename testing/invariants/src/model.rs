// SPDX-License-Identifier: Apache-2.0
//! The events of a recording from its records. Records that refer to nothing are violations.

use crate::{Expect, Verdict};
use ncclscope_trace::record::STEP_SHIFT;
use ncclscope_trace::{
    Comm, Detail, EventKind, Handle, Record, Recording, Start, State, Step, StrId,
};
use std::collections::HashMap;

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// The start record.
    pub start: Start,
    /// The lane of the start record.
    pub lane: usize,
    /// The first stop, in ticks.
    pub stop: Option<u64>,
    /// Number of stops.
    pub stops: u32,
    /// States with their time in ticks and their argument.
    pub states: Vec<(u64, State, u64)>,
    /// Network steps of a ProxyOp.
    pub steps: Vec<Step>,
    /// Children, as indices into [`Model::events`].
    pub children: Vec<usize>,
}

impl Event {
    /// Kind of the event.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        self.start.detail.kind()
    }
}

/// A recording's events.
#[derive(Debug)]
pub struct Model<'a> {
    /// The recording.
    pub recording: &'a Recording,
    /// Events, lane by lane.
    pub events: Vec<Event>,
    by_handle: HashMap<Handle, usize>,
    /// Whether records of the block ring were overwritten or not written: related records may be
    /// missing.
    pub has_gaps: bool,
}

impl<'a> Model<'a> {
    /// Reads the events; records that do not match others go to `verdict`.
    pub(crate) fn read(recording: &'a Recording, verdict: &mut Verdict) -> Model<'a> {
        let header = recording.header();
        let any = |counts: &[u64]| counts.iter().any(|&count| count != 0);
        let mut model = Model {
            recording,
            events: Vec::new(),
            by_handle: HashMap::new(),
            has_gaps: any(&header.overwritten) || any(&header.unwritten),
        };
        let mut ends = Vec::new();
        for lane in 0..recording.lanes().len() {
            model.read_lane(lane, &mut ends, verdict);
        }
        model.end(&ends, verdict);
        for index in 0..model.events.len() {
            if let Some(parent) = model.parent(&model.events[index]) {
                model.events[parent].children.push(index);
            }
        }
        model
    }

    fn read_lane(&mut self, lane: usize, ends: &mut Vec<Record>, verdict: &mut Verdict) {
        let mut latest = 0;
        let mut open_ops: HashMap<u32, usize> = HashMap::new();
        for record in self.recording.records(lane) {
            check_order(lane, &record, &mut latest, verdict);
            match record {
                Record::Start(start) => {
                    let index = self.start(start, lane, verdict);
                    if start.detail.kind() == EventKind::ProxyOp {
                        open_ops.insert(start.handle.op_ref(), index);
                    }
                }
                Record::Step(step) => match open_ops.get(&step.op_ref) {
                    Some(&op) => self.events[op].steps.push(step),
                    None if self.has_gaps => {}
                    None => verdict.violate(
                        "step-of-open-op",
                        format!("lane {lane}: step {} of no ProxyOp that is open", step.step),
                    ),
                },
                Record::Stop { handle, .. } => {
                    if handle.kind() == EventKind::ProxyOp {
                        open_ops.remove(&handle.op_ref());
                    }
                    ends.push(record);
                }
                Record::State { .. } => ends.push(record),
                Record::ClockSync(_)
                | Record::Mark(_)
                | Record::Heartbeat(_)
                | Record::PairCount(_)
                | Record::Unknown { .. } => {}
            }
        }
    }

    fn start(&mut self, start: Start, lane: usize, verdict: &mut Verdict) -> usize {
        let index = self.events.len();
        let handle = start.handle;
        let (kind, process) = (start.detail.kind(), u64::from(self.recording.header().process));
        if (handle.kind(), handle.lane(), handle.process()) != (kind, lane, process) {
            let what = format!("{kind} on lane {lane} has the handle {handle:?} of another");
            verdict.violate("handle", what);
        }
        if self.by_handle.insert(handle, index).is_some() {
            verdict.violate("handle", format!("{handle:?} was given to two events"));
        }
        self.events.push(Event {
            start,
            lane,
            stop: None,
            stops: 0,
            states: Vec::new(),
            steps: Vec::new(),
            children: Vec::new(),
        });
        index
    }

    /// Applies stops and states, which may come from another thread than the start.
    fn end(&mut self, ends: &[Record], verdict: &mut Verdict) {
        for record in ends {
            let (Record::Stop { handle, .. } | Record::State { handle, .. }) = *record else {
                continue;
            };
            let Some(&index) = self.by_handle.get(&handle) else {
                if !self.has_gaps {
                    let what = format!("{handle:?} stopped or changed state and never started");
                    verdict.violate("stop-without-start", what);
                }
                continue;
            };
            let event = &mut self.events[index];
            match *record {
                Record::State { ticks, state, arg, .. } => event.states.push((ticks, state, arg)),
                _ => {
                    event.stops += 1;
                    let ticks = record.ticks();
                    event.stop = Some(event.stop.map_or(ticks, |first| first.min(ticks)));
                }
            }
        }
    }

    /// The event with this handle.
    #[must_use]
    pub fn find(&self, handle: Handle) -> Option<usize> {
        self.by_handle.get(&handle).copied()
    }

    /// The parent of an event. If it is a network step, its ProxyOp.
    #[must_use]
    pub fn parent(&self, event: &Event) -> Option<usize> {
        let parent = event.start.parent;
        if parent.kind() != EventKind::ProxyStep || parent.is_null() {
            return self.find(parent);
        }
        let (process, lane) = (parent.process(), parent.lane());
        self.find(Handle::slot_op(process, lane, parent.generation(), parent.slot()))
    }

    /// The communicator of an event; `None` for work for another process (PXN), which has its own
    /// communicators.
    #[must_use]
    pub fn comm(&self, event: &Event) -> Option<&Comm> {
        if let Detail::ProxyOp(op) = event.start.detail
            && op.foreign
        {
            return None;
        }
        self.recording.comms().iter().find(|comm| comm.index == event.start.comm)
    }

    /// Profiler API version of an event; that of the recording, if the event's communicator is
    /// unknown.
    #[must_use]
    pub fn api(&self, event: &Event) -> u32 {
        let comm = self.comm(event).or_else(|| self.recording.comms().first());
        comm.map_or(0, |comm| comm.api_version)
    }

    /// Ranks and nodes of an event's communicator, as NCCL or the caller reports them.
    #[must_use]
    pub fn size(&self, event: &Event, expect: &Expect) -> (Option<u32>, Option<u32>) {
        let told = |number: u32| (number != 0).then_some(number);
        let comm = self.comm(event);
        let ranks = comm.and_then(|comm| told(comm.ranks)).or(expect.ranks);
        (ranks, comm.and_then(|comm| told(comm.nodes)).or(expect.nodes))
    }

    /// A string; empty if it is missing.
    #[must_use]
    pub fn string(&self, id: StrId) -> &str {
        self.recording.string(id).unwrap_or("")
    }

    /// A text that identifies an event.
    #[must_use]
    pub fn name(&self, event: &Event) -> String {
        format!("{} {:x} on lane {}", event.kind(), event.start.handle.0, event.lane)
    }
}

/// Checks that time stamps do not go back on a lane. A step's record has the time of its start and
/// was written at its end, which is known to 2^[`STEP_SHIFT`] ticks.
fn check_order(lane: usize, record: &Record, latest: &mut u64, verdict: &mut Verdict) {
    let (ticks, slack) = match record {
        // Steps still in flight come after everything else.
        Record::Step(step) => match step.ticks.checked_add(step.end << STEP_SHIFT) {
            Some(end) if step.end != 0 => (end, 1 << STEP_SHIFT),
            _ => return,
        },
        _ => (record.ticks(), 0),
    };
    if ticks + slack < *latest {
        let back = *latest - ticks;
        verdict.violate("lane-order", format!("lane {lane} goes back by {back} ticks"));
    }
    *latest = ticks.max(*latest);
}
