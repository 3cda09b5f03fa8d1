// SPDX-License-Identifier: Apache-2.0
//! The command line.

mod filter;
mod shell;
mod tables;
mod top;

pub(crate) use filter::{Edge, FilterArgs};
pub(crate) use shell::{CompletionsArgs, ManArgs};
pub(crate) use tables::TableFormat;
pub(crate) use top::TopArgs;

use clap::{Parser, Subcommand, ValueEnum};
use ncclscope_console::options::{AgentArgs, GlobalArgs, HangLimit};
use ncclscope_console::value::{number, value};
use ncclscope_control::quantity;
use ncclscope_control::table::MODE;
use ncclscope_diagnose::Rule as HangRule;
use ncclscope_findings::AboutRule;
use ncclscope_stragglers::Rule as SlowRule;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const EXIT_CODES: &str = "Exit codes: 0 fine, 1 findings, 2 wrong usage, 3 unreadable input, 4 \
                          environment. `run` ends with the command's own.";

/// Records NCCL's operations in each rank, and analyses the recordings.
#[derive(Debug, Parser)]
#[command(name = "ncclscope", version, max_term_width = 100)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) verb: Verb,
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
}

/// A verb and its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command with the plugin and print a report
    Run(RunArgs),
    /// Print a report of recordings
    Report(ReportArgs),
    /// Find out why a job hangs: the ranks, the cause and the evidence
    Diagnose(DiagnoseArgs),
    /// Compare two runs or sets of runs: what became slower or faster, and how sure that is
    Compare(CompareArgs),
    /// Convert recordings to a trace for Perfetto or Chrome
    Export(ExportArgs),
    /// Merge recordings into PyTorch's profiles of the same ranks
    Merge(MergeArgs),
    /// Show recordings in the browser, in the Perfetto UI
    View(ViewArgs),
    /// Find out why a job is slow: ranks that others wait for, slow links, and slowdowns
    Stragglers(StragglersArgs),
    /// Watch the ranks live: operations in flight, rates, waits, and what is stuck
    Top(TopArgs),
    /// List the recorded processes of this host
    Ls(LsArgs),
    /// Start recording, for a given time or until stopped
    Start(StartArgs),
    /// Stop recording
    Stop(StopArgs),
    /// Record for a given time, then copy the recordings
    Snapshot(SnapshotArgs),
    /// Copy the recordings as they are now
    Dump(DumpArgs),
    /// Export metrics of the ranks of this node, continuously
    Agent(AgentArgs),
    /// Simulate a job with planted faults and write its recordings
    Simulate(SimulateArgs),
    /// Check the installation and report problems
    Doctor(DoctorArgs),
    /// Print the plugin's path, or create a link that NCCL finds without NCCL_PROFILER_PLUGIN
    PluginPath(PluginPathArgs),
    /// Print the variables that make NCCL load the plugin
    Env(EnvArgs),
    /// Print a script for a shell that completes ncclscope's verbs and options
    Completions(CompletionsArgs),
    /// Write the manual pages
    Man(ManArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Directory for the recordings, one file for each process
    /// [default: ncclscope-run-YYYYmmdd-HHMMSS, in UTC, in NCCLSCOPE_DIR or here]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// The plugin's mode: flight (the last minutes), trace (the same with room for 1 GiB), metrics,
    /// hang, several of these with commas, or off (sets NCCLSCOPE_MODE)
    #[arg(long, value_parser = mode)]
    pub(crate) mode: Option<String>,
    /// Do not print the report at the end
    #[arg(long)]
    pub(crate) no_report: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

fn mode(text: &str) -> Result<String, String> {
    let expected = |expected| format!("expected {expected}");
    MODE.parse(text).map(|_| text.to_owned()).map_err(expected)
}

/// Which run, where the recordings are of several.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct RunChoice {
    /// Read this run where the recordings are of several [default: the newest]
    #[arg(long = "run", value_name = "ID")]
    run_id: Option<String>,
}

