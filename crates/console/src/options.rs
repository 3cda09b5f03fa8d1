// SPDX-License-Identifier: Apache-2.0
//! Options that both programs have, and those of the agent, which the verb `ncclscope agent` takes,
//! too.

use crate::value::{number, seconds, value};
use clap::{ArgAction, ColorChoice, ValueEnum};
use ncclscope_control::quantity;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Options of all verbs.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Options of all verbs")]
pub struct GlobalArgs {
    /// When to use colours; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub color: ColorChoice,
    /// Do not show long text in a pager (PAGER, else less)
    #[arg(long, global = true)]
    pub no_pager: bool,
    /// Show tables and lines on a terminal as wide as they are: nothing is cut or left out
    #[arg(long, global = true)]
    pub wide: bool,
    /// Print on standard error what is read and chosen, and how long that takes; twice: each file
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}

/// From when on an operation is stuck.
#[derive(Debug, clap::Args)]
pub struct HangLimit {
    /// Seconds that an operation of a running job must be in flight to count as stuck
    #[arg(
        long,
        value_name = "S",
        default_value = "30",
        allow_negative_numbers = true,
        value_parser = hang_seconds
    )]
    pub hang_sec: Duration,
}

/// Parses the value of `--hang-sec`; the error says what is expected.
///
/// # Errors
/// The value is no number of seconds, or out of range.
pub fn hang_seconds(text: &str) -> Result<Duration, String> {
    let seconds = quantity::seconds(text, 0.1..=86_400.0);
    seconds.ok_or_else(|| "expected seconds from 0.1 to 86400".into())
}

/// Options of the agent.
#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// Directory of the recordings, searched two levels deep; may be repeated
    /// [default: NCCLSCOPE_DIR, else the current one]
    #[arg(short, long, value_name = "DIR")]
    pub dir: Vec<PathBuf>,
    /// Seconds between two exports [default: OTEL_METRIC_EXPORT_INTERVAL, else 15]
    #[arg(
        long,
        value_name = "S",
        allow_negative_numbers = true,
        value_parser = seconds
    )]
    pub interval: Option<f64>,
    /// From when on an operation is stuck.
    #[command(flatten)]
    pub hang: HangLimit,
    /// Collector to send OTLP to, http:// or https:// [default: OTEL_EXPORTER_OTLP_ENDPOINT]
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// Serve /metrics for Prometheus
    #[arg(
        long,
        value_name = "ADDR:PORT",
        allow_negative_numbers = true,
        value_parser = number::<SocketAddr>("an address and a port such as 0.0.0.0:9417")
    )]
    pub prom_listen: Option<SocketAddr>,
    /// Write ncclscope.prom for the node exporter's textfile collector
    #[arg(long, value_name = "DIR")]
    pub textfile: Option<PathBuf>,
    /// Add labels whose number of values grows with the job
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LABEL,…")]
    pub labels: Vec<Label>,
    /// The most series to export; the rest becomes one overflow series for each metric
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20_000,
        allow_negative_numbers = true,
        value_parser = value("a number of series such as 20000", |n: &usize| *n > 0)
    )]
    pub max_series: usize,
    /// Follow the recordings of all hosts, not only of this one
    #[arg(long)]
    pub any_host: bool,
    /// Read all recordings once, print the metrics in Prometheus's text format, and exit
    #[arg(long, conflicts_with_all = ["interval", "otlp", "prom_listen", "textfile"])]
    pub once: bool,
}

/// Optional labels of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Label {
    /// The rank that reports
    Rank,
    /// The rank at the other end
    Peer,
    /// The channel
    Channel,
}
