// SPDX-License-Identifier: Apache-2.0
//! For how long the process was short of processor time: its timers were late, its threads were
//! ready but did not run, or its control group's quota was used up.
//!
//! A proxy thread that does not run makes its links look slow. Readers that compare links need to
//! know when that was the reason.

use super::clock::Clock;
use crate::sys::quota::Quota;
use crate::sys::threads;
use ncclscope_recorder::Recorder;
use ncclscope_trace::progress::Shortage;
use std::collections::BTreeMap;

/// Minimum time between two looks, ns: about a second.
const SPAN_NS: u64 = 900_000_000;
/// A timer that is late by less than this counts as punctual, ns: timers are coarse, and a round
/// takes time.
const PUNCTUAL_NS: u64 = 2_000_000;
/// A shortage is recorded if it is more than one part in this many of the time.
const WORTH: u64 = 100;
/// Maximum number of threads that are looked at.
const MOST: usize = 64;

/// What was seen since the latest look.
#[derive(Debug)]
pub(super) struct Shortages {
    late_ns: u64,
    longest_ns: u64,
    /// For each thread that makes callbacks: time since its start that it was ready but did not
    /// run, ns.
    delays: BTreeMap<u32, u64>,
    quota: Quota,
    throttled_us: u64,
    /// When the latest look was, in ticks; 0 before the first.
    since: u64,
}

impl Shortages {
    pub(super) fn new() -> Shortages {
        Shortages {
            late_ns: 0,
            longest_ns: 0,
            delays: BTreeMap::new(),
            quota: Quota::new(),
            throttled_us: 0,
            since: 0,
        }
    }

    /// Notes that a timer of the drain thread was `ns` late.
    pub(super) fn late(&mut self, ns: u64) {
        if ns > PUNCTUAL_NS {
            self.late_ns = self.late_ns.saturating_add(ns);
            self.longest_ns = self.longest_ns.max(ns);
        }
    }

    /// Looks once a second. Returns the record of a shortage if there was one.
    pub(super) fn look(&mut self, recorder: &Recorder, clock: Clock) -> Option<Shortage> {
        let tids = recorder.lanes().map(|(_, lane)| lane.thread()).filter(|&tid| tid != 0);
        let delays = || tids.take(MOST).filter_map(|tid| Some((tid, threads::run_delay_ns(tid)?)));
        self.account(clock, delays, |quota| quota.throttled_us().unwrap_or(0))
    }

    fn account<I: Iterator<Item = (u32, u64)>>(
        &mut self,
        clock: Clock,
        delays: impl FnOnce() -> I,
        throttled_us: impl FnOnce(&Quota) -> u64,
    ) -> Option<Shortage> {
        let span_ns = clock.ns_since(self.since);
        let is_first = self.since == 0;
        if !is_first && span_ns < SPAN_NS {
            return None;
        }
        let now: BTreeMap<u32, u64> = delays().collect();
        let grown = now
            .iter()
            .filter_map(|(&tid, &ns)| Some((ns.saturating_sub(*self.delays.get(&tid)?), tid)));
        let (delay_ns, tid) = grown.max().unwrap_or_default();
        let throttled = throttled_us(&self.quota);
        let us = |ns: u64| u32::try_from(ns / 1_000).unwrap_or(u32::MAX);
        let shortage = Shortage {
            ticks: clock.now,
            span_us: us(span_ns),
            late_us: us(std::mem::take(&mut self.late_ns)),
            longest_us: us(std::mem::take(&mut self.longest_ns)),
            delay_us: us(delay_ns),
            throttled_us: us(throttled.saturating_sub(self.throttled_us).saturating_mul(1_000)),
            tid,
        };
        (self.delays, self.throttled_us, self.since) = (now, throttled, clock.now);
        let most = shortage.late_us.max(shortage.delay_us).max(shortage.throttled_us);
        (!is_first && WORTH * u64::from(most) > u64::from(shortage.span_us)).then_some(shortage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: u64 = 1_000_000_000;

    /// Looks at `ms`, with the given delays of threads and quota.
    fn look(of: &mut Shortages, ms: u64, delays: &[(u32, u64)], quota: u64) -> Option<Shortage> {
        let clock = Clock { now: ms * 1_000_000, hz: HZ };
        of.account(clock, || delays.iter().copied(), |_| quota)
    }

    #[test]
    fn a_shortage_is_told_and_a_small_one_is_not() {
        let mut of = Shortages::new();
        assert_eq!(look(&mut of, 1_000, &[(7, 5_000_000)], 40), None, "there is no time before");
        of.late(1_000_000);
        assert_eq!(look(&mut of, 2_000, &[(7, 9_000_000)], 40), None, "4 of 1,000 ms");
        of.late(20_000_000);
        of.late(30_000_000);
        assert_eq!(look(&mut of, 2_500, &[], 40), None, "it is not time yet");
        let delays = [(7, 9_000_000), (8, 900_000_000)];
        let found = look(&mut of, 3_000, &delays, 1_040).expect("50 of 1,000 ms");
        assert_eq!((found.span_us, found.late_us, found.longest_us), (1_000_000, 50_000, 30_000));
        assert_eq!((found.delay_us, found.throttled_us), (0, 1_000), "thread 8 is new");
        let delays = [(7, 9_000_000), (8, 1_400_000_000)];
        let found = look(&mut of, 4_000, &delays, 1_040).expect("500 of 1,000 ms");
        assert_eq!((found.delay_us, found.tid), (500_000, 8));
        assert_eq!((found.late_us, found.throttled_us), (0, 0));
    }
}
