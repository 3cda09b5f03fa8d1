// SPDX-License-Identifier: Apache-2.0
//! The length of a tick, as measured since the process started.

use ncclscope_recorder::clock::{self, Doubts};
use ncclscope_trace::{ClockSync, TickMap};

/// Comparisons of the ticks with the system's clocks.
#[derive(Debug)]
pub(super) struct Clocks {
    first: ClockSync,
    latest: ClockSync,
    hz: u64,
    doubts: Doubts,
    /// When the kernel's clock source was last queried, ns of `CLOCK_MONOTONIC`.
    asked: u64,
}

/// The interval between two queries for the kernel's clock source.
const ASK_NS: u64 = 60_000_000_000;

impl Clocks {
    /// Starts with a comparison made now.
    pub(super) fn new() -> Clocks {
        let sync = clock::compare();
        let asked = sync.monotonic_ns;
        Clocks { first: sync, latest: sync, hz: 0, doubts: Doubts::default(), asked }
    }

    /// Ticks per second; 0 if unknown.
    pub(super) fn hz(&self) -> u64 {
        self.hz
    }

    /// The first comparison of the recording.
    pub(super) fn first(&self) -> &ClockSync {
        &self.first
    }

    pub(super) fn compare(&mut self) -> &ClockSync {
        self.latest = clock::compare();
        let ns = self.latest.monotonic_ns.saturating_sub(self.first.monotonic_ns);
        if ns > 1_000_000 {
            let ticks = u128::from(self.latest.ticks.saturating_sub(self.first.ticks));
            self.hz = u64::try_from(ticks * 1_000_000_000 / u128::from(ns)).unwrap_or(0);
        }
        &self.latest
    }

    /// Faults of the counter that the latest comparison shows; each is returned once.
    pub(super) fn doubts(&mut self) -> Vec<String> {
        let now = self.latest.monotonic_ns;
        let is_due = now.saturating_sub(self.asked) >= ASK_NS;
        if is_due {
            self.asked = now;
        }
        let source = is_due.then(clock::kernel_source).flatten();
        self.doubts.look(&self.latest, source.as_deref())
    }

    /// The conversion from ticks to times.
    pub(super) fn map(&self) -> TickMap {
        TickMap::new(vec![self.first, self.latest], self.hz)
    }
}
