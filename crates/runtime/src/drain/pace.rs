// SPDX-License-Identifier: Apache-2.0
//! Whether the writer thread gets on, as far as the drain thread can see.

/// A writer thread that does nothing for so long waits for the file system, ns: less than half of
/// the time that a lane lasts at the highest rate of steps.
const STUCK_NS: u64 = 10_000_000;

/// How the writer thread got on so far.
#[derive(Debug, Default)]
pub(super) struct WriterPace {
    /// Pieces of work that it had done.
    done: u64,
    /// When that was less, or when there was nothing to do, ns.
    since: u64,
    was_behind: bool,
}

impl WriterPace {
    /// Looks at `now`, ns of a clock that never goes back: so much is `done`, and more is to be
    /// done if the writer thread `is_behind`. True if it has done nothing for a while.
    pub(super) fn is_stuck(&mut self, done: u64, is_behind: bool, now: u64) -> bool {
        // Work that was handed over in this round waits since now.
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
