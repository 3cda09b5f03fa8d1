// SPDX-License-Identifier: Apache-2.0
/*!
Upper tails of distributions.

Student's and the binomial one are regularised incomplete beta functions, computed by the continued
fraction of the beta function (M. Abramowitz, I. A. Stegun, "Handbook of Mathematical Functions",
1964, 26.5.8) and the gamma function by C. Lanczos, "A precision approximation of the gamma
function" (1964).
*/

use ncclscope_operations::stats::count;

/// The share of a standard normal distribution above `z`, by the continued fraction of the error
/// function for large `z` and its series for small.
pub(crate) fn normal(z: f64) -> f64 {
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if z > 3.0 {
        let fraction = (1..=60).rev().fold(z, |below, k| z + f64::from(k) / below);
        return density / fraction;
    }
    // 1/2 - density * (z + z^3/3 + z^5/(3*5) + ...)
    let (mut term, mut sum) = (z, z);
    for k in 1..=60 {
        term *= z * z / f64::from(2 * k + 1);
        sum += term;
    }
    (0.5 - density * sum).max(0.0)
}

/// The share of Student's distribution above `t`, with `freedom` degrees of freedom.
pub(crate) fn student(t: f64, freedom: f64) -> f64 {
    let beyond = beta(freedom / (freedom + t * t), freedom / 2.0, 0.5) / 2.0;
    if t > 0.0 { beyond } else { 1.0 - beyond }
}

/// The value above which 2.5 % of Student's distribution lie, for at least one degree of freedom.
pub(crate) fn student_95(freedom: f64) -> f64 {
    // The normal distribution's value, and that of one degree of freedom.
    let (mut low, mut high) = (1.95, 12.71);
    for _ in 0..30 {
        let middle = f64::midpoint(low, high);
        if student(middle, freedom) > 0.025 { low = middle } else { high = middle }
    }
    low
}

/// The regularised incomplete beta function.
fn beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    // Where the fraction converges slowly, the other tail converges quickly.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta(1.0 - x, b, a);
    }
    let front = a * x.ln() + b * (1.0 - x).ln() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b);
    front.exp() / (a * beta_fraction(x, a, b))
}

/// 1 + d1 x / (1 + d2 x / (1 + ...)), from its first to its last term (recurrence of J. Wallis).
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    let (mut above, mut below) = ([1.0, 1.0], [0.0, 1.0]);
    for at in 1..=FRACTION {
        let m = f64::from(at / 2);
        let term = match at % 2 {
            0 => m * (b - m) / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            _ => -(a + m) * (a + b + m) / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        };
        above = [above[1], above[1] + term * x * above[0]];
        below = [below[1], below[1] + term * x * below[0]];
        let before = above[0] / below[0];
        // Only quotients matter.
        let scale = below[1];
        above = above.map(|of| of / scale);
        below = below.map(|of| of / scale);
        if (above[1] - before).abs() <= PRECISION * above[1].abs() {
            break;
        }
    }
    above[1]
}

/// Relative precision of tails.
const PRECISION: f64 = 1e-12;
/// Maximum number of terms of the continued fraction: some square roots of its parameters suffice.
const FRACTION: u32 = 2_000;

/// Lanczos' coefficients for g = 7.
const LANCZOS: [f64; 9] = [
    0.999_999_999_999_809_9,
    676.520_368_121_885_1,
    -1_259.139_216_722_402_8,
    771.323_428_777_653_1,
    -176.615_029_162_140_6,
    12.507_343_278_686_905,
    -0.138_571_095_265_720_12,
    9.984_369_578_019_572e-6,
    1.505_632_735_149_311_6e-7,
];

/// The logarithm of the gamma function of a positive number.
fn ln_gamma(x: f64) -> f64 {
    if x < 0.5 {
        return ln_gamma(x + 1.0) - x.ln();
    }
    let x = x - 1.0;
    let terms = LANCZOS.iter().enumerate().skip(1).map(|(at, term)| term / (x + count(at)));
    let base = x + 7.5;
    let sum = LANCZOS[0] + terms.sum::<f64>();
    (2.0 * std::f64::consts::PI).sqrt().ln() + (x + 0.5) * base.ln() - base + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near(found: f64, expected: f64) -> bool {
        (found / expected - 1.0).abs() < 1e-6
    }

    #[test]
    fn tails_have_known_values() {
        // One degree of freedom: 1/2 - atan(t) / pi; two: (1 - t / sqrt(2 + t^2)) / 2.
        assert!(is_near(student(1.0, 1.0), 0.25) && is_near(student(-1.0, 1.0), 0.75));
        assert!(is_near(student(2.0, 2.0), (1.0 - 2.0 / 6f64.sqrt()) / 2.0));
        assert!(is_near(student(0.0, 5.0), 0.5));
        // Tables: 4.032 is the 99.5 % point of five degrees of freedom, 12.706 the 97.5 % of one.
        assert!((student(4.032_143, 5.0) - 0.005).abs() < 1e-8);
        assert!((student_95(1.0) - 12.706_2).abs() < 1e-4);
        assert!((student_95(10.0) - 2.228_14).abs() < 1e-4);
        assert!((student(3.0, 1e6) - normal(3.0)).abs() < 1e-7);
        assert!(student(50.0, 40.0) > 0.0 && student(f64::INFINITY, 3.0) == 0.0);
    }
}
