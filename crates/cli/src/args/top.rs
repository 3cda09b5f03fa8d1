// SPDX-License-Identifier: Apache-2.0
//! Arguments of `top`.

use super::Format;
use ncclscope_console::options::hang_seconds;
use ncclscope_console::value::seconds;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Directory of the recordings, searched two levels deep [default: NCCLSCOPE_DIR, else where
    /// the recorded processes of this host write to, else the current one]
    #[arg(value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Read /metrics and /vectors of an agent (`ncclscope agent --prom-listen --labels rank,peer`)
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "dir")]
    pub(crate) agent: Option<String>,
    /// Seconds between two readings
    #[arg(
        long,
        value_name = "S",
        allow_negative_numbers = true,
        default_value_t = 1.0,
        value_parser = seconds
    )]
    pub(crate) interval: f64,
    /// Least seconds that an operation is in flight before its ranks count as stalled
    #[arg(
        long,
        value_name = "S",
        allow_negative_numbers = true,
        default_value = "1",
        value_parser = hang_seconds
    )]
    pub(crate) stall_sec: Duration,
    /// Seconds that an operation is in flight before its ranks count as hung
    #[arg(
        long,
        value_name = "S",
        allow_negative_numbers = true,
        default_value = "30",
        value_parser = hang_seconds
    )]
    pub(crate) hang_sec: Duration,
    /// Print one table after a few seconds, and exit: with 1 if a rank is stuck, with 4 if there
    /// is none
    #[arg(long)]
    pub(crate) once: bool,
    /// Output format of --once
    #[arg(long, value_enum, default_value_t, requires = "once")]
    pub(crate) format: Format,
}