impl RunChoice {
    pub(crate) fn id(&self) -> Option<&str> {
        self.run_id.as_deref()
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// Run directories, or recordings; of several runs, or a directory with runs below, one line
    /// for each. Also files of NCCL Inspector
    #[arg(value_name = "DIR|FILE", required = true)]
    pub(crate) inputs: Vec<PathBuf>,
    /// Print all: communicators, each row of operations, links, events and threads
    #[arg(long)]
    pub(crate) full: bool,
    #[command(flatten)]
    pub(crate) hang: HangLimit,
    /// Print one table: operations added up by comm, rank, host, size, channel, step, role or func,
    /// or by several of these
    #[arg(long, value_name = "KEY,…", value_delimiter = ',', value_parser = tables::by)]
    pub(crate) by: Vec<ncclscope_report::By>,
    /// Output format; csv is the table of --by, else that of operations
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: TableFormat,
    /// Also write the report as one HTML file with charts and tables, which opens without a
    /// network; `-` writes it to standard output, and nothing else. Of two runs, the newer one's,
    /// with the bandwidths of the other beside it
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: RunChoice,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DiagnoseArgs {
    /// Run directory or recordings; or dumps of PyTorch's Flight Recorder (files whose names end in
    /// the rank, or their directory); or a table of vectors; also outputs of `ncclras`, and of
    /// `ncclras -m`
    #[arg(value_name = "RUN|DIR|FILE", required_unless_present_any = ["ras", "list_rules"])]
    pub(crate) inputs: Vec<PathBuf>,
    /// Ask NCCL's RAS of a running job, twice, about all of its ranks: `localhost:28028` on any of
    /// its hosts. Given the recordings of one host, too, one verdict joins both
    #[arg(long, value_name = "HOST[:PORT]", num_args = 0..=1, default_missing_value = "")]
    pub(crate) ras: Option<String>,
    #[command(flatten)]
    pub(crate) hang: HangLimit,
    /// Tell what each rule saw, and what keeps it from naming more ranks, or those of --rank
    #[arg(long)]
    pub(crate) why_not: bool,
    /// Do not apply these rules
    #[arg(long, value_name = "RULE,…", value_delimiter = ',', value_parser = hang_rule)]
    pub(crate) without: Vec<HangRule>,
    /// List the rules by name: what each compares, and what it needs
    #[arg(long)]
    pub(crate) list_rules: bool,
    /// Write the collectives in flight as dumps of PyTorch's Flight Recorder, for its tools
    #[arg(long, value_name = "DIR")]
    pub(crate) fr_out: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: TableFormat,
    #[command(flatten)]
    pub(crate) run: RunChoice,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Run directories, or recordings
    #[arg(value_name = "DIR|FILE", required = true)]
    pub(crate) inputs: Vec<PathBuf>,
    /// The trace's format [default: by the file name's extension]
    #[arg(long, value_enum)]
    pub(crate) to: Option<TraceFormat>,
    /// One pftrace for each process, in the directory that -o names; concatenated they are the
    /// merged trace
    #[arg(long)]
    pub(crate) per_rank: bool,
    /// Output file; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) run: RunChoice,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ViewArgs {
    /// Run directories, recordings, or one trace that `export` wrote
    #[arg(value_name = "DIR|FILE", required = true)]
    pub(crate) inputs: Vec<PathBuf>,
    /// Print the address instead of opening a browser
    #[arg(long)]
    pub(crate) no_open: bool,
    /// Port of this machine to serve the trace at, for a tunnel:
    /// `ssh -L PORT:127.0.0.1:PORT HOST` [default: a free one]
    #[arg(
        long,
        value_name = "PORT",
        allow_negative_numbers = true,
        value_parser = number::<u16>("a port such as 9001")
    )]
    pub(crate) port: Option<u16>,
    /// Address of the viewer; for tests and for copies of the Perfetto UI
    #[arg(long, hide = true, value_name = "URL", default_value = "https://ui.perfetto.dev")]
    pub(crate) ui: String,
    #[command(flatten)]
    pub(crate) run: RunChoice,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StragglersArgs {
    /// Run directory or recordings; or torch.profiler traces of all ranks (.json, .json.gz, or a
    /// .tar.gz of them, or their directory); or exports of Nsight Systems (.sqlite); or a table of
    /// operations (.parquet); or verbose files of NCCL Inspector
    #[arg(value_name = "RUN|DIR|FILE", required_unless_present = "list_rules")]
    pub(crate) inputs: Vec<PathBuf>,
    /// Least share of a step's time, in percent, that a slow rank must cost to be reported
    #[arg(
        long,
        value_name = "PERCENT",
        allow_negative_numbers = true,
        default_value_t = 2.0,
        value_parser = percent
    )]
    pub(crate) threshold: f64,
    /// Tell what each rule saw, and what kept it from reporting more; of the ranks of --rank, also
    /// what the job would gain without their excess
    #[arg(long)]
    pub(crate) why_not: bool,
    /// Do not apply these rules
    #[arg(long, value_name = "RULE,…", value_delimiter = ',', value_parser = slow_rule)]
    pub(crate) without: Vec<SlowRule>,
    /// List the rules by name: what each compares, and what it needs
    #[arg(long)]
    pub(crate) list_rules: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: TableFormat,
    #[command(flatten)]
    pub(crate) run: RunChoice,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// The runs to compare with: a run directory, a directory of runs, a recording, what
    /// `report --format json` printed, files of NCCL Inspector, or output of nccl-tests
    #[arg(value_name = "A")]
    pub(crate) a: PathBuf,
    /// The runs to compare, likewise
    #[arg(value_name = "B")]
    pub(crate) b: PathBuf,
    /// Exit with 1 if something is slower by more than this, in percent
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = percent)]
    pub(crate) fail_above: Option<f64>,
    /// Differences below this count as none, in percent
    #[arg(
        long,
        value_name = "PERCENT",
        allow_negative_numbers = true,
        default_value_t = 2.0,
        value_parser = percent
    )]
    pub(crate) min_effect: f64,
    /// Print all rows, settings and notes
    #[arg(long)]
    pub(crate) full: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: TableFormat,
    /// Also write the comparison as one HTML file with charts and tables, which opens without a
    /// network; `-` writes it to standard output, and nothing else
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

