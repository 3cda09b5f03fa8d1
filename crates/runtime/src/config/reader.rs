// SPDX-License-Identifier: Apache-2.0
//! Reads variables one by one, and keeps what is to be told. A line has the beginning of a value
//! only, and no control characters, whatever the environment holds.

use super::OWN_DIR;
use super::aliases::{self, Found};
use super::table::{PREFIX, VARIABLES};
use ncclscope_metrics::send::environment::shown;
use std::ffi::OsString;

/// Variables of one kind that are told by their names.
const NAMED: usize = 8;

/// A value, or what was expected.
pub(super) type Parse<T> = fn(&str) -> Result<T, &'static str>;

/// Reads variables.
pub(super) struct Reader<'a> {
    pub(super) get: &'a dyn Fn(&str) -> Option<String>,
    /// About what was not understood.
    pub(super) lines: Vec<String>,
    /// Aliases that were taken, each with our name.
    used: Vec<(String, String)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(get: &'a dyn Fn(&str) -> Option<String>) -> Reader<'a> {
        Reader { get, lines: Vec::new(), used: Vec::new() }
    }

    /// A variable of ours (without the prefix), or an alias of it.
    pub(super) fn find(&self, own: &str) -> Option<Found> {
        aliases::find(own, self.get)
    }

    /// What was found for our variable `own` holds.
    pub(super) fn took(&mut self, own: &str, name: &str) {
        if aliases::is_one(name) {
            self.used.push((name.to_owned(), format!("{PREFIX}{own}")));
        }
    }

    /// A value cannot be used.
    pub(super) fn refuse(&mut self, name: &str, value: &str, expected: &str) {
        let value = shown(value);
        self.lines.push(format!("{name}={value}: expected {expected}; the default holds"));
    }

    pub(super) fn optional<T>(&mut self, own: &str, parse: Parse<T>) -> Option<T> {
        let Found { name, value } = self.find(own)?;
        match parse(&value) {
            Ok(parsed) => {
                self.took(own, &name);
                Some(parsed)
            }
            Err(expected) => {
                self.refuse(&name, &value, expected);
                None
            }
        }
    }

    pub(super) fn value<T>(&mut self, own: &str, parse: Parse<T>, default: T) -> T {
        self.optional(own, parse).unwrap_or(default)
    }

    /// Names of directories may be any bytes; a line for each other variable of ours, or one that
    /// we take for ours, whose value is no text.
    pub(super) fn not_text(&mut self, names: &[String], get: &dyn Fn(&str) -> Option<OsString>) {
        let is_read = |name: &&String| {
            name.starts_with(PREFIX) || aliases::is_one(name) || name.starts_with("OTEL_")
        };
        let is_text = |name: &&String| get(name).is_none_or(|value| value.to_str().is_some());
        let names = names.iter().filter(is_read).filter(|name| *name != OWN_DIR);
        let mut odd = names.filter(|name| !is_text(name));
        for name in odd.by_ref().take(NAMED) {
            let name = shown(name);
            self.lines.push(format!("{name}: its value is not UTF-8; the default holds"));
        }
        let more = odd.count();
        if more > 0 {
            self.lines.push(format!("{more} more variables have values that are not UTF-8"));
        }
    }

    /// One line about all variables that look like ours, and are none.
    pub(super) fn unknown(&mut self, names: &[String]) {
        let is_known = |own: &str| VARIABLES.iter().any(|variable| variable.name == own);
        let is_unknown = |name: &&String| name.strip_prefix(PREFIX).is_some_and(|n| !is_known(n));
        let mut unknown: Vec<&String> = names.iter().filter(is_unknown).collect();
        unknown.sort_unstable();
        let named: Vec<String> = unknown.iter().take(NAMED).map(|name| shown(name)).collect();
        let named = named.join(", ");
        let line = match unknown.len() {
            0 => return,
            1 => format!("unknown variable {named} is ignored"),
            2..=NAMED => format!("unknown variables {named} are ignored"),
            all => format!("unknown variables {named} and {} others are ignored", all - NAMED),
        };
        self.lines.push(line + " (see docs/env.md)");
    }

    /// All lines; of `names` those of other profilers have one, too.
    pub(super) fn into_lines(mut self, names: &[String]) -> Vec<String> {
        self.lines.extend(aliases::lines(&self.used, names));
        self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    fn lines(names: &[String], value: &[u8]) -> Vec<String> {
        let get = |name: &str| {
            names.iter().any(|n| n == name).then(|| OsString::from_vec(value.to_vec()))
        };
        Config::read(&get, names, "node1", 42).1
    }

    #[test]
    fn values_and_names_are_cut_and_stay_on_their_line() {
        let long = [b"soon\nx\x1b[2J".as_slice(), &[b'x'; 1 << 20]].concat();
        let lines = lines(&["NCCLSCOPE_HANG_SEC".into(), "NCCLSCOPE_A\nB".into()], &long);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("NCCLSCOPE_HANG_SEC=soon\\nx\\u{1b}[2Jxx"), "{lines:?}");
        assert!(lines[0].len() < 300, "{lines:?}");
        assert!(lines[1].starts_with("unknown variable NCCLSCOPE_A\\nB is"), "{lines:?}");
    }

    #[test]
    fn thousands_of_variables_are_a_few_lines() {
        let names: Vec<String> = (0..3000).map(|n| format!("NCCLSCOPE_{n:04}")).collect();
        let unknown = lines(&names, b"x");
        assert_eq!(unknown.len(), 1, "{unknown:?}");
        let begin = "unknown variables NCCLSCOPE_0000, NCCLSCOPE_0001, ";
        assert!(unknown[0].starts_with(begin), "{unknown:?}");
        let end = "NCCLSCOPE_0007 and 2992 others are ignored (see docs/env.md)";
        assert!(unknown[0].ends_with(end), "{unknown:?}");
        assert_eq!(lines(&names, b"\xff").len(), 10, "and that they are no text");
    }
}
