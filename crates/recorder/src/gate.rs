// SPDX-License-Identifier: Apache-2.0
/*!
The gate: the first load of every callback decides whether it does anything, and for which events.

An operation belongs to the recorded window in which its outermost event started, and so does
everything that NCCL starts below it, however late. Stopping therefore has two steps: first no new
operation is recorded ([`stop`]), later nothing at all ([`settle`]). The second step is needed
because NCCL starts network and kernel events of graphs that were captured in the window for as long
as they are launched. Events that are open then are still ended.
*/

use crate::clock;
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use ncclscope_trace::Handle;

static GATE: AtomicU8 = AtomicU8::new(SHUT);
const SHUT: u8 = 0;
const ON: u8 = 1;
const DEAD: u8 = 2;
const STOPPED: u8 = 3;
const SETTLED: u8 = 5;
/// One operation in this many is recorded.
static EVERY: AtomicU32 = AtomicU32::new(1);
/// Number of operations without a number so far, counted while not every operation is recorded.
static NUMBERLESS: AtomicU64 = AtomicU64::new(0);
/// See [`settled_until`].
static SETTLED_UNTIL: AtomicU64 = AtomicU64::new(0);
/// Bit of the states in which stops and state changes of open events are recorded.
const OPEN: u8 = 1;

/// True while callbacks record something. True also makes all set-up before [`open`] visible.
#[must_use]
#[inline(always)]
pub fn is_open() -> bool {
    GATE.load(Ordering::Acquire) & OPEN != 0
}

/// True if the open window records an event with this parent. True also makes all set-up before
/// [`open`] visible. (Network steps need no check: they belong to their operation's window.)
#[must_use]
#[inline(always)]
pub fn takes(parent: Handle) -> bool {
    GATE.load(Ordering::Acquire) == ON && parent != Handle::REFUSED
}

/// For events that [`takes`] refuses: true if the event belongs to an operation of the window that
/// was just stopped.
#[must_use]
pub fn takes_late(parent: Handle) -> bool {
    let is_stopped = GATE.load(Ordering::Relaxed) == STOPPED;
    is_stopped && parent != Handle::REFUSED && !parent.is_null()
}

/// Records one operation in `every`; 1 records all.
pub fn set_sample(every: u32) {
    EVERY.store(every.max(1), Ordering::Relaxed);
}

/// True if the operation with this number on its communicator is in the sample. All ranks of a
/// communicator number its collectives alike, and so choose the same ones. Operations without a
/// number are chosen by each rank on its own.
#[must_use]
#[inline(always)]
pub fn samples(number: Option<u64>) -> bool {
    match EVERY.load(Ordering::Relaxed) {
        1 => true,
        every => is_sampled(number, every),
    }
}

#[cold]
#[inline(never)]
fn is_sampled(number: Option<u64>, every: u32) -> bool {
    let number = number.unwrap_or_else(|| NUMBERLESS.fetch_add(1, Ordering::Relaxed));
    number.is_multiple_of(u64::from(every))
}

/// Opens the gate for the first time, unless it was [`kill`]ed. Publishes all set-up before it.
pub fn open() {
    turn(SHUT, ON);
}

/// Stops recording new operations, until [`start`]. False if none were being recorded.
pub fn stop() -> bool {
    turn(ON, STOPPED)
}

/// Records new operations again after a [`stop`]. False if they are being recorded already, or if
/// the gate is not open yet or dead.
pub fn start() -> bool {
    if GATE.load(Ordering::Relaxed) == SETTLED {
        SETTLED_UNTIL.store(clock::now(), Ordering::Relaxed);
    }
    turn(STOPPED, ON) || turn(SETTLED, ON)
}

/// Ends the window after a [`stop`]: from here on no event starts, not even one of an earlier
/// operation.
pub fn settle() {
    if turn(STOPPED, SETTLED) {
        SETTLED_UNTIL.store(u64::MAX, Ordering::Relaxed);
    }
}

/// For operations that began before this time (ticks), children may be missing from the recording
/// because the gate had settled. `u64::MAX` while the gate is settled, 0 if it never was.
#[must_use]
pub fn settled_until() -> u64 {
    SETTLED_UNTIL.load(Ordering::Relaxed)
}

/// One operation in this many is recorded; `None` while new operations are not recorded.
#[must_use]
pub fn sample() -> Option<u32> {
    is_started().then(|| EVERY.load(Ordering::Relaxed))
}

/// True while new operations are recorded.
#[must_use]
pub fn is_started() -> bool {
    GATE.load(Ordering::Relaxed) == ON
}

fn turn(from: u8, to: u8) -> bool {
    GATE.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed).is_ok()
}

/// Closes the gate for the rest of the process: after a fork (in the child) or a contained panic.
/// Safe to call in a signal handler or an `atfork` handler.
pub fn kill() {
    GATE.store(DEAD, Ordering::Relaxed);
}

/// True after [`kill`].
#[must_use]
pub fn is_dead() -> bool {
    GATE.load(Ordering::Relaxed) == DEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::EventKind;

    /// A single test, because there is one gate for the process.
    #[test]
    fn a_window_ends_in_two_steps_and_a_killed_gate_stays_shut() {
        let root = Handle::NULL;
        let child = Handle::value(7, EventKind::Group, 0, 0);
        let admitted = || [root, child, Handle::REFUSED].map(|p| takes(p) || takes_late(p));
        assert!(!is_open() && !is_started() && !stop() && !start());
        assert_eq!(admitted(), [false, false, false]);
        open();
        assert!(is_open() && is_started() && !start());
        assert_eq!(admitted(), [true, true, false]);
        assert!(stop() && !stop());
        assert!(is_open() && !is_started());
        assert_eq!(admitted(), [false, true, false]);
        assert_eq!(settled_until(), 0);
        settle();
        assert!(is_open() && !is_started() && sample().is_none());
        assert_eq!(admitted(), [false, false, false]);
        assert_eq!(settled_until(), u64::MAX);
        let before = clock::now();
        assert!(start() && is_started() && sample() == Some(1));
        assert!((before..=clock::now()).contains(&settled_until()), "what begins now is another's");
        settle();
        assert!(is_started() && settled_until() != u64::MAX, "only what was stopped settles");
        kill();
        open();
        assert!(!is_open() && is_dead() && !start() && !stop() && !is_started());
        assert_eq!(admitted(), [false, false, false]);
    }
}
