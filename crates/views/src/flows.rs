// SPDX-License-Identifier: Apache-2.0
/*!
Arrows between slices: from an API call to its operation, from an operation (or its call) to its
kernels and its ProxyOps, and from a send step to the peer's receive step.

An arrow leads from a slice's start to a later slice's start. An arrow between steps leads from the
state in which the data goes to the network to the state in which it has arrived.
*/

use crate::ident::Hash;
use crate::scene::{Scene, SliceSource, States};
use crate::step_index::StepIndex;
use ncclscope_operations::{Event, EventId, Parent};
use ncclscope_trace::EventKind;
use ncclscope_trace::record::step_flags;

/// The arrows at a slice other than a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// Ids of the arrows that leave the slice's start.
    pub out: Vec<u64>,
    /// Id of the arrow that points at the slice's start.
    pub into_start: Option<u64>,
}

/// The arrows at an operation or an event.
#[must_use]
pub fn flows(scene: &Scene<'_, '_>, what: SliceSource) -> Flows {
    let mut targets = targets(scene, what);
    targets.retain(|&target| source_of(scene, target) == Some(what));
    Flows {
        out: targets.into_iter().map(|target| flow_id(scene, target)).collect(),
        into_start: source_of(scene, what).map(|_| flow_id(scene, what)),
    }
}

/// Counts of the steps with and without an arrow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepArrows {
    /// Steps with an arrow.
    pub linked: u64,
    /// Steps whose peer's step is not in the recordings.
    pub alone: u64,
    /// Steps whose peer's step cannot be determined: see the module `matching`.
    pub unknowable: u64,
}

/// The arrow at a step. It leaves a send at the start of its last state, when the data goes to the
/// network, and points at a receive at the start of the state after the first, when the data has
/// arrived. It is not at the receive's own start, because the receive is posted before the data is
/// sent, and viewers treat the slice that starts first as the arrow's source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepArrow {
    /// Its id, the same on both sides.
    pub(crate) id: u64,
    /// It leaves this step; else it points at it.
    pub(crate) is_out: bool,
    /// Index of the state at which it is; `None`: at a send's start or a receive's end.
    pub(crate) state: Option<usize>,
}

/// Finds the arrows of the steps of a process, which must be passed ProxyOp by ProxyOp.
#[derive(Debug)]
pub(crate) struct StepLinks<'s, 't, 'r> {
    scene: &'s Scene<'t, 'r>,
    index: &'s StepIndex,
    /// The latest ProxyOp, its name, and its steps that both sides recorded.
    last: Option<(EventId, Option<u64>, &'s [u32])>,
    /// Counts of the steps so far.
    pub(crate) seen: StepArrows,
}

impl<'s, 't, 'r> StepLinks<'s, 't, 'r> {
    pub(crate) fn new(scene: &'s Scene<'t, 'r>, index: &'s StepIndex) -> Self {
        StepLinks { scene, index, last: None, seen: StepArrows::default() }
    }

    /// The arrow at a step with these states; `None` if it has none.
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

/// The slices to which arrows may lead from `what`: from a call its operations and their kernels
/// and ProxyOps; from an operation or its enqueuing, its kernels and ProxyOps.
fn targets(scene: &Scene<'_, '_>, what: SliceSource) -> Vec<SliceSource> {
    let timeline = scene.timeline();
    let parts = |id| timeline.children(id).iter().map(|&part| SliceSource::Event(part));
    match what {
        SliceSource::Operation(at) => parts(scene.operation(at).event).collect(),
        SliceSource::Event(id) if is_call(timeline.event(id)) => {
            let operations = timeline.children(id).iter();
            let of = |&id| {
                scene.operation_at(id).map(SliceSource::Operation).into_iter().chain(parts(id))
            };
            operations.flat_map(of).collect()
        }
        SliceSource::Event(id) if scene.operation_at(id).is_some() => parts(id).collect(),
        _ => Vec::new(),
    }
}

fn flow_id(scene: &Scene<'_, '_>, target: SliceSource) -> u64 {
    let handle = event_of(scene, target).map_or(0, |id| scene.timeline().event(id).start.handle.0);
    Hash::new("flow").number(scene.uuid()).number(handle).id()
}

fn event_of(scene: &Scene<'_, '_>, what: SliceSource) -> Option<EventId> {
    match what {
        SliceSource::Operation(at) => Some(scene.operation(at).event),
        SliceSource::Event(id) => Some(id),
        SliceSource::Step(_) | SliceSource::Mark(_) => None,
    }
}

fn is_call(event: &Event) -> bool {
    matches!(event.kind(), EventKind::CollApi | EventKind::P2pApi)
}

/// The slice from which an arrow leads to `what`. It is the operation, unless `what` starts
/// earlier, as a kernel that starts before the host records its operation, or a ProxyOp that starts
/// before the kernel. Then it is the call, or if NCCL does not report calls, the enqueuing of the
/// operation. No arrow points backward in time.
fn source_of(scene: &Scene<'_, '_>, what: SliceSource) -> Option<SliceSource> {
    let timeline = scene.timeline();
    let call_of = |id: EventId| match timeline.event(id).parent {
        Parent::Known(call) if is_call(timeline.event(call)) => Some(SliceSource::Event(call)),
        _ => None,
    };
    let sources = match what {
        SliceSource::Operation(at) => [call_of(scene.operation(at).event), None, None],
        SliceSource::Event(id) => {
            let event = timeline.event(id);
            let is_part = matches!(event.kind(), EventKind::ProxyOp | EventKind::KernelCh);
            let Parent::Known(parent) = event.parent else { return None };
            let operation = scene.operation_at(parent).filter(|_| is_part)?;
            [
                Some(SliceSource::Operation(operation)),
                call_of(parent),
                Some(SliceSource::Event(parent)),
            ]
        }
        SliceSource::Step(_) | SliceSource::Mark(_) => return None,
    };
    let start = scene.start_of(what);
    sources.into_iter().flatten().find(|&source| scene.start_of(source) <= start)
}
