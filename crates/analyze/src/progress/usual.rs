// SPDX-License-Identifier: Apache-2.0
//! How long operations of a communicator stand still as a rule, by function and size.

use super::ops::Facts;
use ncclscope_trace::StrId;

/// Sorts that are told apart; further ones share the last place.
const SORTS: usize = 64;

/// All sorts of one communicator.
#[derive(Debug, Default)]
pub(super) struct Usual {
    sorts: Vec<(Sort, History)>,
}

/// Operations that take about the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sort {
    func: StrId,
    /// Bits of the count of elements.
    size: u32,
}

/// How many took how long.
#[derive(Debug)]
struct History {
    /// By bits of the time in ticks.
    counts: [u32; 65],
    all: u32,
}

impl Usual {
    /// One took `ticks`.
    pub(super) fn add(&mut self, facts: &Facts, ticks: u64) {
        let sort = Sort::of(facts);
        let known = self.sorts.iter().position(|(other, _)| *other == sort);
        let at = known.unwrap_or_else(|| {
            if self.sorts.len() < SORTS {
                self.sorts.push((sort, History { counts: [0; 65], all: 0 }));
            }
            self.sorts.len() - 1
        });
        self.sorts[at].1.add(ticks);
    }

    /// Ticks that all but one in a thousand took less than, up to a factor of two above that; 0 if
    /// there was none.
    pub(super) fn longest(&self, facts: &Facts) -> u64 {
        let sort = Sort::of(facts);
        let known = self.sorts.iter().find(|(other, _)| *other == sort);
        known.map_or(0, |(_, history)| history.longest())
    }
}

impl Sort {
    fn of(facts: &Facts) -> Sort {
        Sort { func: facts.func, size: u64::BITS - facts.count.leading_zeros() }
    }
}

impl History {
    fn add(&mut self, ticks: u64) {
        // After four thousand million of them nothing new is learned.
        if let Some(all) = self.all.checked_add(1) {
            self.counts[(u64::BITS - ticks.leading_zeros()) as usize] += 1;
            self.all = all;
        }
    }

    fn longest(&self) -> u64 {
        let mut rest = self.all / 1000;
        // From the longest on: as many bits as a word has, and fewer.
        for (shift, &count) in (0u32..).zip(self.counts.iter().rev()) {
            match rest.checked_sub(count) {
                Some(less) => rest = less,
                None => return u64::MAX.checked_shr(shift).unwrap_or(0),
            }
        }
        0
    }
}
