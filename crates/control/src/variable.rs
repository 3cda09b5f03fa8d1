// SPDX-License-Identifier: Apache-2.0
/*!
The type of an environment variable: its name, its names in other profilers, its parser, its
default, and its texts for the documentation and `ncclscope doctor`.

The variables themselves are in [`crate::table`]. The caller passes the environment: a function from
a name to a value.
*/

use crate::value::Parsed;
use std::fmt;

/// What all names begin with.
pub const PREFIX: &str = "NCCLSCOPE_";

/// A variable's value; `None` where it is not set.
pub type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The environment of this process.
#[must_use]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A value without blanks around it; an empty one counts as unset.
pub(crate) fn trimmed(get: Get<'_>, name: &str) -> Option<String> {
    get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Another profiler's variable that means what one of ours means.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    /// Its name.
    pub name: &'static str,
    /// Its value as ours would be written; `None` where it says nothing of the kind.
    in_our_words: fn(String, Get<'_>) -> Option<String>,
}

impl Alias {
    /// One with the same values as ours.
    #[must_use]
    pub const fn same(name: &'static str) -> Alias {
        Alias { name, in_our_words: |value, _| Some(value) }
    }

    /// One whose values are translated.
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
    /// The plugin, where another setting needs it: [`crate::reader::Settings`] leaves it to its
    /// consumer.
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
    /// Its value in our words.
    pub value: String,
}

/// An environment variable whose values are `T`s.
pub struct Variable<T: 'static> {
    /// The name as the user sets it.
    pub name: &'static str,
    /// Names of other profilers that mean the same; ours comes first.
    pub aliases: &'static [Alias],
    /// Which program reads it.
    pub read_by: ReadBy,
    /// The values it takes, for documentation.
    pub values: &'static str,
    /// What holds without it, for documentation.
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

    /// Names of other profilers for it.
    pub(crate) const fn also(mut self, aliases: &'static [Alias]) -> Variable<T> {
        self.aliases = aliases;
        self
    }

    /// The rule by which `ncclscope doctor` says that the variable has no effect: why.
    pub(crate) const fn without_effect(
        mut self,
        conflict: fn(Get<'_>) -> Option<&'static str>,
    ) -> Variable<T> {
        self.conflict = conflict;
        self
    }

    /// Its row on the page: values, default, meaning.
    pub(crate) const fn help(
        mut self,
        values: &'static str,
        unset: &'static str,
        meaning: &'static str,
    ) -> Variable<T> {
        (self.values, self.unset, self.meaning) = (values, unset, meaning);
        self
    }

    /// What it is without a value.
    #[must_use]
    pub fn default(&self) -> T {
        (self.default)()
    }

    /// Reads a value.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(&self, text: &str) -> Parsed<T> {
        (self.parse)(text)
    }

    /// Its value in `get`; the default where there is none, or one that cannot be used.
    #[must_use]
    pub fn value(&self, get: Get<'_>) -> T {
        let found = self.find(get).and_then(|found| self.parse(&found.value).ok());
        found.unwrap_or_else(|| self.default())
    }

    /// What of it is set: our own name, or else the first alias.
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

/// A variable of any type: what lists, pages and checks need of it.
pub trait Declared: Sync + fmt::Debug {
    /// The name as the user sets it.
    fn name(&self) -> &'static str;
    /// All names, the one that wins first.
    fn names(&self) -> Vec<&'static str>;
    /// Which program reads it.
    fn read_by(&self) -> ReadBy;
    /// Values, default and meaning, for documentation.
    fn row(&self) -> [&'static str; 3];
    /// What of it is set.
    fn find(&self, get: Get<'_>) -> Option<Found>;
    /// Whether a value can be used.
    ///
    /// # Errors
    /// What was expected.
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
            // One that means several things is there several times.
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