fn slow_rule(text: &str) -> Result<SlowRule, String> {
    SlowRule::named(text).ok_or_else(|| names(&SlowRule::all_about()))
}

fn hang_rule(text: &str) -> Result<HangRule, String> {
    HangRule::named(text).ok_or_else(|| names(&HangRule::all_about()))
}

fn names(rules: &[AboutRule]) -> String {
    let names: Vec<&str> = rules.iter().map(|rule| rule.name).collect();
    format!("expected {}", names.join(", "))
}

fn percent(text: &str) -> Result<f64, String> {
    value("a percentage from 0.1 to 100", |p| (0.1..=100.0).contains(p))(text)
}

#[derive(Debug, clap::Args)]
#[command(override_usage = "ncclscope merge --kineto <FILE>... <RUN>... -o <OUT>")]
pub(crate) struct MergeArgs {
    /// Traces written by torch.profiler, .json or .json.gz; one file for each rank
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pub(crate) kineto: Vec<PathBuf>,
    /// Run directories, or recordings; may follow the traces directly
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// The merged trace, compressed if the name ends in .gz; for several traces a directory
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Write all ranks into one trace
    #[arg(long)]
    pub(crate) merged: bool,
    #[command(flatten)]
    pub(crate) of_run: RunChoice,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: TableFormat,
}

