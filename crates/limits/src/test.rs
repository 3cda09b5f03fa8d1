// SPDX-License-Identifier: Apache-2.0
//! The one test of whether a unit is slow (`ncclscope-statistics`).

limits! {
    /// The least cost that matters, as a share of a step: `--threshold`.
    LEAST_COST: f64 = 0.02 of_a_step, [], Designed "the one limit that users choose (--threshold)";
    /// Maximum p value of an effect, for all units of a question together.
    SLOW_P: f64 = 0.01 of_them, [], Designed "one wrong answer in a hundred questions";
    /// A p value above this is no sign of an effect.
    HEALTHY_P: f64 = 0.05 of_them, [], Designed "the usual level; in between it cannot be told";
    /// The least natural spread of the means of healthy units, if it can be estimated.
    SPREAD: f64 = 0.005 of_a_step, [], Assumed "healthy jobs on GPUs must set it";
    /// The natural spread if there are too few units to estimate it.
    SPREAD_OF_FEW: f64 = 0.01 of_a_step, [], Assumed "healthy jobs on GPUs must set it";
    /// An effect is what exceeds this many natural spreads.
    SPREADS: f64 = 3.0 times, [], Designed "healthy units beyond it are one in 740";
    /// A unit's cost lies below the likely cost and this many standard deviations.
    SURE: f64 = 2.0 times, [], Designed "one-sided 97.5 %";
    /// A stall costs at least this share of a step,
    STALL: f64 = 0.05 of_a_step, [], Designed "shorter ones are noise of the body";
    /// and is this many robust deviations long.
    STALL_DEVIATIONS: f64 = 8.0 times, [], Designed "heavy tails of healthy steps end before";
    /// Fewer stalls are attributed to no unit.
    STALLS: u32 = 3 stalls, [], Designed
        "two strike the same of two units in half of all jobs";
    /// Fewer blocks show nothing.
    BLOCKS: usize = 3 blocks, [], Derived "fewer have no degree of freedom left for a deviation";
    /// Units from whose means the natural spread is estimated; fewer are too few.
    MANY_UNITS: usize = 16 units, [], Measured
        "of 8 ranks it would be 5 % (data/field/kineto-missing-ranks), and hide 15.8 %";
    /// Values further than this many robust deviations from the median count as if they were that
    /// far.
    WINSORISED: f64 = 4.0 times, [], Designed "stalls are no part of the likeness of neighbours";
    /// Maximum correlation of neighbours that is used.
    STRONGEST: f64 = 0.8 of_them, [], Designed "a stronger one is a trend";
}
