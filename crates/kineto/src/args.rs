// SPDX-License-Identifier: Apache-2.0
//! What a slice says when one clicks on it.

use crate::lanes::{What, state_name};
use crate::rank::Rank;
use ncclscope_operations::Event;
use ncclscope_operations::stats::to_u64;
use ncclscope_trace::Detail;
use ncclscope_trace::record::{GroupApi, KernelCh, KernelPhase, step_flags};
use serde_json::{Map, Value};

/// The args of a slice. No key is one that other tools give a meaning, but
/// `Seq` and `External id`, which have just that.
pub(crate) fn args(rank: &Rank<'_, '_>, what: What) -> Map<String, Value> {
    let timeline = rank.timeline();
    let mut args = Map::new();
    let mut say = |key: &str, value: Value| {
        if !value.is_null() {
            args.insert(key.into(), value);
        }
    };
    match what {
        What::Operation(index) => operation_args(rank, index, &mut say),
        What::Event(id) => {
            say("External id", timeline.external_id(id).into());
            event_args(rank, timeline.event(id), &mut say);
        }
        What::Step(index) => {
            let (_, step) = &timeline.steps()[index];
            if step.has(step_flags::SIZED) {
                say("bytes", step.size.into());
            }
            if step.repeats != 0 {
                say("polls", step.repeats.into());
            }
        }
        What::Wait(index, state) => {
            let is_send = timeline.steps()[index].1.has(step_flags::IS_SEND);
            say("state", state_name(is_send, state).into());
        }
    }
    args
}

fn operation_args(rank: &Rank<'_, '_>, index: usize, say: &mut dyn FnMut(&str, Value)) {
    let (timeline, operation) = (rank.timeline(), &rank.operations()[index]);
    let text = |id| timeline.recording().string(id).map_or(Value::Null, Value::from);
    say("nccl_seq", operation.seq.into());
    say("bytes", operation.bytes.into());
    say("datatype", text(operation.datatype));
    say("algorithm", text(operation.algo));
    say("protocol", text(operation.proto));
    say("channels", operation.channels.into());
    say("peer", operation.peer.into());
    if let Some(comm) = operation.comm {
        say("communicator", rank.comm_name(comm).into());
        say("rank", timeline.rank(comm).into());
        say("ranks", timeline.comm(comm).ranks.into());
    }
    say("timing", operation.timing.name().into());
    say("duration_ns", operation.duration_ns.map(to_u64).into());
    let Some(pair) = rank.pair_of(index) else {
        say("join_key", "none".into());
        return;
    };
    let kernel = &rank.trace().kernels[pair.kernel];
    say("join_key", pair.key.name().into());
    say("join_confidence", pair.confidence.name().into());
    say("join_residual_ns", pair.residual_ns.into());
    say("kernel_correlation", kernel.correlation.into());
    say("kernel_external_id", kernel.external_id.into());
    say("Seq", kernel.facts.seq.into());
    if let Some(group) = kernel.facts.group.map(|at| &rank.trace().groups[at]) {
        say("process_group", group.name.as_str().into());
        say("process_group_description", group.description.as_str().into());
    }
}

fn event_args(rank: &Rank<'_, '_>, event: &Event, say: &mut dyn FnMut(&str, Value)) {
    let timeline = rank.timeline();
    match event.start.detail {
        Detail::CollApi(call) | Detail::P2pApi(call) => {
            say("count", call.count.into());
            say("datatype", timeline.string(call.datatype).into());
            say("root", call.root.into());
            say("cuda_stream", format!("{:#x}", call.stream).into());
            if call.graph {
                say("graph_captured", true.into());
            }
        }
        Detail::GroupApi(GroupApi { depth, .. }) => say("depth", depth.into()),
        Detail::KernelCh(KernelCh { ptimer, .. })
        | Detail::KernelPhase(KernelPhase { ptimer, .. }) => {
            if let Some((stop, _)) = event.ptimer_stop.filter(|(stop, _)| *stop >= ptimer) {
                say("gpu_ns", (stop - ptimer).into());
            }
        }
        Detail::ProxyOp(op) => {
            say("steps", op.steps.into());
            if let Some(steps) = &event.steps {
                say("steps_done", steps.stopped.into());
                say("bytes", steps.bytes.into());
            }
        }
        _ => {}
    }
}
