// SPDX-License-Identifier: Apache-2.0
//! The limits of the one test.

/// The limits of the one test. All come from `../shared/design/judgement.md`, section 3.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The least cost that matters, as a share of a step: the one limit that users choose.
    pub least_cost: f64,
    /// Maximum p value of an effect.
    pub slow_p: f64,
    /// A p value above this is no sign of an effect.
    pub healthy_p: f64,
    /// The least natural spread of the means of healthy units, as a share of a step, if there are
    /// enough units to estimate it ([`Limits::MANY_UNITS`]). Assumed: healthy jobs must set it.
    pub spread: f64,
    /// The natural spread if there are too few units to estimate it. Assumed like `spread`.
    pub spread_of_few: f64,
    /// A stall costs at least this share of a step,
    pub stall: f64,
    /// and this many robust deviations.
    pub stall_deviations: f64,
}

impl Limits {
    /// Units from whose means the natural spread is estimated; fewer are too few. (Of the eight
    /// ranks of the DLRM job in `../shared/data/field/kineto-missing-ranks` it would be 5 % of a
    /// step, and rank 7, which costs 15.8 %, would be as usual.)
    pub const MANY_UNITS: usize = 16;
    /// Fewer blocks show nothing.
    pub const BLOCKS: usize = 3;
    /// Fewer stalls are attributed to no unit.
    pub const STALLS: u32 = 3;
    /// An effect is what exceeds this many natural spreads.
    pub(crate) const SPREADS: f64 = 3.0;
    /// Standard deviations above the likely cost below which a unit's cost lies.
    pub(crate) const SURE: f64 = 2.0;
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            least_cost: 0.02,
            slow_p: 0.01,
            healthy_p: 0.05,
            spread: 0.005,
            spread_of_few: 0.01,
            stall: 0.05,
            stall_deviations: 8.0,
        }
    }
}
