// SPDX-License-Identifier: Apache-2.0
/*!
The terminal: whether to use colours and a pager, its width, questions to the user, and what `-v`
adds.

Everything here depends on whether a stream is a terminal: what a script reads is never coloured,
cut, paged or overwritten, unless `--color always` asks for colours.
*/

mod fit;
mod pager;
mod paint;
mod progress;

pub(crate) use fit::fitted;
pub(crate) use pager::page;
pub(crate) use paint::painted;
pub(crate) use progress::{Progress, Watched, beside_progress};

use crate::args::GlobalArgs;
use crate::printable::in_a_line;
use clap::ColorChoice;
use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Instant;

/// The user's options, and the start time of the program.
static SETTINGS: OnceLock<(GlobalArgs, Instant)> = OnceLock::new();

pub(crate) fn configure(args: GlobalArgs) {
    let _ = SETTINGS.set((args, Instant::now()));
}

fn settings() -> Option<&'static GlobalArgs> {
    SETTINGS.get().map(|(args, _)| args)
}

/// Whether to use colours on standard output.
pub(crate) fn has_colour() -> bool {
    is_coloured(io::stdout().is_terminal())
}

/// Whether to use colours on standard error.
pub(crate) fn errors_have_colour() -> bool {
    is_coloured(io::stderr().is_terminal())
}

fn is_coloured(is_terminal: bool) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match settings().map(|args| args.color).unwrap_or_default() {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => {
            is_terminal
                && !is_set("NO_COLOR")
                && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
        }
    }
}

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

/// With `-v`, prints what is done, after the seconds since the start. `level` 2 is for `-vv`.
pub(crate) fn say(level: u8, line: impl FnOnce() -> String) {
    if let Some((args, begun)) = SETTINGS.get()
        && args.verbose >= level
    {
        let (seconds, line) = (begun.elapsed().as_secs_f64(), in_a_line(&line()));
        beside_progress(|| {
            let _ = writeln!(io::stderr(), "ncclscope: [{seconds:7.3} s] {line}");
        });
    }
}
