// SPDX-License-Identifier: Apache-2.0
//! The format's version.

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

/// The version that this crate writes.
pub const CURRENT: FormatVersion = FormatVersion { major: 2, minor: 5 };

impl fmt::Display for FormatVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
