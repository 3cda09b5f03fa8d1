// SPDX-License-Identifier: Apache-2.0
//! One cell: a job under `ncclscope run`, then a check of its recordings and, for a job without a
//! fault, a check that `diagnose` finds none.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::scenario::Scenario;
use super::topology::{REFUSALS, Topology};
use super::verdict::{self, Verdict};
use super::wheel::Wheel;
use super::workload::Workload;
use crate::process;

/// Time limit of a cell's job, s.
const LIMIT_S: &str = "180";

/// The programs, as `build::products` makes them.
pub(super) struct Tools {
    pub(super) folder: PathBuf,
    /// The plugin as it ships.
    pub(super) plugin: PathBuf,
}

/// A release on a topology.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) wheel: Wheel,
    pub(super) topology: Topology,
    /// A row of the page's table; `None`: the mixed steps.
    pub(super) workload: Option<Workload>,
    /// A scenario that replaces the steps.
    pub(super) scenario: Option<Scenario>,
}

/// How NCCL refused to make a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused {
    /// What it said.
    pub(super) said: &'static str,
    /// Whether the plugin was loaded before, and its `init` called, so that there are recordings.
    pub(super) is_recorded: bool,
}

#[derive(Debug)]
pub(super) enum Ended {
    Checked(Verdict),
    /// NCCL refused to make the communicator, as it must.
    Refused(Refused),
    Failed(Vec<String>),
}

/// The result of a cell, and its duration.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) seconds: f64,
    pub(super) ended: Ended,
}

impl Cell {
    /// The name that distinguishes cells of one release.
    pub(super) fn name(&self) -> String {
        let scenario = self.scenario.as_ref().map(Scenario::name);
        let part = self.workload.map(|workload| workload.name.to_owned()).or(scenario);
        match part {
            Some(part) => format!("{}/{part}", self.topology.name),
            None => self.topology.name.to_owned(),
        }
    }

    pub(super) fn run(&self, tools: &Tools) -> Outcome {
        let begin = Instant::now();
        let failed = |error: Box<dyn std::error::Error>| Ended::Failed(vec![error.to_string()]);
        let ended = self.job(tools).unwrap_or_else(failed);
        Outcome { seconds: begin.elapsed().as_secs_f64(), ended }
    }

    fn job(&self, tools: &Tools) -> crate::outcome::Outcome<Ended> {
        let folder = Path::new("target/matrix").join(&self.wheel.label).join(self.name());
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let log = folder.with_extension("log");
        let output = File::create(&log)?;
        let mut command = process::command(&["timeout", "--kill-after=10", LIMIT_S]);
        command.arg(tools.folder.join("ncclscope")).arg("run").arg("-o").arg(&folder).arg("--");
        command.arg(tools.folder.join("job")).arg("--nccl").arg(self.wheel.release.library()?);
        self.add_steps(&mut command);
        command.env("NCCLSCOPE_PLUGIN", &tools.plugin);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let status = command.status()?;
        if self.topology.is_refused() {
            return refused(&log, &folder);
        }
        if !status.success() {
            return Ok(Ended::Failed(last_words(&log, &format!("the job: {status}"))));
        }
        self.check(tools, &folder)
    }

    fn add_steps(&self, command: &mut Command) {
        if let Some(scenario) = &self.scenario {
            command.arg("--scenario").arg(&scenario.file);
            return;
        }
        let steps = self.workload.map_or_else(|| self.topology.steps(), |w| w.steps);
        command.args(self.topology.job_options()).args(steps);
    }

    fn check(&self, tools: &Tools, folder: &Path) -> crate::outcome::Outcome<Ended> {
        let mut command = Command::new(tools.folder.join("check"));
        command.arg("--json");
        let Topology { ranks, nodes, .. } = self.topology;
        command.args(["--ranks", &ranks.to_string(), "--nodes", &nodes.to_string()]);
        if let Some(scenario) = &self.scenario {
            let hangs: &[&str] =
                if scenario.hangs { &["--aborted-ok", "--killed-ok"] } else { &[] };
            command.args(hangs).args(scenario.spoils_ptimer.then_some("--ptimer-ok"));
        }
        let output = command.arg(folder).stdin(Stdio::null()).output()?;
        let Some(verdict) = verdict::read(&String::from_utf8_lossy(&output.stdout)) else {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Ok(Ended::Failed(vec![format!("{}: {}", output.status, stderr.trim())]));
        };
        if verdict.comms == 0 {
            return Ok(Ended::Failed(vec!["nothing was recorded".into()]));
        }
        if self.scenario.is_none()
            && let Some(said) = diagnosis(tools, folder)?
        {
            return Ok(Ended::Failed(vec![format!("a verdict on a healthy job: {said}")]));
        }
        Ok(Ended::Checked(verdict))
    }
}

