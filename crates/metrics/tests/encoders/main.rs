// SPDX-License-Identifier: Apache-2.0
//! Metrics encoders: points, the cap, OTLP, Prometheus' format, and the page about metrics.

mod compat;
mod otlp;
mod points;
mod prom;
mod sample;

use std::io::Write;

/// Prints why a test is skipped.
fn skip(why: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "skipped: {why}").unwrap();
}

#[test]
fn metrics_md_is_up_to_date() {
    let page = std::fs::read_to_string("../../docs/metrics.md").unwrap();
    assert_eq!(
        page,
        ncclscope_metrics::encode::docs::markdown(),
        "run: cargo run -p ncclscope-metrics --example metrics-docs > docs/metrics.md"
    );
}
