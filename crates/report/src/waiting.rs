// SPDX-License-Identifier: Apache-2.0
//! Describes what an open operation waits for.

use ncclscope_operations::operation::Operation;
use ncclscope_operations::steps::StepExt;
use ncclscope_operations::{Event, Timeline, human};
use ncclscope_trace::record::{KernelCh, ProxyOp};
use ncclscope_trace::{Detail, EventKind};

/// What an open operation waits for: one sentence for each part that has not stopped. Ages are
/// relative to the latest time in the recording.
#[must_use]
pub fn waits_for(timeline: &Timeline<'_>, operation: &Operation) -> Vec<String> {
    let event = timeline.event(operation.event);
    let mut texts = Vec::new();
    if event.stop.is_none() {
        texts.push(format!("{} has not stopped: it is still being enqueued", event.kind()));
    }
    let open = operation.open.iter().map(|&id| timeline.event(id));
    texts.extend(open.filter_map(|child| open_child(timeline, child)));
    if texts.is_empty() {
        let children = timeline.children(operation.event).iter().map(|&id| timeline.event(id));
        let seen = children.filter(|child| child.kind() == EventKind::KernelCh).count();
        let wanted = operation.channels.map_or(0, usize::from);
        texts.push(match seen {
            0 => "the kernel has not started: no KernelCh on any channel".into(),
            _ if operation.peer.is_none() && seen < wanted => {
                format!("its kernel has started on {seen} of {wanted} channels, and stopped there")
            }
            _ => "its kernel has stopped on all channels, which is not its end here: it may wait \
                  for another rank"
                .into(),
        });
    }
    texts
}

fn open_child(timeline: &Timeline<'_>, child: &Event) -> Option<String> {
    match child.start.detail {
        Detail::ProxyOp(op) => Some(proxy_op(timeline, child, &op)),
        Detail::KernelCh(KernelCh { channel, .. }) => Some(format!(
            "channel {channel}: KernelCh started {} ago and has not stopped",
            age(timeline, child.start.ticks)
        )),
        Detail::CeSync(_) | Detail::CeBatch(_) => Some(format!("{} has not stopped", child.kind())),
        _ => None,
    }
}

fn proxy_op(timeline: &Timeline<'_>, event: &Event, op: &ProxyOp) -> String {
    let way = if op.is_send { "send to" } else { "receive from" };
    let place = format!("channel {}, {way} communicator rank {}", op.channel, op.peer);
    let Some(steps) = event.steps.as_ref().filter(|steps| steps.started > 0) else {
        return format!("{place}: none of {} steps has started", op.steps);
    };
    // The oldest step blocks the later ones.
    let oldest = steps.open.iter().min_by_key(|step| step.step);
    match oldest {
        None if steps.stopped >= op.steps => {
            format!("{place}: all {} steps are done, and NCCL has not stopped it", op.steps)
        }
        None => format!("{place}: {} of {} steps done, none in flight", steps.stopped, op.steps),
        Some(step) => {
            let (state, since) = match step.current() {
                Some((state, since)) => (state.to_string(), since),
                None => ("started".into(), step.ticks),
            };
            let state = state.trim_start_matches("ProxyStep");
            let age = age(timeline, since);
            let mut text = format!(
                "{place}: {} of {} steps done, step {} in {state} for {age}",
                steps.stopped, op.steps, step.step
            );
            if steps.open.len() > 1 {
                text.push_str(&format!(" and {} behind it", steps.open.len() - 1));
            }
            text
        }
    }
}

fn age(timeline: &Timeline<'_>, since: u64) -> String {
    let ticks = timeline.recording().last_ticks().saturating_sub(since);
    human::duration(timeline.clock().duration_ns(ticks))
}
