// SPDX-License-Identifier: Apache-2.0
//! Rules on starts and stops: each start has one stop, or a reason for having none.

use crate::{Event, Expect, Model, Verdict};
use ncclscope_trace::record::Detail;
use ncclscope_trace::{EventKind, Handle};

/// Kinds that NCCL can stop more than once: a collective's API call after the mask was cleared, a
/// kernel's channel, and a network plugin's queue pair (`src/plugin/profiler.cc` @v2.30.7-1:
/// `ncclProfilerStopCollApiEvent` and `ncclProfilerStopKernelChEvent` do not clear their handle;
/// `src/transport/net_ib/p2p.cc` stops a queue pair's event per completion and per request).
const STOPPED_AGAIN: [EventKind; 3] =
    [EventKind::CollApi, EventKind::KernelCh, EventKind::NetPlugin];

pub(super) fn check(model: &Model<'_>, expect: &Expect, verdict: &mut Verdict) {
    for event in &model.events {
        let kind = event.kind();
        if event.stops > 1 && !STOPPED_AGAIN.contains(&kind) {
            let what = format!("{} was stopped {} times", model.name(event), event.stops);
            verdict.violate("second-stop", what);
        }
        if event.stop.is_some() {
            continue;
        }
        match reason(model, expect, event) {
            Some(reason) => verdict.add_open(kind.name(), reason),
            None => verdict.violate("open", format!("{} never stopped", model.name(event))),
        }
    }
}

/// Why an event has no stop.
pub(super) fn reason(model: &Model<'_>, expect: &Expect, event: &Event) -> Option<&'static str> {
    let header = model.recording.header();
    let kind = event.kind();
    let lost = model.recording.lanes().iter().any(|l| l.header.lost_ends[kind.index()] != 0);
    let comm = model.comm(event).map(|comm| comm.index);
    if !header.closed {
        return expect.killed_ok.then_some("the process was killed, or still runs");
    }
    if expect.aborted_ok && may_be_aborted(model, event) {
        return Some("the operation was aborted");
    }
    if lost || model.has_gaps {
        return Some("its stop was lost");
    }
    if comm.is_some_and(|comm| model.recording.comm_end(comm).is_none()) {
        return Some("its communicator was never finalized");
    }
    match kind {
        // Only the network transport stops ProxyOps (`src/transport/net.cc` @v2.27.3-1), while all
        // transports start them (`src/proxy.cc`).
        EventKind::ProxyOp if model.api(event) >= 4 && event.steps.is_empty() => {
            Some("its transport is no network: NCCL never stops it")
        }
        EventKind::ProxyCtrl => Some("the progress thread ended in it"),
        _ => None,
    }
}

/// Whether the event's operation can have been aborted: no operation that its communicator began
/// later, except those of the same group, has ended. An abort ends the communicator.
pub(super) fn may_be_aborted(model: &Model<'_>, event: &Event) -> bool {
    let mut top = event;
    while let Some(parent) = model.parent(top).map(|parent| &model.events[parent])
        && !is_operation(top)
    {
        top = parent;
    }
    !model.events.iter().any(|later| {
        is_operation(later)
            && later.start.comm == event.start.comm
            && later.start.ticks > top.start.ticks
            && later.start.parent != top.start.parent
            && group(later).is_none_or(|of| Some(of) != group(top) && of != top.start.handle)
            && has_ended(model, later)
    })
}

fn is_operation(event: &Event) -> bool {
    matches!(event.kind(), EventKind::Coll | EventKind::P2p | EventKind::CeColl)
}

/// The Group of an operation, from API v5 on.
fn group(operation: &Event) -> Option<Handle> {
    match operation.start.detail {
        Detail::Coll(d) => Some(d.group),
        Detail::P2p(d) => Some(d.group),
        _ => None,
    }
}

/// Whether the work of an operation was recorded and has stopped.
fn has_ended(model: &Model<'_>, operation: &Event) -> bool {
    let mut children = operation.children.iter().map(|&child| &model.events[child]).peekable();
    children.peek().is_some() && children.all(|child| child.stop.is_some())
}
