// SPDX-License-Identifier: Apache-2.0
/*!
Rare long values: whether one unit has more of them than chance gives it.

Neighbouring blocks show one stall, not several: a pause ends in the middle of a block, and its
effects last, also if the blocks are independent otherwise. Counted as several, they gave 3 to 10 %
false alarms at 4,096 units.
*/

use crate::blocks::{Series, known};
use crate::limits::Limits;
use crate::robust::DEVIATION;
use crate::tails::binomial;
use ncclscope_operations::stats::{count, median};

/// The stalls in a question.
#[derive(Debug)]
pub(crate) struct Stalls {
    /// A value above this is a stall.
    level: f64,
    /// Number of stalls of each unit, and of all.
    of: Vec<u32>,
    all: u32,
}

impl Stalls {
    /// The stalls of units, where blocks that are less than `apart` from one another, and
    /// neighbours, are one.
    pub(crate) fn of(series: &Series, apart: f64, limits: &Limits) -> Stalls {
        let mut off: Vec<f64> = series.units().flat_map(known).map(f64::abs).collect();
        let deviation = DEVIATION * median(&mut off).unwrap_or(0.0);
        let level = limits.stall.max(limits.stall_deviations * deviation);
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
        let mut stalls = Stalls { level, of: vec![0; series.units().count()], all: 0 };
        // The last block of the stall, and its worst unit.
        let mut open: Option<(usize, (usize, f64))> = None;
        for (block, &(unit, value)) in worst.iter().enumerate().filter(|(_, it)| it.1 > level) {
            let one = open.filter(|(last, _)| count(block - last) < apart.max(2.0));
            if one.is_none() {
                stalls.close(open);
            }
            let most = one.map(|(_, most)| most).filter(|most| most.1 >= value);
            open = Some((block, most.unwrap_or((unit, value))));
        }
        stalls.close(open);
        stalls
    }

    fn close(&mut self, stall: Option<(usize, (usize, f64))>) {
        let Some((_, (unit, _))) = stall else { return };
        self.all += 1;
        self.of.iter_mut().skip(unit).take(1).for_each(|number| *number += 1);
    }

    /// Number of stalls of a unit.
    pub(crate) fn number(&self, unit: usize) -> u32 {
        self.of.get(unit).copied().unwrap_or(0)
    }

    /// The chance that a unit among so many has so many of the stalls.
    pub(crate) fn p(&self, unit: usize, units: f64) -> f64 {
        match self.number(unit) {
            number if number < Limits::STALLS => 1.0,
            number => binomial(number, self.all, 1.0 / units),
        }
    }

    /// The mean of what stalls cost in these values.
    pub(crate) fn cost(&self, values: &[f64]) -> f64 {
        let costs = known(values).filter(|value| *value > self.level);
        costs.sum::<f64>() / count(known(values).count()).max(1.0)
    }
}
