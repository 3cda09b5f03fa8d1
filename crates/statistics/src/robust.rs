// SPDX-License-Identifier: Apache-2.0
//! Medians and median absolute deviations.

use ncclscope_operations::stats;

/// The standard deviation of normally distributed values whose median absolute deviation is 1.
pub const DEVIATION: f64 = 1.482_602;

/// The median (for an even number of values, the mean of the middle two); `None` without values.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    stats::median(&mut values.to_vec())
}

/// The median and the median absolute deviation from it; sorts `values`. `None` if empty.
#[must_use]
pub fn median_mad(values: &mut [f64]) -> Option<(f64, f64)> {
    let middle = stats::median(values)?;
    let mut off: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    Some((middle, stats::median(&mut off)?))
}

/// The standard error of a median of so many values with this median absolute deviation: that of a
/// median of normally distributed values is 1.2533 times that of their mean.
#[must_use]
pub fn median_error(mad: f64, values: usize) -> f64 {
    1.2533 * DEVIATION * mad / stats::count(values).sqrt()
}

/// The median of the sorted values without `one` of them; `one` itself if there is no other.
#[must_use]
pub fn median_of_others(sorted: &[f64], one: f64) -> f64 {
    let place = sorted.partition_point(|value| *value < one);
    let other = |at: usize| sorted.get(at + usize::from(at >= place)).copied().unwrap_or(one);
    match sorted.len().saturating_sub(1) {
        0 => one,
        others if others % 2 == 1 => other(others / 2),
        others => f64::midpoint(other(others / 2 - 1), other(others / 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_withstand_outliers() {
        assert_eq!(median_of_others(&[1.0, 5.0, 9.0], 5.0), 5.0);
        assert_eq!(median_of_others(&[1.0, 5.0, 9.0, 10.0], 9.0), 5.0);
        assert_eq!(median_of_others(&[1.0, 2.0], 1.0), 2.0);
        assert_eq!(median_of_others(&[3.0], 3.0), 3.0);
        assert_eq!(median_mad(&mut [1.0, 1e9, 3.0, 2.0, 2.0]), Some((2.0, 1.0)));
    }
}
