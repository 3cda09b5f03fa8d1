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
a slewed clock is followed second by second, and a step of it falls into one second of the
recording. Before the first comparison and after the last the rate of the whole recording is used,
by `CLOCK_MONOTONIC`, which is never stepped. Where all comparisons lie within 10 ms it is the
nominal rate: over so short a time the widths of two brackets weigh more than its error.

A *duration* is not the difference of two mapped times: where NTP stepped the clock in between, it
would be wrong, or negative. It is the ticks in between by the rate of the whole recording. That
rate is off by the error of two brackets over the recording's length: 0.2 ppm after a second.

# Several recordings

Times of processes of one host agree to the widths of their brackets, for they go by the same
`CLOCK_REALTIME`. Those of different hosts agree as well as the hosts' clocks do, which is often no
better than a millisecond: `ncclscope_stragglers` estimates the offsets from the operations that the
hosts have in common. Times of GPUs (`pTimer`) are mapped by `ncclscope_operations`.
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

/// Maps ticks to `CLOCK_REALTIME` and durations to nanoseconds, piecewise linear between the
/// comparisons of the recording.
#[derive(Clone, Debug)]
pub struct TickMap {
    syncs: Vec<ClockSync>,
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
        TickMap { syncs, ns_per_tick: measured.unwrap_or(nominal) }
    }

    /// A duration in nanoseconds.
    #[must_use]
    pub fn duration_ns(&self, ticks: u64) -> f64 {
        to_f64(ticks) * self.ns_per_tick
    }

    /// `CLOCK_REALTIME` at `ticks`, in ns since 1970. Without any comparison: ns since tick 0.
    #[must_use]
    pub fn realtime_ns(&self, ticks: u64) -> u64 {
        let after = self.syncs.partition_point(|s| s.ticks <= ticks);
        let base = self.syncs.get(after.saturating_sub(1)).copied().unwrap_or_default();
        let rate = match self.syncs.get(after) {
            Some(next) if next.ticks > base.ticks => {
                to_f64(next.realtime_ns.saturating_sub(base.realtime_ns))
                    / to_f64(next.ticks - base.ticks)
            }
            _ => self.ns_per_tick,
        };
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
    x.round() as u64
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

    #[test]
    fn before_the_first_comparison() {
        let map = TickMap::new(vec![sync(1_000, 1_000)], 1_000_000_000);
        assert_eq!(map.realtime_ns(400), 1_000_000_400);
        let empty = TickMap::new(vec![], 0);
        assert_eq!(empty.realtime_ns(5), 5);
    }
}
