// SPDX-License-Identifier: Apache-2.0
//! The thresholds of a comparison.

use crate::schema::Kind;

/// The thresholds from which on a difference counts.
#[derive(Clone, PartialEq, Debug)]
pub struct Limits {
    /// Smaller differences are `same`. The unit is a share: of the time itself for times, of a step
    /// for waiting.
    pub min_effect: f64,
    /// The same threshold for links, whose speed varies more.
    pub min_link_effect: f64,
    /// Expected share of false rows among those called slower or faster.
    pub false_share: f64,
    /// Minimum number of blocks of a side.
    pub min_blocks: usize,
    /// Minimum number of runs of each side for comparing runs instead of blocks. More are needed if
    /// many rows are tested.
    pub min_runs: usize,
    /// A wider interval makes the verdict `unknown`.
    pub widest: f64,
}

impl Limits {
    /// The smallest change of such rows that counts.
    pub(crate) fn of(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Link => self.min_effect.max(self.min_link_effect),
            _ => self.min_effect,
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            min_effect: 0.02,
            min_link_effect: 0.1,
            false_share: 0.01,
            min_blocks: 8,
            min_runs: 5,
            widest: 0.1,
        }
    }
}
