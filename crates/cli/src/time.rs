// SPDX-License-Identifier: Apache-2.0
//! The time of day in UTC, as text.

use std::time::{SystemTime, UNIX_EPOCH};

/// A moment, in seconds since 1970 in UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Now.
    pub(crate) fn now() -> Moment {
        Moment(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }

    /// From nanoseconds since 1970.
    pub(crate) fn from_ns(ns: u64) -> Moment {
        Moment(ns / 1_000_000_000)
    }

    /// As RFC 3339: `2026-11-21T10:36:01Z`.
    pub(crate) fn rfc3339(self) -> String {
        let [year, month, day, hour, minute, second] = self.fields();
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }

    /// For file names: `20261121-103601`.
    pub(crate) fn compact(self) -> String {
        let [year, month, day, hour, minute, second] = self.fields();
        format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
    }

    /// Year, month, day, hour, minute, second.
    fn fields(self) -> [u64; 6] {
        let (mut days, rest) = (self.0 / 86_400, self.0 % 86_400);
        let mut year = 1970;
        while days >= days_of_year(year) {
            days -= days_of_year(year);
            year += 1;
        }
        let february = if days_of_year(year) == 366 { 29 } else { 28 };
        let mut month = 1;
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if days < length {
                break;
            }
            days -= length;
            month += 1;
        }
        [year, month, days + 1, rest / 3600, rest / 60 % 60, rest % 60]
    }
}

fn days_of_year(year: u64) -> u64 {
    let leaps = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    if leaps { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar() {
        let text = |seconds| Moment(seconds).rfc3339();
        assert_eq!(text(0), "1970-01-01T00:00:00Z");
        assert_eq!(text(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(text(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(text(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(text(1_798_761_599), "2026-12-31T23:59:59Z");
        assert_eq!(text(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(Moment::from_ns(1_798_761_599_999_999_999).compact(), "20261231-235959");
    }
}
