// SPDX-License-Identifier: Apache-2.0
//! The body of a unit's values: whether their mean is above what healthy units differ by.

use crate::tails::{student, student_95};
use ncclscope_limits::test;

/// What is known of a mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Body {
    pub(crate) mean: f64,
    /// Standard deviation of one value.
    pub(crate) deviation: f64,
    /// Number of independent values that would show the mean as well; at least 1.
    pub(crate) effective: f64,
    /// Degrees of freedom of the deviation.
    pub(crate) freedom: f64,
    /// Natural spread of the means of healthy units.
    pub(crate) spread: f64,
}

impl Body {
    fn error(&self) -> f64 {
        self.deviation / self.effective.sqrt()
    }

    /// One-sided p value of the hypothesis that the unit is healthy.
    pub(crate) fn p(&self) -> f64 {
        let (above, error) = (self.mean - test::SPREADS * self.spread, self.error());
        match error > 0.0 {
            true => student(above / error, self.freedom.max(1.0)),
            false if above > 0.0 => 0.0,
            false => 1.0,
        }
    }

    /// What the cost does not exceed: the mean moved towards 0, because healthy units are known to
    /// lie there, and its standard deviations above.
    pub(crate) fn most(&self) -> f64 {
        let (spread, error) = (self.spread.powi(2), self.error().powi(2));
        let kept = spread / (spread + error);
        kept * self.mean + test::SURE * (kept * error).sqrt()
    }

    /// The mean's 95 % interval.
    pub(crate) fn interval(&self) -> [f64; 2] {
        let off = student_95(self.freedom.max(1.0)) * self.error();
        [self.mean - off, self.mean + off]
    }

    /// What so many times the values would show if they were like these.
    pub(crate) fn repeated(self, times: f64) -> Body {
        let freedom = self.freedom.max(1.0) * times;
        Body { effective: self.effective * times, freedom, ..self }
    }
}
