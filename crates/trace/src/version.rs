// SPDX-License-Identifier: Apache-2.0
//! The format's version, and which versions can be read.

use crate::error::Error;
use std::fmt;

/// Version of the recording format.
///
/// `major` is raised when an older reader would misread a file; `minor` when it would only miss
/// something (a new record code, definition tag or header field).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FormatVersion {
    /// Raised for incompatible changes.
    pub major: u16,
    /// Raised for additions.
    pub minor: u16,
}

/// What this crate writes.
pub const CURRENT: FormatVersion = FormatVersion { major: 2, minor: 0 };

impl FormatVersion {
    /// Whether this crate can read a file of this version.
    ///
    /// # Errors
    /// [`Error::NewerFormat`] or [`Error::OlderFormat`] if the major version is another.
    pub fn check_readable(self) -> Result<(), Error> {
        match self.major.cmp(&CURRENT.major) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(Error::NewerFormat { found: self }),
            std::cmp::Ordering::Less => Err(Error::OlderFormat { found: self }),
        }
    }
}

impl fmt::Display for FormatVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
