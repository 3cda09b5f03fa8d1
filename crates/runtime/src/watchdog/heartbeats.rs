// SPDX-License-Identifier: Apache-2.0
//! The records of the process's progress (`ncclscope_trace::progress`).
//!
//! A change is written at each look. Unchanged values are written less and less often, down to once
//! a minute: a hang that lasts for a night must not overwrite the part of the recording that led to
//! it.

use super::clock::Clock;
use super::counted::Counted;
use super::own_process::OwnProcess;
use super::seen::StepSeen;
use ncclscope_operations::progress::{CommView, ProxyView, Tracker};
use ncclscope_recorder::call_counters::Counts;
use ncclscope_trace::progress::{Checkpoints, Heartbeat, OpProgress, Progress, progress_flags};
use std::collections::{BTreeMap, HashSet};

/// First interval after which an unchanged value is written again, s; it doubles each time up to
/// `SELDOM_S`. `IDLE_AGAIN_S` is the first interval if nothing is in flight.
const AGAIN_S: u64 = 1;
const IDLE_AGAIN_S: u64 = 30;
const SELDOM_S: u64 = 60;
/// Interval of writing the state of threads while something may be stuck, ns.
const THREADS_NS: u64 = 300_000_000;
/// Tolerance of these intervals, because looks come early or late, ns.
const SLACK_NS: u64 = 100_000_000;
/// Maximum number of ProxyOps written at a time, the oldest first.
const MOST_OPS: usize = 64;
/// A ProxyOp is written only if it has not changed for this time, ns.
const STILL_NS: u64 = 500_000_000;
/// First API version that reports calls.
const CALLS_SINCE: u32 = 5;

/// What was last written of a communicator.
#[derive(Clone, Debug, Default)]
pub(super) struct LastWritten {
    latest: Progress,
    /// The ProxyOps in flight that were written with the communicator.
    ops: Vec<OpProgress>,
    pause: Pause,
    checkpoint: u64,
    /// The end of the communicator was written; nothing follows.
    pub(super) ended: bool,
}

/// When an unchanged value is written again.
#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    /// When it was last written, in ticks.
    written: u64,
    length_ns: u64,
}

impl Pause {
    fn new(clock: Clock, seconds: u64) -> Pause {
        Pause { written: clock.now, length_ns: seconds * 1_000_000_000 }
    }

    /// True if it is time to write the value, which then counts as written.
    fn is_over(&mut self, clock: Clock) -> bool {
        let is_over = clock.ns_since(self.written) + SLACK_NS >= self.length_ns;
        if is_over {
            let length_ns = (2 * self.length_ns).min(SELDOM_S * 1_000_000_000);
            *self = Pause { written: clock.now, length_ns };
        }
        is_over
    }
}

/// The pauses of values that do not belong to a communicator.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// Last written state of ProxyOps whose communicator is not written, by handle.
    ops: BTreeMap<u64, (OpProgress, Pause)>,
    /// The pause of threads, while something may be stuck.
    threads: Option<Pause>,
}

impl Pauses {
    /// Called when nothing may be stuck any more.
    pub(super) fn forget_threads(&mut self) {
        self.threads = None;
    }

    /// True if threads are to be written now.
    pub(super) fn are_threads_due(&mut self, clock: Clock) -> bool {
        match &mut self.threads {
            Some(pause) => pause.is_over(clock),
            none => {
                *none = Some(Pause { written: clock.now, length_ns: THREADS_NS });
                true
            }
        }
    }

    /// Those of the unchanged ProxyOps that are to be written now.
    fn due(&mut self, still: Vec<OpProgress>, clock: Clock) -> Vec<Heartbeat> {
        let mut before = std::mem::take(&mut self.ops);
        let mut due = Vec::new();
        for op in still {
            let same = |(told, pause)| {
                (OpProgress { ticks: op.ticks, ..told } == op).then_some((told, pause))
            };
            let known = before.remove(&op.handle.0).and_then(same);
            let is_new = known.is_none();
            let mut known = known.unwrap_or_else(|| (op, Pause::new(clock, AGAIN_S)));
            if is_new || known.1.is_over(clock) {
                due.push(Heartbeat::Op(op));
            }
            self.ops.insert(op.handle.0, known);
        }
        due
    }
}

