// SPDX-License-Identifier: Apache-2.0
//! How long operations of a communicator usually take without progress, by function and size.

use crate::facts::Facts;
use crate::histogram::Histogram;
use crate::stats::{to_f64, to_u64};
use ncclscope_trace::StrId;

/// Most sorts that are distinguished; further ones share the last entry.
const SORTS: usize = 64;
/// The quantile that counts as usual: the longest one in a thousand is ignored.
const ALL_BUT_FEW: f64 = 0.999;

/// All sorts of one communicator.
#[derive(Debug, Default)]
pub(super) struct Usual {
    sorts: Vec<(Sort, Histogram)>,
}

/// Operations of similar duration: same function and order of magnitude of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sort {
    func: StrId,
    /// Number of bits of the count of elements.
    size: u32,
}

impl Usual {
    /// Adds an operation that took `ticks`.
    pub(super) fn add(&mut self, facts: &Facts, ticks: u64) {
        let sort = Sort::of(facts);
        let known = self.sorts.iter().position(|(other, _)| *other == sort);
        let at = known.unwrap_or_else(|| {
            if self.sorts.len() < SORTS {
                self.sorts.push((sort, Histogram::default()));
            }
            self.sorts.len() - 1
        });
        self.sorts[at].1.add(to_f64(ticks));
    }

    /// Ticks that all but one in a thousand did not exceed; 0 if there was none.
    pub(super) fn longest(&self, facts: &Facts) -> u64 {
        let sort = Sort::of(facts);
        let known = self.sorts.iter().find(|(other, _)| *other == sort);
        known.and_then(|(_, took)| took.quantile(ALL_BUT_FEW)).map_or(0, to_u64)
    }
}

impl Sort {
    fn of(facts: &Facts) -> Sort {
        Sort { func: facts.func, size: u64::BITS - facts.count.leading_zeros() }
    }
}
