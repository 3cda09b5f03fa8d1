// SPDX-License-Identifier: Apache-2.0
/*!
From ticks to nanoseconds: how times of one recording become times of the host.

# Ticks

A callback stores what the processor's counter shows, which costs 7 ns, and converts nothing. (Where
the counter is no good, ticks are nanoseconds of `CLOCK_MONOTONIC`.) The rate of the counter is
known only nominally, and `CLOCK_REALTIME` is slewed and stepped by NTP, so that no formula fixed at
the start leads from one to the other. Instead the drain thread compares the clocks, once a second
and at the ends of a recording, and writes each comparison as a record ([`ClockSync`]).

# A comparison

The clocks cannot be read at one moment. They are read in a bracket:

```text
CLOCK_MONOTONIC   counter   CLOCK_REALTIME   counter   CLOCK_MONOTONIC
       |------------------- width ------------------------|
```

The middle of the outer readings, the middle of the inner ones and the reading between them are
taken for one moment. They are apart by less than the width, which is kept as the comparison's
error. An interrupt or another guest of the host makes a bracket wide, so that the tightest of 16
counts (`ncclscope_recorder::clock::compare`); 100 ns is usual.

# The map

Between two comparisons time is linear: `CLOCK_REALTIME` at a tick is interpolated ([`TickMap`]). So
a slewed clock is followed second by second. Where the clock was set, so that it and
`CLOCK_MONOTONIC` advance differently between two comparisons, all times are by the clock as it was
set last: no time between them is stretched, and none goes back. [`TickMap::steps`] has the steps.
Before the first comparison and after the last the rate of the whole recording is used, by
`CLOCK_MONOTONIC`, which is never stepped. Where all comparisons lie within 10 ms it is the nominal
rate: over so short a time the widths of two brackets weigh more than its error.

A *duration* is not the difference of two mapped times, which small steps may still make wrong, or
negative. It is the ticks in between by the rate of the whole recording. That rate is off by the
error of two brackets over the recording's length: 0.2 ppm after a second.

# Several recordings

Times of processes of one host agree to the widths of their brackets, for they go by the same
`CLOCK_REALTIME`; one that ended before a step of it is apart from the others by that. Those of
different hosts agree as well as the hosts' clocks do, which is often no better than a millisecond:
`ncclscope_stragglers` estimates the offsets from the operations that the hosts have in common.
Times of GPUs (`pTimer`) are mapped by `ncclscope_operations`.
*/

use crate::fields::record_fields;

/// The clock that ticks come from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ClockSource {
    /// The processor's invariant time stamp counter (x86-64 TSC).
    Tsc,
    /// `CLOCK_MONOTONIC` in nanoseconds: no usable counter was found.
    Monotonic,
}

impl ClockSource {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ClockSource::Tsc => "tsc",
            ClockSource::Monotonic => "monotonic",
        }
    }
}

record_fields! {
    /// One comparison of the tick counter with the system's clocks.
    #[derive(Default)]
    pub struct ClockSync: 4 {
        /// The tick counter.
        ticks: u64 = (1, 0),
        /// `CLOCK_MONOTONIC`, ns.
        monotonic_ns: u64 = (2, 0),
        /// `CLOCK_REALTIME`, ns since 1970.
        realtime_ns: u64 = (3, 0),
        /// Width of the bracket: how far the three can be apart, ns.
        error_ns: u32 = (0, 32),
    }
}

/// What `CLOCK_REALTIME` gains or loses between two comparisons is a step if it is more than this,
/// ns, and more than one part in so many of the time between.
const STEP_NS: u64 = 1_000_000;
const STEP_PART: u64 = 1_000;

/// Maps ticks to `CLOCK_REALTIME` and durations to nanoseconds, piecewise linear between the
/// comparisons of the recording.
#[derive(Clone, Debug)]
pub struct TickMap {
    /// Their `CLOCK_REALTIME` is by the clock as it was set last.
    syncs: Vec<ClockSync>,
    /// Nanoseconds per tick before the first comparison, and from each one on.
    rates: Vec<f64>,
    steps: Vec<i64>,
    ns_per_tick: f64,
}

impl TickMap {
    /// A map from comparisons in any order and a nominal rate, which holds where there are fewer
    /// than two of them.
    #[must_use]
    pub fn new(mut syncs: Vec<ClockSync>, nominal_hz: u64) -> TickMap {
        syncs.sort_by_key(|s| s.ticks);
        syncs.dedup_by_key(|s| s.ticks);
        let nominal = if nominal_hz == 0 { 1.0 } else { 1e9 / to_f64(nominal_hz) };
        let measured = match (syncs.first(), syncs.last()) {
            // Under 10 ms apart the brackets weigh more than the nominal rate's error.
            (Some(a), Some(b)) if b.monotonic_ns > a.monotonic_ns.saturating_add(10_000_000) => {
                Some(to_f64(b.monotonic_ns - a.monotonic_ns) / to_f64(b.ticks - a.ticks))
            }
            _ => None,
        };
        let steps = take_out_steps(&mut syncs);
        let ns_per_tick = measured.unwrap_or(nominal);
        TickMap { rates: rates(&syncs, ns_per_tick), syncs, steps, ns_per_tick }
    }

    /// By how much the host's clock was set, ns, each time that it was: below zero, if backward.
    #[must_use]
    pub fn steps(&self) -> &[i64] {
        &self.steps
    }

    /// A duration in nanoseconds.
    #[must_use]
    pub fn duration_ns(&self, ticks: u64) -> f64 {
        to_f64(ticks) * self.ns_per_tick
    }

