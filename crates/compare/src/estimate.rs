// SPDX-License-Identifier: Apache-2.0
//! The estimate of one measure on both sides: observations, effect, and test.

use crate::limits::Limits;
use crate::run::BLOCKS;
use crate::schema::Units;
use ncclscope_statistics::{inflation, least_p, median, rank_sum, shift};
use std::collections::BTreeMap;

/// Maximum number of blocks of a run that are tested. All pairs of two sides' blocks are formed.
const MOST: usize = 4 * BLOCKS;

/// The values of a measure in the runs of one side, each with the number of its block.
pub(crate) type Values = Vec<RunValues>;
/// The values of a measure in one run, each with the number of its block.
pub(crate) type RunValues = Vec<(u32, f64)>;

/// The estimated difference of a measure.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Estimate {
    /// The medians of A and B.
    pub(crate) medians: [Option<f64>; 2],
    pub(crate) units: Units,
    /// B minus A, with its interval.
    pub(crate) shift: Option<(f64, [f64; 2])>,
    /// B divided by A, with its interval; `None` if a value is 0.
    pub(crate) ratio: Option<(f64, [f64; 2])>,
    /// Two-sided p value; `None` with too few observations.
    pub(crate) p: Option<f64>,
    /// True if no run of one side lies between runs of the other. Runs differ by more than their
    /// blocks do, so that blocks alone do not prove a difference between the sides.
    pub(crate) is_separate: bool,
}

impl Estimate {
    /// The p value is multiplied by up to `tests`, because so many are made.
    pub(crate) fn of(a: &[RunValues], b: &[RunValues], tests: f64, limits: &Limits) -> Estimate {
        let [a, b] = [a, b].map(|side| side.iter().map(|run| blocks(run)).collect::<Vec<_>>());
        let [means, others] = [&a, &b].map(|side| medians(side));
        let is_many = means.len().min(others.len()) >= limits.min_runs;
        // However far apart the runs of the sides are, too few of them prove nothing among so many
        // tests; their blocks do. A run of a saved report is one block.
        let is_provable = least_p(means.len(), others.len()) * tests < limits.false_share;
        let has_blocks = a.iter().chain(&b).any(|run| run.len() > 1);
        let is_by_run = is_many && (is_provable || !has_blocks);
        // Runs are independent of each other, but the blocks of one run are not.
        let (of, sides, inflation) = if is_by_run {
            ("run", [means.clone(), others.clone()], 1.0)
        } else {
            let inflation = inflation(a.iter().chain(&b).map(Vec::as_slice));
            ("block", [tested(&a), tested(&b)], inflation)
        };
        let [x, y] = &sides;
        let is_enough = is_many || x.len().min(y.len()) >= limits.min_blocks;
        let p = is_enough.then(|| rank_sum(x, y, inflation));
        let positive = |side: &[f64]| side.iter().all(|&value| value > 0.0);
        let ratio = (positive(x) && positive(y)).then(|| {
            let [x, y] = [x, y].map(|side| side.iter().map(|value| value.ln()).collect::<Vec<_>>());
            let (shift, [low, high]) = shift(&x, &y, inflation)?;
            Some((shift.exp(), [low.exp(), high.exp()]))
        });
        Estimate {
            medians: [median(x), median(y)],
            units: Units { of, a: x.len(), b: y.len() },
            shift: shift(x, y, inflation),
            ratio: ratio.flatten(),
            p,
            is_separate: is_by_run || is_separate(&means, &others),
        }
    }
}

/// The median of each block of a run, in time order: values from about the same time are one
/// observation.
fn blocks(run: &[(u32, f64)]) -> Vec<f64> {
    let mut blocks: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    run.iter().for_each(|&(block, value)| blocks.entry(block).or_default().push(value));
    blocks.values().filter_map(|values| median(values)).collect()
}

/// The blocks of all runs; of a run with too many of them, blocks at equal distances.
fn tested(runs: &[Vec<f64>]) -> Vec<f64> {
    let of = |run: &Vec<f64>| {
        let distance = run.len().div_ceil(MOST).max(1);
        run.iter().step_by(distance).copied().collect::<Vec<f64>>()
    };
    runs.iter().flat_map(of).collect()
}

/// The median of each run that has a value.
fn medians(runs: &[Vec<f64>]) -> Vec<f64> {
    runs.iter().filter_map(|blocks| median(blocks)).collect()
}

fn is_separate(a: &[f64], b: &[f64]) -> bool {
    let range = |of: &[f64]| {
        of.iter().fold((f64::MAX, f64::MIN), |(low, high), &x| (low.min(x), high.max(x)))
    };
    let (a, b) = (range(a), range(b));
    a.1 < b.0 || b.1 < a.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run with this many blocks around a value, with three values in each.
    fn run(blocks: u32, around: f64) -> Vec<(u32, f64)> {
        let noise = |block: u32| f64::from(block.wrapping_mul(0x9e37_79b1) >> 24) / 256.0 - 0.5;
        (0..3 * blocks).map(|at| (at / 3, around * (1.0 + 0.02 * noise(at / 3)))).collect()
    }

    #[test]
    fn a_block_is_one_observation_however_much_is_in_it() {
        let limits = Limits::default();
        let found = Estimate::of(&[run(20, 1e6)], &[run(20, 1.05e6)], 1.0, &limits);
        assert_eq!((found.units.of, found.units.a, found.units.b), ("block", 20, 20));
        let (ratio, [low, high]) = found.ratio.unwrap();
        assert!((ratio - 1.05).abs() < 0.005 && low < ratio && ratio < high, "{found:?}");
        assert!(found.p.unwrap() < 1e-4, "{found:?}");
        let few = Estimate::of(&[run(5, 1e6)], &[run(20, 1.05e6)], 1.0, &limits);
        assert_eq!((few.p, few.units.a), (None, 5));
    }

    #[test]
    fn of_several_runs_the_blocks_of_one_do_not_decide() {
        let limits = Limits::default();
        let side = |of: &[f64]| of.iter().map(|&around| run(20, around)).collect::<Values>();
        // The two runs of A differ by more than A and B do.
        let found = Estimate::of(&side(&[1e6, 1.1e6]), &side(&[1.05e6, 1.12e6]), 1.0, &limits);
        assert!(!found.is_separate && found.units.of == "block", "{found:?}");
        assert!(Estimate::of(&side(&[1e6, 1.01e6]), &side(&[1.05e6]), 1.0, &limits).is_separate);
        let many = [1e6, 1.01e6, 1.02e6, 1.03e6, 1.04e6];
        let slower = many.map(|around| 1.1 * around);
        let found = Estimate::of(&side(&many), &side(&slower), 1.0, &limits);
        assert_eq!((found.units.of, found.units.a), ("run", 5));
        // One of the 252 ways to choose five of ten, in two directions.
        assert!((found.p.unwrap() - 2.0 / 252.0).abs() < 1e-9, "{found:?}");
        // Among two tests that is too many ways. The blocks then show it, and that runs differ.
        let found = Estimate::of(&side(&many), &side(&slower), 2.0, &limits);
        assert_eq!((found.units.of, found.units.a, found.is_separate), ("block", 100, true));
        assert!(found.p.unwrap() < 1e-4, "{found:?}");
        let one = |of: f64| vec![(0, of)];
        let [a, b] = [many, slower].map(|side| side.map(one));
        let found = Estimate::of(&a, &b, 2.0, &limits);
        assert_eq!((found.units.of, found.units.a, found.p.is_some()), ("run", 5, true));
    }
}
