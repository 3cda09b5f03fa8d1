// SPDX-License-Identifier: Apache-2.0
//! The drain thread: wakes up, passes records from the lanes to the sinks, and sleeps.

use crate::beside::Looks;
use crate::runtime::Runtime;
use crate::sys::wake::Wake;
use ncclscope_recorder::{clock, gate, lane};
use std::time::Duration;

/// Sleep while records arrive. At the highest rate of steps of a 400 Gb/s network, a lane lasts 34
/// ms.
const BUSY: Duration = Duration::from_millis(10);
/// Sleep after a short pause: shorter than 34 ms, because the highest rate may resume at once.
const QUIET: Duration = Duration::from_millis(25);
/// Sleep after a second without records. Up to 320,000 steps a second of one proxy fit a lane until
/// the next look; each look costs up to 64 us of processor time, mostly in the kernel.
const IDLE: Duration = Duration::from_millis(80);
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Sleep while no communicator is alive.
const PARKED: Duration = Duration::from_millis(250);
const FLUSH_EVERY: Duration = Duration::from_millis(250);
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// A lane with more words than this is read again at once. At the highest rate of steps lanes stay
/// below this: an additional look that finds little costs as much as one that finds 10 ms of
/// records.
const HURRY_WORDS: u64 = lane::RING_WORDS / 2;

/// The thread's body; ends when the gate is killed.
pub(crate) fn run(runtime: &'static Runtime, wake: &Wake) {
    let mut since_flush = Duration::ZERO;
    let mut since_sync = Duration::ZERO;
    let mut quiet_for = Duration::ZERO;
    let mut looks = Looks::default();
    let mut sleep = BUSY;
    let mut woken = clock::now_ns();
    while !gate::is_dead() {
        let due = clock::now_ns().saturating_add(nanoseconds(sleep));
        wake.wait(Some(sleep));
        let late = clock::now_ns().saturating_sub(due);
        let passed = since(woken);
        woken = clock::now_ns();
        since_flush += passed;
        since_sync += passed;
        let flush = since_flush >= FLUSH_EVERY;
        let sync = since_sync >= SYNC_EVERY;
        runtime.heed_signals();
        if let Some(libraries) = looks.after(passed) {
            runtime.tell_beside(&libraries);
        }
        let Some(load) = runtime.tick(flush, sync, late) else { return };
        if flush {
            since_flush = Duration::ZERO;
        }
        if sync {
            since_sync = Duration::ZERO;
        }
        quiet_for = if load.fullest == 0 { quiet_for + passed } else { Duration::ZERO };
        sleep = match load {
            load if load.fullest > HURRY_WORDS => Duration::ZERO,
            // `BUSY` is the time from the start of one look to the next, however long the look
            // takes.
            load if load.fullest != 0 => BUSY.saturating_sub(since(woken)),
            load if load.comms == 0 => PARKED,
            _ if quiet_for < IDLE_AFTER => QUIET,
            _ => IDLE,
        };
        sleep = load.next.map_or(sleep, |next| sleep.min(next));
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn since(ns: u64) -> Duration {
    Duration::from_nanos(clock::now_ns().saturating_sub(ns))
}
