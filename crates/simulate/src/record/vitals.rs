// SPDX-License-Identifier: Apache-2.0
//! What the drain thread writes once a second: progress, hashes, proxy operations, threads.

use super::events::{Life, Scribe};
use super::tape::{API, PROXY};
use crate::model::program::Func;
use crate::time::{NEVER, SECOND, Time, mix, unit};
use ncclscope_trace::Vital;
use ncclscope_trace::progress::{
    CHECKPOINT_EVERY, Checkpoints, Progress, Thread, name_hash, progress_flags, roll,
};

/// Communicators without change are written at this interval, in seconds.
const IDLE_EVERY: u64 = 30;
/// Something in flight for so long looks stuck: threads are looked at.
const STUCK_AFTER: u64 = 5 * SECOND;
/// Proxy operations written at a time, the oldest first.
const PROXIES: usize = 64;

/// A thread's processor time and place while the rank is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stance {
    /// State as `/proc` has it.
    pub(crate) state: u8,
    /// Where it waits in the kernel; empty nowhere.
    pub(crate) place: &'static str,
    /// When it stopped using the processor.
    pub(crate) since: Time,
}

/// Counts of one communicator, while seconds go by.
#[derive(Debug, Default)]
struct Counter {
    progress: Progress,
    /// Operations of this communicator, and how many of them each count has passed.
    lives: Vec<usize>,
    called: usize,
    enqueued: usize,
    started: usize,
    done: usize,
    hashes: Vec<u64>,
    told: Option<(Progress, u64)>,
}

