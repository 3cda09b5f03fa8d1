// SPDX-License-Identifier: Apache-2.0
//! Standard output: JSON, and whether to use colours.

use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Prints a value as indented JSON with a newline.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    out.flush()
}

/// Whether to use colours on standard output: on a terminal, unless `NO_COLOR` is set.
pub(crate) fn has_colour() -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !forbidden && io::stdout().is_terminal()
}
