// SPDX-License-Identifier: Apache-2.0
/*!
The type of an environment variable: its name, its names in other profilers, its parser, its
default, and its texts for the documentation and `ncclscope doctor`.

The variables themselves are in [`crate::table`]. The caller passes the environment: a function from
a name to a value.
*/

use crate::value::Parsed;
use std::fmt;

/// Prefix of all our variables' names.
pub const PREFIX: &str = "NCCLSCOPE_";

/// The environment: returns a variable's value, or `None` if it is not set.
pub type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A [`Get`] that reads the environment of this process; values that are not UTF-8 count as not
/// set.
#[must_use]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A variable's value without surrounding white space; `None` if it is unset or empty.
pub(crate) fn trimmed(get: Get<'_>, name: &str) -> Option<String> {
    get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Another profiler's variable that means what one of ours means.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    /// Its name.
    pub name: &'static str,
    /// Translates its value to a value of our variable; `None` if the value does not decide ours.
    in_our_words: fn(String, Get<'_>) -> Option<String>,
}

impl Alias {
    /// An alias whose values are the same as ours.
    #[must_use]
    pub const fn same(name: &'static str) -> Alias {
        Alias { name, in_our_words: |value, _| Some(value) }
    }

    /// An alias whose values are translated.
    #[must_use]
    pub const fn translated(
        name: &'static str,
        in_our_words: fn(String, Get<'_>) -> Option<String>,
    ) -> Alias {
        Alias { name, in_our_words }
    }
}

/// Which program reads a variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadBy {
    /// The plugin, in every rank.
    Plugin,
    /// The plugin, if another setting needs it: not part of [`crate::reader::Settings`].
    PluginOnDemand,
    /// The command-line tool.
    Tool,
    /// The project's own tests.
    Tests,
}

/// A variable that is set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its name: ours or an alias.
    pub name: &'static str,
    /// Its text, translated to our variable's values.
    pub value: String,
}

/// An environment variable whose values are `T`s.
pub struct Variable<T: 'static> {
    /// The name as the user sets it.
    pub name: &'static str,
    /// Names in other profilers; our name takes precedence.
    pub aliases: &'static [Alias],
    /// Which program reads it.
    pub read_by: ReadBy,
    /// The values it takes, for documentation.
    pub values: &'static str,
    /// What applies if it is not set, for documentation.
    pub unset: &'static str,
    /// What it does.
    pub meaning: &'static str,
    parse: fn(&str) -> Parsed<T>,
    default: fn() -> T,
    conflict: fn(Get<'_>) -> Option<&'static str>,
}

impl<T> Variable<T> {
    pub(crate) const fn new(
        read_by: ReadBy,
        parse: fn(&str) -> Parsed<T>,
        default: fn() -> T,
    ) -> Variable<T> {
        Variable {
            name: "",
            aliases: &[],
            read_by,
            values: "",
            unset: "",
            meaning: "",
            parse,
            default,
            conflict: |_| None,
        }
    }

    pub(crate) const fn named(mut self, name: &'static str) -> Variable<T> {
        self.name = name;
        self
    }

    /// Sets its names in other profilers.
    pub(crate) const fn also(mut self, aliases: &'static [Alias]) -> Variable<T> {
        self.aliases = aliases;
        self
    }

    /// Sets the rule that returns why the variable has no effect in an environment, for `ncclscope
    /// doctor`.
    pub(crate) const fn without_effect(
        mut self,
        conflict: fn(Get<'_>) -> Option<&'static str>,
    ) -> Variable<T> {
        self.conflict = conflict;
        self
    }

    /// Sets its row in docs/env.md: values, default, meaning.
    pub(crate) const fn help(
        mut self,
        values: &'static str,
        unset: &'static str,
        meaning: &'static str,
    ) -> Variable<T> {
        (self.values, self.unset, self.meaning) = (values, unset, meaning);
        self
    }

    /// The value if the variable is not set.
    #[must_use]
    pub fn default(&self) -> T {
        (self.default)()
    }

    /// Parses a value.
    ///
    /// # Errors
    /// The expected form of the value.
    pub fn parse(&self, text: &str) -> Parsed<T> {
        (self.parse)(text)
    }

    /// Its value in the environment `get`; the default if it is not set or invalid.
    #[must_use]
    pub fn value(&self, get: Get<'_>) -> T {
        let found = self.find(get).and_then(|found| self.parse(&found.value).ok());
        found.unwrap_or_else(|| self.default())
    }

    /// The name and text that are set: our name's, else those of the first alias that is set and
    /// decides our value.
    #[must_use]
    pub fn find(&self, get: Get<'_>) -> Option<Found> {
        if let Some(value) = trimmed(get, self.name) {
            return Some(Found { name: self.name, value });
        }
        self.aliases.iter().find_map(|alias| {
            let value = (alias.in_our_words)(trimmed(get, alias.name)?, get)?;
            Some(Found { name: alias.name, value })
        })
    }
}

impl<T> fmt::Debug for Variable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variable").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A variable of any type, for lists, pages and checks.
pub trait Declared: Sync + fmt::Debug {
    /// The name as the user sets it.
    fn name(&self) -> &'static str;
    /// All names, in order of precedence.
    fn names(&self) -> Vec<&'static str>;
    /// Which program reads it.
    fn read_by(&self) -> ReadBy;
    /// Values, default and meaning, for documentation.
    fn row(&self) -> [&'static str; 3];
    /// The name and text that are set, as [`Variable::find`].
    fn find(&self, get: Get<'_>) -> Option<Found>;
    /// Checks that a value is valid.
    ///
    /// # Errors
    /// The expected form of the value.
    fn check(&self, text: &str) -> Parsed<()>;
    /// Why a value would have no effect in this environment.
    fn conflict(&self, get: Get<'_>) -> Option<&'static str>;
}

impl<T> Declared for Variable<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn names(&self) -> Vec<&'static str> {
        let mut names = vec![self.name];
        for alias in self.aliases {
            // An alias with several meanings is in the list several times.
            if !names.contains(&alias.name) {
                names.push(alias.name);
            }
        }
        names
    }

    fn read_by(&self) -> ReadBy {
        self.read_by
    }

    fn row(&self) -> [&'static str; 3] {
        [self.values, self.unset, self.meaning]
    }

    fn find(&self, get: Get<'_>) -> Option<Found> {
        Variable::find(self, get)
    }

    fn check(&self, text: &str) -> Parsed<()> {
        self.parse(text).map(drop)
    }

    fn conflict(&self, get: Get<'_>) -> Option<&'static str> {
        (self.conflict)(get)
    }
}