/// The end of a job whose ranks share a GPU.
fn refused(log: &Path, folder: &Path) -> crate::outcome::Outcome<Ended> {
    let text = fs::read_to_string(log)?;
    let Some(said) = REFUSALS.into_iter().find(|said| text.contains(said)) else {
        return Ok(Ended::Failed(last_words(log, "NCCL did not refuse it")));
    };
    let mut files = fs::read_dir(folder)?.flatten().map(|file| file.file_name());
    let is_recorded = files.any(|name| name.to_string_lossy().contains(".nscope"));
    Ok(Ended::Refused(Refused { said, is_recorded }))
}

/// The finding of `ncclscope diagnose` on a job that ended normally, which should have none.
fn diagnosis(tools: &Tools, folder: &Path) -> crate::outcome::Outcome<Option<String>> {
    let mut command = Command::new(tools.folder.join("ncclscope"));
    let output = command.arg("diagnose").arg(folder).stdin(Stdio::null()).output()?;
    let said = || {
        let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        String::from_utf8_lossy(&text).trim().to_owned()
    };
    Ok((!output.status.success()).then(said))
}

/// Why a job failed: lines of its log that look like a reason, else its last lines.
fn last_words(log: &Path, what: &str) -> Vec<String> {
    const LINES: usize = 6;
    const REASONS: [&str; 6] = ["WARN", "wrong", "panicked", "job: ", "refused", "cpu-cuda"];
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let is_reason = |line: &&str| REASONS.iter().any(|reason| line.contains(reason));
    let mut said: Vec<&str> = lines().filter(is_reason).collect();
    if said.is_empty() {
        said = lines().collect();
        said.drain(..said.len().saturating_sub(LINES));
    }
    let head = format!("{what}; all of it is in {}", log.display());
    std::iter::once(head).chain(said.iter().take(LINES).map(|line| (*line).to_owned())).collect()
}

impl Outcome {
    /// The content of the recordings, if the job succeeded.
    pub(super) fn verdict(&self) -> Option<&Verdict> {
        match &self.ended {
            Ended::Checked(verdict) => Some(verdict),
            _ => None,
        }
    }

    /// True if the cell failed.
    pub(super) fn has_failed(&self) -> bool {
        match &self.ended {
            Ended::Checked(verdict) => !verdict.violations.is_empty(),
            Ended::Refused(_) => false,
            Ended::Failed(_) => true,
        }
    }

    /// The result in one word.
    pub(super) fn word(&self) -> &'static str {
        match self.ended {
            _ if self.has_failed() => "FAILED",
            Ended::Refused(_) => "refused",
            _ => "ok",
        }
    }

    /// The events by kind, of all ranks.
    pub(super) fn events(&self) -> String {
        let Some(verdict) = self.verdict() else { return String::new() };
        let kinds = verdict.kinds.iter();
        kinds.map(|(kind, count)| format!("{kind} {}", count.started)).collect::<Vec<_>>().join(" ")
    }

    /// The reasons for which it failed.
    pub(super) fn reasons(&self) -> Vec<String> {
        match &self.ended {
            Ended::Checked(verdict) => verdict.violations.clone(),
            Ended::Refused(_) => Vec::new(),
            Ended::Failed(lines) => lines.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_job_tells_its_last_words() {
        let log = std::env::temp_dir().join(format!("matrix-{}.log", std::process::id()));
        fs::write(&log, "1\n2\n\n3\n4\n5\n6\n7\n").expect("a file");
        let words = last_words(&log, "the job: 1");
        assert_eq!(words[1..], ["2", "3", "4", "5", "6", "7"]);
        fs::write(&log, "rank 0 ok\nNCCL WARN no\njob: failed\nREPORT\n").expect("a file");
        assert_eq!(last_words(&log, "")[1..], ["NCCL WARN no", "job: failed"]);
        fs::remove_file(&log).expect("it is there");
        assert!(words[0].starts_with("the job: 1; all of it is in"), "{}", words[0]);
    }

    #[test]
    fn a_violation_fails_the_cell() {
        let outcome = |violations| Outcome {
            seconds: 0.0,
            ended: Ended::Checked(Verdict { violations, ..Verdict::default() }),
        };
        assert_eq!(outcome(vec![]).word(), "ok");
        assert_eq!(outcome(vec!["f: open: x".into()]).word(), "FAILED");
        let failed = Outcome { seconds: 0.0, ended: Ended::Failed(vec!["no".into()]) };
        assert_eq!((failed.word(), failed.reasons()), ("FAILED", vec!["no".into()]));
    }
}
