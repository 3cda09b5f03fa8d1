// SPDX-License-Identifier: Apache-2.0
//! Rules on losses: nothing is lost, and the file is whole.

use crate::{Expect, Model, Verdict};
use ncclscope_trace::EventKind;

pub(super) fn check(model: &Model<'_>, expect: &Expect, verdict: &mut Verdict) {
    let header = model.recording.header();
    for (what, count) in [
        ("definitions found no room", header.definitions_lost),
        ("words were no record", header.garbage_words),
        ("communicators found no room", header.comms_lost),
        ("callbacks panicked", header.panics),
        ("strings found no room", header.strings_lost),
        ("events or states of unknown kinds", header.unknown_events),
    ] {
        if count != 0 {
            verdict.violate("defect", format!("{count} {what}"));
        }
    }
    if !expect.killed_ok || header.closed {
        for problem in model.recording.problems() {
            verdict.violate("whole", problem.clone());
        }
    }
    if expect.lost_ok {
        return;
    }
    let mut tell = |what: &str, counts: &[u64]| {
        for (kind, count) in EventKind::ALL.iter().zip(counts).filter(|(_, count)| **count != 0) {
            verdict.violate("lost", format!("{count} {kind} {what}"));
        }
    };
    tell("overwritten", &header.overwritten);
    tell("not written", &header.unwritten);
    tell("without a lane", &header.without_lane);
    tell("without a slot", &header.without_slot);
    for lane in model.recording.lanes() {
        tell("lost", &lane.header.lost);
        tell("stops or states lost", &lane.header.lost_ends);
    }
}
