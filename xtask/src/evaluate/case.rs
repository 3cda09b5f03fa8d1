// SPDX-License-Identifier: Apache-2.0
//! One simulated job: its simulation, the tool's verdict, and the comparison with the planted
//! faults.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::answer;
use super::answered::{Answered, Verbs};
use super::circumstance::{Circumstance, recordings};
use super::score::{Cause, Score};
use super::tool::{Spent, json, text};
use crate::outcome::Outcome;

/// The effect of a planted fault on a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    Hang,
    Slow,
    Control,
}

/// A line of `ncclscope simulate --list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) name: String,
    pub(super) group: Group,
}

impl Fault {
    /// The faults that the simulator knows.
    pub(super) fn all(tool: &Path) -> Outcome<Vec<Fault>> {
        let list = json(Command::new(tool).args(["simulate", "--list", "--format", "json"]))?;
        let rows = list["faults"].as_array().ok_or("simulate --list: no `faults`")?;
        let faults: Option<Vec<Fault>> = rows.iter().map(Fault::read).collect();
        Ok(faults.ok_or("simulate --list: a fault without name or group")?)
    }

    fn read(row: &Value) -> Option<Fault> {
        let group = match row["group"].as_str()? {
            "hang" => Group::Hang,
            "slow" => Group::Slow,
            "control" => Group::Control,
            _ => return None,
        };
        Some(Fault { name: row["name"].as_str()?.to_owned(), group })
    }
}

/// A job to simulate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) fault: Fault,
    pub(super) ranks: u64,
    pub(super) seed: u64,
    pub(super) circumstance: Circumstance,
}

/// Offset of the seed of the other job.
const OTHER_SEED: u64 = 1000;

/// What is said about a case.
#[derive(Debug, Clone, Default)]
pub(super) struct Judged {
    pub(super) score: Score,
    pub(super) planted: Vec<Cause>,
    pub(super) answered: Answered,
    /// The mistake in the first lines of the report, if any.
    pub(super) mistake: Option<String>,
}

impl Case {
    /// The name that distinguishes this case from others.
    pub(super) fn name(&self) -> String {
        let circumstance = self.circumstance.name();
        format!("{}-{}-{}-{circumstance}", self.fault.name, self.ranks, self.seed)
    }

    /// Writes the job's recordings to `folder`, and what its circumstance adds.
    pub(super) fn simulate(&self, tool: &Path, folder: &Path) -> Outcome<()> {
        let scenario = self.circumstance.scenario(self.fault.group == Group::Hang);
        let fault = ["--fault", self.fault.name.as_str()];
        simulate(tool, folder, scenario, self.ranks, self.seed, &fault)?;
        let Some(other) = self.circumstance.other(self.ranks) else { return Ok(()) };
        let beside = Folder::new(folder.with_extension("other"))?;
        simulate(tool, &beside.0, "", other.ranks, self.seed + OTHER_SEED, other.options)?;
        for file in recordings(&beside.0)?.into_iter().take(other.left) {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            fs::rename(&file, folder.join(format!("{name}.1")))?;
        }
        Ok(())
    }

    /// Simulates and judges the case in a folder below `scratch`, which is removed afterwards.
    pub(super) fn run(&self, tool: &Path, scratch: &Path) -> Outcome<Judged> {
        let folder = Folder::new(scratch.join(self.name()))?;
        self.simulate(tool, &folder.0)?;
        self.judge(tool, &folder.0)
    }

    pub(super) fn judge(&self, tool: &Path, folder: &Path) -> Outcome<Judged> {
        let truth: Value = serde_json::from_str(&fs::read_to_string(folder.join("truth.json"))?)?;
        let run = || vec!["--run".to_owned(), format!("simulated-{}", self.seed)];
        let options = if self.circumstance.has_two_runs() { run() } else { Vec::new() };
        let mut spent = Spent::default();
        let mut verb = |verb| {
            let mut command = Command::new(tool);
            spent.json(command.args([verb, "--format", "json"]).arg(folder).args(&options))
        };
        let mut said = Verbs { diagnose: verb("diagnose")?, ..Verbs::default() };
        said.report = verb("report")?;
        let mut planted = Cause::list(&truth["verdicts"])?;
        if self.fault.group != Group::Hang {
            said.stragglers = verb("stragglers")?;
            planted.extend(Cause::list(&truth["slow"])?);
        }
        let hangs = self.fault.group == Group::Hang;
        let report = text(Command::new(tool).arg("report").arg(folder).args(&options))?;
        let mistake = answer::mistake(&report, &said.report["answer"], &planted, hangs);
        let answered = Answered::read(&said, spent)?;
        Ok(Judged { score: Score::of(&planted, &answered.causes()), planted, answered, mistake })
    }
}

/// Writes the recordings of a job whose scenario file has this text, and `more` options.
pub(super) fn simulate(
    tool: &Path,
    folder: &Path,
    scenario: &str,
    ranks: u64,
    seed: u64,
    more: &[&str],
) -> Outcome<()> {
    let file = folder.with_extension("toml");
    fs::write(&file, scenario)?;
    let mut command = Command::new(tool);
    command.arg("simulate").arg(&file).args(more).arg("-o").arg(folder);
    command.args(["--ranks", &ranks.to_string(), "--seed", &seed.to_string()]);
    let done = text(&mut command).map(drop);
    fs::remove_file(&file)?;
    done
}

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(path: PathBuf) -> Outcome<Folder> {
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Remaining files are overwritten the next time.
        let _gone = fs::remove_dir_all(&self.0);
    }
}