    /// `CLOCK_REALTIME` at `ticks`, in ns since 1970. Without any comparison: ns since tick 0.
    #[must_use]
    #[inline]
    pub fn realtime_ns(&self, ticks: u64) -> u64 {
        let after = self.syncs.partition_point(|s| s.ticks <= ticks);
        let base = self.syncs.get(after.saturating_sub(1)).copied().unwrap_or_default();
        let rate = self.rates.get(after).copied().unwrap_or(self.ns_per_tick);
        if ticks >= base.ticks {
            base.realtime_ns.saturating_add(to_u64(to_f64(ticks - base.ticks) * rate))
        } else {
            base.realtime_ns.saturating_sub(to_u64(to_f64(base.ticks - ticks) * rate))
        }
    }

    /// The widest bracket of the comparisons, ns: the error of [`TickMap::realtime_ns`].
    #[must_use]
    pub fn error_ns(&self) -> u32 {
        self.syncs.iter().map(|s| s.error_ns).max().unwrap_or(0)
    }

    /// Nanoseconds per tick over the whole recording.
    #[must_use]
    pub fn ns_per_tick(&self) -> f64 {
        self.ns_per_tick
    }
}

/// Nanoseconds per tick before the first comparison and from each one on: `usual` at both ends.
fn rates(syncs: &[ClockSync], usual: f64) -> Vec<f64> {
    let first = ClockSync::default();
    let bases = [&first].into_iter().chain(syncs);
    let nexts = syncs.iter().map(Some).chain([None]);
    // Before the first comparison times are counted back from it.
    let rate = |(at, (base, next)): (usize, (&ClockSync, Option<&ClockSync>))| match next {
        Some(next) if at > 0 && next.ticks > base.ticks => {
            to_f64(next.realtime_ns.saturating_sub(base.realtime_ns))
                / to_f64(next.ticks - base.ticks)
        }
        _ => usual,
    };
    bases.zip(nexts).enumerate().map(rate).collect()
}

/// Moves the comparisons before each step of the clock by the step. Returns the steps in order.
fn take_out_steps(syncs: &mut [ClockSync]) -> Vec<i64> {
    let ahead = |sync: &ClockSync| sync.realtime_ns.wrapping_sub(sync.monotonic_ns);
    let (mut steps, mut moved) = (Vec::new(), 0i64);
    let Some(mut next) = syncs.last().copied() else { return steps };
    for sync in syncs.iter_mut().rev() {
        let step = ahead(&next).wrapping_sub(ahead(sync)).cast_signed();
        let part = next.monotonic_ns.saturating_sub(sync.monotonic_ns) / STEP_PART;
        if step.unsigned_abs() > STEP_NS.max(part) {
            steps.push(step);
            moved = moved.saturating_add(step);
        }
        next = *sync;
        sync.realtime_ns = sync.realtime_ns.saturating_add_signed(moved);
    }
    steps.reverse();
    steps
}

#[expect(clippy::cast_precision_loss, reason = "differences stay far below 2^53")]
fn to_f64(x: u64) -> f64 {
    x as f64
}
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturating, and never negative here"
)]
fn to_u64(x: f64) -> u64 {
    // As `round` does, which is a call into the C library: what is cut off is exact.
    let whole = x as u64;
    whole.saturating_add(u64::from(x - to_f64(whole) >= 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sync(ticks: u64, ns: u64) -> ClockSync {
        ClockSync { ticks, monotonic_ns: ns, realtime_ns: ns + 1_000_000_000, error_ns: 30 }
    }

    #[test]
    fn interpolates_and_extrapolates() {
        let map = TickMap::new(vec![sync(2_000_000_000, 1_000_000_000), sync(0, 0)], 2_000_000_000);
        assert_eq!(map.realtime_ns(1_000_000_000), 1_500_000_000);
        assert_eq!(map.realtime_ns(4_000_000_000), 3_000_000_000);
        assert!((map.duration_ns(2_000) - 1_000.0).abs() < 1e-6);
        assert_eq!(map.error_ns(), 30);
    }

    /// Someone sets the clock, or NTP does: forward by an hour, and back by ten seconds.
    #[test]
    fn a_step_of_the_clock_stretches_no_time() {
        const S: u64 = 1_000_000_000;
        let set = |second: u64, gain: i64| {
            let sync = sync(second * S, second * S);
            ClockSync { realtime_ns: sync.realtime_ns.saturating_add_signed(gain), ..sync }
        };
        let second = S.cast_signed();
        let (hour, back) = (3_600 * second, 3_590 * second);
        let syncs = [set(0, 0), set(1, 0), set(2, hour), set(3, hour + 900), set(4, back)];
        let map = TickMap::new(syncs.to_vec(), S);
        assert_eq!(map.steps(), [hour, -10 * second - 900]);
        let end = map.realtime_ns(4 * S);
        assert_eq!(end, 5 * S + 3_590 * S, "by the clock as it was set last");
        for half in 0..8 {
            let from = end - (8 - half) * S / 2;
            assert!(map.realtime_ns(half * S / 2).abs_diff(from) <= 900, "{half}");
        }
        // NTP that steers the clock, even at the most that it may, is none.
        let slewed: Vec<ClockSync> =
            (0..9).map(|at| set(60 * at, 30_000_000 * at.cast_signed())).collect();
        assert_eq!(TickMap::new(slewed, S).steps(), [0; 0]);
    }

    #[test]
    fn before_the_first_comparison() {
        let map = TickMap::new(vec![sync(1_000, 1_000)], 1_000_000_000);
        assert_eq!(map.realtime_ns(400), 1_000_000_400);
        let empty = TickMap::new(vec![], 0);
        assert_eq!(empty.realtime_ns(5), 5);
    }
}
