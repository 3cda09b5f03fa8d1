// SPDX-License-Identifier: Apache-2.0
/*!
Reads variables in a rank, and collects the lines about them for the user. A line contains at most
the beginning of a value, and no control characters.
*/

use crate::aliases::NOT_TAKEN;
use crate::table::{DIR, HANG_COMMAND, VARIABLES};
use crate::text::shown;
use crate::variable::{Found, Get, PREFIX, ReadBy, Variable, trimmed};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// Most names that a line about several variables lists.
const NAMED: usize = 8;

/// The values of the plugin's variables, as the environment had them when they were read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Texts of the variables that are set, by the variable's name; each passed the variable's
    /// parser.
    texts: BTreeMap<&'static str, String>,
}

impl Settings {
    /// A variable's value; its default if it was not set or its text was invalid.
    #[must_use]
    pub fn get<T>(&self, variable: &Variable<T>) -> T {
        let text = self.texts.get(variable.name);
        let value = text.and_then(|text| variable.parse(text).ok());
        value.unwrap_or_else(|| variable.default())
    }
}

/// Reads variables one by one.
pub struct Reader<'a> {
    get: Get<'a>,
    /// Lines for the user, about invalid values.
    lines: Vec<String>,
    /// Aliases whose values are used, each with our name.
    taken: Vec<(&'static str, &'static str)>,
}

impl core::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Reader").field("lines", &self.lines).finish_non_exhaustive()
    }
}

impl<'a> Reader<'a> {
    /// Reads from `get`.
    #[must_use]
    pub fn new(get: Get<'a>) -> Reader<'a> {
        Reader { get, lines: Vec::new(), taken: Vec::new() }
    }

    /// The environment that it reads.
    pub fn environment(&self) -> Get<'a> {
        self.get
    }

    /// Reads all variables of the plugin except those of [`ReadBy::PluginOnDemand`].
    pub fn settings(&mut self) -> Settings {
        let mut texts = BTreeMap::new();
        for variable in VARIABLES.iter().filter(|it| it.read_by() == ReadBy::Plugin) {
            let Some(found) = variable.find(self.get) else { continue };
            match variable.check(&found.value) {
                Ok(()) => {
                    self.take(variable.name(), found.name);
                    texts.insert(variable.name(), found.value);
                }
                Err(expected) => self.refuse_found(&found, variable.name(), expected),
            }
        }
        Settings { texts }
    }

    /// The value of one variable; `None` if it is not set or invalid.
    pub fn value<T>(&mut self, variable: &Variable<T>) -> Option<T> {
        let found = variable.find(self.get)?;
        match variable.parse(&found.value) {
            Ok(parsed) => {
                self.take(variable.name, found.name);
                Some(parsed)
            }
            Err(expected) => {
                self.refuse_found(&found, variable.name, expected);
                None
            }
        }
    }

    /// Notes that the variable `own` takes its value from `name`, which may be an alias.
    pub fn take(&mut self, own: &'static str, name: &'static str) {
        if name != own {
            self.taken.push((name, own));
        }
    }

    /// Adds a line that a value is invalid and the default is used.
    pub fn refuse(&mut self, name: &str, value: &str, expected: &str) {
        self.tell(format!("{}; the default is used", refusal(name, value, expected)));
    }

    fn refuse_found(&mut self, found: &Found, own: &str, expected: &str) {
        let refusal = refusal_of(found, own, self.get, expected);
        self.tell(format!("{refusal}; the default is used"));
    }

    /// Adds a line for the user.
    pub fn tell(&mut self, line: String) {
        self.lines.push(line);
    }

    /// Adds a line for each variable that is read and whose value is not UTF-8. `NCCLSCOPE_DIR` is
    /// exempt: a path may have any bytes.
    pub fn check_text(&mut self, names: &[String], get: &dyn Fn(&str) -> Option<OsString>) {
        let is_read = |name: &&String| {
            name.starts_with(PREFIX) || is_alias(name) || name.starts_with("OTEL_")
        };
        let is_text = |name: &&String| get(name).is_none_or(|value| value.to_str().is_some());
        let names = names.iter().filter(is_read).filter(|name| *name != DIR.name);
        let mut odd = names.filter(|name| !is_text(name));
        for name in odd.by_ref().take(NAMED) {
            let name = shown(name);
            self.lines.push(format!("{name}: its value is not UTF-8; the default is used"));
        }
        let more = odd.count();
        if more > 0 {
            self.lines.push(format!("{more} more variables have values that are not UTF-8"));
        }
    }

