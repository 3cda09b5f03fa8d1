// SPDX-License-Identifier: Apache-2.0
//! Numbers in the form of the narrow columns of a live table.

use ncclscope_operations::human;

/// A rate, such as `0.2`, `12.3`, `1.2k`.
pub(crate) fn rate(per_s: f64) -> String {
    match per_s {
        r if r < 99.95 => format!("{r:.1}"),
        r if r < 9_999.5 => format!("{r:.0}"),
        r if r < 999_950.0 => format!("{:.1}k", r / 1e3),
        r => format!("{:.1}M", r / 1e6),
    }
}

/// Minimum bandwidth that is shown, GB/s.
const SLOWEST: f64 = 0.01;

/// Bytes per second as GB/s.
pub(crate) fn gigabytes(per_s: f64) -> String {
    match per_s / 1e9 {
        gbs if gbs > 0.0 && gbs < SLOWEST => format!("<{SLOWEST}"),
        gbs => human::three(gbs),
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// An age, such as `0.2 s`, `45 s`, `3m20`.
pub(crate) fn age(seconds: f64) -> String {
    match seconds {
        s if s < 0.0995 => format!("{:.0} ms", s * 1e3),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 119.5 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0}m{:02.0}", (s / 60.0).floor(), (s % 60.0).floor()),
        s => format!("{:.0}h{:02.0}", (s / 3600.0).floor(), (s % 3600.0 / 60.0).floor()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 12.34, 123.4, 12_345.0, 2e6].map(rate),
            ["0.0", "12.3", "123", "12.3k", "2.0M"]
        );
        let ages = [0.02, 1.0, 45.2, 200.0, 8_000.0].map(age);
        assert_eq!(ages, ["20 ms", "1.0 s", "45 s", "3m20", "2h13"]);
        let bandwidths = [0.0, 14_000.0, 12e6, 1.5e9].map(gigabytes);
        assert_eq!(bandwidths, ["0.000", "<0.01", "0.012", "1.50"]);
        assert_eq!(percent(0.256), "26%");
    }
}
