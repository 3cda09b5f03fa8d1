// SPDX-License-Identifier: Apache-2.0
//! Formats numbers for people: durations and bytes with a suitable unit.

use crate::stats::to_f64;
use std::fmt::Display;

/// A share in percent: `12.5 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A duration: `870 ns`, `12.3 us`, `4.56 ms`, `7.89 s`, `3 min 20 s`.
#[must_use]
pub fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 999.5 => format!("{ns:.0} ns"),
        ns if ns < 999_500.0 => format!("{} us", three(ns / 1e3)),
        ns if ns < 999.5e6 => format!("{} ms", three(ns / 1e6)),
        ns if ns < 120e9 => format!("{} s", three(ns / 1e9)),
        ns => {
            let seconds = (ns / 1e9).round();
            format!("{:.0} min {:.0} s", (seconds / 60.0).floor(), seconds % 60.0)
        }
    }
}

/// Bytes: `512 B`, `64 KiB`, `1.5 MiB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    let mut value = to_f64(bytes);
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    // What would be shown as 1024 is one of the next unit.
    let most = |value: f64| if value.fract() == 0.0 { 1024.0 } else { 1023.5 };
    while value >= most(value) && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{} {}", three(value), units[unit])
    }
}

/// Joins ascending numbers to ranges that include both ends.
#[must_use]
pub fn ranges(numbers: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges
}

/// Formats a range: `7`, `2-5`.
#[must_use]
pub fn range((first, last): (u32, u32)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Formats at most `most` ranges: `1, 5-8 and 3 more`, where the last number counts the remaining
/// numbers, not ranges.
#[must_use]
pub fn list_of_ranges(ranges: &[(u32, u32)], most: usize) -> String {
    let (shown, hidden) = ranges.split_at(most.min(ranges.len()));
    let shown: Vec<String> = shown.iter().map(|&one| range(one)).collect();
    let hidden: u64 =
        hidden.iter().map(|(first, last)| u64::from(last.saturating_sub(*first)) + 1).sum();
    let more = if hidden == 0 { String::new() } else { format!(" and {hidden} more") };
    format!("{}{more}", shown.join(", "))
}

/// A number with a noun in singular or plural: `1 step`, `7 steps`, `2 processes`.
#[must_use]
pub fn count<N: Copy + Display + PartialEq + From<u8>>(number: N, what: &str) -> String {
    let hisses = ["s", "x", "ch", "sh"].iter().any(|end| what.ends_with(end));
    format!("{number} {what}{}", if_one(number, "", if hisses { "es" } else { "s" }))
}

/// As [`count`], with the verb: `1 step is`, `7 steps are`.
#[must_use]
pub fn are<N: Copy + Display + PartialEq + From<u8>>(number: N, what: &str) -> String {
    format!("{} {}", count(number, what), if_one(number, "is", "are"))
}

/// Chooses between a word for one thing and a word for any other number, such as a verb.
#[must_use]
pub fn if_one<'a, N: Copy + PartialEq + From<u8>>(
    number: N,
    one: &'a str,
    others: &'a str,
) -> &'a str {
    if number == N::from(1) { one } else { others }
}

/// Formats three significant digits, with trailing zeros; two for a small number.
#[must_use]
pub fn three(value: f64) -> String {
    match value.abs() {
        v if v > 0.0 && v < 0.0095 => format!("{value:.1e}"),
        v if v < 0.95 => format!("{value:.3}"),
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!(
            [0_u64, 1, 2].map(|n| are(n, "rank")),
            ["0 ranks are", "1 rank is", "2 ranks are"]
        );
        assert_eq!(count(1_usize, "step"), "1 step");
        let hissing = ["process", "match", "index"].map(|what| count(2_u8, what));
        assert_eq!(hissing, ["2 processes", "2 matches", "2 indexes"]);
    }

    #[test]
    fn units_fit() {
        let texts = [0.0, 999.0, 999.9, 12_340.0, 999_900.0, 5e9, 200e9, 179.7e9].map(duration);
        assert_eq!(
            texts,
            [
                "0 ns",
                "999 ns",
                "1.00 us",
                "12.3 us",
                "1.00 ms",
                "5.00 s",
                "3 min 20 s",
                "3 min 0 s"
            ]
        );
        let texts = [0, 1023, 4096, (1 << 20) - 1, 1 << 20, 1_500_000, u64::MAX].map(bytes);
        assert_eq!([0.0, 7.71e-5, 0.0123, 1.0].map(three), ["0.000", "7.7e-5", "0.012", "1.00"]);
        assert_eq!(texts, ["0 B", "1023 B", "4 KiB", "1.00 MiB", "1 MiB", "1.43 MiB", "16384 PiB"]);
    }
}
