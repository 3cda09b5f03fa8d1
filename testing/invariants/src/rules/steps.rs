// SPDX-License-Identifier: Apache-2.0
//! Rules on network steps: their states come in order, and their number is what the operation
//! announced.

use crate::{Event, Expect, Model, Verdict};
use ncclscope_trace::Step;
use ncclscope_trace::record::{Detail, step_flags};
use std::collections::BTreeSet;

pub(super) fn has_stopped(step: &Step) -> bool {
    step.has(step_flags::STOPPED)
}

pub(super) fn check(model: &Model<'_>, expect: &Expect, verdict: &mut Verdict) {
    for event in &model.events {
        let Detail::ProxyOp(op) = event.start.detail else { continue };
        for step in &event.steps {
            let name = || format!("step {} of {}", step.step, model.name(event));
            if step.has(step_flags::IS_SEND) != op.is_send {
                verdict.violate("step-direction", format!("{} goes the other way", name()));
            }
            if step.ticks < event.start.ticks {
                verdict.violate("step-of-open-op", format!("{} started before it", name()));
            }
            if let Some(why) = disorder(step, model.api(event)) {
                verdict.violate("step-states", format!("{}: {why}", name()));
            }
            if !has_stopped(step) {
                match open_reason(model, expect, event) {
                    Some(reason) => verdict.add_open("ProxyStep", reason),
                    None => verdict.violate("open", format!("{} never stopped", name())),
                }
            }
        }
        check_number(model, expect, event, op.steps, verdict);
    }
}

/// Checks that the states are in the order in which the transport reports them, and that none is
/// missing.
fn disorder(step: &Step, api: u32) -> Option<&'static str> {
    const FLAGS: [u8; 3] = [step_flags::FIRST, step_flags::SECOND, step_flags::THIRD];
    let mut latest = 0;
    for (flag, at) in FLAGS.iter().zip(step.states) {
        if !step.has(*flag) {
            continue;
        }
        if at < latest {
            return Some("its states are out of order");
        }
        latest = at;
    }
    if step.has(step_flags::STOPPED) && step.end < latest {
        return Some("it stopped before its last state");
    }
    // From v4 on, the wait for the peer is a state of its own.
    let needed = if step.has(step_flags::IS_SEND) && api < 4 {
        step_flags::FIRST | step_flags::THIRD
    } else {
        step_flags::FIRST | step_flags::SECOND | step_flags::THIRD
    };
    let is_whole = step.flags & needed == needed;
    (step.has(step_flags::STOPPED) && !is_whole).then_some("it stopped without all its states")
}

fn open_reason(model: &Model<'_>, expect: &Expect, event: &Event) -> Option<&'static str> {
    if event.stop.is_none() {
        return super::life::reason(model, expect, event);
    }
    let Detail::ProxyOp(op) = event.start.detail else { return None };
    if expect.aborted_ok && super::life::may_be_aborted(model, event) {
        return Some("the operation was aborted");
    }
    // The transport computes the finished step outside its loop (2.24.3 to 2.26).
    let is_affected = matches!(model.api(event), 2 | 3) && !op.is_send;
    is_affected.then_some("NCCL does not stop every receive (NVIDIA/nccl#1658)")
}

/// From v2 on, an operation announces the number of its steps.
fn check_number(
    model: &Model<'_>,
    expect: &Expect,
    event: &Event,
    announced: u32,
    verdict: &mut Verdict,
) {
    let is_comparable = event.stop.is_some() && !event.steps.is_empty() && !model.has_gaps;
    if !is_comparable || expect.aborted_ok || expect.lost_ok {
        return;
    }
    let numbers: BTreeSet<u32> = event.steps.iter().map(|step| step.step).collect();
    if u32::try_from(numbers.len()).is_ok_and(|done| done != announced) {
        let name = model.name(event);
        let done = numbers.len();
        verdict.violate("steps", format!("{name} announced {announced} steps and did {done}"));
    }
}
