// SPDX-License-Identifier: Apache-2.0
//! One part of a run, executed within its time.

use std::time::{Duration, Instant};

use super::row::{Found, Row};
use super::setup::Setup;

/// A part is not begun with less than this share of its time left.
const LEAST_SHARE: f64 = 0.4;

pub(super) struct Part {
    /// Number or name of the part.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// Expected result on a GPU, if it behaves as NCCL's source says.
    pub(super) expected: &'static str,
    /// Maximum duration, s.
    pub(super) seconds: u64,
    pub(super) run: fn(&Setup, Duration) -> Result<Found, String>,
}

impl Part {
    /// Runs the part within its time, and before `end`.
    pub(super) fn perform(&self, setup: &Setup, end: Instant) -> Row {
        let begin = Instant::now();
        let left = end.saturating_duration_since(begin);
        let wanted = Duration::from_secs(self.seconds);
        let found = if left < wanted.mul_f64(LEAST_SHARE) {
            Found::skipped(format!("{} s are left of the time for all parts", left.as_secs()))
        } else {
            eprintln!("gpu-kit: {} {} (up to {} s)", self.id, self.title, self.seconds);
            let found = (self.run)(setup, wanted.min(left));
            found.unwrap_or_else(|error| Found::differs(format!("it failed: {error}")))
        };
        let seconds = begin.elapsed().as_secs_f64();
        eprintln!("gpu-kit: {} {} after {seconds:.1} s", self.id, found.verdict.word());
        let (id, title, expected) = (self.id, self.title, self.expected);
        Row { id, title, expected, seconds, found }
    }
}