/// The facts that the tracker does not have.
pub(super) struct Context<'a> {
    pub(super) counts: &'a BTreeMap<u16, Counted>,
    pub(super) own: &'a OwnProcess,
    pub(super) partial: bool,
    pub(super) lossy: bool,
    pub(super) stuck: HashSet<u16>,
}

impl Context<'_> {
    /// The records to write now.
    pub(super) fn heartbeats(
        &self,
        told: &mut BTreeMap<u16, LastWritten>,
        pauses: &mut Pauses,
        tracker: &Tracker,
        steps: &[StepSeen],
        clock: Clock,
    ) -> Vec<Heartbeat> {
        let mut heartbeats = Vec::new();
        let mut still = still(tracker, steps, clock);
        for view in tracker.comms() {
            let Some(told) = told.get_mut(&view.comm) else { continue };
            // No record follows the end of a communicator, even if that was never counted.
            let had_ended = std::mem::replace(&mut told.ended, view.ended);
            let Some(Counted { at, counts }) = self.counts.get(&view.comm).filter(|_| !had_ended)
            else {
                continue;
            };
            let then = Clock { now: clock.now.min(*at), ..clock };
            let progress = self.progress(&view, counts, &told.latest, then);
            let mut ops = still.remove(&view.comm).unwrap_or_default();
            // Readers take the ProxyOps for current that have the time of the counts.
            ops.iter_mut().for_each(|op| op.ticks = then.now);
            if told.is_news(&progress, &ops, clock) {
                heartbeats.push(Heartbeat::Progress(progress));
                heartbeats.extend(ops.iter().copied().map(Heartbeat::Op));
                (told.latest, told.ops) = (progress, ops);
            }
            let at = counts.checkpoint_at();
            if at > told.checkpoint {
                told.checkpoint = at;
                let (ticks, comm, hashes) = (then.now, view.comm, counts.checkpoints);
                heartbeats.push(Heartbeat::Checkpoints(Checkpoints { ticks, comm, at, hashes }));
            }
        }
        heartbeats.extend(pauses.due(still.into_values().flatten().collect(), clock));
        heartbeats
    }

    /// The progress of a communicator at the time at which it had these counts.
    fn progress(
        &self,
        view: &CommView,
        counts: &Counts,
        before: &Progress,
        clock: Clock,
    ) -> Progress {
        // Operations that are not read were enqueued before those that were read last.
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
                | flag(self.own.api_version(view.comm) < CALLS_SINCE, progress_flags::NO_API)
                | flag(!view.has_kernels, progress_flags::NO_KERNEL)
                | flag(!view.has_ends, progress_flags::NO_END)
                | flag(view.ended, progress_flags::ENDED)
                | flag(self.stuck.contains(&view.comm), progress_flags::STUCK)
                | flag(counts.is_captured, progress_flags::CAPTURED),
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

/// The ProxyOps in flight that have not changed, by communicator.
fn still(tracker: &Tracker, steps: &[StepSeen], clock: Clock) -> BTreeMap<u16, Vec<OpProgress>> {
    let mut still: BTreeMap<u16, Vec<OpProgress>> = BTreeMap::new();
    let all = tracker.proxies().into_iter().take(2 * MOST_OPS);
    let all = all.map(|proxy| op_progress(&proxy, steps, clock));
    for op in all.filter(|op| clock.ns_since(op.since) >= STILL_NS).take(MOST_OPS) {
        still.entry(op.comm).or_default().push(op);
    }
    still
}

impl LastWritten {
    /// True if more than the time has changed since the last write, or if that was long ago.
    fn is_news(&mut self, progress: &Progress, ops: &[OpProgress], clock: Clock) -> bool {
        let Progress { ticks, age_ms, .. } = self.latest;
        let same = Progress { ticks, age_ms, ..*progress } == self.latest
            && (age_ms == 0) == (progress.age_ms == 0)
            && ops.len() == self.ops.len()
            && ops.iter().zip(&self.ops).all(|(op, told)| OpProgress { ticks, ..*op } == *told);
        if same {
            self.pause.is_over(clock)
        } else {
            let again = if progress.age_ms == 0 { IDLE_AGAIN_S } else { AGAIN_S };
            self.pause = Pause::new(clock, again);
            true
        }
    }
}

/// The steps in flight of a ProxyOp. `steps` must be sorted by [`StepSeen::order`].
pub(super) fn steps_of<'a>(
    proxy: &ProxyView,
    steps: &'a [StepSeen],
) -> impl Iterator<Item = &'a StepSeen> {
    let of = (proxy.lane, proxy.handle.op_ref());
    let first = steps.partition_point(|step| step.order() < of);
    steps.iter().skip(first).take_while(move |step| step.order() == of)
}

