// SPDX-License-Identifier: Apache-2.0
//! Rules on the counts of heartbeats: they are those of the events that started up to their time.

use crate::{Expect, Model, Verdict};
use ncclscope_trace::progress::{Heartbeat, Progress, progress_flags as flags};
use ncclscope_trace::{Comm, EventKind};

/// A callback takes the time of its event first, and counts then: the event of one that is between
/// the two, for this time at most, is not counted, ns.
const UNDER_WAY_NS: f64 = 20_000.0;

pub(super) fn check(model: &Model<'_>, expect: &Expect, verdict: &mut Verdict) {
    if model.has_gaps || expect.lost_ok || !model.recording.is_whole() {
        return;
    }
    for heartbeat in model.recording.heartbeats() {
        let Heartbeat::Progress(progress) = heartbeat else { continue };
        let comm = model.recording.comms().iter().find(|comm| comm.index == progress.comm);
        let is_complete = progress.flags & (flags::PARTIAL | flags::LOSSY) == 0;
        if let Some(comm) = comm.filter(|_| is_complete) {
            check_one(model, comm, progress, verdict);
        }
    }
}

fn check_one(model: &Model<'_>, comm: &Comm, progress: &Progress, verdict: &mut Verdict) {
    use EventKind as K;
    let clock = model.recording.tick_map();
    let until = progress.ticks;
    let counts = [
        ("collectives called", progress.api, &[K::CollApi][..]),
        ("sends and receives called", progress.p2p_api, &[K::P2pApi]),
        ("collectives enqueued", progress.enqueued, &[K::Coll, K::CeColl]),
        ("sends and receives enqueued", progress.p2p_enqueued, &[K::P2p]),
    ];
    for (what, count, kinds) in counts {
        // Without events of a call, its operations are counted as calls.
        let is_asked = kinds.iter().any(|kind| model.recording.header().mask & kind.bit() != 0);
        let is_call = matches!(kinds[0], K::CollApi | K::P2pApi);
        if !is_asked || is_call && comm.api_version < 5 {
            continue;
        }
        let started = model.events.iter().filter(|event| {
            event.start.comm == comm.index
                && kinds.contains(&event.kind())
                && event.start.ticks <= until
        });
        let (mut events, mut under_way) = (0, 0);
        for event in started {
            events += 1;
            let age_ns = clock.duration_ns(until - event.start.ticks);
            under_way += u64::from(age_ns < UNDER_WAY_NS);
        }
        if !(events - under_way..=events).contains(&count) {
            let comm = comm.index;
            let what = format!("communicator {comm} at {until}: {count} {what}, {events} events");
            verdict.violate("progress", what);
        }
    }
}
