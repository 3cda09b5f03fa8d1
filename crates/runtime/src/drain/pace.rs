// SPDX-License-Identifier: Apache-2.0
//! Detects, from the drain thread, that the writer thread makes no progress.

/// After this long without progress, the writer thread counts as blocked by the file system, ns.
/// Less than half of the time that a lane lasts at the highest rate of steps.
const STUCK_NS: u64 = 10_000_000;

/// The writer thread's progress so far.
#[derive(Debug, Default)]
pub(super) struct WriterPace {
    /// Number of jobs done at the last look.
    done: u64,
    /// Time since when `done` has not changed, or when there was no work, ns.
    since: u64,
    was_behind: bool,
}

impl WriterPace {
    /// Notes the progress at `now` (ns, monotonic): `done` jobs, and `is_behind` if more are
    /// waiting. True if the writer thread has done nothing for [`STUCK_NS`].
    pub(super) fn is_stuck(&mut self, done: u64, is_behind: bool, now: u64) -> bool {
        // Work that was queued in this round has been waiting only since now.
        if done != self.done || !self.was_behind {
            (self.done, self.since) = (done, now);
        }
        self.was_behind = is_behind;
        is_behind && now.saturating_sub(self.since) > STUCK_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_stuck_that_does_nothing_although_there_is_work() {
        let mut pace = WriterPace::default();
        let mut at = |ms: u64, done, is_behind| pace.is_stuck(done, is_behind, ms * 1_000_000);
        assert!(!at(1000, 0, false) && !at(1080, 0, false), "nothing to do");
        assert!(!at(1160, 0, true), "work that comes after a pause is not old");
        assert!(!at(1170, 0, true));
        assert!(at(1171, 0, true), "11 ms without progress");
        assert!(!at(1180, 3, true), "it got on");
        assert!(!at(1190, 9, false) && !at(1300, 9, true));
        assert!(at(1320, 9, true));
    }
}
