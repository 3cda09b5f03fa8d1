// SPDX-License-Identifier: Apache-2.0
//! Times in UTC, as text.

use jiff::Timestamp;

/// A point in time, in UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment(Timestamp);

impl Moment {
    /// The current time.
    #[must_use]
    pub fn now() -> Moment {
        Moment(Timestamp::now())
    }

    /// From nanoseconds since 1970.
    #[must_use]
    pub fn from_ns(ns: u64) -> Moment {
        // Any u64 of nanoseconds is before 2555, within a timestamp's range.
        Moment(Timestamp::from_nanosecond(i128::from(ns)).unwrap_or(Timestamp::UNIX_EPOCH))
    }

    /// Nanoseconds since 1970 of a time in RFC 3339, with a fraction of seconds and any offset.
    #[must_use]
    pub fn parse_ns(text: &str) -> Option<u64> {
        text.parse::<Timestamp>().ok().and_then(|time| u64::try_from(time.as_nanosecond()).ok())
    }

    /// As RFC 3339, in whole seconds: `2026-11-21T10:36:01Z`.
    #[must_use]
    pub fn rfc3339(self) -> String {
        self.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// As RFC 3339 with all digits of the second: `2026-11-21T10:36:01.25Z`.
    #[must_use]
    pub fn exact(self) -> String {
        self.0.to_string()
    }

    /// For file names: `20261121-103601`.
    #[must_use]
    pub fn compact(self) -> String {
        self.0.strftime("%Y%m%d-%H%M%S").to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar() {
        let text = |seconds: u64| Moment::from_ns(seconds * 1_000_000_000).rfc3339();
        assert_eq!(text(0), "1970-01-01T00:00:00Z");
        assert_eq!(text(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(text(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(text(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(text(1_798_761_599), "2026-12-31T23:59:59Z");
        assert_eq!(text(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(Moment::from_ns(u64::MAX).rfc3339(), "2554-07-21T23:34:33Z");
        assert_eq!(Moment::from_ns(1_798_761_599_999_999_999).compact(), "20261231-235959");
        let exact = [1_798_761_599_500_000_000, 0].map(|ns| Moment::from_ns(ns).exact());
        assert_eq!(exact, ["2026-12-31T23:59:59.5Z", "1970-01-01T00:00:00Z"]);
        let ns = Some(1_798_761_599_500_000_000);
        assert_eq!(Moment::parse_ns("2026-12-31T23:59:59.5Z"), ns);
        assert_eq!(Moment::parse_ns("2027-01-01T01:59:59.5+02:00"), ns);
        assert!(["2026-12-31", "12:00", "1969-01-01T00:00:00Z"].map(Moment::parse_ns) == [None; 3]);
    }
}
