// SPDX-License-Identifier: Apache-2.0
/*!
Converts the ticks of a recording to nanoseconds of the host's clock.

# Ticks

A callback stores the value of the processor's counter, which costs 7 ns, and does not convert it.
(If the counter is not usable, ticks are nanoseconds of `CLOCK_MONOTONIC`.) Only the nominal rate of
the counter is known, and NTP slews and steps `CLOCK_REALTIME`, so no formula fixed at the start
converts one to the other. Instead the drain thread compares the clocks once a second and at the
start and end of a recording, and writes each comparison as a record ([`ClockSync`]).

# A comparison

The clocks cannot be read at the same moment, so they are read in a bracket:

```text
CLOCK_MONOTONIC   counter   CLOCK_REALTIME   counter   CLOCK_MONOTONIC
       |------------------- width ------------------------|
```

The middle of the outer readings, the middle of the inner ones and the reading between them count as
one moment. They differ by less than the width, which is stored as the comparison's error. An
interrupt or another guest of the host widens a bracket, so the narrowest of 16 is used
(`ncclscope_recorder::clock::compare`); its width is usually 100 ns.

# The map

Between two comparisons time is linear: `CLOCK_REALTIME` at a tick is interpolated ([`TickMap`]). So
the map follows a slewed clock second by second. If the clock was set, it and `CLOCK_MONOTONIC`
advance differently between two comparisons. Then all times of the recording refer to the clock as
it was set last, so that no interval is stretched and no time goes backward. [`TickMap::steps`] has
the steps. Before the first comparison and after the last, the map uses the average rate of the
recording relative to `CLOCK_MONOTONIC`, which is never stepped. If all comparisons lie within 10 ms
it uses the nominal rate, whose error is then smaller than that of two brackets.

A *duration* is not the difference of two mapped times, because small steps of the clock may make
that wrong or negative. It is the number of ticks divided by the average rate of the recording. The
error of that rate is the error of two brackets over the recording's length: 0.2 ppm after a second.

# Several recordings

Times of processes on one host agree within the widths of their brackets, because they use the same
`CLOCK_REALTIME`; if the clock was stepped after a process ended, its times differ from the others
by the step. Times of different hosts agree as well as the hosts' clocks do, often only to a
millisecond: `ncclscope_stragglers` estimates the offsets from the operations that the hosts have in
common. Times of GPUs (`pTimer`) are mapped by `ncclscope_operations`.
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

/// A change of `CLOCK_REALTIME` against `CLOCK_MONOTONIC` between two comparisons is a step of the
/// clock if it exceeds `STEP_NS` (in ns) and the interval divided by `STEP_PART`.
const STEP_NS: u64 = 1_000_000;
const STEP_PART: u64 = 1_000;

/// Maps ticks to `CLOCK_REALTIME` and durations to nanoseconds, piecewise linear between the
/// comparisons of the recording.
#[derive(Clone, Debug)]
pub struct TickMap {
    /// The comparisons in order; their `CLOCK_REALTIME` is corrected for later steps of the clock.
    syncs: Vec<ClockSync>,
    /// Nanoseconds per tick before the first comparison, and from each one on.
    rates: Vec<f64>,
    steps: Vec<i64>,
    ns_per_tick: f64,
}

impl TickMap {
    /// A map from comparisons in any order. `nominal_hz` is used if all comparisons lie within 10
    /// ms.
    #[must_use]
    pub fn new(mut syncs: Vec<ClockSync>, nominal_hz: u64) -> TickMap {
        syncs.sort_by_key(|s| s.ticks);
        syncs.dedup_by_key(|s| s.ticks);
        let nominal = if nominal_hz == 0 { 1.0 } else { 1e9 / to_f64(nominal_hz) };
        let measured = match (syncs.first(), syncs.last()) {
            // Under 10 ms apart, the error of the brackets exceeds that of the nominal rate.
            (Some(a), Some(b)) if b.monotonic_ns > a.monotonic_ns.saturating_add(10_000_000) => {
                Some(to_f64(b.monotonic_ns - a.monotonic_ns) / to_f64(b.ticks - a.ticks))
            }
            _ => None,
        };
        let steps = take_out_steps(&mut syncs);
        let ns_per_tick = measured.unwrap_or(nominal);
        TickMap { rates: rates(&syncs, ns_per_tick), syncs, steps, ns_per_tick }
    }

    /// The steps of the host's clock, in ns and in order; negative if it was set backward.
    #[must_use]
    pub fn steps(&self) -> &[i64] {
        &self.steps
    }

    /// Converts a duration from ticks to nanoseconds.
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
    // Times before the first comparison are extrapolated backward from it.
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

// Processors convert signed numbers in one instruction, and unsigned ones in several.
#[expect(clippy::cast_precision_loss, reason = "differences stay far below 2^53")]
fn to_f64(x: u64) -> f64 {
    i64::try_from(x).unwrap_or(i64::MAX) as f64
}
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "saturating, and never negative here"
)]
fn to_u64(x: f64) -> u64 {
    // Rounds as `round` does, without its call into the C library; the truncated part is exact.
    let whole = x as i64;
    whole.saturating_add(i64::from(x - whole as f64 >= 0.5)).unsigned_abs()
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

    /// The clock is set forward by an hour and back by ten seconds.
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
        // Slewing by NTP is not a step, even at the greatest rate that is allowed.
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
