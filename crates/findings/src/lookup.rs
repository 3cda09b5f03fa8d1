// SPDX-License-Identifier: Apache-2.0
//! Reads a class's row of the table, and finds the class that a text names.

use crate::class::{FindingClass, Tool};
use crate::table::{self, Row};
use std::fmt;
use std::str::FromStr;

impl FindingClass {
    /// All classes, in their order.
    pub const ALL: [FindingClass; table::ROWS.len()] = {
        let mut all = [FindingClass::HostStuck; table::ROWS.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = table::ROWS[at].class;
            // The discriminant is the row's index: `row` relies on it.
            assert!(all[at] as usize == at, "the table has the order of the enum");
            at += 1;
        }
        all
    };

    const fn row(self) -> &'static Row {
        &table::ROWS[self as usize]
    }

    /// The readable name, such as `kernel-not-started`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The short code, such as `H3a`: an alias of the name.
    #[must_use]
    pub const fn code(self) -> &'static str {
        self.row().code
    }

    /// What is wrong, as the rest of a sentence about one rank, or about several.
    #[must_use]
    pub const fn predicate(self, is_one: bool) -> &'static str {
        if is_one { self.row().title } else { self.row().several }
    }

    /// What is observed, and what that means.
    #[must_use]
    pub const fn explanation(self) -> &'static str {
        self.row().explanation
    }

    /// What to do next.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        self.row().advice
    }

    /// The verb that shows more about the recordings, with its options: `ncclscope VERB RUN`.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        self.row().verb
    }

    /// The text in place of a rank's name if no rank is known to be at fault.
    #[must_use]
    pub fn no_rank(self) -> &'static str {
        match self {
            FindingClass::ProcessGone | FindingClass::NotRecorded => "an unknown rank",
            _ if self.is_reported_by(Tool::Diagnose) => "all members",
            _ => "all ranks alike",
        }
    }

    /// Whether a part of ncclscope reports this class.
    #[must_use]
    pub fn is_reported_by(self, tool: Tool) -> bool {
        self.row().tools.contains(&tool)
    }

    /// The page and anchor that explain it, from the repository's root.
    #[must_use]
    pub fn documentation(self) -> String {
        format!("{PAGE}#{}", anchor(self))
    }
}

/// The page of all classes, from the repository's root.
pub const PAGE: &str = "docs/findings.md";

/// Code and name: `H3a kernel-not-started`.
impl fmt::Display for FindingClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code(), self.name())
    }
}

/// A text that is neither the name nor the code of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownClass(pub String);

impl fmt::Display for UnknownClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no class of findings is called {:?}", self.0)
    }
}

impl std::error::Error for UnknownClass {}

impl FromStr for FindingClass {
    type Err = UnknownClass;

    fn from_str(text: &str) -> Result<FindingClass, UnknownClass> {
        let is_it = |class: &FindingClass| class.name() == text || class.code() == text;
        FindingClass::ALL.into_iter().find(is_it).ok_or_else(|| UnknownClass(text.to_owned()))
    }
}

/// The anchor that Markdown viewers make of the class's heading `H3a kernel-not-started`.
pub(crate) fn anchor(class: FindingClass) -> String {
    class.to_string().to_lowercase().replace(' ', "-")
}
