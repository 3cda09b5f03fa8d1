// SPDX-License-Identifier: Apache-2.0
//! Upper tails of distributions.

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
