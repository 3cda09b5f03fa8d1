// SPDX-License-Identifier: Apache-2.0
//! Times of the model: nanoseconds since the job began, by an ideal clock.

/// Nanoseconds since the job began.
pub(crate) type Time = u64;

/// The time of an event that never happens. Sums saturate, so events that wait for it never happen
/// either.
pub(crate) const NEVER: Time = u64::MAX;

pub(crate) const SECOND: u64 = 1_000_000_000;

/// `t` if it is before `stop`, else [`NEVER`].
pub(crate) const fn before(t: Time, stop: Time) -> Time {
    if t >= stop { NEVER } else { t }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "durations of the model are far below 2^53 ns, and factors are positive"
)]
pub(crate) fn scaled(ns: u64, factor: f64) -> u64 {
    if ns == NEVER { NEVER } else { (ns as f64 * factor).round() as u64 }
}

/// The time for `bytes` at `gb_per_s`, ns.
pub(crate) fn transfer_ns(bytes: u64, gb_per_s: f64) -> u64 {
    scaled(bytes, 1.0 / gb_per_s)
}

/// A random number that depends only on its arguments, so that the order of computation does not
/// matter and the same seed gives the same job.
pub(crate) const fn mix(seed: u64, a: u64, b: u64) -> u64 {
    let mut x =
        seed ^ a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// A uniform number from 0 to 1.
#[expect(clippy::cast_precision_loss, reason = "53 bits are all that an f64 holds")]
pub(crate) fn unit(x: u64) -> f64 {
    (x >> 11) as f64 / (1u64 << 53) as f64
}

/// An approximately normal number with mean 0 and deviation 1: the sum of twelve uniform ones minus
/// six.
pub(crate) fn normal(x: u64) -> f64 {
    (0..12).map(|n| unit(mix(x, n, 0x6e6f_726d))).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_happens_stays_so() {
        assert_eq!(NEVER.saturating_add(5), NEVER);
        assert_eq!(scaled(NEVER, 0.5), NEVER);
        assert_eq!((before(4, 5), before(5, 5)), (4, NEVER));
        assert_eq!(transfer_ns(25_000, 25.0), 1_000);
    }

    #[test]
    fn noise_is_about_normal() {
        let values: Vec<f64> = (0..10_000).map(|n| normal(mix(1, n, 2))).collect();
        let mean = values.iter().sum::<f64>() / 1e4;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.1, "{mean} {variance}");
    }
}
