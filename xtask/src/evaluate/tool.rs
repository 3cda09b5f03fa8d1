// SPDX-License-Identifier: Apache-2.0
//! Runs the tool, and measures the time and the memory that it takes.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::outcome::Outcome;

/// How often the memory is looked at. A shorter peak may be missed.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Time and memory of some runs of the tool.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Spent {
    /// Time of all runs together, s.
    pub(super) seconds: f64,
    /// The largest resident set of a run, KiB.
    pub(super) peak_kib: u64,
}

impl Spent {
    /// Adds the runs of `other`.
    pub(super) fn add(&mut self, other: Spent) {
        self.seconds += other.seconds;
        self.peak_kib = self.peak_kib.max(other.peak_kib);
    }

    /// Runs the tool and returns its JSON.
    ///
    /// # Errors
    /// It failed, or prints something else.
    pub(super) fn json(&mut self, command: &mut Command) -> Outcome<Value> {
        let begin = Instant::now();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn()?;
        let status = format!("/proc/{}/status", child.id());
        let is_over = AtomicBool::new(false);
        let (output, peak_kib) = thread::scope(|scope| {
            let watch = scope.spawn(|| watched(&status, &is_over));
            let output = child.wait_with_output();
            is_over.store(true, Ordering::Relaxed);
            (output, watch.join().unwrap_or_default())
        });
        self.add(Spent { seconds: begin.elapsed().as_secs_f64(), peak_kib });
        Ok(serde_json::from_str(&printed(command, output?)?)?)
    }
}

/// The tool's output.
pub(super) fn text(command: &mut Command) -> Outcome<String> {
    let output = command.stdin(Stdio::null()).output()?;
    printed(command, output)
}

/// What a run of the tool printed. Exit status 1 means that it found something.
fn printed(command: &Command, output: Output) -> Outcome<String> {
    match output.status.code() {
        Some(0 | 1) => Ok(String::from_utf8(output.stdout)?),
        _ => {
            let words = String::from_utf8_lossy(&output.stderr);
            Err(format!("{command:?}: {}: {}", output.status, words.trim_end()).into())
        }
    }
}

/// The tool's output as JSON.
pub(super) fn json(command: &mut Command) -> Outcome<Value> {
    Ok(serde_json::from_str(&text(command)?)?)
}

/// The largest resident set that a process had until it was over, KiB.
fn watched(status: &str, is_over: &AtomicBool) -> u64 {
    let mut peak = 0;
    while !is_over.load(Ordering::Relaxed) {
        peak = peak.max(peak_kib(&fs::read_to_string(status).unwrap_or_default()));
        thread::sleep(LOOK_EVERY);
    }
    peak
}

/// `VmHWM` of a process's status (proc_pid_status(5)); 0 of one that has ended.
fn peak_kib(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read() {
        assert_eq!(peak_kib("Name:\tx\nVmHWM:\t    1234 kB\nVmRSS:\t 9 kB\n"), 1234);
        assert_eq!(peak_kib("Name:\tx\nState:\tZ (zombie)\n"), 0);
    }

    #[test]
    fn a_run_is_measured() {
        let mut spent = Spent::default();
        let mut command = Command::new("sh");
        let value = spent.json(command.args(["-c", "sleep 0.1; echo '{\"a\": 1}'"]));
        assert_eq!(value.expect("JSON")["a"], 1);
        assert!(spent.seconds >= 0.1 && spent.peak_kib > 100, "{spent:?}");
    }
}
