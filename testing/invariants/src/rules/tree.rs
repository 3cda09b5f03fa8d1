// SPDX-License-Identifier: Apache-2.0
//! Rules on parents: they exist and are the right ones, so that no event belongs to another
//! operation.

use crate::{Event, Expect, Model, Verdict, table};
use ncclscope_trace::record::{Detail, KernelCh};
use ncclscope_trace::{EventKind, StrId};
use std::collections::BTreeSet;

pub(super) fn check(model: &Model<'_>, expect: &Expect, verdict: &mut Verdict) {
    for event in &model.events {
        if let Detail::ProxyOp(op) = event.start.detail
            && op.foreign
        {
            // Context and parent are of another process, whose events are not in this recording.
            verdict.foreign += 1;
            continue;
        }
        check_parent(model, event, verdict);
        check_group(model, event, verdict);
        check_peer(model, expect, event, verdict);
        check_channels(model, event, verdict);
    }
}

fn check_parent(model: &Model<'_>, event: &Event, verdict: &mut Verdict) {
    let allowed = table::parents(model.api(event), event.kind());
    let handle = event.start.parent;
    if allowed.is_empty() {
        return;
    }
    let name = model.name(event);
    let own = handle.process() == u64::from(model.recording.header().process);
    let header = model.recording.header();
    let has_losses = allowed.iter().map(|kind| kind.index()).any(|kind| {
        let lost = model.recording.lanes().iter().any(|lane| lane.header.lost[kind] != 0);
        lost || header.without_memory()[kind] != 0
    });
    if handle.is_null() {
        if !has_losses {
            verdict.violate("parent", format!("{name} has no parent"));
        }
    } else if !own {
        verdict.violate("parent", format!("{name}: its parent {handle:?} is of another process"));
    } else if !allowed.contains(&handle.kind()) {
        verdict.violate("parent", format!("{name}: its parent is a {}", handle.kind()));
    } else if let Some(parent) = model.parent(event) {
        compare(model, event, &model.events[parent], verdict);
    } else if !model.has_gaps {
        verdict.violate("parent", format!("{name}: its parent {handle:?} never started"));
    }
}

/// Compares an event with its parent.
fn compare(model: &Model<'_>, event: &Event, parent: &Event, verdict: &mut Verdict) {
    let (name, above) = (model.name(event), model.name(parent));
    // A group of API calls may span communicators.
    if parent.kind() != EventKind::GroupApi && event.start.comm != parent.start.comm {
        verdict.violate("comm", format!("{name} and its parent {above} differ in communicator"));
    }
    if let (Some(func), Some(call)) = (func(event), func(parent))
        && model.string(func) != model.string(call)
    {
        let (func, call) = (model.string(func), model.string(call));
        verdict.violate("func", format!("{name} is a {func}, its parent {above} a {call}"));
    }
    if parent.start.ticks > event.start.ticks {
        verdict.violate("parent-first", format!("{name} started before its parent {above}"));
    }
    if let (Detail::ProxyOp(op), Detail::P2p(p2p)) = (event.start.detail, parent.start.detail)
        && (op.peer != p2p.peer || op.is_send != (model.string(p2p.func) == "Send"))
    {
        verdict.violate("direction", format!("{name} goes another way than its parent {above}"));
    }
}

fn func(event: &Event) -> Option<StrId> {
    match event.start.detail {
        Detail::Coll(d) => Some(d.func),
        Detail::P2p(d) => Some(d.func),
        Detail::CollApi(d) | Detail::P2pApi(d) => Some(d.func),
        Detail::CeColl(d) => Some(d.func),
        _ => None,
    }
}

/// From v5 on, an operation has a reference to its Group besides its parent.
fn check_group(model: &Model<'_>, event: &Event, verdict: &mut Verdict) {
    let (Detail::Coll(ncclscope_trace::record::Coll { group, .. })
    | Detail::P2p(ncclscope_trace::record::P2p { group, .. })) = event.start.detail
    else {
        return;
    };
    if model.api(event) < 5 || model.has_gaps {
        return;
    }
    let known = model.find(group).map(|index| &model.events[index]);
    if known.is_none_or(|group| group.kind() != EventKind::Group) {
        verdict.violate("group", format!("{} is in no Group that is known", model.name(event)));
    }
}

fn check_peer(model: &Model<'_>, expect: &Expect, event: &Event, verdict: &mut Verdict) {
    let peer = match event.start.detail {
        Detail::P2p(d) => d.peer,
        Detail::ProxyOp(d) => d.peer,
        _ => return,
    };
    let (Some(ranks), _) = model.size(event, expect) else { return };
    if u32::try_from(peer).is_ok_and(|peer| peer < ranks) {
        return;
    }
    verdict.violate("peer", format!("{}: peer {peer} of {ranks} ranks", model.name(event)));
}

/// Checks that an operation has no more channels than it announces. Their numbers need not start at
/// 0: operations of one plan share the channels.
fn check_channels(model: &Model<'_>, event: &Event, verdict: &mut Verdict) {
    let channels = match event.start.detail {
        Detail::Coll(d) => d.channels,
        Detail::P2p(d) => d.channels,
        _ => return,
    };
    for kind in [EventKind::KernelCh, EventKind::ProxyOp] {
        let used: BTreeSet<u8> = event
            .children
            .iter()
            .filter_map(|&child| match model.events[child].start.detail {
                Detail::KernelCh(KernelCh { channel, .. }) if kind == EventKind::KernelCh => {
                    Some(channel)
                }
                Detail::ProxyOp(op) if kind == EventKind::ProxyOp => Some(op.channel),
                _ => None,
            })
            .collect();
        if channels != 0 && used.len() > usize::from(channels) {
            let name = model.name(event);
            let what = format!("{name} of {channels} channels has {kind} on {used:?}");
            verdict.violate("channels", what);
        }
    }
}
