// SPDX-License-Identifier: Apache-2.0
/*!
The terminal of the verbs: its width, a pager, questions to the user.

Everything here depends on whether a stream is a terminal: what a script reads is never cut, paged
or overwritten.
*/

mod fit;
mod pager;
mod paint;
mod watched;

pub(crate) use fit::fitted;
pub(crate) use ncclscope_console::progress::Progress;
pub(crate) use ncclscope_console::terminal::{configure, has_colour, say, settings};
pub(crate) use pager::page;
pub(crate) use paint::painted;
pub(crate) use watched::Watched;

use std::io::{self, BufRead, IsTerminal, Write};

/// The width that text must fit: that of the terminal on standard output. `None` if it is not a
/// terminal, or the user wants complete lines.
pub(crate) fn width() -> Option<usize> {
    let out = io::stdout();
    if !out.is_terminal() || settings().is_some_and(|args| args.wide) {
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
