// SPDX-License-Identifier: Apache-2.0
//! What a slice says when one clicks on it.

use crate::scene::{Scene, Slice, What};
use ncclscope_operations::{Completion, Event, Operation};
use ncclscope_trace::record::{
    CeBatch, CeSync, GroupApi, KernelCh, KernelLaunch, KernelPhase, NetPlugin, ProxyOp, step_flags,
};
use ncclscope_trace::{Detail, Step, What as Mark};

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg<'a> {
    /// A number.
    Uint(u64),
    /// A number that may be negative.
    Int(i64),
    /// A text of which there are few different ones.
    Text(&'a str),
}

/// Tells the names and values of a slice to `say`, in the order in which they are shown. Names end
/// in their unit. What is unknown is left out.
pub fn args<'r>(scene: &Scene<'_, 'r>, slice: &Slice, say: &mut impl FnMut(&'static str, Arg<'r>)) {
    match slice.what {
        What::Operation(index) => operation_args(scene, scene.operation(index), say),
        What::Step(index) => step_args(&scene.timeline().steps()[index as usize].1, say),
        What::Event(id) => {
            event_args(scene, scene.timeline().event(id), say);
            if let Some(external) = scene.timeline().external_id(id) {
                say("external_id", Arg::Uint(external));
            }
            if let Some(ns) = scene.timeline().launch_ns(id) {
                say("cuda_event_ns", Arg::Uint(ns));
            }
        }
        What::Mark(index) => {
            let mark = scene.timeline().recording().marks()[index as usize];
            if matches!(mark.what, Mark::Step | Mark::Start) {
                say("value", Arg::Uint(mark.value));
            }
        }
    }
    if slice.open {
        say("open", Arg::Uint(1));
    }
}

fn operation_args<'r>(
    scene: &Scene<'_, 'r>,
    operation: &Operation,
    say: &mut impl FnMut(&'static str, Arg<'r>),
) {
    let timeline = scene.timeline();
    if let Some(seq) = operation.seq {
        say("seq", Arg::Uint(seq));
    }
    if let Some(bytes) = operation.bytes {
        say("bytes", Arg::Uint(bytes));
    }
    let strings =
        [("datatype", operation.datatype), ("algo", operation.algo), ("proto", operation.proto)];
    for (name, id) in strings {
        if let Some(text) = timeline.recording().string(id) {
            say(name, Arg::Text(text));
        }
    }
    if let Some(channels) = operation.channels {
        say("channels", Arg::Uint(channels.into()));
    }
    if let Some(peer) = operation.peer {
        say("peer", Arg::Int(peer.into()));
    }
    if let Some(ns) = operation.duration_ns {
        say("timing", Arg::Text(operation.timing.name()));
        say("duration_ns", Arg::Uint(ncclscope_operations::stats::to_u64(ns)));
    }
    if operation.completion == Completion::Unseen {
        say("end", Arg::Text("unseen"));
    }
}

fn step_args<'r>(step: &Step, say: &mut impl FnMut(&'static str, Arg<'r>)) {
    say("step", Arg::Uint(step.step.into()));
    if step.has(step_flags::SIZED) {
        say("bytes", Arg::Uint(step.size.into()));
    }
    if step.repeats != 0 {
        say("polls", Arg::Uint(step.repeats.into()));
    }
}

fn event_args<'r>(
    scene: &Scene<'_, 'r>,
    event: &Event,
    say: &mut impl FnMut(&'static str, Arg<'r>),
) {
    let timeline = scene.timeline();
    match event.start.detail {
        Detail::CollApi(call) | Detail::P2pApi(call) => {
            say("count", Arg::Uint(call.count));
            say("datatype", Arg::Text(timeline.string(call.datatype)));
            say("stream", Arg::Uint(call.stream));
            if call.graph {
                say("graph_captured", Arg::Uint(1));
            }
            if call.user_tag != 0 {
                say("user_tag", Arg::Uint(call.user_tag));
            }
        }
        Detail::GroupApi(GroupApi { depth, .. }) => say("depth", Arg::Int(depth.into())),
        Detail::KernelLaunch(KernelLaunch { stream }) => say("stream", Arg::Uint(stream)),
        Detail::ProxyOp(op) => proxy_args(event, &op, say),
        Detail::KernelCh(KernelCh { ptimer, .. })
        | Detail::KernelPhase(KernelPhase { ptimer, .. }) => {
            if let Some((stop, _)) = event.ptimer_stop.filter(|(stop, _)| *stop >= ptimer)
                && ptimer != 0
            {
                say("gpu_ns", Arg::Uint(stop - ptimer));
            }
        }
        Detail::CeSync(CeSync { ranks, .. }) => say("ranks", Arg::Uint(ranks.into())),
        Detail::CeBatch(CeBatch { ops, bytes, .. }) => {
            say("copies", Arg::Uint(ops.into()));
            say("bytes", Arg::Uint(bytes));
        }
        Detail::NetPlugin(net) => net_args(&net, say),
        Detail::Coll(_)
        | Detail::P2p(_)
        | Detail::CeColl(_)
        | Detail::Group
        | Detail::ProxyCtrl => {}
    }
}

fn proxy_args<'r>(event: &Event, op: &ProxyOp, say: &mut impl FnMut(&'static str, Arg<'r>)) {
    say("steps", Arg::Uint(op.steps.into()));
    if let Some(steps) = &event.steps {
        if steps.bytes != 0 {
            say("bytes", Arg::Uint(steps.bytes));
        }
        if steps.stopped != op.steps {
            say("steps_done", Arg::Uint(steps.stopped.into()));
        }
    }
    if op.foreign {
        say("pid", Arg::Uint(op.pid.into()));
        say("rank", Arg::Int(op.rank.into()));
    }
}

fn net_args<'r>(net: &NetPlugin, say: &mut impl FnMut(&'static str, Arg<'r>)) {
    say("device", Arg::Uint(net.device.into()));
    say("qp", Arg::Uint(net.qp.into()));
    say("op", Arg::Uint(net.op.into()));
    say("bytes", Arg::Uint(net.bytes));
}
