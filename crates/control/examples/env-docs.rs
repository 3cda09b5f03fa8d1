// SPDX-License-Identifier: Apache-2.0
//! Prints `docs/env.md`: `cargo run -p ncclscope-control --example env-docs > docs/env.md`.

#![expect(clippy::print_stdout, reason = "it is a program")]

fn main() {
    print!("{}", ncclscope_control::page::markdown());
}
