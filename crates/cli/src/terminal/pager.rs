// SPDX-License-Identifier: Apache-2.0
//! Shows long text in the user's pager, as git does.

use super::settings;
use crate::printable::Printable;
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use signal_hook::consts::SIGINT;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Shows a text in the pager. False if it was not shown: standard output is no terminal on which
/// the user can type to the pager, the user wants no pager, or it cannot be started.
pub(crate) fn page(text: &str) -> bool {
    if !is_typed_at() || settings().is_none_or(|args| args.no_pager) {
        return false;
    }
    let Some(pager) = pager() else { return false };
    // With S it moves sideways over long lines.
    let less = if settings().is_some_and(|args| args.wide) { "FRSX" } else { "FRX" };
    // The pager handles Ctrl-C: if this program ended, shell and pager would both read keys.
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
    // The shell found no such program.
    let is_absent = status.is_ok_and(|status| matches!(status.code(), Some(126 | 127)));
    written.is_some() && !is_absent
}

/// Standard output is the terminal of this session, and its foreground is ours. Open MPI's mpirun
/// gives each rank a terminal that has no keyboard: a pager there would wait for ever.
fn is_typed_at() -> bool {
    tcgetpgrp(io::stdout()).is_ok_and(|group| group == getpgrp())
}

/// The user's pager, `less` without one; `None` if there should be none.
fn pager() -> Option<String> {
    let pager = std::env::var("PAGER").unwrap_or_else(|_| "less".into());
    let pager = pager.trim();
    (!matches!(pager, "" | "cat")).then(|| pager.to_owned())
}
