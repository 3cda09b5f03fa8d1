// SPDX-License-Identifier: Apache-2.0
//! A violation of a rule of tidy.

use std::fmt;

/// One broken rule at one place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Violation {
    path: String,
    pub(super) line: usize,
    message: String,
}

impl Violation {
    pub(super) fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}
