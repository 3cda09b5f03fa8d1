// SPDX-License-Identifier: Apache-2.0
//! The terminal that the output goes to: its width, and questions to the user.

use std::io::{self, BufRead, IsTerminal, Write};

/// The columns of the terminal on standard output; `None` if it is not a terminal.
pub(crate) fn width() -> Option<usize> {
    let out = io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let columns = rustix::termios::tcgetwinsize(&out).ok()?.ws_col;
    (columns > 0).then_some(usize::from(columns))
}

/// Asks a question on the terminal. `None` if the user cannot be asked.
pub(crate) fn confirms(question: &str) -> Option<bool> {
    let (mut err, stdin) = (io::stderr(), io::stdin());
    if !err.is_terminal() || !stdin.is_terminal() {
        return None;
    }
    write!(err, "{question} [y/N] ").and_then(|()| err.flush()).ok()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).ok()?;
    Some(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
