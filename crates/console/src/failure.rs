// SPDX-License-Identifier: Apache-2.0
//! User-visible errors: one line with advice, and an exit code.

use crate::printable::{Colour, Printable, in_a_line};
use crate::progress::beside_progress;
use crate::terminal;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// Exit code: a verb found what it looks for, such as a hang.
pub const FINDINGS: u8 = 1;
/// Exit code for wrong usage, the same as that of the command line parser.
pub const USAGE: u8 = 2;
/// Exit code: input cannot be read.
pub const BAD_INPUT: u8 = 3;
/// Exit code: something is missing or refused in the environment.
pub const ENVIRONMENT: u8 = 4;

/// Lines held until [`release`]; `None` while lines are printed at once.
static HELD: Mutex<Option<Vec<String>>> = Mutex::new(None);
/// Maximum number of lines that are held.
const MOST_HELD: usize = 64;

/// The error of a verb.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    /// The message; `None` if the reader of the output has exited.
    message: Option<String>,
}

impl Failure {
    /// An invalid option or variable.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure { code: USAGE, message: Some(message.into()) }
    }

    /// An input that cannot be read.
    pub fn input(message: impl Into<String>) -> Failure {
        Failure { code: BAD_INPUT, message: Some(message.into()) }
    }

    /// Something missing or refused in the environment.
    pub fn environment(message: impl Into<String>) -> Failure {
        Failure { code: ENVIRONMENT, message: Some(message.into()) }
    }

    /// A file that cannot be created or written.
    pub fn write(path: &Path, error: &io::Error) -> Failure {
        let advice = match error.kind() {
            ErrorKind::AlreadyExists => {
                let text = "there is a file of this name: choose another name";
                return Failure::environment(format!("cannot write {}: {text}", path.display()));
            }
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                ": free some space or choose another place"
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ": choose another place",
            _ => "",
        };
        Failure::environment(format!("cannot write {}: {error}{advice}", path.display()))
    }

    /// The message, for a caller that continues.
    pub fn text(self) -> String {
        self.message.unwrap_or_default()
    }

    /// Prints the message and returns the exit code.
    pub fn report(self) -> ExitCode {
        if let Some(message) = self.message {
            tell(format_args!("{} {message}", word("error:", Colour::Red)));
        }
        ExitCode::from(self.code)
    }
}

/// Writing to standard output failed. It is not an error if the reader exits, as `head` does.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == ErrorKind::BrokenPipe {
            return Failure { code: 0, message: None };
        }
        Failure::environment(format!("cannot write to standard output: {error}"))
    }
}

/// Prints a line on standard error; a line break in it is shown as `\n`. A failure to print is
/// ignored.
pub fn tell(line: impl Display) {
    let line = format!("ncclscope: {}", Printable(in_a_line(&line.to_string())));
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    match held.as_mut() {
        Some(lines) if lines.len() < MOST_HELD => lines.push(line),
        Some(_) => {}
        None => beside_progress(|| drop(writeln!(io::stderr(), "{line}"))),
    }
}

/// Holds the lines of [`tell`] until [`release`], because the terminal shows something else.
pub fn hold() {
    HELD.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default();
}

/// Prints the lines that were held, and holds no more.
pub fn release() {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner).take();
    for line in held.into_iter().flatten() {
        let _ = writeln!(io::stderr(), "{line}");
    }
}

/// A word in a colour, if standard error has colours.
fn word(word: &str, colour: Colour) -> String {
    match terminal::errors_have_colour() {
        true => colour.paint(word),
        false => word.to_owned(),
    }
}

/// Prints a warning of several lines on standard error.
pub fn warn_lines(lines: Vec<String>) {
    for (at, line) in lines.iter().enumerate() {
        if at == 0 { warn(line) } else { tell(format_args!("  {line}")) }
    }
}

/// Prints a warning on standard error.
pub fn warn(line: impl Display) {
    tell(format_args!("{} {line}", word("warning:", Colour::Yellow)));
}
