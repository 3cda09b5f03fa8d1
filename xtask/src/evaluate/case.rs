// SPDX-License-Identifier: Apache-2.0
//! One simulated job: its simulation, the tool's verdict, and the comparison with the planted
//! faults.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::answer;
use super::circumstance::{Circumstance, recordings};
use super::score::{Cause, Score};
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

#[derive(Debug, Clone, Default)]
pub(super) struct Judged {
    pub(super) score: Score,
    pub(super) planted: Vec<Cause>,
    pub(super) found: Vec<Cause>,
    /// The mistake in the first lines of the report, if any.
    pub(super) mistake: Option<String>,
    /// Time from the injection to the verdict with the default threshold, s; only for hangs.
    pub(super) detected_s: Option<f64>,
    /// Observed time in rank hours.
    pub(super) rank_hours: f64,
    /// What `ncclscope stragglers` says; null for hangs.
    pub(super) slow: Value,
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
        let verb = |verb| {
            let mut command = Command::new(tool);
            json(command.args([verb, "--format", "json"]).arg(folder).args(&options))
        };
        let diagnosis = verb("diagnose")?;
        let mut found = Cause::list(&diagnosis["findings"])?;
        let mut planted = Cause::list(&truth["verdicts"])?;
        let mut slow = Value::Null;
        if self.fault.group != Group::Hang {
            slow = verb("stragglers")?;
            found.extend(Cause::list(&slow["findings"])?);
            planted.extend(Cause::list(&truth["slow"])?);
        }
        let hangs = self.fault.group == Group::Hang;
        let report = text(Command::new(tool).arg("report").arg(folder).args(&options))?;
        let mistake = answer::mistake(&report, &verb("report")?["answer"], &planted, hangs);
        let seconds = truth["seconds"].as_f64().unwrap_or(0.0);
        Ok(Judged {
            score: Score::of(&planted, &found),
            planted,
            found,
            mistake,
            detected_s: detection(&truth, &diagnosis),
            rank_hours: seconds * rank_count(self.ranks) / 3600.0,
            slow,
        })
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

#[expect(clippy::cast_precision_loss, reason = "numbers of ranks")]
fn rank_count(ranks: u64) -> f64 {
    ranks as f64
}

/// The age from which `ncclscope diagnose` considers an operation stuck, s.
const THRESHOLD_S: f64 = 30.0;

/// When a hang would be reported if it were looked for once a second and believed when the counters
/// stood still twice: the threshold plus two seconds after the oldest waiting operation began.
fn detection(truth: &Value, diagnosis: &Value) -> Option<f64> {
    let ages = diagnosis["findings"].as_array()?.iter().filter_map(|v| v["age_ns"].as_u64());
    let oldest = std::time::Duration::from_nanos(ages.max()?).as_secs_f64();
    let [ended, injected] = ["ended_ns", "injected_ns"].map(|name| truth[name].as_u64());
    let left = std::time::Duration::from_nanos(ended?.saturating_sub(injected?)).as_secs_f64();
    Some((left - oldest).max(0.0) + THRESHOLD_S + 2.0)
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

/// The tool's output. Exit status 1 means that it found something.
pub(super) fn text(command: &mut Command) -> Outcome<String> {
    let output = command.stdin(Stdio::null()).output()?;
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
