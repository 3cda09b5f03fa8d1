// SPDX-License-Identifier: Apache-2.0
//! Rules on the number of events by kind, as the release is documented to emit them: see
//! [`crate::table`].

use crate::{Event, Expect, Model, Verdict, table};
use ncclscope_trace::record::{Detail, GroupApi};
use ncclscope_trace::{Comm, EventKind};

pub(super) fn check(model: &Model<'_>, expect: &Expect, verdict: &mut Verdict) {
    for event in &model.events {
        let api = model.api(event);
        if api != 0 && !table::has(api, event.kind()) {
            let name = model.name(event);
            verdict.violate("kind", format!("{name}: API v{api} has no such event"));
        }
    }
    let header = model.recording.header();
    let is_whole = header.closed && !model.has_gaps && !expect.aborted_ok && !expect.lost_ok;
    if !is_whole {
        return;
    }
    let is_ended = |comm: &&Comm| model.recording.comm_end(comm.index).is_some();
    for comm in model.recording.comms().iter().filter(is_ended) {
        check_launches(model, comm, verdict);
        for event in model.events.iter().filter(|event| event.start.comm == comm.index) {
            check_call(model, event, comm.api_version, verdict);
            check_kernel(model, event, comm.api_version, verdict);
            check_network(model, expect, event, verdict);
        }
    }
}

/// Whether the plugin requested events of this kind.
fn asked(model: &Model<'_>, kind: EventKind) -> bool {
    model.recording.header().mask & kind.bit() != 0
}

/// Each plan has one KernelLaunch and one Group. Replays of a graph have only their Group.
fn check_launches(model: &Model<'_>, comm: &Comm, verdict: &mut Verdict) {
    let has_graph = model.events.iter().any(is_captured);
    if comm.api_version < 5 || has_graph || !asked(model, EventKind::KernelLaunch) {
        return;
    }
    let count = |kind: EventKind| {
        let of = |event: &&Event| event.start.comm == comm.index && event.kind() == kind;
        model.events.iter().filter(of).count()
    };
    let (launches, groups) = (count(EventKind::KernelLaunch), count(EventKind::Group));
    if launches != groups {
        let index = comm.index;
        let what = format!("communicator {index}: {launches} KernelLaunch and {groups} Group");
        verdict.violate("launches", what);
    }
}

fn is_captured(event: &Event) -> bool {
    match event.start.detail {
        Detail::GroupApi(GroupApi { graph, .. }) => graph,
        Detail::CollApi(call) | Detail::P2pApi(call) => call.graph,
        _ => false,
    }
}

/// Each API call becomes an operation, if the release reports it.
fn check_call(model: &Model<'_>, event: &Event, api: u32, verdict: &mut Verdict) {
    let call = match event.start.detail {
        Detail::CollApi(call) | Detail::P2pApi(call) => call,
        _ => return,
    };
    if !event.children.is_empty() || call.graph || table::is_api_only(api, model.string(call.func))
    {
        return;
    }
    let func = model.string(call.func);
    verdict.violate("call", format!("{} ({func}) has no operation", model.name(event)));
}

/// From v4 on there is a KernelCh for each channel, except for sends to oneself; v3 announces the
/// maximum number of channels.
fn check_kernel(model: &Model<'_>, event: &Event, api: u32, verdict: &mut Verdict) {
    let (channels, is_exact) = match event.start.detail {
        Detail::Coll(d) => (usize::from(d.channels), api >= 4),
        Detail::P2p(d) => (usize::from(d.channels), api >= 4),
        _ => return,
    };
    if channels == 0 || !table::has(api, EventKind::KernelCh) || !asked(model, EventKind::KernelCh)
    {
        return;
    }
    if api < 7 && is_to_itself(model, event) {
        return;
    }
    let is_kernel = |&&child: &&usize| model.events[child].kind() == EventKind::KernelCh;
    let seen = event.children.iter().filter(is_kernel).count();
    let wanted = if is_exact { channels } else { 1 };
    if seen > channels || seen < wanted && seen + skipped_kernels(model) < wanted {
        let what = format!("{} of {channels} channels has {seen} KernelCh", model.name(event));
        verdict.violate("kernel-channels", what);
    }
}

/// Number of KernelCh events that NCCL did not start. NCCL checks whether a kernel's channel
/// started, and then whether it finished: if both happened between two checks, it stops the event
/// of an earlier operation once more instead (`src/transport/profiler.cc` @v2.30.7-1,
/// `profilerProxyProgress`; seen on a busy machine with 2.30.7).
fn skipped_kernels(model: &Model<'_>) -> usize {
    let kernels = model.events.iter().filter(|event| event.kind() == EventKind::KernelCh);
    kernels.map(|event| event.stops.saturating_sub(1) as usize).sum()
}

/// Whether the event is a send or receive between a rank and itself: a copy, for which NCCL starts
/// no ProxyOp, and so up to v6 no KernelCh (measured on 2.28.9, all-to-all).
fn is_to_itself(model: &Model<'_>, event: &Event) -> bool {
    let rank = model.comm(event).map(|comm| comm.rank);
    matches!(event.start.detail, Detail::P2p(d) if Some(d.peer) == rank)
}

/// Checks the ProxyOps between two ranks on two nodes.
fn check_network(model: &Model<'_>, expect: &Expect, event: &Event, verdict: &mut Verdict) {
    if model.size(event, expect) != (Some(2), Some(2)) || !asked(model, EventKind::ProxyOp) {
        return;
    }
    let is_op = |&&child: &&usize| model.events[child].kind() == EventKind::ProxyOp;
    let seen = event.children.iter().filter(is_op).count() as u64;
    // Up to v3 the number of channels is a maximum.
    let is_exact = model.api(event) >= 4;
    let is_right = match event.start.detail {
        Detail::Coll(d) if d.channels != 0 => {
            let (func, algo) = (model.string(d.func), model.string(d.algo));
            let ops = table::proxy_ops_of_two(func, algo, d.channels);
            ops.is_none_or(|ops| if is_exact { seen == ops } else { (1..=ops).contains(&seen) })
        }
        Detail::P2p(d) if d.channels != 0 && !is_to_itself(model, event) => {
            (1..=u64::from(d.channels)).contains(&seen)
        }
        _ => return,
    };
    if !is_right {
        verdict.violate("proxy-ops", format!("{} has {seen} ProxyOp", model.name(event)));
    }
}
