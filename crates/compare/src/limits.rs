// SPDX-License-Identifier: Apache-2.0
//! From when on a difference counts.

/// From when on a difference counts.
#[derive(Clone, PartialEq, Debug)]
pub struct Limits {
    /// The least difference that is not `same`: of a time as a share of the time, of waiting as a
    /// share of a step.
    pub min_effect: f64,
    /// The same of a link, whose speed varies more.
    pub min_link_effect: f64,
    /// The expected share of false rows among those that are called slower or faster.
    pub false_share: f64,
    /// The fewest blocks of a side.
    pub min_blocks: usize,
    /// The fewest runs of each side with which the run is the unit.
    pub min_runs: usize,
    /// An interval that reaches further says nothing.
    pub widest: f64,
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
