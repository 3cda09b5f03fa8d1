// SPDX-License-Identifier: Apache-2.0
//! The input of the one test: what units cost, block by block.

use crate::robust::median_of_others;
use ncclscope_operations::stats::count;

/// What a unit is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The other units in the same blocks.
    Peers,
    /// What is usual for each, which the values already lack.
    Usual,
    /// Its own earlier blocks. Stalls are not judged, and are no change.
    Past,
}

/// The excess cost of units in blocks of time, as shares of a step; NaN where it is unknown. Blocks
/// are in the order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Blocks {
    units: usize,
    /// Block by block.
    values: Vec<f64>,
}

impl Blocks {
    /// No blocks yet, of so many units.
    #[must_use]
    pub fn new(units: usize) -> Blocks {
        Blocks { units, values: Vec::new() }
    }

    /// Adds a block. Units without a finite value are unknown, and values without a unit are left
    /// out.
    pub fn push(&mut self, values: impl IntoIterator<Item = f64>) {
        let known =
            values.into_iter().map(|value| if value.is_finite() { value } else { f64::NAN });
        self.values.extend(known.chain(std::iter::repeat(f64::NAN)).take(self.units));
    }

    /// Number of units.
    #[must_use]
    pub fn units(&self) -> usize {
        self.units
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len() / self.units.max(1)
    }

    /// True without blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// What is compared of each unit: its values, against its peers less the median of theirs in
    /// the same block. NaN where it is unknown.
    #[must_use]
    pub fn excess(self, against: Against) -> Blocks {
        match against {
            Against::Peers => Blocks { values: self.values_beyond_peers(), ..self },
            Against::Usual | Against::Past => self,
        }
    }

    /// The values of a unit, in the order of time.
    pub fn of_unit(&self, unit: usize) -> impl Iterator<Item = f64> {
        self.values.iter().skip(unit).step_by(self.units.max(1)).copied()
    }

    /// The values as they are.
    pub(crate) fn own(&self) -> Series {
        Series::of(self.units, &self.values)
    }

    /// Each value less the median of the other units in its block; unknown if there is no other.
    pub(crate) fn beyond_peers(&self) -> Series {
        Series::of(self.units, &self.values_beyond_peers())
    }

    fn values_beyond_peers(&self) -> Vec<f64> {
        let mut values = self.values.clone();
        let mut sorted = Vec::with_capacity(self.units);
        for block in values.chunks_mut(self.units.max(1)) {
            sorted.clear();
            sorted.extend(block.iter().filter(|value| !value.is_nan()));
            sorted.sort_unstable_by(f64::total_cmp);
            let has_peers = sorted.len() > 1;
            for value in block {
                let usual = if has_peers { median_of_others(&sorted, *value) } else { f64::NAN };
                *value -= usual;
            }
        }
        values
    }
}

/// The values of each unit, in the order of time; NaN where they are unknown.
pub(crate) struct Series {
    pub(crate) blocks: usize,
    values: Vec<f64>,
}

impl Series {
    fn of(units: usize, by_block: &[f64]) -> Series {
        let columns = (0..units).map(|unit| by_block.iter().skip(unit).step_by(units));
        let blocks = by_block.len() / units.max(1);
        Series { blocks, values: columns.flatten().copied().collect() }
    }

    /// The series of each unit.
    pub(crate) fn units(&self) -> impl Iterator<Item = &[f64]> {
        self.values.chunks(self.blocks.max(1))
    }

    /// The series of a unit; empty if there is no such unit.
    pub(crate) fn unit(&self, unit: usize) -> &[f64] {
        self.values.get(unit * self.blocks..).and_then(|of| of.get(..self.blocks)).unwrap_or(&[])
    }
}

/// The known values.
pub(crate) fn known(values: &[f64]) -> impl Iterator<Item = f64> + Clone {
    values.iter().copied().filter(|value| !value.is_nan())
}

/// Number, mean and standard deviation of the known values.
pub(crate) fn moments(values: &[f64]) -> (usize, f64, f64) {
    let number = known(values).count();
    let mean = known(values).sum::<f64>() / count(number).max(1.0);
    let squares: f64 = known(values).map(|value| (value - mean).powi(2)).sum();
    (number, mean, (squares / (count(number) - 1.0).max(1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_compared_with_the_other_units_that_are_known() {
        let mut blocks = Blocks::new(3);
        blocks.push([1.0, 5.0, 3.0]);
        blocks.push([1.0]);
        blocks.push([1.0, f64::INFINITY, 4.0, 9.0]);
        assert_eq!((blocks.len(), blocks.units(), blocks.is_empty()), (3, 3, false));
        let beyond = blocks.beyond_peers();
        let known = |unit: usize| known(beyond.unit(unit)).collect::<Vec<f64>>();
        assert_eq!([known(0), known(1), known(2)], [vec![-3.0, -3.0], vec![3.0], vec![0.0, 3.0]]);
        assert_eq!(beyond.units().count(), 3);
        assert!(beyond.unit(3).is_empty());
        assert_eq!(blocks.own().unit(2)[0], 3.0);
        assert_eq!(moments(&[1.0, f64::NAN, 3.0]), (2, 2.0, 2f64.sqrt()));
    }
}
