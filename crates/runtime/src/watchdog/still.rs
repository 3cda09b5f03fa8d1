// SPDX-License-Identifier: Apache-2.0
/*!
How long operations have stood still, in time that the watchdog itself saw pass.

A process that is stopped (by a signal, a debugger, a freezer, a suspended or paused machine) does
not move and does not hang. So time counts only in pieces between two ticks of the watchdog, and
each piece counts at most [`MOST_NS`]: in the rest the process did not run. Ticks of the processor's
counter are compared only with each other: a counter that jumps changes no time here.
*/

use ncclscope_operations::progress::Owner;
use std::collections::BTreeMap;

/// Maximum interval between two ticks of the watchdog, ns.
const TICK_NS: u64 = 250_000_000;
/// A longer gap than this counts as [`TICK_NS`] only, ns. On a busy machine a tick may be late.
const MOST_NS: u64 = 4 * TICK_NS;

/// The time that was seen to pass while the process ran.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// The latest tick, ns of `CLOCK_MONOTONIC`.
    last: Option<u64>,
    /// Time seen since the first tick, ns.
    total: u64,
}

impl Seen {
    /// Notes that the process runs at `now` (ns of `CLOCK_MONOTONIC`). True if it did not run for a
    /// while.
    pub(super) fn tick(&mut self, now: u64) -> bool {
        let piece = now.saturating_sub(self.last.replace(now).unwrap_or(now));
        let was_away = piece > MOST_NS;
        self.total += if was_away { TICK_NS } else { piece };
        was_away
    }

    /// The time seen so far, ns.
    pub(super) const fn total(self) -> u64 {
        self.total
    }
}

/// What a question refers to: how long has it stood still?
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Key {
    /// The oldest operation of a communicator.
    Comm(u16),
    /// The call with this handle.
    Call(u64),
    /// The transfers for this communicator of another process.
    Foreign(Owner),
    /// The latest end of an operation of a communicator.
    End(u16),
}

/// The latest change of each key.
#[derive(Debug, Default)]
pub(super) struct Stills {
    known: BTreeMap<Key, Still>,
    /// The time seen at the latest look, ns; `before` is that of the look before.
    now: u64,
    before: u64,
}

#[derive(Clone, Copy, Debug)]
struct Still {
    /// The latest change, in ticks of the counter.
    since: u64,
    /// The time seen at that change, ns.
    at: u64,
    is_asked: bool,
}

impl Stills {
    /// Begins a look, and forgets keys that were not asked about at the previous one.
    pub(super) fn begin_look(&mut self, seen: Seen) {
        (self.before, self.now) = (self.now, seen.total);
        self.known.retain(|_, still| std::mem::take(&mut still.is_asked));
    }

    /// For how long (time seen, ns) `key` has not changed. Its latest change was at `since` ticks,
    /// `ago` ns before now by the counter. A change since the last look counts as later than that
    /// look, whatever the counter says.
    pub(super) fn ns(&mut self, key: Key, since: u64, ago: u64) -> u64 {
        let at = self.now - ago.min(self.now - self.before);
        let still = self.known.entry(key).or_insert(Still { since, at, is_asked: true });
        if still.since != since {
            (still.since, still.at) = (since, at);
        }
        still.is_asked = true;
        self.now - still.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1_000 * MS;

    /// A process with one operation, whose counter counts ns.
    struct Process {
        seen: Seen,
        stills: Stills,
        /// The system's clock and the counter.
        clock: u64,
        counter: u64,
    }

    impl Process {
        fn new() -> Process {
            let mut process = Process {
                seen: Seen::default(),
                stills: Stills::default(),
                clock: 9 * S,
                counter: 700 * S,
            };
            process.runs(2 * S);
            process
        }

        /// The process runs for `ns`, and looks once a second.
        fn runs(&mut self, ns: u64) {
            for _ in 0..ns / (50 * MS) {
                self.clock += 50 * MS;
                self.counter += 50 * MS;
                self.seen.tick(self.clock);
            }
        }

        /// For how long the operation has stood still, given its latest change.
        fn still_s(&mut self, since: u64) -> f64 {
            self.stills.begin_look(self.seen);
            let ago = self.counter.saturating_sub(since);
            let ms = self.stills.ns(Key::Comm(0), since, ago) / MS;
            f64::from(u32::try_from(ms).unwrap()) / 1e3
        }

        fn runs_and_looks(&mut self, seconds: u32, since: u64) -> f64 {
            (0..seconds).fold(0.0, |_, _| {
                self.runs(S);
                self.still_s(since)
            })
        }
    }

    #[test]
    fn time_that_passes_counts() {
        let mut process = Process::new();
        process.still_s(0);
        process.runs(400 * MS);
        let since = process.counter;
        process.runs(600 * MS);
        assert_eq!(process.still_s(since), 0.6);
        assert_eq!(process.runs_and_looks(3, since), 3.6);
        let moved = process.counter - 100 * MS;
        assert_eq!(process.still_s(moved), 0.0, "no time was seen since the last look");
        assert_eq!(process.runs_and_looks(2, moved), 2.0);
    }

    #[test]
    fn a_process_that_is_stopped_does_not_stand_still() {
        for (name, clock, counter) in [
            ("SIGSTOP", 5 * S, 5 * S),
            ("a suspended machine whose counter goes on", 0, 3600 * S),
            ("a paused machine, by both clocks", 3600 * S, 3600 * S),
            ("a paused machine, by the system's clock", 3600 * S, 0),
            ("a counter that jumps back", 0, (100 * S).wrapping_neg()),
        ] {
            let mut process = Process::new();
            process.still_s(0);
            let since = process.counter;
            assert_eq!(process.runs_and_looks(1, since), 1.0);
            process.clock += clock;
            process.counter = process.counter.wrapping_add(counter);
            let at_once = process.still_s(since);
            process.runs(S);
            let still = process.still_s(since);
            assert!(at_once == 1.0 && (2.0..=3.0).contains(&still), "{name}: {at_once}, {still}");
            // A hang is found all the same.
            let later = process.runs_and_looks(5, since);
            assert!((7.0..=8.0).contains(&later), "{name}: {later}");
        }
    }

    #[test]
    fn what_is_not_asked_about_is_forgotten() {
        let mut stills = Stills::default();
        let mut seen = Seen::default();
        for at in 1..=3 {
            assert!(!seen.tick(at * S));
            stills.begin_look(seen);
            stills.ns(Key::Call(7), 5, at);
        }
        stills.begin_look(seen);
        stills.begin_look(seen);
        assert!(stills.known.is_empty());
        assert!(seen.tick(9 * S), "a pause is told");
    }
}
