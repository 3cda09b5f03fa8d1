// SPDX-License-Identifier: Apache-2.0
//! The records that the drain thread writes once a second: progress, hashes, proxy operations,
//! threads.

use super::buffer::{API, PROXY};
use super::events::{OpLifetime, RankRecorder};
use crate::func::Func;
use crate::time::{NEVER, SECOND, Time, mix, unit};
use ncclscope_trace::Heartbeat;
use ncclscope_trace::progress::{
    CHECKPOINT_EVERY, Checkpoints, Progress, Thread, name_hash, progress_flags, roll,
};

/// Communicators without change are written at this interval, in seconds.
const IDLE_EVERY: u64 = 30;
/// If an operation is in flight for this long, threads are sampled.
const STUCK_AFTER: u64 = 5 * SECOND;
/// The most proxy operations written at a time, the oldest first.
const PROXIES: usize = 64;

/// The counts of one communicator over time.
#[derive(Debug, Default)]
struct Counter {
    progress: Progress,
    /// The operations of this communicator, and how many of them each count includes.
    lifetimes: Vec<usize>,
    called: usize,
    enqueued: usize,
    started: usize,
    done: usize,
    hashes: Vec<u64>,
    told: Option<(Progress, u64)>,
}

impl Counter {
    fn advance(&mut self, lifetimes: &[OpLifetime<'_>], time: Time) {
        let p = &mut self.progress;
        while let Some(life) = self.lifetimes.get(self.called).map(|&at| &lifetimes[at])
            && life.called <= time
        {
            match life.coll {
                Some(coll) => {
                    p.api += 1;
                    let name = coll.func.name();
                    let root = if coll.func == Func::Broadcast { coll.root } else { 0 };
                    let names = [name, coll.datatype.name()].map(|text| name_hash(text.as_bytes()));
                    p.hash = roll(p.hash, names[0], names[1], root.cast_signed(), coll.count);
                    self.hashes.push(p.hash);
                }
                None => p.p2p_api += life.calls,
            }
            // The drain thread sees that the counts changed, not when.
            p.beat = time;
            self.called += 1;
        }
        pass(
            &self.lifetimes,
            lifetimes,
            &mut self.enqueued,
            time,
            |life| life.enqueued,
            |life| {
                let to = if life.coll.is_some() { &mut p.enqueued } else { &mut p.p2p_enqueued };
                *to += life.calls;
            },
        );
        pass(
            &self.lifetimes,
            lifetimes,
            &mut self.started,
            time,
            |life| life.started,
            |life| {
                p.started += if life.coll.is_some() { 1 } else { 0 };
            },
        );
        pass(
            &self.lifetimes,
            lifetimes,
            &mut self.done,
            time,
            |life| life.done,
            |life| {
                let to = if life.coll.is_some() { &mut p.done } else { &mut p.p2p_done };
                *to += life.calls;
            },
        );
    }

    /// When the oldest operation in flight was enqueued.
    fn oldest(&self, lifetimes: &[OpLifetime<'_>], time: Time) -> Option<Time> {
        let life = &lifetimes[*self.lifetimes.get(self.done)?];
        (life.enqueued <= time).then_some(life.enqueued)
    }
}

/// Counts the operations that have reached a stage by `time`, in order.
fn pass(
    own: &[usize],
    lifetimes: &[OpLifetime<'_>],
    at: &mut usize,
    time: Time,
    when: impl Fn(&OpLifetime<'_>) -> Time,
    mut count: impl FnMut(&OpLifetime<'_>),
) {
    while let Some(life) = own.get(*at).map(|&at| &lifetimes[at])
        && when(life) <= time
    {
        count(life);
        *at += 1;
    }
}

/// Writes the records of the drain thread, second by second, and those at the end of a process that
/// closes its recording.
pub(crate) fn record(recorder: &mut RankRecorder<'_>, lifetimes: &[OpLifetime<'_>], closed: bool) {
    let comms = recorder.job.layout.of_rank[recorder.rank as usize].len();
    let mut counters: Vec<Counter> = (0..comms).map(|_| Counter::default()).collect();
    for (at, life) in lifetimes.iter().enumerate() {
        counters[usize::from(life.comm)].lifetimes.push(at);
    }
    let stop = recorder.job.conditions.of(recorder.rank).drain.min(recorder.buffer.end);
    let phase = mix(recorder.job.scenario.seed, 0x7068, u64::from(recorder.rank)) % SECOND;
    recorder.buffer.sync(0);
    let mut second = 0;
    loop {
        let time = phase + second * SECOND;
        if time > stop {
            break;
        }
        recorder.buffer.sync(time.max(1));
        let lost = unit(mix(recorder.job.scenario.seed, time, u64::from(recorder.rank)));
        if lost >= recorder.job.scenario.machine.dropped {
            tell(recorder, lifetimes, &mut counters, (time, second));
        }
        second += 1;
    }
    if closed {
        for (index, counter) in counters.iter_mut().enumerate() {
            counter.advance(lifetimes, stop);
            // A process may exit without destroying its communicators.
            let flags = if recorder.job.closed { progress_flags::ENDED } else { 0 };
            let progress = shown(recorder, counter, (index, flags), lifetimes, stop);
            recorder.buffer.heartbeat(stop, &Heartbeat::Progress(progress));
        }
        recorder.buffer.sync(stop);
    }
}

/// The counts as they are written.
fn shown(
    recorder: &RankRecorder<'_>,
    counter: &Counter,
    (index, flags): (usize, u8),
    lifetimes: &[OpLifetime<'_>],
    time: Time,
) -> Progress {
    let clocks = &recorder.buffer.clocks;
    let age = counter.oldest(lifetimes, time).map_or(0, |since| (time - since) / 1_000_000);
    let unseen = if counter.started == 0 { progress_flags::NO_KERNEL } else { 0 };
    let beat = counter.progress.beat;
    Progress {
        ticks: clocks.ticks(time),
        comm: u16::try_from(index).unwrap_or(u16::MAX),
        flags: flags | unseen,
        age_ms: u32::try_from(age).unwrap_or(u32::MAX),
        beat: if beat == 0 { 0 } else { clocks.ticks(beat) },
        ..counter.progress
    }
}

fn tell(
    recorder: &mut RankRecorder<'_>,
    lifetimes: &[OpLifetime<'_>],
    counters: &mut [Counter],
    (time, second): (Time, u64),
) {
    let mut oldest = NEVER;
    for (index, counter) in counters.iter_mut().enumerate() {
        counter.advance(lifetimes, time);
        let in_flight = counter.oldest(lifetimes, time);
        oldest = oldest.min(in_flight.unwrap_or(NEVER));
        let changed = counter.told.as_ref().is_none_or(|told| told.0 != counter.progress);
        let idle = counter.told.as_ref().is_some_and(|told| second < told.1 + IDLE_EVERY);
        if !changed && in_flight.is_none() && idle {
            continue;
        }
        let progress = shown(recorder, counter, (index, 0), lifetimes, time);
        recorder.buffer.heartbeat(time, &Heartbeat::Progress(progress));
        let crossed = counter.told.as_ref().map_or(0, |told| told.0.api / CHECKPOINT_EVERY);
        if counter.progress.api / CHECKPOINT_EVERY > crossed {
            let checkpoints = checkpoints(counter, &progress);
            recorder.buffer.heartbeat(time, &Heartbeat::Checkpoints(checkpoints));
        }
        counter.told = Some((counter.progress, second));
    }
    let open: Vec<Heartbeat> = lifetimes
        .iter()
        .flat_map(|life| &life.proxies)
        .filter_map(|open| open.progress(&recorder.buffer, time))
        .take(PROXIES)
        .map(Heartbeat::Op)
        .collect();
    for heartbeat in &open {
        recorder.buffer.heartbeat(time, heartbeat);
    }
    // Threads are sampled if an operation has been in flight for long, or there was no call for as
    // long.
    let beat = counters.iter().map(|counter| counter.progress.beat).max().unwrap_or(0);
    if time.saturating_sub(oldest.min(beat)) > STUCK_AFTER && beat != 0 {
        threads(recorder, time);
    }
}

fn checkpoints(counter: &Counter, progress: &Progress) -> Checkpoints {
    let at = progress.api / CHECKPOINT_EVERY * CHECKPOINT_EVERY;
    let hash_after = |count: u64| {
        let last = usize::try_from(count).ok().and_then(|count| count.checked_sub(1));
        last.and_then(|last| counter.hashes.get(last)).copied().unwrap_or(0)
    };
    let hashes = [0, 1, 2, 3].map(|back| hash_after(at.saturating_sub(back * CHECKPOINT_EVERY)));
    Checkpoints { ticks: progress.ticks, comm: progress.comm, at, hashes }
}

/// Both threads, as in `/proc`.
fn threads(recorder: &mut RankRecorder<'_>, time: Time) {
    let thread_states = recorder.job.thread_states[recorder.rank as usize];
    for (lane, state) in [API, PROXY].into_iter().zip(thread_states) {
        let kinds = recorder.buffer.kinds(lane);
        if kinds == 0 {
            continue;
        }
        let place = if state.place.is_empty() || time < state.since {
            ncclscope_trace::StrId::NONE
        } else {
            recorder.buffer.string(state.place)
        };
        let thread = Thread {
            ticks: recorder.buffer.clocks.ticks(time),
            tid: recorder.pid + if lane == API { 0 } else { 31 },
            state: if time < state.since { b'R' } else { state.state },
            place,
            // A thread that waits for a GPU or a network spins.
            cpu_ns: if state.state == b'R' { time } else { time.min(state.since) },
            run_delay_ns: time / 1_000,
            kinds,
        };
        recorder.buffer.heartbeat(time, &Heartbeat::Thread(thread));
    }
}
