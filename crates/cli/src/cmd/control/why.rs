// SPDX-License-Identifier: Apache-2.0
//! `ncclscope dump --why`: what processes wait for now, according to their own reports, and why,
//! according to the recordings of all of their jobs.

use crate::args::Format;
use crate::control::{Process, at_once};
use crate::io::output;
use crate::run_input::input::recordings_in;
use ncclscope_console::failure::{FINDINGS, Failure, warn};
use ncclscope_diagnose::Diagnosis;
use ncclscope_node::judged::{Judged, judged};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// `dump --why --format json`.
#[derive(Serialize)]
struct WhyReport {
    schema: &'static str,
    processes: Vec<WaitingProcess>,
    /// What `diagnose` finds in the recordings of their jobs.
    jobs: Vec<Diagnosis>,
}

#[derive(Serialize)]
struct WaitingProcess {
    pid: u32,
    /// Operations and calls in flight, the oldest of each communicator.
    in_flight: Vec<Value>,
    /// Number of operations and calls in flight that are not listed.
    more: u64,
    /// The kinds of hangs that its watchdog cannot see, with the reason.
    blind: Vec<String>,
}

/// Asks each process and prints the answers; a process that refuses is reported.
pub(super) fn tell(
    chosen: &[Process],
    limit: Duration,
    format: Format,
) -> Result<ExitCode, Failure> {
    let mut processes = Vec::new();
    for (process, why) in chosen.iter().zip(at_once(chosen, Process::why)) {
        match why {
            Ok((in_flight, more, blind)) => {
                processes.push(WaitingProcess { pid: process.pid, in_flight, more, blind });
            }
            Err(problem) => warn(problem),
        }
    }
    if processes.is_empty() {
        return Err(Failure::environment("no process reported what it waits for"));
    }
    let jobs = jobs(chosen, limit);
    let is_stuck = |hang: &Value| hang["event"] == "hung";
    let is_found = jobs.iter().any(|job| !job.found.findings.is_empty());
    let stuck = processes.iter().flat_map(|process| &process.in_flight).any(is_stuck);
    match format {
        Format::Text => {
            let lines = jobs.iter().flat_map(Judged::lines).map(|line| line + "\n");
            output::text(&lines.collect::<String>())?;
            processes.iter().try_for_each(print)?;
        }
        Format::Json => {
            let jobs = jobs.into_iter().map(|job| job.found).collect();
            output::json(&WhyReport { schema: "ncclscope.why/2", processes, jobs })?;
        }
    }
    Ok(if stuck || is_found { ExitCode::from(FINDINGS) } else { ExitCode::SUCCESS })
}

/// The jobs of these processes. Recordings of processes that are gone lie beside theirs.
fn jobs(chosen: &[Process], limit: Duration) -> Vec<Judged> {
    let paths = chosen.iter().map(|process| process.status.recording.clone());
    let living: BTreeSet<PathBuf> = paths.filter(|path| path.is_file()).collect();
    let places: BTreeSet<&Path> = living.iter().filter_map(|path| path.parent()).collect();
    let others = places.into_iter().filter_map(|place| recordings_in(place).ok()).flatten();
    judged(&living, &others.collect::<Vec<_>>(), limit)
}

fn print(process: &WaitingProcess) -> io::Result<()> {
    let mut out = output::screen();
    if process.in_flight.is_empty() {
        writeln!(out, "pid {}: nothing is in flight", process.pid)?;
    }
    for hang in &process.in_flight {
        let lines = hang["text"].as_array().into_iter().flatten().filter_map(Value::as_str);
        lines.into_iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    if process.more > 0 {
        writeln!(out, "pid {}: {} more are in flight", process.pid, process.more)?;
    }
    for line in &process.blind {
        writeln!(out, "pid {}: {line}", process.pid)?;
    }
    out.flush()
}