/// The progress of a ProxyOp.
pub(super) fn op_progress(proxy: &ProxyView, steps: &[StepSeen], clock: Clock) -> OpProgress {
    let reached = |least: u8| {
        let count = steps_of(proxy, steps).filter(|step| step.reached >= least).count();
        proxy.done + u32::try_from(count).unwrap_or(0)
    };
    // Steps progress in the order of their numbers. Receives are posted ahead, so that a later step
    // may have waited for its sender longer than the first one for the GPU.
    let oldest = steps_of(proxy, steps).min_by_key(|step| step.step);
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

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// The receives of steps 0 to 3 were posted together; the data of the first two came later.
    #[test]
    fn the_oldest_step_is_the_first_and_not_the_one_that_waits_longest() {
        let proxy = ProxyView {
            handle: ncclscope_trace::Handle(77),
            comm: 0,
            lane: 1,
            channel: 0,
            peer: 1,
            is_send: false,
            owner: None,
            start: 0,
            steps: 4,
            done: 0,
            changed: 0,
        };
        let step = |step: u32, reached: u8, since: u64| {
            let (lane, op_ref) = (proxy.lane, proxy.handle.op_ref());
            StepSeen { lane, op_ref, step, reached, since }
        };
        let steps = [step(2, 1, 100), step(0, 3, 110), step(3, 1, 100), step(1, 3, 120)];
        let found = op_progress(&proxy, &steps, Clock { now: 9 * S, hz: S });
        assert_eq!((found.reached, found.since), (Some(3), 110));
        assert_eq!((found.posted, found.ready, found.transmitted, found.done), (4, 2, 2, 0));
    }

    #[test]
    fn what_does_not_change_is_told_ever_more_seldom() {
        let mut told = LastWritten::default();
        let mut pauses = Pauses::default();
        let hung = Progress { enqueued: 9, done: 8, ..Progress::default() };
        let op =
            OpProgress { handle: ncclscope_trace::Handle(77), done: 3, ..OpProgress::default() };
        let (mut at, mut ops, mut threads) = (Vec::new(), 0, 0);
        for second in 1..=600 {
            let clock = Clock { now: second * S, hz: S };
            let age_ms = u32::try_from(second * 1_000).unwrap();
            let progress = Progress { ticks: clock.now, age_ms, ..hung };
            let with = vec![OpProgress { ticks: clock.now, ..op }];
            if told.is_news(&progress, &with, clock) {
                (told.latest, told.ops) = (progress, with);
                at.push(second);
            }
            ops += pauses.due(vec![OpProgress { ticks: clock.now, ..op }], clock).len();
            threads += usize::from(pauses.are_threads_due(clock));
        }
        assert_eq!(at[..7], [1, 2, 4, 8, 16, 32, 64]);
        assert!(at[7..].iter().eq(&[124, 184, 244, 304, 364, 424, 484, 544]), "{at:?}");
        assert_eq!(ops, at.len());
        assert!((at.len()..at.len() + 5).contains(&threads), "{threads}");
        let clock = Clock { now: 601 * S, hz: S };
        let (ticks, age_ms) = (clock.now, 601_000);
        let hung = Progress { ticks, age_ms, ..hung };
        let ops = [OpProgress { ticks, ..op }];
        assert!(!told.is_news(&hung, &ops, clock));
        let moved = [OpProgress { ticks, done: 4, ..op }];
        assert!(told.clone().is_news(&hung, &moved, clock), "a change is told at once");
        assert!(told.clone().is_news(&hung, &[], clock), "an end, too");
        assert!(told.is_news(&Progress { done: 9, ..hung }, &ops, clock));
        assert_eq!(pauses.due(vec![OpProgress { done: 4, ..op }], clock).len(), 1);
        pauses.forget_threads();
        assert!(pauses.are_threads_due(clock));
        assert!(pauses.due(Vec::new(), clock).is_empty() && pauses.ops.is_empty());
    }
}
