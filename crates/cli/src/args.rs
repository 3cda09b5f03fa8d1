// SPDX-License-Identifier: Apache-2.0
//! The command line.

use clap::{Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// See into NCCL: record what it does in each rank, and read the recordings.
#[derive(Debug, Parser)]
#[command(name = "ncclscope", version, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 fine, 2 wrong usage, 3 unreadable input, 4 environment. \
                        `run` ends with the command's own.")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command with the plugin, and report what its ranks did
    Run(Run),
    /// Say what recordings hold
    Report(Report),
    /// Write recordings as a trace for Perfetto or Chrome
    Export(Export),
    /// Export what the ranks of this node do, all the time
    Agent(Agent),
    /// Check the installation, and say what would go wrong
    Doctor(Doctor),
    /// Print the plugin's path
    PluginPath,
    /// Print the variables that make NCCL load the plugin
    Env(Env),
}

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    /// Directory for the recordings, one file for each process
    /// [default: ncclscope-run-YYYYmmdd-HHMMSS, in UTC]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// What the plugin does (sets NCCLSCOPE_MODE)
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// Do not print the report at the end
    #[arg(long)]
    pub(crate) no_report: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Report {
    /// Run directory, or one recording
    #[arg(value_name = "DIR|FILE")]
    pub(crate) input: PathBuf,
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// Arguments of `export`.
#[derive(Debug, clap::Args)]
pub(crate) struct Export {
    /// Run directory, or one recording
    #[arg(value_name = "DIR|FILE")]
    pub(crate) input: PathBuf,
    /// The trace's format
    #[arg(long, value_enum)]
    pub(crate) to: TraceFormat,
    /// The trace; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// Arguments of `agent`.
#[derive(Debug, clap::Args)]
pub(crate) struct Agent {
    /// Directory whose recordings are followed, with those two levels below; may be repeated
    /// [default: NCCLSCOPE_DIR, else the current one]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) dir: Vec<PathBuf>,
    /// Seconds between two exports [default: OTEL_METRIC_EXPORT_INTERVAL, else 15]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) interval: Option<f64>,
    /// Collector to send OTLP to, http:// or https:// [default: OTEL_EXPORTER_OTLP_ENDPOINT]
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
    /// Serve /metrics for Prometheus
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) prom_listen: Option<SocketAddr>,
    /// Write ncclscope.prom for the node exporter's textfile collector
    #[arg(long, value_name = "DIR")]
    pub(crate) textfile: Option<PathBuf>,
    /// Tell series apart by what grows with the job
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LABEL,…")]
    pub(crate) labels: Vec<Label>,
    /// Series to export at most; the rest becomes one overflow series for each metric
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) max_series: usize,
    /// Follow the recordings of all hosts, not only of this one
    #[arg(long)]
    pub(crate) any_host: bool,
    /// Read once everything that is there, print it as Prometheus's text, and end
    #[arg(long, conflicts_with_all = ["interval", "otlp", "prom_listen", "textfile"])]
    pub(crate) once: bool,
}

/// What series are told apart by, if asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Label {
    /// The rank that reports
    Rank,
    /// The rank at the other end
    Peer,
    /// The channel
    Channel,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=86_400.0).contains(s));
    seconds.ok_or_else(|| "expected seconds from 0.1 to 86400".into())
}

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Directory that recordings would go to, or that holds some: then what they lack is told
    /// [default: NCCLSCOPE_DIR, else the current one]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// The libnccl.so.2 that the job loads [default: those that can be found]
    #[arg(long, value_name = "FILE")]
    pub(crate) nccl: Option<PathBuf>,
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// Arguments of `env`.
#[derive(Debug, clap::Args)]
pub(crate) struct Env {
    /// Directory for the recordings; made if it is missing [default: the plugin's]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// For which reader
    #[arg(long, value_enum, default_value_t)]
    pub(crate) shell: Shell,
}

/// A format of what a verb prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// For programs; has a key `schema`
    Json,
}

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceFormat {
    /// JSON for chrome://tracing, Perfetto and scripts
    Chrome,
    /// Perfetto's own, smaller
    Pftrace,
}

/// A format of variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// `export` lines for a POSIX shell
    #[default]
    Bash,
    /// An object of names and values
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_commands_own_options_are_left_alone() {
        let args = Args::parse_from(["ncclscope", "run", "-o", "d", "--", "sh", "-c", "-o x"]);
        let Verb::Run(run) = args.verb else { panic!("{args:?}") };
        assert_eq!(run.output, Some("d".into()));
        assert_eq!(run.command, ["sh", "-c", "-o x"]);
    }
}
