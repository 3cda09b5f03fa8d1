// SPDX-License-Identifier: Apache-2.0
//! Durations, sizes and numbers as users write them, in variables, options and requests.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;
const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// Parses `10s`, `1.5s`, `500ms`, `2m` or `1h`; a number without a unit is in seconds. The result
/// is exact to the nanosecond, which an `f64` is not for a time since 1970.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let ns_per_unit = match text.get(digits.len()..)? {
        "ms" => NS_PER_MS,
        "" | "s" => NS_PER_S,
        "m" => 60 * NS_PER_S,
        "h" => 3600 * NS_PER_S,
        _ => return None,
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 9 || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let billionths: u64 = format!("{fraction:0<9}").parse().ok()?;
    let part = u128::from(billionths) * u128::from(ns_per_unit) / u128::from(NS_PER_S);
    let whole: u64 = whole.parse().ok()?;
    let ns = whole.checked_mul(ns_per_unit)?.checked_add(u64::try_from(part).ok()?)?;
    Some(Duration::from_nanos(ns))
}

/// Formats a duration so that [`duration`] reads it back; in whole milliseconds if it has no finer
/// part.
#[must_use]
pub fn write_duration(duration: Duration) -> String {
    let ms = u128::from(NS_PER_MS);
    match duration.as_nanos() {
        ns if ns % ms == 0 => format!("{}ms", ns / ms),
        _ => write_seconds(duration) + "s",
    }
}

/// Formats a duration in seconds with nine decimals, without a unit.
#[must_use]
pub fn write_seconds(duration: Duration) -> String {
    format!("{}.{:09}", duration.as_secs(), duration.subsec_nanos())
}

/// Parses a number of seconds without a unit; `None` outside `limits`.
#[must_use]
pub fn seconds(text: &str, limits: RangeInclusive<f64>) -> Option<Duration> {
    let seconds = text.parse().ok().filter(|seconds| limits.contains(seconds))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Parses a number: hexadecimal after `0x`, else decimal.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Parses a size in MiB and returns bytes; `None` outside `limits`, which are in bytes.
#[must_use]
pub fn mebibytes(text: &str, limits: &RangeInclusive<u64>) -> Option<u64> {
    number(text)?.checked_mul(MIB).filter(|bytes| limits.contains(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_are_exact() {
        let ns = |text| duration(text).unwrap().as_nanos();
        assert_eq!(ns("10s"), 10_000_000_000);
        assert_eq!(ns("1.5"), 1_500_000_000);
        assert_eq!(ns("500ms"), 500_000_000);
        assert_eq!(ns("2m"), 120_000_000_000);
        assert_eq!(ns("0.25h"), 900_000_000_000);
        assert_eq!(ns("1790857026.000000001"), 1_790_857_026_000_000_001);
        for bad in ["", "s", "-1s", "5d", "5 s", "1e3", ".5", "1.0000000001", "99999999999h"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_written_duration_is_read_back() {
        for ns in [1, 999_999, 1_000_000, 500_000_000, 1_790_857_026_000_000_001] {
            let length = Duration::from_nanos(ns);
            assert_eq!(duration(&write_duration(length)), Some(length), "{ns}");
            assert_eq!(duration(&write_seconds(length)), Some(length), "{ns}");
        }
        assert_eq!(write_duration(Duration::from_millis(1500)), "1500ms");
    }

    #[test]
    fn seconds_and_sizes_have_limits() {
        assert_eq!(seconds("0.5", 0.1..=10.0), Some(Duration::from_millis(500)));
        for bad in ["0.01", "11", "NaN", "inf", "soon", "5s", ""] {
            assert_eq!(seconds(bad, 0.1..=10.0), None, "{bad}");
        }
        assert_eq!((number("79"), number("0x4f"), number("0x")), (Some(79), Some(79), None));
        assert_eq!(mebibytes("2", &(MIB..=4 * MIB)), Some(2 * MIB));
        for bad in ["0", "5", "lots", "18446744073709551615"] {
            assert_eq!(mebibytes(bad, &(MIB..=4 * MIB)), None, "{bad}");
        }
    }
}
