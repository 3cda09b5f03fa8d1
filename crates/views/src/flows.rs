// SPDX-License-Identifier: Apache-2.0
/*!
Arrows between slices: from an API call to its operation, from an operation to its kernels and its
ProxyOps, and from a send step to the peer's receive step.

An arrow leaves a slice's start and points at a later slice's start; those between steps are at
their states: where the data goes to the network, and where it has arrived.
*/

use crate::ident::Hash;
use crate::matching::StepIndex;
use crate::scene::{Scene, States, What};
use ncclscope_operations::{Event, EventId, Parent};
use ncclscope_trace::EventKind;
use ncclscope_trace::record::step_flags;

/// The arrows at one slice that is no step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// Leave the slice's start.
    pub out: Vec<u64>,
    /// Points at the slice's start.
    pub into_start: Option<u64>,
}

/// The arrows at an operation or an event.
#[must_use]
pub fn flows(scene: &Scene<'_, '_>, what: What) -> Flows {
    let (id, kind) = match what {
        What::Operation(at) => (scene.operation(at).event, None),
        What::Event(id) => (id, Some(scene.timeline().event(id).kind())),
        What::Step(_) | What::Mark(_) => return Flows::default(),
    };
    match kind {
        None => Flows { out: out_of(scene, id), into_start: into(scene, id) },
        Some(EventKind::CollApi | EventKind::P2pApi) => {
            Flows { out: out_of(scene, id), into_start: None }
        }
        Some(EventKind::ProxyOp | EventKind::KernelCh) => {
            Flows { out: Vec::new(), into_start: into(scene, id) }
        }
        Some(_) => Flows::default(),
    }
}

/// What became of the arrows between steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepArrows {
    /// Steps with an arrow.
    pub linked: u64,
    /// Steps whose peer's step is not in the recordings.
    pub alone: u64,
    /// Steps whose peer's step nobody can tell: see [`crate::matching`].
    pub unknowable: u64,
}

/// The arrow at a step. It leaves a send where the data goes to the network, at the start of its
/// last state, and points at a receive where the data has arrived, at the start of the state after
/// the first. The receive itself is posted before the data is sent, and viewers take the slice that
/// starts first for an arrow's source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepArrow {
    /// The same on both sides.
    pub(crate) id: u64,
    /// It leaves here.
    pub(crate) is_out: bool,
    /// The state that it is at; without one, a send's start or a receive's end.
    pub(crate) state: Option<usize>,
}

/// Gives the arrows of the steps of a process, which come ProxyOp by ProxyOp.
#[derive(Debug)]
pub(crate) struct StepLinks<'s, 't, 'r> {
    scene: &'s Scene<'t, 'r>,
    index: &'s StepIndex,
    /// The last ProxyOp, its name, and its steps that both sides have.
    last: Option<(EventId, Option<u64>, &'s [u32])>,
    /// What it said so far.
    pub(crate) seen: StepArrows,
}

impl<'s, 't, 'r> StepLinks<'s, 't, 'r> {
    pub(crate) fn new(scene: &'s Scene<'t, 'r>, index: &'s StepIndex) -> Self {
        StepLinks { scene, index, last: None, seen: StepArrows::default() }
    }

    /// The arrow at a step with these states.
    pub(crate) fn of(&mut self, step: u32, states: &States) -> Option<StepArrow> {
        let (op, step) = &self.scene.timeline().steps()[step as usize];
        let id = self.find(*op, step.step)?;
        let is_out = step.has(step_flags::IS_SEND);
        let is_shown = |at: &usize| states[*at].is_some();
        let state = if is_out { (0..3).rfind(is_shown) } else { (1..3).find(is_shown) };
        Some(StepArrow { id, is_out, state })
    }

    fn find(&mut self, op: EventId, step: u32) -> Option<u64> {
        let (name, steps) = match self.last {
            Some((last, name, steps)) if last == op => (name, steps),
            _ => {
                let name = self.scene.proxy_name(op);
                let steps = name.map_or(&[][..], |name| self.index.steps(name));
                self.last = Some((op, name, steps));
                (name, steps)
            }
        };
        let Some(name) = name else {
            self.seen.unknowable += 1;
            return None;
        };
        if steps.binary_search(&step).is_err() {
            self.seen.alone += 1;
            return None;
        }
        self.seen.linked += 1;
        Some(Hash::new("step").number(name).number(u64::from(step)).id())
    }
}

/// Arrows from a call to its operations and their kernels, or from an operation to its ProxyOps.
fn out_of(scene: &Scene<'_, '_>, id: EventId) -> Vec<u64> {
    let timeline = scene.timeline();
    let mut targets: Vec<EventId> = timeline.children(id).to_vec();
    if is_call(timeline.event(id)) {
        for &operation in timeline.children(id) {
            targets.extend(timeline.children(operation));
        }
    }
    targets.retain(|&target| source_of(scene, target) == Some(id));
    targets.into_iter().map(|target| flow_id(scene, target)).collect()
}

fn into(scene: &Scene<'_, '_>, id: EventId) -> Option<u64> {
    source_of(scene, id).map(|_| flow_id(scene, id))
}

fn flow_id(scene: &Scene<'_, '_>, target: EventId) -> u64 {
    let handle = scene.timeline().event(target).start.handle;
    Hash::new("flow").number(scene.uuid()).number(handle.0).id()
}

fn is_call(event: &Event) -> bool {
    matches!(event.kind(), EventKind::CollApi | EventKind::P2pApi)
}

/// The event that an arrow to `id` comes from. A kernel may start before the host gets to record
/// its operation: then its arrow comes from the call. No arrow points back in time.
fn source_of(scene: &Scene<'_, '_>, id: EventId) -> Option<EventId> {
    let timeline = scene.timeline();
    let event = timeline.event(id);
    let Parent::Known(parent) = event.parent else { return None };
    let operation = || scene.operation_of(parent).map(|operation| operation.event);
    let call_of = |id: EventId| match timeline.event(id).parent {
        Parent::Known(call) if is_call(timeline.event(call)) => Some(call),
        _ => None,
    };
    let sources = match event.kind() {
        EventKind::Coll | EventKind::P2p | EventKind::CeColl => [call_of(id), None],
        EventKind::ProxyOp => [operation(), None],
        EventKind::KernelCh => [operation(), call_of(parent)],
        _ => [None, None],
    };
    let start = scene.start_ns(event);
    let is_before = |id: &EventId| scene.start_ns(timeline.event(*id)) <= start;
    sources.into_iter().flatten().find(is_before)
}
