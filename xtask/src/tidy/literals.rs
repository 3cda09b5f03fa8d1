// SPDX-License-Identifier: Apache-2.0
/*!
Times and ratios stand in one table: code that judges has none of its own.

In the crates that judge, a number with a fraction or an exponent, and a time in a constant or a
`Duration`, is a limit unless it is a unit or a half: limits belong in `crates/limits`, where each
has its origin.
*/

use super::source::{Source, is_test_file};
use super::violation::Violation;

/// The crates that judge.
const JUDGES: [&str; 7] = [
    "crates/answer/src/",
    "crates/delays/src/",
    "crates/diagnose/src/",
    "crates/findings/src/",
    "crates/statistics/src/",
    "crates/stragglers/src/",
    "crates/top/src/",
];
/// Files with constants of mathematics, of formats, or of how numbers are printed.
const NO_LIMITS: [&str; 5] = [
    "crates/diagnose/src/input/pickle.rs",
    "crates/statistics/src/rank.rs",
    "crates/statistics/src/robust.rs",
    "crates/statistics/src/tails.rs",
    "crates/top/src/units.rs",
];
/// Nothing, halves, doubles, percent and units of time and bandwidth.
const ALLOWED: [&str; 12] =
    ["0.0", "0.5", "1.0", "2.0", "24.0", "60.0", "100.0", "3600.0", "1e3", "1e6", "1e9", "1e-9"];

/// The violations in a file.
pub(super) fn check(source: &Source) -> Vec<Violation> {
    let path = source.path.as_str();
    let judges = JUDGES.iter().any(|judge| path.starts_with(judge));
    if !judges || NO_LIMITS.contains(&path) || is_test_file(path) {
        return Vec::new();
    }
    let message = "a limit: give it a row with its origin in crates/limits";
    let found = ratios(&source.code).chain(times(&source.code));
    let found = found.filter(|&at| !source.in_test(at));
    found.map(|at| Violation::new(path, source.line(at), message)).collect()
}

/// Offsets of numbers with a fraction or exponent that are not [`ALLOWED`].
fn ratios(code: &str) -> impl Iterator<Item = usize> + '_ {
    let bytes = code.as_bytes();
    let is_word = |at: usize| bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_';
    let begins = move |&at: &usize| {
        bytes[at].is_ascii_digit() && (at == 0 || !is_word(at - 1) && bytes[at - 1] != b'.')
    };
    (0..bytes.len()).filter(begins).filter(move |&at| {
        let number = number(&code[at..]);
        let is_float = number.contains(['.', 'e']) && number.parse::<f64>().is_ok();
        is_float && !ALLOWED.contains(&number)
    })
}

/// The number that the code begins with.
fn number(code: &str) -> &str {
    let bytes = code.as_bytes();
    let mut end = 0;
    while let Some(&byte) = bytes.get(end) {
        let next = bytes.get(end + 1);
        let is_point = byte == b'.' && next.is_some_and(u8::is_ascii_digit);
        let is_sign = byte == b'-' && bytes[end - 1] == b'e';
        if !(byte.is_ascii_alphanumeric() || byte == b'_' || is_point || is_sign) {
            break;
        }
        end += 1;
    }
    &code[..end]
}

/// Offsets of constants of nanoseconds, and of durations, with a number of their own.
fn times(code: &str) -> impl Iterator<Item = usize> + '_ {
    let constants = code
        .match_indices("_NS: u64 = ")
        .filter(|(at, found)| code[at + found.len()..].starts_with(|c: char| c.is_ascii_digit()));
    let durations = ["Duration::from_secs(", "Duration::from_millis("].into_iter();
    let durations = durations
        .flat_map(|name| code.match_indices(name))
        .filter(|(at, found)| code[at + found.len()..].starts_with(|c: char| c.is_ascii_digit()));
    constants.chain(durations).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, code: &str) -> Vec<usize> {
        let source = Source::new(path, code.into());
        check(&source).iter().map(|found| found.line).collect()
    }

    #[test]
    fn a_limit_outside_of_the_table_is_found() {
        let code = [
            "const A: f64 = 0.25;",
            "fn f(x: f64) -> bool { x > 1.5e3 }",
            "const B_NS: u64 = 5;",
            "fn g() { Duration::from_secs(3); }",
            "fn h(x: f64) -> f64 { 2.0 * x / 1e9 }",
            "#[cfg(test)]",
            "mod tests { const C: f64 = 0.3; }",
            "let t = x.0.1 + 1usize; // 0.7",
        ];
        let code = code.join("\n");
        let lines = |path| lines(path, &code);
        assert_eq!(lines("crates/stragglers/src/a.rs"), [1, 2, 3, 4]);
        assert!(lines("crates/stragglers/tests/a.rs").is_empty());
        assert!(lines("crates/metrics/src/a.rs").is_empty());
    }
}
