// SPDX-License-Identifier: Apache-2.0
//! Runs a whole job on this machine: starts the ranks, prints their output, and exits like them.
//!
//! ```text
//! job --nccl LIBNCCL [--topology NAME] [--hosts N] [--devices N] [OPTION]… STEP…
//! job --scenario FILE [--nccl LIBNCCL] [OPTION]…
//! ```
//! with the options `--cuda SO` and `--timeout-s S`; by default two hosts of one device each, on
//! the CPU stand-in or with a real libcudart. A scenario without `--nccl` runs on each of its
//! releases. The ranks inherit the environment. Exit codes: 0 all ranks completed their steps, or
//! the scenario ended as expected; 1 they did not; 2 usage; 4 they could not be started.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks")]

use rig::job::{Job, Outcome};
use rig::scenario_file::ScenarioFile;
use rig::topology::Topology;
use rig::wheel;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Default)]
struct Options {
    nccl: Option<PathBuf>,
    cuda: Option<PathBuf>,
    scenario: Option<ScenarioFile>,
    topology: Option<Topology>,
    hosts: Option<usize>,
    devices: Option<usize>,
    timeout_s: Option<u64>,
    steps: Vec<String>,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(arg) = args.next() {
        if !arg.starts_with("--") {
            options.steps.push(arg);
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{arg} {value}: expected a number"));
        match arg.as_str() {
            "--nccl" => options.nccl = Some(value.into()),
            "--cuda" => options.cuda = Some(value.into()),
            "--scenario" => options.scenario = Some(ScenarioFile::read(value.as_ref())?),
            "--topology" => options.topology = Some(value.parse()?),
            "--hosts" => options.hosts = Some(number()?),
            "--devices" => options.devices = Some(number()?),
            "--timeout-s" => options.timeout_s = Some(number()? as u64),
            _ => return Err(format!("unknown option {arg}")),
        }
    }
    match &options.scenario {
        Some(_) if !options.steps.is_empty() => Err("a scenario has its own steps".into()),
        Some(_) => Ok(options),
        None if options.steps.is_empty() => Err("no step is given".into()),
        None if options.nccl.is_none() => Err("--nccl is missing".into()),
        None => Ok(options),
    }
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
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("job: {error}");
            return ExitCode::from(2);
        }
    };
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