    /// All lines, and up to three more: one for unknown names with our prefix, one for variables of
    /// other profilers that are used, and one for those that are ignored.
    #[must_use]
    pub fn into_lines(mut self, names: &[String]) -> Vec<String> {
        self.lines.extend(unknown_line(names));
        if !self.taken.is_empty() {
            let taken: Vec<String> =
                self.taken.iter().map(|(alias, own)| format!("{alias} as {own}")).collect();
            let taken = taken.join(", ");
            self.lines.push(format!("variables of other profilers are used: {taken}"));
        }
        let in_vain = names.iter().filter(|name| NOT_TAKEN.iter().any(|(not, _)| not == name));
        let mut in_vain: Vec<&str> = in_vain.map(String::as_str).collect();
        in_vain.sort_unstable();
        if !in_vain.is_empty() {
            let names = in_vain.join(", ");
            let line = format!("variables of other profilers are ignored: {names} (docs/env.md)");
            self.lines.push(line);
        }
        self.lines
    }
}

/// The sentence about an invalid value.
pub(crate) fn refusal(name: &str, value: &str, expected: &str) -> String {
    format!("{name}={}: expected {expected}", shown(value))
}

/// The sentence about an invalid value of the variable `own`. A value of another profiler's
/// variable is as the user wrote it, in that variable's unit.
pub(crate) fn refusal_of(found: &Found, own: &str, get: Get<'_>, expected: &str) -> String {
    match trimmed(get, found.name) {
        Some(written) if written != found.value => format!(
            "{}={}, which is {own}={}: expected {expected}",
            found.name,
            shown(&written),
            shown(&found.value)
        ),
        _ => refusal(found.name, &found.value, expected),
    }
}

/// The members of `names` that have our prefix and are unknown, in order.
pub(crate) fn unknown(names: &[String]) -> Vec<&str> {
    let is_known = |name: &str| {
        HANG_COMMAND.contains(&name) || VARIABLES.iter().any(|variable| variable.name() == name)
    };
    let mut unknown: Vec<&str> = names.iter().map(String::as_str).collect();
    unknown.retain(|name| name.starts_with(PREFIX) && !is_known(name));
    unknown.sort_unstable();
    unknown
}

fn unknown_line(names: &[String]) -> Option<String> {
    let unknown = unknown(names);
    let named: Vec<String> = unknown.iter().take(NAMED).map(|name| shown(name)).collect();
    let named = named.join(", ");
    let line = match unknown.len() {
        0 => return None,
        1 => format!("unknown variable {named} is ignored"),
        2..=NAMED => format!("unknown variables {named} are ignored"),
        all => format!("unknown variables {named} and {} others are ignored", all - NAMED),
    };
    Some(line + " (see docs/env.md)")
}

fn is_alias(name: &str) -> bool {
    VARIABLES.iter().any(|variable| variable.name() != name && variable.names().contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{EVENTS, HANG_SEC, KERNEL, MODE};
    use crate::value::{KernelEvents, Mode};

    fn read(vars: &[(&str, &str)]) -> (Settings, Vec<String>) {
        let get = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let names: Vec<String> = vars.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut reader = Reader::new(&get);
        let settings = reader.settings();
        (settings, reader.into_lines(&names))
    }

    #[test]
    fn settings_have_values_and_defaults() {
        let (settings, lines) = read(&[("NCCLSCOPE_KERNEL", " off "), ("NCCLSCOPE_MODE", "")]);
        assert_eq!((settings.get(&KERNEL), settings.get(&MODE)), (KernelEvents::Off, Mode::Flight));
        assert!(lines.is_empty(), "{lines:?}");
    }

    #[test]
    fn a_bad_value_is_a_line_and_the_default_holds() {
        let (settings, lines) = read(&[("NCCLSCOPE_MODE", "fast"), ("NCCLSCOPE_MOOD", "good")]);
        assert_eq!(settings, Settings::default());
        let expected = "off, or flight, trace, metrics, hang (several with commas)";
        let bad = format!("NCCLSCOPE_MODE=fast: expected {expected}; the default is used");
        let unknown = "unknown variable NCCLSCOPE_MOOD is ignored (see docs/env.md)";
        assert_eq!(lines, [&bad, unknown]);
    }

    #[test]
    fn one_line_says_which_aliases_were_taken_and_one_which_were_not() {
        let (settings, lines) = read(&[
            ("NCCL_PROFILE_EVENT_MASK", "6"),
            ("NCCL_KERNEL_TIMEOUT_MS", "2500"),
            ("NCCL_INSPECTOR_ENABLE", "yes"),
            ("NCCLSCOPE_EVENTS", "Coll"),
            ("NCCL_INSPECTOR_DUMP_VERBOSE", "1"),
        ]);
        assert_eq!(settings.get(&EVENTS), 2, "ours comes first");
        assert_eq!(settings.get(&HANG_SEC).unwrap().as_millis(), 2500);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with("NCCL_INSPECTOR_ENABLE=yes: expected "), "{lines:?}");
        let taken = "variables of other profilers are used: NCCL_KERNEL_TIMEOUT_MS as \
                     NCCLSCOPE_HANG_SEC";
        assert_eq!(lines[1], taken);
        assert!(lines[2].ends_with("ignored: NCCL_INSPECTOR_DUMP_VERBOSE (docs/env.md)"));
    }
}
