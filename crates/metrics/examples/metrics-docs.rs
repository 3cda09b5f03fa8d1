// SPDX-License-Identifier: Apache-2.0
//! Prints `docs/metrics.md`: `cargo run -p ncclscope-metrics --example metrics-docs`.

#![expect(clippy::print_stdout, reason = "it is a program")]

fn main() {
    print!("{}", ncclscope_metrics::encode::docs::markdown());
}
