// SPDX-License-Identifier: Apache-2.0
/*!
Rare long values: whether one unit has more of them than chance gives it.

Neighbouring blocks show one stall, not several: a pause ends in the middle of a block, and its
effects last, also if the blocks are independent otherwise. Counted as several, they gave 3 to 10 %
false alarms at 4,096 units.

If stalls strike at random, each belongs to any unit with the same chance, whatever it costs. So a
unit's stalls are compared by their cost: the chance that those assigned to it cost as much. Three
that cost a second each are not hidden by ten of other units that cost a millisecond.
*/

use crate::blocks::{Series, known};
use crate::robust::DEVIATION;
use ncclscope_limits::test;
use ncclscope_operations::stats::{count, median, to_u64};

/// Parts into which the cost of a unit's stalls is divided, for each of them.
const PARTS: u32 = 16;
/// Maximum number of parts: the time for a unit grows with it.
const MOST_PARTS: u32 = 4096;

/// The stalls in a question.
#[derive(Debug)]
pub(crate) struct Stalls {
    /// A value above this is a stall.
    level: f64,
    /// The unit of each stall, and its largest value.
    all: Vec<(usize, f64)>,
}

impl Stalls {
    /// The stalls of units, where blocks that are less than `apart` from one another, and
    /// neighbours, are one.
    pub(crate) fn of(series: &Series, apart: f64) -> Stalls {
        let mut off: Vec<f64> = series.units().flat_map(known).map(f64::abs).collect();
        let deviation = DEVIATION * median(&mut off).unwrap_or(0.0);
        let level = test::STALL.max(test::STALL_DEVIATIONS * deviation);
        // The unit of each block with the largest value.
        let mut worst = vec![(0, level); series.blocks];
        for (unit, values) in series.units().enumerate() {
            for (worst, &value) in worst.iter_mut().zip(values) {
                // Not so for unknown ones.
                if value > worst.1 {
                    *worst = (unit, value);
                }
            }
        }
        let mut all: Vec<(usize, f64)> = Vec::new();
        let mut last: Option<usize> = None;
        for (block, &(unit, value)) in worst.iter().enumerate().filter(|(_, it)| it.1 > level) {
            let is_same = last.is_some_and(|last| count(block - last) < apart.max(2.0));
            match all.last_mut().filter(|_| is_same) {
                // It belongs to its worst unit.
                Some(stall) if value > stall.1 => *stall = (unit, value),
                Some(_) => {}
                None => all.push((unit, value)),
            }
            last = Some(block);
        }
        Stalls { level, all }
    }

    /// Number of stalls of a unit.
    pub(crate) fn number(&self, unit: usize) -> u32 {
        u32::try_from(self.all.iter().filter(|(of, _)| *of == unit).count()).unwrap_or(u32::MAX)
    }

    /// The chance that a unit among so many has stalls that cost as much as those of this one.
    pub(crate) fn p(&self, unit: usize, units: f64) -> f64 {
        let number = self.number(unit);
        if number < test::STALLS {
            return 1.0;
        }
        let own: f64 = self.all.iter().filter(|(of, _)| *of == unit).map(|(_, cost)| cost).sum();
        let parts = f64::from(number.saturating_mul(PARTS).min(MOST_PARTS));
        // Costs are rounded up, so that the chance is not too small; but not for a rounding error.
        let round = |cost: f64| to_u64((cost / own * parts - 1.0 / 1e6).ceil());
        let costs = self.all.iter().map(|(_, cost)| round(*cost));
        chance_of(costs, to_u64(parts), 1.0 / units)
    }

    /// The mean of what stalls cost in these values.
    pub(crate) fn cost(&self, values: &[f64]) -> f64 {
        let costs = known(values).filter(|value| *value > self.level);
        costs.sum::<f64>() / count(known(values).count()).max(1.0)
    }
}

/// The chance that costs, of which each counts with the given chance, add up to so much.
fn chance_of(costs: impl Iterator<Item = u64>, enough: u64, chance: f64) -> f64 {
    let enough = usize::try_from(enough).unwrap_or(usize::MAX);
    // The chance of each sum; the last one is that of all sums that are enough.
    let mut sums = vec![0.0; enough + 1];
    sums[0] = 1.0;
    for cost in costs {
        let cost = usize::try_from(cost).unwrap_or(usize::MAX);
        for sum in (0..enough).rev() {
            let moved = sums[sum] * chance;
            sums[sum] -= moved;
            sums[sum.saturating_add(cost).min(enough)] += moved;
        }
    }
    sums[enough]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_costs_are_counted() {
        let p = |own: u64, all: u64| chance_of((0..all).map(|_| 16), 16 * own, 0.25);
        assert_eq!(p(3, 3), 0.25_f64.powi(3));
        assert_eq!(p(3, 5), (10.0 * 9.0 + 5.0 * 3.0 + 1.0) / 1024.0);
        assert_eq!((p(0, 5), p(4, 3)), (1.0, 0.0));
        let stalls = |own| {
            let all = (0..40).map(|at| (usize::from(at >= own), 0.7)).collect();
            Stalls { level: 0.05, all }.p(0, 4.0)
        };
        assert!((stalls(12) - p(12, 40)).abs() < 1e-12 && stalls(2) == 1.0);
    }

    /// The recording stall1 of the cluster in a box: rank 1 stalls for a second nine times, and the
    /// machine is busy for some milliseconds three times.
    #[test]
    fn small_stalls_of_others_do_not_hide_large_ones() {
        let mut all = vec![(1, 14.5); 9];
        all.extend([(0, 0.07), (0, 0.1), (2, 0.08)]);
        let stalls = Stalls { level: 0.05, all };
        assert!(stalls.p(1, 3.0) < 1.01 / 3.0_f64.powi(9), "{}", stalls.p(1, 3.0));
        assert_eq!(stalls.p(0, 3.0), 1.0, "two are attributed to no unit");
        // One that is far larger than the other ones decides alone.
        let stalls = Stalls { level: 0.05, all: vec![(0, 90.0), (0, 0.1), (0, 0.1), (1, 0.1)] };
        assert!(stalls.p(0, 4.0) > 0.2);
    }
}
