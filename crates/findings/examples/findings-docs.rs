// SPDX-License-Identifier: Apache-2.0
//! Prints `docs/findings.md`: `cargo run -p ncclscope-findings --example findings-docs`.

use std::io::{self, Write};

fn main() -> io::Result<()> {
    io::stdout().write_all(ncclscope_findings::page().as_bytes())
}
