// SPDX-License-Identifier: Apache-2.0
//! Values of options, with a message that says what is expected.

use std::str::FromStr;

/// A parser of values of a type that are `right`; `expected` has an example.
pub fn value<T: FromStr + 'static>(
    expected: &'static str,
    right: fn(&T) -> bool,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| text.parse().ok().filter(right).ok_or_else(|| format!("expected {expected}"))
}

/// A parser of numbers of which each is right.
pub fn number<T: FromStr + 'static>(
    expected: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    value(expected, |_| true)
}

/// Seconds between two exports or readings.
pub fn seconds(text: &str) -> Result<f64, String> {
    value("seconds from 0.1 to 86400", |s| (0.1..=86_400.0).contains(s))(text)
}
