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
    /// Threads and clocks decide in it, and the machine may do other things: what fails is run once
    /// more, and called flaky if it passes then, which is a defect to be traced.
    pub(crate) again: bool,
    /// A command that does some of its work beside the tests, at the lowest priority. The job does
    /// what this left undone, and says what is wrong with it.
    pub(crate) prepare: Option<&'static str>,
    /// The job beside which all of it runs, at the lowest priority.
    pub(crate) with: Option<&'static str>,
}

impl Job {
    /// One that does nothing.
    pub(crate) const NONE: Job =
        Job { name: "", command: "", env: &[], again: false, prepare: None, with: None };

    /// One that needs nothing of the environment and is run once.
    pub(crate) const fn new(name: &'static str, command: &'static str) -> Job {
        Job { name, command, ..Job::NONE }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum JobResult {
    Passed,
    /// The second time.
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

    /// What a second run makes of it.
    pub(crate) fn flaky(self) -> Self {
        if self == Self::Passed { Self::Flaky } else { self }
    }
}

/// How a job ended, and what it printed.
pub(crate) type Done = Outcome<(JobResult, String)>;

/// `words` with the job's environment, ended after `limit`.
pub(crate) fn timed(job: &Job, words: &str, limit: Duration) -> Command {
    // `timeout` leads a process group of its own and ends all of it, which needs no code here.
    let seconds = limit.as_secs().max(1).to_string();
    let mut command = process::command(&["timeout", "--kill-after=30", &seconds]);
    command.args(words.split(' ')).envs(job.env.iter().copied());
    // The output is read again for its summary: no colour codes in it.
    command.env("CARGO_TERM_COLOR", "never");
    command
}

/// Runs a job for so long at most, and prints what it prints.
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
