// SPDX-License-Identifier: Apache-2.0
//! Rules on times: nothing ends before it starts, by the host's clock and by the GPU's.

use crate::{Event, Expect, Model, Verdict};
use ncclscope_trace::record::{Detail, KernelCh, KernelPhase};
use ncclscope_trace::{EventKind, State};

pub(super) fn check(model: &Model<'_>, expect: &Expect, verdict: &mut Verdict) {
    for event in &model.events {
        let start = event.start.ticks;
        if event.stop.is_some_and(|stop| stop < start) {
            verdict
                .violate("completion", format!("{} stopped before it started", name(model, event)));
        }
        if event.states.iter().any(|&(ticks, ..)| ticks < start) {
            let what = format!("{} changed state before it started", name(model, event));
            verdict.violate("completion", what);
        }
        check_completion(model, event, verdict);
        if !expect.ptimer_ok {
            check_ptimer(model, event, verdict);
        }
    }
}

fn name(model: &Model<'_>, event: &Event) -> String {
    model.name(event)
}

/// An operation ends with its last child, which cannot be before it starts.
fn check_completion(model: &Model<'_>, event: &Event, verdict: &mut Verdict) {
    if !matches!(event.kind(), EventKind::Coll | EventKind::P2p | EventKind::CeColl) {
        return;
    }
    let ends = event.children.iter().filter_map(|&child| model.events[child].stop);
    if ends.max().is_some_and(|end| end < event.start.ticks) {
        let what = format!("{} ended before it started", model.name(event));
        verdict.violate("completion", what);
    }
}

fn check_ptimer(model: &Model<'_>, event: &Event, verdict: &mut Verdict) {
    let (started, state) = match event.start.detail {
        Detail::KernelCh(KernelCh { ptimer, .. }) => (ptimer, State::KERNEL_CH_STOP),
        Detail::KernelPhase(KernelPhase { ptimer, .. }) => (ptimer, State::KERNEL_PHASE_STOP),
        _ => return,
    };
    let stopped = event.states.iter().find(|(_, s, _)| *s == state).map(|&(_, _, ptimer)| ptimer);
    // 2.26 has no GPU timer.
    if started != 0 && stopped.is_some_and(|stopped| stopped < started) {
        let name = model.name(event);
        verdict.violate("ptimer", format!("{name}: the GPU's timer goes back"));
    }
}
