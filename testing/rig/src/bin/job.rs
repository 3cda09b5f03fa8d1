// SPDX-License-Identifier: Apache-2.0
//! Runs a whole job on this machine: starts the ranks, prints their output, and exits with their
//! result.
//!
//! The ranks inherit the environment. A scenario without `--nccl` runs on each of its releases.
//! Exit codes: 0 all ranks completed their steps, or the scenario ended as expected; 1 they did
//! not; 2 usage; 4 they could not be started.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks")]

use clap::Parser;
use rig::job::{Job, Outcome};
use rig::scenario_file::ScenarioFile;
use rig::topology::Topology;
use rig::wheel;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Run a job of real NCCL ranks on this machine
#[derive(Debug, Parser)]
struct Options {
    /// NCCL's library
    #[arg(long, value_name = "LIBNCCL", required_unless_present = "scenario")]
    nccl: Option<PathBuf>,
    /// A real libcudart, in place of the CPU stand-in
    #[arg(long, value_name = "SO")]
    cuda: Option<PathBuf>,
    /// A file that says what the ranks do, and how the job ends
    #[arg(long, value_name = "FILE", value_parser = scenario)]
    scenario: Option<ScenarioFile>,
    /// Where the ranks are [default: two hosts of one device]
    #[arg(long, value_name = "NAME")]
    topology: Option<Topology>,
    #[arg(long, value_name = "N")]
    hosts: Option<usize>,
    /// Of each host
    #[arg(long, value_name = "N")]
    devices: Option<usize>,
    /// Processes of each host, whose ranks are threads [default: one for each rank]
    #[arg(long, value_name = "N")]
    tasks: Option<usize>,
    /// Of each host, shared by its ranks in turn [default: one for each rank]
    #[arg(long, value_name = "N")]
    gpus: Option<usize>,
    /// After which ranks that still run are ended
    #[arg(long, value_name = "S")]
    timeout_s: Option<u64>,
    /// What the ranks do, such as allreduce:1024
    #[arg(value_name = "STEP", required_unless_present = "scenario", conflicts_with = "scenario")]
    steps: Vec<String>,
}

fn scenario(file: &str) -> Result<ScenarioFile, String> {
    ScenarioFile::read(file.as_ref())
}

/// The libraries to run on.
fn libraries(options: &Options) -> Result<Vec<PathBuf>, String> {
    match (&options.nccl, &options.scenario) {
        (None, Some(scenario)) => scenario.releases.iter().map(|v| wheel::find(v)).collect(),
        (nccl, _) => Ok(nccl.iter().cloned().collect()),
    }
}

fn job(options: &Options, nccl: &Path) -> Result<Job, String> {
    let mut job = Job::new(nccl)?.steps(&options.steps);
    if let Some(topology) = options.topology {
        job = job.topology(topology);
    }
    // A job removes the caller's NCCL settings from its ranks' environment; here they are intended.
    for (name, value) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NCCL") {
            job = job.env(name, value);
        }
    }
    if let Some(scenario) = &options.scenario {
        job = scenario.apply(job);
    }
    if let Some(cuda) = &options.cuda {
        job = job.cuda(cuda);
    }
    if let Some(hosts) = options.hosts {
        job = job.hosts(hosts);
    }
    if let Some(devices) = options.devices {
        job = job.devices(devices);
    }
    if let Some(tasks) = options.tasks {
        job = job.tasks(tasks);
    }
    if let Some(gpus) = options.gpus {
        job = job.gpus(gpus);
    }
    if let Some(seconds) = options.timeout_s {
        job = job.timeout(Duration::from_secs(seconds));
    }
    Ok(job)
}

/// Prints the ranks' output, and returns whether the job ended as expected.
fn judge(options: &Options, outcome: &Outcome) -> bool {
    for rank in &outcome.ranks {
        for line in &rank.stdout {
            println!("{line}");
        }
        for line in &rank.stderr {
            eprintln!("{line}");
        }
    }
    let fine = options.scenario.as_ref().map(|scenario| scenario.check(outcome).is_ok());
    if fine.unwrap_or_else(|| outcome.succeeded()) {
        return true;
    }
    let how = if outcome.timed_out { "timed out" } else { "ended" };
    eprintln!("job: {how} after {:.1} s, not as it must", outcome.elapsed.as_secs_f64());
    false
}

fn main() -> ExitCode {
    let options = Options::parse();
    let run = |nccl: &PathBuf| job(&options, nccl)?.run();
    let outcomes: Result<Vec<_>, _> =
        libraries(&options).and_then(|nccl| nccl.iter().map(run).collect());
    match outcomes {
        Ok(outcomes) if outcomes.iter().all(|outcome| judge(&options, outcome)) => {
            ExitCode::SUCCESS
        }
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("job: {error}");
            ExitCode::from(4)
        }
    }
}
