// SPDX-License-Identifier: Apache-2.0
/*!
When processes ended: each time is an interval, because records show it only roughly.

Two ends are in order only if their intervals do not overlap. Clocks of different hosts differ, so
that intervals by different clocks must be further apart.
*/

use crate::input::snapshot::Snapshot;
use ncclscope_limits::{clocks, hangs};

/// When a process ended, ns since 1970 by the clock of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) earliest: u64,
    /// `u64::MAX` if unknown.
    pub(super) latest: u64,
}

impl End {
    /// The end of a process that has ended. One that closed its recording ended at its last record.
    /// One that did not ended after its last record, and before it would have compared its clocks
    /// again, which took all processes of the job `pace_ns` at most. This is unknown where later
    /// comparisons are missing: in a copy made before, with what the lanes held later.
    pub(super) fn of_ended(one: &Snapshot, pace_ns: Option<u64>) -> End {
        let by = one
            .sync
            .zip(pace_ns)
            .map(|((last, _), pace)| last.saturating_add(pace).saturating_add(hangs::LOST_NS));
        let latest = by.filter(|&by| one.end_ns <= by).unwrap_or(u64::MAX);
        End { earliest: one.end_ns, latest: if one.is_closed { one.end_ns } else { latest } }
    }

    /// The end of a process without further records, if it has ended.
    pub(super) const fn of_silent(one: &Snapshot) -> End {
        let latest = one.end_ns.saturating_add(hangs::SILENCE_NS);
        End { earliest: one.end_ns, latest }
    }

    /// True if it was before a time by a clock that may differ by `apart_ns`.
    pub(super) const fn is_before(self, ns: u64, apart_ns: u64) -> bool {
        self.latest.saturating_add(apart_ns) < ns
    }
}

/// How much the clocks of two machines may differ, ns.
pub(super) fn apart_ns(one: &str, other: &str) -> u64 {
    if one == other { 0 } else { clocks::HOSTS_NS }
}
