// SPDX-License-Identifier: Apache-2.0
//! The counts of a communicator, with a time at which they were these.
//!
//! Readers of a recording add the operations that started after this time to the counts, and number
//! calls backwards from the sum. With a later time, a call between the reading and that time would
//! be in neither, and every call of this rank would have the number of the one before it.

use ncclscope_recorder::call_counters::{self, Counts};
use ncclscope_recorder::clock;

/// Maximum attempts to find a time around which nothing was counted: an attempt takes less than
/// 1 us, and calls follow each other every few us at most.
const TRIES: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    /// A time at which the counts were these, in ticks.
    pub(super) at: u64,
    pub(super) counts: Counts,
}

impl Counted {
    /// Reads the counts; `None` if the communicator has no counter cell, or if the counts changed
    /// in each of the attempts.
    pub(super) fn read(comm: u16) -> Option<Counted> {
        stable(|| call_counters::counts(comm), clock::now)
    }
}

/// The counts that are the same before and after a time.
fn stable(
    mut counts: impl FnMut() -> Option<Counts>,
    mut now: impl FnMut() -> u64,
) -> Option<Counted> {
    let mut before = counts()?;
    for _ in 0..TRIES {
        let at = now();
        let after = counts()?;
        if after == before {
            return Some(Counted { at, counts: after });
        }
        before = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_one_at_which_the_counts_were_these() {
        let mut clock = 0;
        let mut enqueued = [3, 3, 4, 5, 5, 6].into_iter();
        let counts = || Some(Counts { enqueued: enqueued.next()?, api: 5, ..Counts::default() });
        // The first two are equal: nothing was counted around the first time.
        let counted = stable(counts, || {
            clock += 10;
            clock
        });
        assert_eq!(counted.map(|it| (it.at, it.counts.enqueued)), Some((10, 3)));
        let mut enqueued = [3, 4, 5, 5, 6].into_iter();
        let counts = || Some(Counts { enqueued: enqueued.next()?, api: 5, ..Counts::default() });
        let counted = stable(counts, || {
            clock += 10;
            clock
        });
        assert_eq!(counted.map(|it| (it.at, it.counts.enqueued)), Some((40, 5)));
    }

    #[test]
    fn counts_that_change_all_the_time_are_not_known() {
        let mut enqueued = 0;
        let counts = || {
            enqueued += 1;
            Some(Counts { enqueued, ..Counts::default() })
        };
        assert!(stable(counts, || 0).is_none());
        assert!(stable(|| None, || 0).is_none());
    }
}
