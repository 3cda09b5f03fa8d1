// SPDX-License-Identifier: Apache-2.0
//! The records of how far the process has come (`ncclscope_trace::progress`).

use super::clock::Clock;
use super::report::Place;
use super::seen::StepSeen;
use ncclscope_analyze::progress::{CommView, ProxyView, Tracker};
use ncclscope_recorder::board::Counts;
use ncclscope_trace::progress::{Checkpoints, OpProgress, Progress, Vital, progress_flags};
use std::collections::BTreeMap;

/// What does not change is told so often, s.
const REPEAT_S: u64 = 30;
/// ProxyOps that are told of at a time, the oldest first.
const MOST_OPS: usize = 64;
/// Only those in which nothing changed for so long are: ns.
const STILL_NS: u64 = 500_000_000;
/// The API version that tells calls.
const CALLS_SINCE: u32 = 5;

/// What was told of a communicator.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    latest: Progress,
    checkpoint: u64,
    /// That it ended was told: nothing follows.
    pub(super) ended: bool,
}

/// What is known besides the tracker.
pub(super) struct Context<'a> {
    pub(super) counts: &'a BTreeMap<u16, Counts>,
    pub(super) place: &'a Place,
    pub(super) partial: bool,
    pub(super) lossy: bool,
    pub(super) is_stuck: &'a dyn Fn(u16) -> bool,
}

impl Context<'_> {
    /// What is to be told now.
    pub(super) fn vitals(
        &self,
        told: &mut BTreeMap<u16, Told>,
        tracker: &Tracker,
        steps: &[StepSeen],
        clock: Clock,
    ) -> Vec<Vital> {
        let mut vitals = Vec::new();
        for view in tracker.comms() {
            let (Some(counts), Some(told)) =
                (self.counts.get(&view.comm), told.get_mut(&view.comm))
            else {
                continue;
            };
            let progress = self.progress(&view, counts, &told.latest, clock);
            if told.is_news(&progress, clock) {
                vitals.push(Vital::Progress(progress));
                told.latest = progress;
            }
            let at = counts.checkpoint_at();
            if at > told.checkpoint {
                told.checkpoint = at;
                let (ticks, comm, hashes) = (clock.now, view.comm, counts.checkpoints);
                vitals.push(Vital::Checkpoints(Checkpoints { ticks, comm, at, hashes }));
            }
            told.ended = view.ended;
        }
        let mut still = Vec::new();
        for proxy in tracker.proxies().into_iter().take(2 * MOST_OPS) {
            let op = op_progress(&proxy, steps, clock);
            if clock.ns_since(op.since) >= STILL_NS {
                still.push(Vital::Op(op));
            }
        }
        still.truncate(MOST_OPS);
        vitals.extend(still);
        vitals
    }

    fn progress(
        &self,
        view: &CommView,
        counts: &Counts,
        before: &Progress,
        clock: Clock,
    ) -> Progress {
        // What was left out was enqueued before what was read last.
        let unread = counts.enqueued.saturating_sub(view.colls);
        let done = match view.oldest_coll {
            None => counts.enqueued,
            Some(oldest) => (oldest - 1 + unread).min(counts.enqueued).max(before.done),
        };
        let started = match view.started {
            0 => 0,
            started => (started + unread).min(counts.enqueued),
        };
        let called = (counts.api, counts.p2p_api) != (before.api, before.p2p_api);
        let age = view.oldest.map_or(0, |oldest| clock.ns_since(oldest) / 1_000_000);
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        Progress {
            ticks: clock.now,
            comm: view.comm,
            flags: flag(self.partial, progress_flags::PARTIAL)
                | flag(self.lossy, progress_flags::LOSSY)
                | flag(self.place.api_version(view.comm) < CALLS_SINCE, progress_flags::NO_API)
                | flag(!view.has_kernels, progress_flags::NO_KERNEL)
                | flag(!view.has_ends, progress_flags::NO_END)
                | flag(view.ended, progress_flags::ENDED)
                | flag((self.is_stuck)(view.comm), progress_flags::STUCK),
            age_ms: u32::try_from(age).unwrap_or(u32::MAX),
            api: counts.api,
            enqueued: counts.enqueued,
            started,
            done,
            p2p_api: counts.p2p_api,
            p2p_enqueued: counts.p2p_enqueued,
            p2p_done: counts.p2p_enqueued.saturating_sub(view.open_p2ps),
            hash: counts.hash,
            beat: if called { clock.now } else { before.beat },
        }
    }
}

impl Told {
    /// Whether it differs in more than time from what was told, or is in flight, or was told long
    /// ago.
    fn is_news(&self, progress: &Progress, clock: Clock) -> bool {
        let Progress { ticks, .. } = self.latest;
        let same = Progress { ticks, ..*progress } == self.latest;
        let is_old = clock.ns_since(ticks) >= REPEAT_S * 1_000_000_000;
        !self.ended && (!same || progress.age_ms != 0 || is_old)
    }
}

/// The steps of a ProxyOp that are in flight.
pub(super) fn steps_of<'a>(
    proxy: &ProxyView,
    steps: &'a [StepSeen],
) -> impl Iterator<Item = &'a StepSeen> {
    let (lane, op_ref) = (proxy.lane, proxy.handle.op_ref());
    steps.iter().filter(move |step| step.lane == lane && step.op_ref == op_ref)
}

/// How far a ProxyOp is.
pub(super) fn op_progress(proxy: &ProxyView, steps: &[StepSeen], clock: Clock) -> OpProgress {
    let reached = |least: u8| {
        let count = steps_of(proxy, steps).filter(|step| step.reached >= least).count();
        proxy.done + u32::try_from(count).unwrap_or(0)
    };
    let oldest = steps_of(proxy, steps).min_by_key(|step| step.since);
    OpProgress {
        ticks: clock.now,
        comm: proxy.comm,
        handle: proxy.handle,
        is_send: proxy.is_send,
        channel: proxy.channel,
        peer: proxy.peer,
        steps: proxy.steps,
        posted: reached(0),
        ready: reached(2),
        transmitted: reached(3),
        done: proxy.done,
        reached: oldest.map(|step| step.reached),
        since: oldest.map_or(0, |step| step.since).max(proxy.changed),
    }
}
