// SPDX-License-Identifier: Apache-2.0
//! Order statistics and a straight-line fit.

/// The least value, median, 99th percentile and greatest value of `values`, which it sorts.
/// Percentiles are by nearest rank, so each is one of the values. `None` if empty.
#[must_use]
pub fn quantiles(values: &mut [f64]) -> Option<[f64; 4]> {
    values.sort_unstable_by(f64::total_cmp);
    let at = |percent: usize| {
        let rank = (values.len() * percent).div_ceil(100).max(1);
        values.get(rank - 1).copied()
    };
    Some([at(0)?, at(50)?, at(99)?, at(100)?])
}

/// The median (of an even number, the mean of the middle two); sorts `values`. `None` if empty.
#[must_use]
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = values.get((values.len() / 2).checked_sub(1)?)?;
    Some(f64::midpoint(*lower, upper))
}

/// The lower of the two middle values, so always one of them; sorts `values`. `None` if empty.
#[must_use]
pub fn lower_median(values: &mut [f64]) -> Option<f64> {
    quantiles(values).map(|[_, median, ..]| median)
}

/// A number of things as `f64`; exact below 2^53.
#[must_use]
pub fn count(n: usize) -> f64 {
    to_f64(n as u64)
}

/// Least-squares fit of y over x from running sums, without storing the points.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinearFit {
    count: f64,
    mean_x: f64,
    mean_y: f64,
    var_x: f64,
    var_y: f64,
    cov: f64,
}

/// A fitted line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// y at x = 0.
    pub intercept: f64,
    /// y per x.
    pub slope: f64,
    /// Share of y's variance that the line explains, 0 to 1.
    pub r2: f64,
}

impl LinearFit {
    /// Adds a point.
    pub fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        let (dx, dy, share) = (x - self.mean_x, y - self.mean_y, 1.0 / self.count);
        self.mean_x += dx * share;
        self.mean_y += dy * share;
        self.var_x += dx * (x - self.mean_x);
        self.var_y += dy * (y - self.mean_y);
        self.cov += dx * (y - self.mean_y);
    }

    /// Adds the points of another fit.
    pub fn merge(&mut self, other: &LinearFit) {
        if other.count == 0.0 {
            return;
        }
        let count = self.count + other.count;
        let (dx, dy) = (other.mean_x - self.mean_x, other.mean_y - self.mean_y);
        let weight = self.count * other.count / count;
        self.var_x += other.var_x + dx * dx * weight;
        self.var_y += other.var_y + dy * dy * weight;
        self.cov += other.cov + dx * dy * weight;
        self.mean_x += dx * other.count / count;
        self.mean_y += dy * other.count / count;
        self.count = count;
    }

    /// Number of points.
    #[must_use]
    pub fn count(&self) -> f64 {
        self.count
    }

    /// The mean of all points; (0, 0) without points.
    #[must_use]
    pub fn mean(&self) -> (f64, f64) {
        (self.mean_x, self.mean_y)
    }

    /// The line; `None` if all x are the same.
    #[must_use]
    pub fn line(&self) -> Option<Line> {
        if self.var_x <= 0.0 {
            return None;
        }
        let slope = self.cov / self.var_x;
        let explained =
            if self.var_y > 0.0 { self.cov * self.cov / (self.var_x * self.var_y) } else { 1.0 };
        Some(Line {
            intercept: self.mean_y - slope * self.mean_x,
            slope,
            r2: explained.clamp(0.0, 1.0),
        })
    }
}

/// Converts to `f64`; exact below 2^53.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts, bytes and durations stay far below 2^53")]
pub fn to_f64(x: u64) -> f64 {
    x as f64
}

/// Rounds to `u64`, saturating; negative numbers become 0.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturating by design")]
#[inline]
pub fn to_u64(x: f64) -> u64 {
    // Rounds as `round` does, without its call into the C library; the truncated part is exact.
    let whole = x as u64;
    whole.saturating_add(u64::from(x - to_f64(whole) >= 0.5))
}

/// Rounds to `i64`, saturating.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "saturating by design")]
pub fn to_i64(x: f64) -> i64 {
    x.round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        assert_eq!(quantiles(&mut []), None);
        assert_eq!(quantiles(&mut [7.0]), Some([7.0; 4]));
        let mut hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantiles(&mut hundred), Some([1.0, 50.0, 99.0, 100.0]));
        assert_eq!(quantiles(&mut [2.0, 1.0]), Some([1.0, 1.0, 2.0, 2.0]));
    }

    #[test]
    fn a_line_is_found_also_in_parts() {
        let (mut left, mut right) = (LinearFit::default(), LinearFit::default());
        for x in [1e6, 2e6, 3e6] {
            left.add(x, 10.0 + x / 1000.0);
        }
        assert_eq!(left.line().map(|l| l.r2), Some(1.0));
        right.add(8e6, 8010.0);
        right.add(9e6, 9010.0);
        left.merge(&right);
        left.merge(&LinearFit::default());
        let line = left.line().unwrap();
        assert!((line.intercept - 10.0).abs() < 1e-6 && (line.slope - 1e-3).abs() < 1e-12);
        assert!(line.r2 > 0.999_999);
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturating")]
    fn numbers_are_rounded_as_the_library_does() {
        let odd = [0.0, -0.0, 0.499_999_999_999_999_94, 0.5, 1.5, 2.5, -0.5, -3.0, 4e15 + 0.5];
        let huge = [9.1e18, 1.8e19, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        let many = (0..10_000).map(|i| f64::from(i) * 1e9 / 7.0);
        for x in odd.into_iter().chain(huge).chain(many) {
            assert_eq!(to_u64(x), x.round() as u64, "{x}");
        }
    }

    #[test]
    fn one_size_is_no_line() {
        let mut fit = LinearFit::default();
        fit.add(5.0, 1.0);
        fit.add(5.0, 2.0);
        assert_eq!(fit.line(), None);
    }
}