/// The processes to control.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// The process with this id; may be repeated
    #[arg(
        long,
        value_name = "PID",
        allow_negative_numbers = true,
        value_parser = number::<u32>("a process id such as 4711; `ncclscope ls` lists them")
    )]
    pub(crate) pid: Vec<u32>,
    /// The processes of this job (SLURM_JOB_ID, or torchrun's run id)
    #[arg(long, value_name = "ID")]
    pub(crate) job: Option<String>,
    /// All processes of this host; asks first if they are of several jobs
    #[arg(long)]
    pub(crate) all: bool,
    /// Do not ask before acting on several jobs
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// The recording window.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Window {
    /// Duration: 10s, 500ms, 2m
    #[arg(long = "for", value_name = "TIME", value_parser = length)]
    pub(crate) length: Option<Duration>,
    /// Number of training steps, starting with the next one
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = value("a number of training steps such as 10", |n: &u64| *n > 0)
    )]
    pub(crate) steps: Option<u64>,
    /// Start time: seconds since 1970, the same on all hosts, or +10s from now
    #[arg(long, value_name = "WHEN", value_parser = when)]
    pub(crate) at: Option<When>,
    /// Record only every N-th operation
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = value("a number such as 10, for every tenth", |n: &u32| *n > 0)
    )]
    pub(crate) sample: Option<u32>,
}

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct When(Duration);

impl When {
    pub(crate) fn new(since_1970: Duration) -> When {
        When(since_1970)
    }

    pub(crate) fn since_1970(self) -> Duration {
        self.0
    }
}

fn when(text: &str) -> Result<When, String> {
    let expected = || "expected seconds since 1970, or +10s".to_owned();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match text.strip_prefix('+') {
        Some(later) => length(later).map(|later| When(now + later)),
        None => quantity::duration(text).map(When).ok_or_else(expected),
    }
}

fn length(text: &str) -> Result<Duration, String> {
    let length = quantity::duration(text).filter(|d| !d.is_zero());
    length.ok_or_else(|| "expected a time such as 10s, 500ms or 2m".into())
}

#[derive(Debug, clap::Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) window: Window,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) window: Window,
    /// Directory for the copies, which can be read as a run directory
    /// [default: ncclscope-snapshot-YYYYmmdd-HHMMSS, in UTC]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Copy the recordings after this time even if the window is not over [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = length)]
    pub(crate) timeout: Option<Duration>,
    /// Also make PyTorch profile this window, in processes that run with KINETO_USE_DAEMON=1
    #[arg(long)]
    pub(crate) kineto: bool,
    #[command(flatten)]
    pub(crate) trace: TraceOfCopies,
}

/// A trace of the copies that a verb makes.
#[derive(Debug, clap::Args)]
pub(crate) struct TraceOfCopies {
    /// Also write a trace of the copies, as `export -o FILE` does: .json, .pftrace or .tar, each
    /// also with .gz
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Directory for the copies, which can be read as a run directory
    /// [default: dump-SECONDS beside each recording]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Copy nothing, but print why the job hangs, what each process waits for now, and what its
    /// threads do
    #[arg(long, conflicts_with_all = ["output", "trace"])]
    pub(crate) why: bool,
    #[command(flatten)]
    pub(crate) hang: HangLimit,
    /// Output format of --why
    #[arg(long, value_enum, default_value_t, requires = "why")]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) trace: TraceOfCopies,
}

