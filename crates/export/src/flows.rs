// SPDX-License-Identifier: Apache-2.0
/*!
Arrows between slices: from an API call to its operation and its kernels, from an operation to its
ProxyOps, and from a send step to the peer's receive step.

An arrow leaves a slice's start and points at a later slice's start; a step's arrow points at the
receive's end, because receives are posted before the data is sent.
*/

use crate::ident::Hash;
use crate::scene::{Scene, What};
use ncclscope_analyze::timeline::comm_name;
use ncclscope_analyze::{Event, EventId, Operation, Parent, Timeline};
use ncclscope_trace::record::step_flags;
use ncclscope_trace::{Detail, EventKind};
use std::collections::HashMap;

/// The arrows at one slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// Leave the slice's start.
    pub out: Vec<u64>,
    /// Point at the slice's start.
    pub into_start: Option<u64>,
    /// Points at the slice's end.
    pub into_end: Option<u64>,
}

/// The steps that were recorded on both sides.
#[derive(Debug, Default)]
pub struct FlowIndex {
    sends: Vec<u64>,
    receives: Vec<u64>,
}

impl FlowIndex {
    /// Adds the steps of a process.
    pub fn add(&mut self, scene: &Scene<'_, '_>) {
        for (op, step) in scene.timeline().steps() {
            let Some(key) = scene.step_key(*op) else { continue };
            let id = step_id(key, step.step);
            let is_send = step.has(step_flags::IS_SEND);
            if is_send { self.sends.push(id) } else { self.receives.push(id) }
        }
    }

    /// Keeps what both sides have; to be called after the last [`FlowIndex::add`].
    pub fn finish(&mut self) {
        self.sends.sort_unstable();
        self.sends.dedup();
        let receives = &mut self.receives;
        receives.sort_unstable();
        receives.dedup();
        self.sends.retain(|id| receives.binary_search(id).is_ok());
        self.receives = Vec::new();
    }

    fn has(&self, id: u64) -> bool {
        self.sends.binary_search(&id).is_ok()
    }
}

fn step_id(key: u64, step: u32) -> u64 {
    Hash::new("step").number(key).number(u64::from(step)).id()
}

/// Names for ProxyOps that are the same on the sending and the receiving side: the communicator,
/// both ranks, the channel, the operation's function and sequence number, and the how-manieth such
/// ProxyOp it is. Sends and receives have no sequence number, so that counting is all there is;
/// where ProxyOps were lost it would go wrong, and they get no name.
#[must_use]
pub fn step_keys(timeline: &Timeline<'_>, operations: &[Operation]) -> HashMap<EventId, u64> {
    let by_event: HashMap<EventId, &Operation> = operations.iter().map(|o| (o.event, o)).collect();
    let has_lost = has_lost_ops(timeline);
    let mut ops: Vec<(u64, EventId, u64)> = Vec::new();
    for (id, event) in timeline.events() {
        let (Detail::ProxyOp(op), Parent::Known(parent)) = (event.start.detail, event.parent)
        else {
            continue;
        };
        let (Some(comm), Some(operation)) = (timeline.comm_of(event), by_event.get(&parent)) else {
            continue;
        };
        if operation.seq.is_none() && has_lost {
            continue;
        }
        let (src, dst) = if op.is_send { (op.rank, op.peer) } else { (op.peer, op.rank) };
        let func = match timeline.event(parent).kind() {
            // A Send on one side is a Recv on the other.
            EventKind::P2p => "",
            _ => timeline.string(operation.func),
        };
        let hash = Hash::new("proxy")
            .text(&comm_name(timeline.comm(comm)))
            .rank(src)
            .rank(dst)
            .number(u64::from(op.channel))
            .text(func)
            .number(operation.seq.map_or(0, |seq| seq + 1));
        ops.push((event.start.ticks, id, hash.id()));
    }
    ops.sort_unstable();
    let mut seen: HashMap<(u64, bool), u64> = HashMap::new();
    let named = ops.into_iter().map(|(_, id, hash)| {
        let is_send = matches!(timeline.event(id).start.detail, Detail::ProxyOp(op) if op.is_send);
        let count = seen.entry((hash, is_send)).or_default();
        *count += 1;
        (id, Hash::new("nth").number(hash).number(*count).id())
    });
    named.collect()
}

fn has_lost_ops(timeline: &Timeline<'_>) -> bool {
    let kind = EventKind::ProxyOp.index();
    let recording = timeline.recording();
    let header = recording.header();
    let counts = [header.without_lane[kind], header.overwritten[kind], header.unwritten[kind]];
    recording.lanes().iter().any(|lane| lane.header.lost[kind] != 0)
        || counts.iter().any(|&count| count != 0)
}

/// The arrows at a slice.
#[must_use]
pub fn flows(scene: &Scene<'_, '_>, index: &FlowIndex, what: What) -> Flows {
    let timeline = scene.timeline();
    match what {
        What::Step(at) => {
            let (op, step) = &timeline.steps()[at as usize];
            let id = scene.step_key(*op).map(|key| step_id(key, step.step));
            let id = id.filter(|&id| index.has(id));
            if step.has(step_flags::IS_SEND) {
                Flows { out: id.into_iter().collect(), ..Flows::default() }
            } else {
                Flows { into_end: id, ..Flows::default() }
            }
        }
        What::Operation(at) => {
            let id = scene.operation(at).event;
            Flows { out: out_of(scene, id), into_start: into(scene, id), into_end: None }
        }
        What::Event(id) => match timeline.event(id).kind() {
            EventKind::CollApi | EventKind::P2pApi => {
                Flows { out: out_of(scene, id), ..Flows::default() }
            }
            EventKind::ProxyOp | EventKind::KernelCh => {
                Flows { into_start: into(scene, id), ..Flows::default() }
            }
            _ => Flows::default(),
        },
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
/// its operation, so its arrow comes from the call. No arrow points back in time.
fn source_of(scene: &Scene<'_, '_>, id: EventId) -> Option<EventId> {
    let timeline = scene.timeline();
    let event = timeline.event(id);
    let Parent::Known(parent) = event.parent else { return None };
    let source = match event.kind() {
        EventKind::Coll | EventKind::P2p | EventKind::CeColl => {
            is_call(timeline.event(parent)).then_some(parent)
        }
        EventKind::ProxyOp => scene.operation_of(parent).map(|o| o.event),
        EventKind::KernelCh => match timeline.event(parent).parent {
            Parent::Known(call) if is_call(timeline.event(call)) => Some(call),
            _ => scene.operation_of(parent).map(|o| o.event),
        },
        _ => None,
    }?;
    let from = scene.start_ns(timeline.event(source));
    (from <= scene.start_ns(event)).then_some(source)
}
