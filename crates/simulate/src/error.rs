// SPDX-License-Identifier: Apache-2.0
//! Why a job cannot be simulated.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a job cannot be simulated.
#[derive(Debug)]
pub enum Error {
    /// The scenario is impossible; the text says what to change.
    Scenario(String),
    /// A file cannot be written.
    Write(PathBuf, io::Error),
}

impl Error {
    pub(crate) fn scenario(text: impl Into<String>) -> Error {
        Error::Scenario(text.into())
    }

    pub(crate) fn write(path: &Path, error: io::Error) -> Error {
        Error::Write(path.to_owned(), error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Scenario(text) => f.write_str(text),
            Error::Write(path, error) => write!(f, "cannot write {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for Error {}
