// SPDX-License-Identifier: Apache-2.0
//! Converts ticks to durations.

/// A point in time, and the length of a tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// The point in time, in ticks.
    pub(super) now: u64,
    /// Number of ticks per second.
    pub(super) hz: u64,
}

impl Clock {
    /// Nanoseconds from `ticks` to now; 0 if `ticks` is in the future.
    pub(super) fn ns_since(self, ticks: u64) -> u64 {
        self.ns(self.now.saturating_sub(ticks))
    }

    /// A number of ticks in nanoseconds.
    pub(super) fn ns(self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(self.hz.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}
