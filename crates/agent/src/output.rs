// SPDX-License-Identifier: Apache-2.0
//! The agent's output: Prometheus text and OTLP requests, with a limit on the number of series.

use crate::target::Target;
use ncclscope_console::failure::Failure;
use ncclscope_control::table::PROM_COMPAT;
use ncclscope_control::value::PrometheusNames;
use ncclscope_metrics::encode::otlp::{self, Export};
use ncclscope_metrics::encode::{Cap, Labels, Limiter, compat, families_of, prom};
use ncclscope_node::fresh;
use ncclscope_node::node::{ByProcess, Count, Node};
use std::fmt::Write;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The file in the directory of the node exporter's textfile collector.
pub(crate) const TEXTFILE: &str = "ncclscope.prom";

/// Parses a value of `NCCLSCOPE_PROM_COMPAT`.
pub(crate) fn compat(value: Option<&str>) -> Result<Option<PrometheusNames>, Failure> {
    let Some(value) = value else { return Ok(None) };
    PROM_COMPAT.parse(value).map_err(|expected| {
        Failure::usage(format!("{}={value}: expected {expected}", PROM_COMPAT.name))
    })
}

/// Creates the exported texts and requests.
#[derive(Debug)]
pub(crate) struct Output {
    labels: Labels,
    compat: Option<PrometheusNames>,
    host: String,
    max_series: usize,
    prometheus: Limiter,
    otlp: Limiter,
    start_ns: u64,
    /// When the last window ended, ns since 1970.
    last_ns: u64,
}

impl Output {
    /// Output for `host` with at most `max_series` series for each kind of reader.
    pub(crate) fn new(
        labels: Labels,
        compat: Option<PrometheusNames>,
        max_series: usize,
        host: &str,
    ) -> Output {
        let now = now_ns();
        Output {
            labels,
            compat,
            host: host.to_owned(),
            max_series,
            prometheus: Limiter::new(Cap::lines(max_series)),
            otlp: Limiter::new(Cap::points(max_series)),
            start_ns: now,
            last_ns: now,
        }
    }

    /// The node's totals as Prometheus text, with the number of `failed` exports to a collector.
    pub(crate) fn prometheus(&mut self, node: &Node, failed: u64) -> String {
        let mut text = match self.compat {
            None => {
                let families = families_of(&node.total(), &node.roles(), self.labels);
                prom::encode(&self.prometheus.apply(families, false), &[])
            }
            Some(PrometheusNames::Inspector) => {
                compat::inspector(&node.windows(&self.host), self.max_series)
            }
            Some(PrometheusNames::Mosaic) => {
                compat::mosaic(&node.totals(&self.host), self.max_series)
            }
        };
        text.push_str(&own(node.count(), failed));
        text
    }

    /// An OTLP request with the window's metrics or the node's totals, as `target` requires.
    pub(crate) fn otlp(&mut self, window: &ByProcess, node: &Node, target: &Target) -> Vec<u8> {
        let now_ns = now_ns();
        let total;
        let metrics = if target.delta {
            window
        } else {
            total = node.total();
            &total
        };
        let families = families_of(metrics, &node.roles(), self.labels);
        let families = self.otlp.apply(families, target.delta);
        let export = Export {
            resource: &target.resource,
            version: env!("CARGO_PKG_VERSION"),
            start_ns: if target.delta { self.last_ns } else { self.start_ns },
            now_ns,
            delta: target.delta,
        };
        self.last_ns = now_ns;
        otlp::encode(&families, &export)
    }
}

/// The agent's metrics about itself, which are exported even while they are 0.
pub(crate) fn own(count: Count, failed: u64) -> String {
    let mut text = String::new();
    for (name, kind, help, value) in [
        ("processes", "gauge", "Processes that are followed", count.alive),
        (
            "unreadable_recordings",
            "gauge",
            "Recordings and given directories that cannot be read",
            count.unreadable,
        ),
        (
            "windows_total",
            "counter",
            "Windows that were measured; with 0 there is nothing to export yet",
            count.windows,
        ),
        (
            "lost_events_total",
            "counter",
            "Events that are missing from the other metrics",
            count.lost,
        ),
        (
            "missed_blocks_total",
            "counter",
            "Blocks of records that were overwritten before the agent read them",
            count.missed_blocks,
        ),
        (
            "failed_exports_total",
            "counter",
            "OTLP requests that were refused, or dropped because the queue was full",
            failed,
        ),
    ] {
        let name = format!("ncclscope_agent_{name}");
        // Writing to a String cannot fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    }
    text
}

/// Replaces the file atomically, because the node exporter may read it at any time. The temporary
/// name is one that the node exporter does not read.
pub(crate) fn write_textfile(directory: &Path, text: &str) -> io::Result<()> {
    let name = format!(".{TEXTFILE}.{}.tmp", std::process::id());
    let temporary = directory.join(name);
    let result = fresh::create(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&temporary, directory.join(TEXTFILE)));
    if result.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    result
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