impl Counter {
    /// Counts on up to `time`.
    fn advance(&mut self, lives: &[Life<'_>], time: Time) {
        let p = &mut self.progress;
        while let Some(life) = self.lives.get(self.called).map(|&at| &lives[at])
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
            p.beat = life.called;
            self.called += 1;
        }
        pass(
            &self.lives,
            lives,
            &mut self.enqueued,
            time,
            |life| life.enqueued,
            |life| {
                let to = if life.coll.is_some() { &mut p.enqueued } else { &mut p.p2p_enqueued };
                *to += life.calls;
            },
        );
        pass(
            &self.lives,
            lives,
            &mut self.started,
            time,
            |life| life.started,
            |life| {
                p.started += if life.coll.is_some() { 1 } else { 0 };
            },
        );
        pass(
            &self.lives,
            lives,
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
    fn oldest(&self, lives: &[Life<'_>], time: Time) -> Option<Time> {
        let life = &lives[*self.lives.get(self.done)?];
        (life.enqueued <= time).then_some(life.enqueued)
    }
}

/// Passes the operations that reached something by `time`, in their order.
fn pass(
    own: &[usize],
    lives: &[Life<'_>],
    at: &mut usize,
    time: Time,
    when: impl Fn(&Life<'_>) -> Time,
    mut count: impl FnMut(&Life<'_>),
) {
    while let Some(life) = own.get(*at).map(|&at| &lives[at])
        && when(life) <= time
    {
        count(life);
        *at += 1;
    }
}

/// Writes what the drain thread writes of a rank, second by second; and at the end, of a process
/// that closes its recording.
pub(crate) fn record(scribe: &mut Scribe<'_>, lives: &[Life<'_>], closed: bool) {
    let comms = scribe.job.layout.of_rank[scribe.rank as usize].len();
    let mut counters: Vec<Counter> = (0..comms).map(|_| Counter::default()).collect();
    for (at, life) in lives.iter().enumerate() {
        counters[usize::from(life.comm)].lives.push(at);
    }
    let stop = scribe.job.conditions.of(scribe.rank).drain.min(scribe.tape.end);
    let phase = mix(scribe.job.scenario.seed, 0x7068, u64::from(scribe.rank)) % SECOND;
    scribe.tape.sync(0);
    let mut second = 0;
    loop {
        let time = phase + second * SECOND;
        if time > stop {
            break;
        }
        scribe.tape.sync(time.max(1));
        let lost = unit(mix(scribe.job.scenario.seed, time, u64::from(scribe.rank)));
        if lost >= scribe.job.scenario.machine.dropped {
            tell(scribe, lives, &mut counters, (time, second));
        }
        second += 1;
    }
    if closed {
        for (index, counter) in counters.iter_mut().enumerate() {
            counter.advance(lives, stop);
            // A process may end without ending its communicators.
            let flags = if scribe.job.closed { progress_flags::ENDED } else { 0 };
            let progress = shown(scribe, counter, (index, flags), lives, stop);
            scribe.tape.vital(stop, &Vital::Progress(progress));
        }
        scribe.tape.sync(stop);
    }
}

/// The counts as they are written.
fn shown(
    scribe: &Scribe<'_>,
    counter: &Counter,
    (index, flags): (usize, u8),
    lives: &[Life<'_>],
    time: Time,
) -> Progress {
    let clocks = &scribe.tape.clocks;
    let age = counter.oldest(lives, time).map_or(0, |since| (time - since) / 1_000_000);
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
    scribe: &mut Scribe<'_>,
    lives: &[Life<'_>],
    counters: &mut [Counter],
    (time, second): (Time, u64),
) {
    let mut oldest = NEVER;
    for (index, counter) in counters.iter_mut().enumerate() {
        counter.advance(lives, time);
        let in_flight = counter.oldest(lives, time);
        oldest = oldest.min(in_flight.unwrap_or(NEVER));
        let changed = counter.told.as_ref().is_none_or(|told| told.0 != counter.progress);
        let idle = counter.told.as_ref().is_some_and(|told| second < told.1 + IDLE_EVERY);
        if !changed && in_flight.is_none() && idle {
            continue;
        }
        let progress = shown(scribe, counter, (index, 0), lives, time);
        scribe.tape.vital(time, &Vital::Progress(progress));
        let crossed = counter.told.as_ref().map_or(0, |told| told.0.api / CHECKPOINT_EVERY);
        if counter.progress.api / CHECKPOINT_EVERY > crossed {
            let checkpoints = checkpoints(counter, &progress);
            scribe.tape.vital(time, &Vital::Checkpoints(checkpoints));
        }
        counter.told = Some((counter.progress, second));
    }
    let open: Vec<Vital> = lives
        .iter()
        .flat_map(|life| &life.proxies)
        .filter_map(|open| open.progress(&scribe.tape, time))
        .take(PROXIES)
        .map(Vital::Op)
        .collect();
    for vital in &open {
        scribe.tape.vital(time, vital);
    }
    // In flight for long, or no call for as long.
    let beat = counters.iter().map(|counter| counter.progress.beat).max().unwrap_or(0);
    if time.saturating_sub(oldest.min(beat)) > STUCK_AFTER && beat != 0 {
        threads(scribe, time);
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

/// Both threads, as `/proc` shows them.
fn threads(scribe: &mut Scribe<'_>, time: Time) {
    let stances = scribe.job.stances[scribe.rank as usize];
    for (lane, stance) in [API, PROXY].into_iter().zip(stances) {
        let kinds = scribe.tape.kinds(lane);
        if kinds == 0 {
            continue;
        }
        let place = if stance.place.is_empty() || time < stance.since {
            ncclscope_trace::StrId::NONE
        } else {
            scribe.tape.string(stance.place)
        };
        let thread = Thread {
            ticks: scribe.tape.clocks.ticks(time),
            tid: scribe.pid + if lane == API { 0 } else { 31 },
            state: if time < stance.since { b'R' } else { stance.state },
            place,
            // A thread that waits for a GPU or a network spins.
            cpu_ns: if stance.state == b'R' { time } else { time.min(stance.since) },
            run_delay_ns: time / 1_000,
            kinds,
        };
        scribe.tape.vital(time, &Vital::Thread(thread));
    }
}
