// SPDX-License-Identifier: Apache-2.0
//! The outcome of a job.

use std::fmt::{self, Write as _};
use std::process::ExitStatus;
use std::time::Duration;

/// The outcome of a job.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// One entry per rank, in order.
    pub ranks: Vec<RankOutcome>,
    /// Ranks were killed by the job's timeout.
    pub timed_out: bool,
    /// From the start of the first rank to the end of the last.
    pub elapsed: Duration,
}

/// The outcome of a rank.
#[derive(Debug, Clone)]
pub struct RankOutcome {
    /// Its number.
    pub rank: usize,
    /// Its exit status; `None` if unknown.
    pub status: Option<ExitStatus>,
    /// The rig killed it: on request, because another rank failed, or by the timeout.
    pub killed: bool,
    /// Lines of its standard output, NCCL's warnings among them.
    pub stdout: Vec<String>,
    /// Lines of its standard error.
    pub stderr: Vec<String>,
    /// Lines beyond the limit of 20,000 for each output.
    pub lines_dropped: usize,
}

impl RankOutcome {
    pub(super) fn new(rank: usize) -> Self {
        let (stdout, stderr) = (vec![], vec![]);
        Self { rank, status: None, killed: false, stdout, stderr, lines_dropped: 0 }
    }

    /// Whether it exited with status 0.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Number of steps that it reported as done with right results: lines `rank R STEP ok …`,
    /// without those of init and destroy.
    #[must_use]
    pub fn steps_done(&self) -> usize {
        let prefix = format!("rank {} ", self.rank);
        let is_step = |line: &&String| {
            line.strip_prefix(&prefix).is_some_and(|rest| {
                rest.contains(" ok ")
                    && !["init ok", "destroy ok"].iter().any(|own| rest.starts_with(own))
            })
        };
        self.stdout.iter().filter(is_step).count()
    }
}

impl Outcome {
    /// Whether all ranks exited with status 0 in time.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        !self.timed_out && self.ranks.iter().all(RankOutcome::succeeded)
    }

    /// Fails a test with all output if a rank failed.
    ///
    /// # Panics
    /// A rank failed or timed out.
    #[track_caller]
    pub fn expect_success(&self) {
        assert!(self.succeeded(), "the job failed\n{self}");
    }
}

impl fmt::Display for Outcome {
    /// The exit status and output of all ranks, for a failed test.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        writeln!(f, "{} ranks, {seconds:.1} s, timed out: {}", self.ranks.len(), self.timed_out)?;
        for rank in &self.ranks {
            let mut end = rank.status.map_or_else(|| "unknown".into(), |status| status.to_string());
            if rank.killed {
                write!(end, ", killed by the rig")?;
            }
            writeln!(f, "--- rank {}: {end}, {} lines dropped", rank.rank, rank.lines_dropped)?;
            for line in rank.stdout.iter().chain(&rank.stderr) {
                writeln!(f, "{line}")?;
            }
        }
        Ok(())
    }
}
