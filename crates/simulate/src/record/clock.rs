// SPDX-License-Identifier: Apache-2.0
//! The clocks of a rank: the host clock, which its ticks follow, and the GPU's timer.

use crate::scenario::Scenario;
use crate::time::{SECOND, Time, mix, scaled, unit};
use ncclscope_trace::ClockSync;

/// When the job began, by an ideal clock: ns since 1970.
pub(crate) const EPOCH_NS: u64 = 1_790_000_000_000_000_000;

/// The clocks of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    /// Ticks (ns by the host clock) when the job began.
    base: u64,
    /// The host clock when the job began.
    realtime: u64,
    /// The rate of the host clock.
    rate: f64,
    /// The GPU's timer when the job began, and its rate.
    timer: u64,
    timer_rate: f64,
}

impl Clocks {
    pub(crate) fn new(scenario: &Scenario, host: u32, rank: u32) -> Clocks {
        let Scenario { seed, machine, job, .. } = scenario;
        let began = EPOCH_NS + u64::from(job.start_s) * SECOND;
        let drawn = |what: u64, n: u32| unit(mix(*seed, what, u64::from(n))) * 2.0 - 1.0;
        let shift = |from: u64, ns: f64| {
            let by = scaled(1_000_000, ns.abs() / 1e6);
            if ns < 0.0 { from - by } else { from + by }
        };
        Clocks {
            base: 5_000 * SECOND + u64::from(host % 97) * SECOND,
            realtime: shift(began, drawn(1, host) * machine.clock_offset_ms * 1e6),
            rate: 1.0 + drawn(2, host) * machine.clock_drift_ppm / 1e6,
            timer: shift(began, drawn(3, rank) * 2e8),
            timer_rate: 1.0 + drawn(4, rank) * 2e-6,
        }
    }

    pub(crate) fn ticks(&self, time: Time) -> u64 {
        self.base + scaled(time, self.rate)
    }

    /// The GPU's timer at a time, ns.
    pub(crate) fn timer(&self, time: Time) -> u64 {
        self.timer + scaled(time, self.timer_rate)
    }

    /// The clock synchronization record that the drain thread writes at a time.
    pub(crate) fn sync(&self, time: Time) -> ClockSync {
        let ticks = self.ticks(time);
        let realtime_ns = self.realtime + (ticks - self.base);
        ClockSync { ticks, monotonic_ns: ticks, realtime_ns, error_ns: 60 }
    }
}
