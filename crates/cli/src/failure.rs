// SPDX-License-Identifier: Apache-2.0
//! Errors as the user sees them: one line that says what to do, and an exit code.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

/// Wrong usage; the code of the parser of the command line.
const USAGE: u8 = 2;
/// An input that cannot be read.
pub(crate) const BAD_INPUT: u8 = 3;
/// Something missing or refused in the environment.
pub(crate) const ENVIRONMENT: u8 = 4;

/// Why a verb ended early.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    /// None: the reader of our output is gone.
    message: Option<String>,
}

impl Failure {
    /// An option or a variable that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure { code: USAGE, message: Some(message.into()) }
    }

    /// An input that cannot be read.
    pub(crate) fn input(message: impl Into<String>) -> Failure {
        Failure { code: BAD_INPUT, message: Some(message.into()) }
    }

    /// Something missing or refused in the environment.
    pub(crate) fn environment(message: impl Into<String>) -> Failure {
        Failure { code: ENVIRONMENT, message: Some(message.into()) }
    }

    /// A file that cannot be made or written.
    pub(crate) fn write(path: &Path, error: &io::Error) -> Failure {
        let advice = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                ": free some space or choose another place with -o"
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                ": choose another place with -o"
            }
            _ => "",
        };
        Failure::environment(format!("cannot write {}: {error}{advice}", path.display()))
    }

    /// The message, for a caller that goes on.
    pub(crate) fn text(self) -> String {
        self.message.unwrap_or_default()
    }

    /// Prints the message and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        if let Some(message) = self.message {
            tell(format_args!("error: {message}"));
        }
        ExitCode::from(self.code)
    }
}

/// Writing to standard output failed. A reader that went away, like `head`, is no error.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == ErrorKind::BrokenPipe {
            return Failure { code: 0, message: None };
        }
        Failure::environment(format!("cannot write to standard output: {error}"))
    }
}

/// Prints a line on standard error. A failure to print is ignored.
pub(crate) fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "ncclscope: {line}");
}

/// Prints a warning on standard error.
pub(crate) fn warn(line: impl Display) {
    tell(format_args!("warning: {line}"));
}
