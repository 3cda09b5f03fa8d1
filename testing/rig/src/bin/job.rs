// SPDX-License-Identifier: Apache-2.0
//! A whole job on this machine: starts the ranks, shows what they say, and ends as they do.
//!
//! `job --nccl LIBNCCL [--cuda SO] [--hosts N] [--devices N] [--timeout-s S] STEP…`; two hosts of
//! one device each unless told otherwise, on the CPU stand-in or with a real libcudart. Variables
//! of the environment reach the ranks. Exit codes: 0 all ranks did their steps, 1 they did not,
//! 2 usage, 4 they could not be started.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks")]

use rig::job::Job;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Default)]
struct Options {
    nccl: Option<PathBuf>,
    cuda: Option<PathBuf>,
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
            "--hosts" => options.hosts = Some(number()?),
            "--devices" => options.devices = Some(number()?),
            "--timeout-s" => options.timeout_s = Some(number()? as u64),
            _ => return Err(format!("unknown option {arg}")),
        }
    }
    if options.steps.is_empty() {
        return Err("no step is given".into());
    }
    Ok(options)
}

fn job(options: Options) -> Result<Job, String> {
    let nccl = options.nccl.ok_or("--nccl is missing")?;
    let mut job = Job::new(&nccl)?.steps(options.steps);
    // A job shields its ranks from the caller's NCCL settings; here the caller means them.
    for (name, value) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NCCL") {
            job = job.env(name, value);
        }
    }
    if let Some(cuda) = options.cuda {
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

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("job: {error}");
            return ExitCode::from(2);
        }
    };
    let outcome = match job(options).and_then(|job| job.run()) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("job: {error}");
            return ExitCode::from(4);
        }
    };
    for rank in &outcome.ranks {
        for line in &rank.stdout {
            println!("{line}");
        }
        for line in &rank.stderr {
            eprintln!("{line}");
        }
    }
    if outcome.succeeded() {
        return ExitCode::SUCCESS;
    }
    let why = if outcome.timed_out { "timed out" } else { "failed" };
    eprintln!("job: {why} after {:.1} s", outcome.elapsed.as_secs_f64());
    ExitCode::FAILURE
}
