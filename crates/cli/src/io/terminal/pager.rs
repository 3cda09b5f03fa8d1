// SPDX-License-Identifier: Apache-2.0
//! Shows long text in the user's pager, as git does.

use super::settings;
use ncclscope_console::printable::Printable;
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use signal_hook::consts::SIGINT;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Shows a text in the pager. False if it was not shown: standard output is not a terminal at which
/// a user can type, the user wants no pager, or it cannot be started.
pub(crate) fn page(text: &str) -> bool {
    if !is_typed_at() || settings().is_none_or(|args| args.no_pager) {
        return false;
    }
    let Some(pager) = pager() else { return false };
    // With S it scrolls sideways over long lines.
    let less = if settings().is_some_and(|args| args.wide) { "FRSX" } else { "FRX" };
    // The pager handles Ctrl-C. If this program ended, shell and pager would both read the
    // keyboard.
    let _ = signal_hook::flag::register(SIGINT, Arc::new(AtomicBool::new(false)));
    let mut command = Command::new("sh");
    command.args(["-c", &pager]).stdin(Stdio::piped());
    for (name, value) in [("LESS", less), ("LV", "-c")] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let Ok(mut child) = command.spawn() else { return false };
    // The user may quit before the end.
    let written = child.stdin.take().map(|mut pipe| write!(pipe, "{}", Printable(text)));
    let status = child.wait();
    // The shell did not find the program.
    let is_absent = status.is_ok_and(|status| matches!(status.code(), Some(126 | 127)));
    written.is_some() && !is_absent
}

/// True if standard output is the terminal of this session and this process is in its foreground.
/// Open MPI's mpirun gives each rank a terminal without keyboard, on which a pager would wait
/// forever.
fn is_typed_at() -> bool {
    tcgetpgrp(io::stdout()).is_ok_and(|group| group == getpgrp())
}

/// The user's pager, by default `less`; `None` if the user wants none.
fn pager() -> Option<String> {
    let pager = std::env::var("PAGER").unwrap_or_else(|_| "less".into());
    let pager = pager.trim();
    (!matches!(pager, "" | "cat")).then(|| pager.to_owned())
}
