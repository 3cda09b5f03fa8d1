// SPDX-License-Identifier: Apache-2.0
/*!
The user's options for what is shown: whether to use colours, and what `-v` adds.

A stream that is no terminal gets no colours, unless `--color always` asks for them.
*/

use crate::options::GlobalArgs;
use crate::printable::in_a_line;
use crate::progress::beside_progress;
use clap::ColorChoice;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Instant;

/// The user's options, and the start time of the program.
static SETTINGS: OnceLock<(GlobalArgs, Instant)> = OnceLock::new();

/// Keeps the user's options for the life of the program.
pub fn configure(args: GlobalArgs) {
    let _ = SETTINGS.set((args, Instant::now()));
}

/// The options that [`configure`] kept; `None` before.
pub fn settings() -> Option<&'static GlobalArgs> {
    SETTINGS.get().map(|(args, _)| args)
}

/// Whether to use colours on standard output.
pub fn has_colour() -> bool {
    is_coloured(io::stdout().is_terminal())
}

/// Whether to use colours on standard error.
pub fn errors_have_colour() -> bool {
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

/// With `-v`, prints what is done, after the seconds since the start. `level` 2 is for `-vv`.
pub fn say(level: u8, line: impl FnOnce() -> String) {
    if let Some((args, begun)) = SETTINGS.get()
        && args.verbose >= level
    {
        let (seconds, line) = (begun.elapsed().as_secs_f64(), in_a_line(&line()));
        beside_progress(|| {
            let _ = writeln!(io::stderr(), "ncclscope: [{seconds:7.3} s] {line}");
        });
    }
}