/// Arguments of `simulate`. An option that is not given has the scenario's value, or a default.
#[derive(Debug, clap::Args)]
pub(crate) struct SimulateArgs {
    /// Scenario file: docs/simulate.md
    #[arg(value_name = "SCENARIO.toml")]
    pub(crate) scenario: Option<PathBuf>,
    /// Directory for the recordings and truth.json; must contain neither
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Processes, one GPU each
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = number::<u32>("a number of ranks such as 16")
    )]
    pub(crate) ranks: Option<u32>,
    /// Tensor parallel ranks
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = number::<u32>("a number of ranks such as 4")
    )]
    pub(crate) tp: Option<u32>,
    /// Pipeline stages
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = number::<u32>("a number of stages such as 4")
    )]
    pub(crate) pp: Option<u32>,
    /// Data parallel ranks
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = number::<u32>("a number of ranks such as 4")
    )]
    pub(crate) dp: Option<u32>,
    /// Expert parallel ranks, a divisor of the data parallel ones
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = number::<u32>("a number of ranks such as 2")
    )]
    pub(crate) ep: Option<u32>,
    /// Training steps
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = value("a number of training steps such as 10", |n: &u32| *n > 0)
    )]
    pub(crate) steps: Option<u32>,
    /// Faults to plant instead of the scenario's; up to three
    #[arg(long, value_name = "NAME", value_parser = fault)]
    pub(crate) fault: Vec<ncclscope_simulate::Fault>,
    /// The rank with the fault [default: random]
    #[arg(
        long,
        value_name = "RANK",
        requires = "fault",
        allow_negative_numbers = true,
        value_parser = number::<u32>("a rank such as 3")
    )]
    pub(crate) rank: Option<u32>,
    /// Slowdown factor of a slow fault
    #[arg(
        long,
        value_name = "F",
        requires = "fault",
        allow_negative_numbers = true,
        value_parser = number::<f64>("a factor such as 1.5")
    )]
    pub(crate) factor: Option<f64>,
    /// Seed of all random choices
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = number::<u64>("a seed such as 7")
    )]
    pub(crate) seed: Option<u64>,
    /// Write a table of counters instead of recordings, for very many ranks
    #[arg(long)]
    pub(crate) counters: bool,
    /// List the faults
    #[arg(long)]
    pub(crate) list: bool,
    /// Output format of --list
    #[arg(long, value_enum, default_value_t, requires = "list")]
    pub(crate) format: Format,
}

fn fault(name: &str) -> Result<ncclscope_simulate::Fault, String> {
    let known = ncclscope_simulate::Fault::from_name(name);
    known.ok_or_else(|| "no such fault: see `ncclscope simulate --list`".into())
}

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Directory for recordings; recordings that it already contains are checked for losses
    /// [default: NCCLSCOPE_DIR, else the current one]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// The libnccl.so.2, or AMD's librccl.so.1, that the job loads [default: all that are found]
    #[arg(long, value_name = "FILE")]
    pub(crate) nccl: Option<PathBuf>,
    /// Print only what is wrong, one line each with the host's name, and nothing if all is well:
    /// for `srun`
    #[arg(short, long, conflicts_with = "format")]
    pub(crate) quiet: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PluginPathArgs {
    /// Create the link DIR/libnccl-profiler.so to the plugin, and print it: NCCL loads it if no
    /// variable names a plugin and DIR is in the library path. For AMD's RCCL also create the link
    /// DIR/librccl-profiler.so
    #[arg(long, value_name = "DIR")]
    pub(crate) link: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EnvArgs {
    /// Directory for the recordings; created if missing [default: the plugin's]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(crate) shell: Shell,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text
    #[default]
    Text,
    /// JSON with a key `schema`
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceFormat {
    /// JSON for chrome://tracing, Perfetto and scripts
    Chrome,
    /// Perfetto's binary format, smaller
    Pftrace,
    /// A tar file with a pftrace for each process, for jobs with many ranks; without arrows between
    /// ranks
    PerfettoTar,
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
        CommandLine::command().debug_assert();
    }

    #[test]
    fn a_commands_own_options_are_left_alone() {
        let args =
            CommandLine::parse_from(["ncclscope", "run", "-o", "d", "--", "sh", "-c", "-o x"]);
        let Verb::Run(run) = args.verb else { panic!("{args:?}") };
        assert_eq!(run.output, Some("d".into()));
        assert_eq!(run.command, ["sh", "-c", "-o x"]);
    }
}
