// SPDX-License-Identifier: Apache-2.0
//! Why a recording cannot be written or read, and which versions can be read.

use crate::version::{CURRENT, FormatVersion};
use std::{fmt, io};

/// What went wrong with a recording. Messages are fragments that follow "cannot read FILE: ".
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The system returned an error.
    Io(io::Error),
    /// The file is empty.
    Empty,
    /// The file does not begin like a recording.
    NotARecording,
    /// The file ends within its header.
    TruncatedHeader {
        /// Bytes there are.
        len: u64,
    },
    /// A later ncclscope wrote it.
    NewerFormat {
        /// The file's version.
        found: FormatVersion,
    },
    /// An earlier ncclscope wrote it, in a format that is no longer supported.
    OlderFormat {
        /// The file's version.
        found: FormatVersion,
    },
    /// It is a table of vectors of another version.
    OtherTable {
        /// The table's version.
        found: u32,
        /// The version that can be read.
        known: u32,
    },
    /// The file ends after its header, or the rest is damaged.
    NothingLeft {
        /// The rank or process of the recording, as far as it is known.
        whose: String,
    },
    /// The header contradicts its checksum.
    HeaderChecksum,
    /// The header has an invalid value.
    Corrupt(&'static str),
}

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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(e) => write!(f, "{e}"),
            Error::Empty => write!(f, "the file is empty"),
            Error::NotARecording => write!(f, "not an ncclscope recording (wrong first bytes)"),
            Error::TruncatedHeader { len } => {
                write!(f, "truncated: shorter than a header ({len} B)")
            }
            Error::NewerFormat { found } => write!(
                f,
                "format version {found} is newer than this ncclscope reads ({CURRENT}): use the \
                 ncclscope that belongs to the plugin which wrote it, or a newer one"
            ),
            Error::OlderFormat { found } => write!(
                f,
                "format version {found} is older than this ncclscope reads ({CURRENT}): use the \
                 ncclscope that belongs to the plugin which wrote it"
            ),
            Error::OtherTable { found, known } => write!(
                f,
                "it is a table of vectors of version {found}, and this ncclscope reads version \
                 {known}: use the ncclscope of the agent that made it"
            ),
            Error::NothingLeft { whose } => {
                write!(f, "truncated or damaged: of {whose} only the header is left")
            }
            Error::HeaderChecksum => write!(f, "corrupt header: it contradicts its checksum"),
            Error::Corrupt(what) => write!(f, "corrupt header: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(e) => Some(e),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Error {
        Error::Io(e)
    }
}
