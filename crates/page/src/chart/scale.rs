// SPDX-License-Identifier: Apache-2.0
//! Scales from values to coordinates, and round values for the marks of an axis.

/// Maps values to coordinates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    /// From values `low..high` to coordinates `from..to`.
    pub(crate) fn linear([low, high]: [f64; 2], [from, to]: [f64; 2]) -> Scale {
        Scale { low, high: if high > low { high } else { low + 1.0 }, from, to, is_log: false }
    }

    /// A logarithmic scale; the values must be positive.
    pub(crate) fn log([low, high]: [f64; 2], range: [f64; 2]) -> Scale {
        let (low, high) = (low.max(f64::MIN_POSITIVE), high.max(f64::MIN_POSITIVE));
        Scale { is_log: true, ..Scale::linear([low.ln(), high.ln()], range) }
    }

    /// The coordinate of a value.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let value = if self.is_log { value.max(f64::MIN_POSITIVE).ln() } else { value };
        let share = (value - self.low) / (self.high - self.low);
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }
}

/// About `most` round values from 0 to at least `high`.
pub(crate) fn linear_ticks(high: f64, most: u32) -> Vec<f64> {
    if !(high > 0.0 && high.is_finite()) {
        return vec![0.0, 1.0];
    }
    let rough = high / f64::from(most.max(1));
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|of| of * power);
    let step = step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(10.0 * power);
    let mut ticks = vec![0.0];
    while let Some(last) = ticks.last().copied().filter(|last| *last < high * 0.999) {
        ticks.push(last + step);
    }
    ticks
}

/// Round values that enclose `low..high` on a logarithmic axis: 1, 2 and 5 of each power of ten, or
/// powers of ten alone if these are many.
pub(crate) fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (low, high) = (low.max(1e-12), high.max(low).max(1e-12));
    let decades = (high / low).log10();
    let parts: &[f64] = if decades <= 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let mut all = Vec::new();
    let mut power = 10f64.powf(low.log10().floor());
    while power <= high * 10.0 {
        all.extend(parts.iter().map(|part| part * power));
        power *= 10.0;
    }
    let first = all.iter().rposition(|tick| *tick <= low * 1.001).unwrap_or(0);
    let last = all.iter().position(|tick| *tick >= high * 0.999).unwrap_or(all.len() - 1);
    let last = last.max(first + 1).min(all.len() - 1);
    all[first..=last].to_vec()
}

/// About `most` powers of two that enclose `low..high`.
pub(crate) fn size_ticks(low: f64, high: f64, most: u32) -> Vec<f64> {
    let first = low.max(1.0).log2().floor();
    let last = high.max(low).max(1.0).log2().ceil().max(first + 1.0);
    let mut step = 1.0;
    while (last - first) / step > f64::from(most) {
        step *= 2.0;
    }
    let mut ticks = vec![first.exp2()];
    let mut at = first;
    while at < last {
        at += step;
        ticks.push(at.exp2());
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_map_ends_and_middles() {
        let linear = Scale::linear([0.0, 10.0], [100.0, 0.0]);
        assert_eq!([0.0, 5.0, 10.0, 99.0].map(|v| linear.at(v)), [100.0, 50.0, 0.0, 0.0]);
        let log = Scale::log([1.0, 100.0], [0.0, 200.0]);
        assert_eq!(log.at(10.0).round(), 100.0);
        assert_eq!(log.at(0.0), 0.0);
        assert!(Scale::linear([3.0, 3.0], [0.0, 1.0]).at(3.0).is_finite());
    }

    #[test]
    fn ticks_are_round_and_enclose_the_values() {
        assert_eq!(linear_ticks(156.0, 5), [0.0, 50.0, 100.0, 150.0, 200.0]);
        assert_eq!(linear_ticks(1.0, 4), [0.0, 0.5, 1.0]);
        assert_eq!(linear_ticks(0.0, 4), [0.0, 1.0]);
        assert_eq!(linear_ticks(f64::NAN, 4), [0.0, 1.0]);
        assert_eq!(log_ticks(7.0, 90.0), [5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(log_ticks(40.0, 40.0), [20.0, 50.0]);
        assert_eq!(log_ticks(0.02, 900.0).len(), 6);
        assert_eq!(size_ticks(1024.0, 4096.0, 8), [1024.0, 2048.0, 4096.0]);
        assert_eq!(size_ticks(4096.0, 4096.0, 8), [4096.0, 8192.0]);
        assert!(size_ticks(1.0, 1e12, 8).len() <= 11);
    }
}
