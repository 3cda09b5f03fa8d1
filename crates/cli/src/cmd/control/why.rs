// SPDX-License-Identifier: Apache-2.0
//! `ncclscope dump --why`: what processes wait for now, according to their own reports.

use crate::args::Format;
use crate::control::{Process, at_once};
use crate::failure::{FINDINGS, Failure, warn};
use crate::output;
use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};
use std::process::ExitCode;

/// `dump --why --format json`.
#[derive(Serialize)]
struct WhyReport {
    schema: &'static str,
    processes: Vec<WaitingProcess>,
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
pub(super) fn tell(chosen: &[Process], format: Format) -> Result<ExitCode, Failure> {
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
    let is_stuck = |hang: &Value| hang["event"] == "hung";
    let stuck = processes.iter().flat_map(|process| &process.in_flight).any(is_stuck);
    match format {
        Format::Json => output::json(&WhyReport { schema: "ncclscope.why/2", processes })?,
        Format::Text => processes.iter().try_for_each(print)?,
    }
    Ok(if stuck { ExitCode::from(FINDINGS) } else { ExitCode::SUCCESS })
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
