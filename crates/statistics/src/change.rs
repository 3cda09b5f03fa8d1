// SPDX-License-Identifier: Apache-2.0
//! Whether a unit costs more since some block than before it.

use crate::blocks::{known, moments};
use ncclscope_operations::stats::count;

/// The best split of a unit's values into before and after.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Split {
    /// The first block after it.
    pub(crate) at: usize,
    /// Number of splits tried.
    pub(crate) tried: usize,
    /// Number of known values before and after.
    pub(crate) sides: [usize; 2],
    /// How much larger the mean is after it.
    pub(crate) shift: f64,
    /// What is left of the values without the two means.
    pub(crate) rest: Vec<f64>,
    /// Standard deviation of the rest.
    pub(crate) deviation: f64,
}

impl Split {
    /// The split with the largest two-sample statistic, of those with at least so many values on
    /// each side; `None` if there is none.
    pub(crate) fn of(values: &[f64], least: usize) -> Option<Split> {
        let (all, mean, _) = moments(values);
        let tried = (all + 1).checked_sub(least.saturating_mul(2)).filter(|tried| *tried > 0)?;
        // With the variance between the parts that within them is known, too: the largest shift
        // relative to its error has the largest signed variance between.
        let (mut before, mut sum) = (0, 0.0);
        let mut best = (f64::NEG_INFINITY, 0, 0);
        for (at, value) in values.iter().enumerate().filter(|(_, value)| !value.is_nan()) {
            if before >= least && all - before >= least {
                let (a, b) = (count(before), count(all - before));
                let shift = -sum / b - sum / a;
                best = max(best, (shift * (a * b).sqrt(), at, before));
            }
            before += 1;
            sum += value - mean;
        }
        let (_, at, before) = best;
        let (first, last) = values.split_at(at);
        let [(_, first_mean, _), (_, last_mean, _)] = [first, last].map(moments);
        let rest = first.iter().map(|value| value - first_mean);
        let rest: Vec<f64> = rest.chain(last.iter().map(|value| value - last_mean)).collect();
        let squares: f64 = known(&rest).map(|value| value * value).sum();
        let deviation = (squares / (count(all) - 2.0).max(1.0)).sqrt();
        let sides = [before, all - before];
        Some(Split { at, tried, sides, shift: last_mean - first_mean, rest, deviation })
    }
}

type Candidate = (f64, usize, usize);

fn max(a: Candidate, b: Candidate) -> Candidate {
    if b.0 > a.0 { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_split_is_where_the_level_rises() {
        let noise = |at: u32| f64::from(at.wrapping_mul(0x9e37_79b1) >> 24) / 256.0 - 0.5;
        let level = |at: u32| noise(at) + if at < 13 { 1.0 } else { 4.0 };
        let mut values: Vec<f64> = (0..30).map(level).collect();
        values[2] = f64::NAN;
        let split = Split::of(&values, 3).unwrap();
        assert_eq!((split.at, split.tried, split.sides), (13, 24, [12, 17]));
        assert!((split.shift - 3.0).abs() < 0.5 && split.deviation < 0.5, "{split:?}");
        assert_eq!(split.rest.len(), 30);
        assert_eq!(Split::of(&values[..6], 3), None, "three and two");
        assert_eq!(Split::of(&[], 3), None);
    }
}
