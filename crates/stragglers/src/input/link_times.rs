// SPDX-License-Identifier: Apache-2.0
//! The wire times of a link's transfers.

use crate::Pace;
use crate::time_blocks::TimeBlocks;
use ncclscope_limits::links;
use ncclscope_operations::stats::{to_f64, to_u64};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Maximum number of transfers left out.
const LONGEST: usize = 16;

/// Transfers, their bytes, and their wire time in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Traffic {
    pub(super) transfers: u64,
    pub(super) bytes: u64,
    pub(super) wire_ns: f64,
}

#[derive(Debug, Default)]
pub(super) struct LinkTimes {
    all: Traffic,
    /// The longest transfers: (ns, bytes).
    longest: BinaryHeap<Reverse<(u64, u32)>>,
    /// Once there are [`LONGEST`]: a transfer below this, in ns, is not one of them.
    shortest_kept: f64,
    /// Number of transfers while a process at either end was short of processor time; not in `all`.
    pub(super) left_out: u64,
    /// When the latest send completed, in ticks.
    pub(super) last: u64,
    /// When the network took the latest send, in ticks.
    pub(super) last_sent: u64,
    /// What the transfers waited for.
    pub(super) pace: Pace,
    /// The transfers by blocks of time.
    pub(super) blocks: TimeBlocks,
}

impl LinkTimes {
    /// Adds a transfer of `bytes` that took `ns` and ended at `end_ns` since 1970.
    pub(super) fn add(&mut self, bytes: u32, ns: f64, end_ns: u64) {
        self.blocks.add(bytes, ns, end_ns);
        self.all.transfers += 1;
        self.all.bytes += u64::from(bytes);
        self.all.wire_ns += ns;
        // Nearly all are shorter than the longest ones.
        if ns >= self.shortest_kept {
            self.keep((to_u64(ns), bytes));
        }
    }

    /// Keeps one of the longest transfers.
    fn keep(&mut self, one: (u64, u32)) {
        if self.longest.len() < LONGEST {
            self.longest.push(Reverse(one));
        } else if let Some(mut shortest) = self.longest.peek_mut()
            && one > shortest.0
        {
            *shortest = Reverse(one);
        }
        if self.longest.len() == LONGEST {
            // A shorter time may be rounded to the same number of ns.
            let shortest = self.longest.peek().map_or(0, |one| one.0.0);
            self.shortest_kept = to_f64(shortest) - 1.0;
        }
    }

    /// The transfers without the longest ones (at most one in fifty).
    pub(super) fn traffic(&self) -> Traffic {
        let all = usize::try_from(self.all.transfers).unwrap_or(usize::MAX);
        let count = (all / links::LONGEST_OF).min(LONGEST);
        let mut longest: Vec<(u64, u32)> = self.longest.iter().map(|of| of.0).collect();
        longest.sort_unstable_by_key(|&of| Reverse(of));
        longest.iter().take(count).fold(self.all, |left, &(ns, bytes)| Traffic {
            transfers: left.transfers - 1,
            bytes: left.bytes - u64::from(bytes),
            wire_ns: (left.wire_ns - to_f64(ns)).max(0.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(times: &LinkTimes) -> f64 {
        let traffic = times.traffic();
        traffic.wire_ns / to_f64(traffic.bytes)
    }

    #[test]
    fn a_dozen_pauses_in_thousands_of_transfers_change_little() {
        let mut times = LinkTimes::default();
        (0..3_000).for_each(|_| times.add(1_000, 10_000.0, 0));
        let usual = cost(&times);
        assert_eq!(usual, 10.0);
        (0..12).for_each(|_| times.add(1_000, 150e6, 0));
        assert!(cost(&times) < 1.01 * usual, "{}", cost(&times));
        // If one in ten transfers is slow, they are not left out.
        (0..300).for_each(|_| times.add(1_000, 1e6, 0));
        assert!(cost(&times) > 9.0 * usual, "{}", cost(&times));
    }

    #[test]
    fn the_longest_are_kept_in_any_order() {
        let mut times = LinkTimes::default();
        // 1,009 is prime, so that each time from 1 to 1,008 ns and a half occurs once.
        let ns = |at: u64| to_f64(at * 354 % 1_009) + 0.5;
        (1..1_009).for_each(|at| times.add(1, ns(at), 0));
        let mut kept: Vec<u64> = times.longest.iter().map(|one| one.0.0).collect();
        kept.sort_unstable();
        let last = 1_009 - u64::try_from(LONGEST).unwrap();
        assert!(kept.into_iter().eq(last + 1..=1_009));
    }

    #[test]
    fn few_transfers_count_all() {
        let mut times = LinkTimes::default();
        times.add(10, 5.0, 0);
        times.add(20, 7.0, 0);
        let all = Traffic { transfers: 2, bytes: 30, wire_ns: 12.0 };
        assert_eq!(times.traffic(), all);
        assert_eq!(LinkTimes::default().traffic(), Traffic::default());
    }
}
