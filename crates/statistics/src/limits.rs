// SPDX-License-Identifier: Apache-2.0
//! The limits of the one test that differ between questions.

use ncclscope_limits::test;

/// The limits of the one test that differ between questions; [`ncclscope_limits::test`] has the
/// rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The least cost that matters, as a share of a step: the one limit that users choose.
    pub least_cost: f64,
    /// Maximum p value of an effect.
    pub slow_p: f64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { least_cost: test::LEAST_COST, slow_p: test::SLOW_P }
    }
}
