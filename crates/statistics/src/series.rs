// SPDX-License-Identifier: Apache-2.0
/*!
Values that follow one another in time are alike, so that they say less than as many independent
ones: the variance of their mean, and of a test's statistic, grows by (1 + r) / (1 - r), where r is
the correlation of neighbours, as for a first-order autoregressive series.
*/

use crate::blocks::known;
use crate::rank::{Z_95, doubled_ranks};
use crate::robust::{DEVIATION, median_mad};
use ncclscope_limits::test;
use ncclscope_operations::stats::count;

/// Factor by which the variance of values in time order exceeds that of independent values, over
/// several series; at least 1.
#[must_use]
pub fn inflation<'a>(series: impl IntoIterator<Item = &'a [f64]>) -> f64 {
    let (mut near, mut own) = (0.0, 0.0);
    for values in series {
        let (ranks, _) = doubled_ranks(values, &[]);
        let middle = count(values.len()) + 1.0;
        let off: Vec<f64> = ranks.iter().map(|&rank| count(rank) - middle).collect();
        near += off.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>();
        own += off.iter().map(|off| off * off).sum::<f64>();
    }
    factor(if own > 0.0 { near / own } else { 0.0 })
}

/// The mean of values in the order of time, and how far it may be off (95 %).
#[must_use]
pub fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let number = count(values.len());
    let mean = values.iter().sum::<f64>() / number.max(1.0);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let pairs = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean));
    let alike = if squares > 0.0 { pairs.sum::<f64>() / squares } else { 0.0 };
    let variance = squares / (number - 1.0).max(1.0) * factor(alike);
    (mean, Z_95 * (variance / number.max(1.0)).sqrt())
}

/// The values, with those that are far from the median moved towards it; and the median.
pub(crate) fn winsorised(values: &[f64]) -> (Vec<f64>, f64) {
    let spread = median_mad(&mut known(values).collect::<Vec<f64>>());
    let (middle, mad) = spread.unwrap_or_default();
    let widest = test::WINSORISED * DEVIATION * mad;
    let tame = values.iter().map(|value| value.clamp(middle - widest, middle + widest));
    (tame.collect(), middle)
}

/// The values, with those of stalls moved towards the median. As many neighbours as show a level of
/// their own are no stall, but a change.
pub(crate) fn without_stalls(values: &[f64]) -> Vec<f64> {
    let (mut tame, _) = winsorised(values);
    // Unknown values are not.
    let moved = values.iter().zip(&tame).map(|(value, tame)| (value - tame).abs() > 0.0);
    let moved: Vec<bool> = moved.collect();
    let mut at = 0;
    for run in moved.chunk_by(bool::eq) {
        let end = at + run.len();
        if run[0] && run.len() >= test::BLOCKS {
            tame[at..end].copy_from_slice(&values[at..end]);
        }
        at = end;
    }
    tame
}

/// The correlation of neighbours in series of winsorised values, 0 to 1: the mean over the series,
/// so that one that has a trend, or varies more than the other ones, does not decide.
pub(crate) fn likeness<'a>(series: impl IntoIterator<Item = &'a [f64]>) -> f64 {
    let (mut sum, mut number) = (0.0, 0.0);
    for values in series {
        let (tame, middle) = winsorised(values);
        let pairs = tame.windows(2).map(|pair| (pair[0] - middle) * (pair[1] - middle));
        let near: f64 = pairs.filter(|product| !product.is_nan()).sum();
        let own: f64 = known(&tame).map(|value| (value - middle).powi(2)).sum();
        if own > 0.0 {
            sum += near / own;
            number += 1.0;
        }
    }
    if number > 0.0 { (sum / number).clamp(0.0, 1.0) } else { 0.0 }
}

/// The factor of the variance for a correlation of neighbours.
fn factor(alike: f64) -> f64 {
    let r = alike.clamp(0.0, test::STRONGEST);
    (1.0 + r) / (1.0 - r)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_no_stall() {
        let mut values: Vec<f64> = (0..20).map(|at| f64::from(at % 3)).collect();
        values[5] = 90.0;
        values[6] = f64::NAN;
        let tame = without_stalls(&values);
        assert!(tame[5] < 10.0 && tame[6].is_nan() && tame[..5] == values[..5], "{tame:?}");
        values[16..19].fill(90.0);
        assert_eq!(without_stalls(&values)[16..19], [90.0; 3]);
    }

    #[test]
    fn neighbours_that_are_alike_make_the_error_larger() {
        let (mean, apart) = mean_and_error(&[1.0, 3.0, 1.0, 3.0, 1.0, 3.0]);
        let (same, together) = mean_and_error(&[1.0, 1.0, 1.0, 3.0, 3.0, 3.0]);
        assert_eq!((mean, same), (2.0, 2.0));
        assert!(together > 1.5 * apart, "{together} {apart}");
        assert_eq!(mean_and_error(&[]), (0.0, 0.0));
    }
}
