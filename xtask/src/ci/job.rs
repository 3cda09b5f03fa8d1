// SPDX-License-Identifier: Apache-2.0
//! A job of `cargo xtask ci`: its commands, and its result.

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::outcome::Outcome;
use crate::process;

/// The job of all tests, beside which later jobs are prepared.
pub(crate) const TESTS: &str = "test";

/// One check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    pub(crate) name: &'static str,
    /// The command, its words separated by spaces.
    pub(crate) command: &'static str,
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// The job depends on threads and clocks, which other load on the machine may disturb. If it
    /// fails, it is run once more, and called flaky if it passes then, which is a defect to be
    /// traced.
    pub(crate) again: bool,
    /// A command that does part of the job's work beside the tests, at the lowest priority. The job
    /// does the rest, and reports the errors.
    pub(crate) prepare: Option<&'static str>,
    /// The job beside which the whole job runs, at the lowest priority.
    pub(crate) with: Option<&'static str>,
}

impl Job {
    /// A job that does nothing.
    pub(crate) const NONE: Job =
        Job { name: "", command: "", env: &[], again: false, prepare: None, with: None };

    /// A job without special environment that is run once.
    pub(crate) const fn new(name: &'static str, command: &'static str) -> Job {
        Job { name, command, ..Job::NONE }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum JobResult {
    Passed,
    /// Passed the second time.
    Flaky,
    Failed,
    TimedOut,
}

impl JobResult {
    pub(crate) fn of(status: ExitStatus, is_late: bool) -> Self {
        match status.code() {
            Some(0) => Self::Passed,
            _ if is_late => Self::TimedOut,
            _ => Self::Failed,
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Flaky => "ok the second time: FLAKY",
            Self::Failed => "FAILED",
            Self::TimedOut => "TIMED OUT",
        }
    }

    /// The result after a second run with result `self`.
    pub(crate) fn flaky(self) -> Self {
        if self == Self::Passed { Self::Flaky } else { self }
    }
}

/// The result of a job, and its output.
pub(crate) type Done = Outcome<(JobResult, String)>;

/// The command `words` with the job's environment, killed after `limit`.
pub(crate) fn timed(job: &Job, words: &str, limit: Duration) -> Command {
    // `timeout` leads its own process group and kills all of it, which needs no code here.
    let seconds = limit.as_secs().max(1).to_string();
    let mut command = process::command(&["timeout", "--kill-after=30", &seconds]);
    command.args(words.split(' ')).envs(job.env.iter().copied());
    // The output is parsed for its summary, so that it must contain no colour codes.
    command.env("CARGO_TERM_COLOR", "never");
    command
}

/// Runs a job for at most `limit`, and prints its output.
pub(crate) fn run_job(job: &Job, limit: Duration) -> Done {
    let mut command = timed(job, job.command, limit);
    let begin = Instant::now();
    let (status, output) = process::tee(&mut command)?;
    let result = JobResult::of(status, begin.elapsed() >= limit);
    Ok((result, output))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_report_their_end() {
        let job = |command| Job { command, env: &[("LC_ALL", "C")], ..Job::NONE };
        let minute = Duration::from_secs(60);
        let (result, output) = run_job(&job("printenv LC_ALL"), minute).expect("printenv runs");
        assert_eq!((result, output.as_str()), (JobResult::Passed, "C\n"));
        assert_eq!(run_job(&job("false"), minute).expect("false runs").0, JobResult::Failed);
        let late = run_job(&job("sleep 60"), Duration::from_millis(10)).expect("sleep runs");
        assert_eq!(late.0, JobResult::TimedOut);
        assert_eq!((late.0.flaky(), result.flaky()), (JobResult::TimedOut, JobResult::Flaky));
    }
}
