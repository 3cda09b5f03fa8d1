// SPDX-License-Identifier: Apache-2.0
//! Recordings of real NCCL that the repository has: of the cluster in a box, with a scenario file
//! each, which has the truth and makes the recordings again; and of an H100.
//!
//! `cargo xtask evaluate --record` runs the scenarios and replaces the recordings.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use ncclscope_findings::FindingClass;
use serde::Deserialize;

use super::answered::{Answered, OF_RECORDINGS};
use super::case::Folder;
use super::figures::{Expected, Truth};
use super::table::{Origin, Table};
use crate::outcome::Outcome;
use crate::{build, nccl, process};

/// Scenarios, each with a folder of the same name for its recordings.
const BOX: &str = "xtask/evaluation/box";
/// Recordings of two ranks on one H100 (crates/cli/tests/h100/mod.rs).
const H100: &str = "crates/cli/tests/h100";
/// Where `cluster` puts what a job left.
const RUNS: &str = "target/evaluation-box";
/// The release and CUDA version of the scenarios.
const RELEASE: (&str, u8) = ("2.28.9", 12);
/// Maximum size of a job's packed recordings, bytes.
const MOST: u64 = 1_000_000;

/// What the table needs of a scenario file (`testing/cluster/src/scenario.rs`).
#[derive(Debug, Deserialize)]
struct Scenario {
    kind: String,
    truth: Right,
}

#[derive(Debug, Deserialize)]
struct Right {
    /// Any of these is right; a slow job without one need not be explained.
    #[serde(default)]
    classes: Vec<String>,
    /// The ranks at fault are one of these sets; without a class, ranks that may be named.
    #[serde(default)]
    ranks: Vec<BTreeSet<u64>>,
    /// The part of a step that the job would save without the fault.
    cost: Option<f64>,
}

impl Scenario {
    fn read(path: &Path) -> Outcome<Scenario> {
        Ok(toml::from_str(&fs::read_to_string(path)?)?)
    }

    fn truth(&self) -> Outcome<Truth> {
        let classes: Vec<FindingClass> =
            self.truth.classes.iter().map(|class| class.parse()).collect::<Result<_, _>>()?;
        let ranks = self.truth.ranks.clone();
        let (causes, allowed) = match classes.is_empty() {
            true => (vec![], ranks.into_iter().flatten().collect()),
            false => (vec![Expected { classes, ranks }], BTreeSet::new()),
        };
        Ok(Truth {
            has_fault: self.kind != "healthy",
            causes,
            allowed,
            cost: self.truth.cost,
            is_slow: self.kind == "slow",
            ..Truth::default()
        })
    }
}

/// Judges all recordings.
///
/// # Errors
/// A file cannot be read, or the tool fails.
pub(super) fn run(table: &mut Table, (tool, scratch): (&Path, &Path)) -> Outcome<()> {
    println!("\nrecordings of real NCCL");
    let mut judge = |row: &str, folder: &Path, truth: &Truth| -> Outcome<()> {
        let plain = Folder::new(scratch.join("recorded"))?;
        unpack(folder, &plain.0)?;
        let said = Answered::ask(tool, OF_RECORDINGS, std::slice::from_ref(&plain.0))?;
        table.add((row, Origin::Others), &folder.display().to_string(), truth, &said);
        Ok(())
    };
    for scenario in scenarios(&[])? {
        let truth = Scenario::read(&scenario)?.truth()?;
        judge("others: cluster in a box", &scenario.with_extension(""), &truth)?;
    }
    let late = Expected { classes: vec!["S1".parse()?], ranks: vec![[1].into()] };
    let late = Truth { causes: vec![late], has_fault: true, is_slow: true, ..Truth::default() };
    for (job, truth) in [("late", late), ("merge", Truth::default())] {
        judge("others: two ranks on an H100", &Path::new(H100).join(job), &truth)?;
    }
    Ok(())
}

/// Runs scenarios of these names, or all, and replaces their recordings.
///
/// # Errors
/// One cannot be run, or its recordings are too large.
pub(super) fn record(names: &[String]) -> Outcome<()> {
    let release = nccl::Release::new(RELEASE.0, RELEASE.1)?;
    nccl::fetch_all(std::slice::from_ref(&release))?;
    let cluster = build::for_tests(false)?.join("debug/cluster");
    for scenario in scenarios(names)? {
        let name = scenario.file_stem().unwrap_or_default();
        // What else runs on the machine must not take the ranks' processor time.
        let mut nice = process::command(&["nice", "-n", "-15"]);
        process::check(nice.arg(&cluster).args(["--lines", "-o", RUNS]).arg(&scenario))?;
        let kept = scenario.with_extension("");
        if kept.exists() {
            fs::remove_dir_all(&kept)?;
        }
        fs::create_dir(&kept)?;
        let size = pack(&Path::new(RUNS).join(name).join("live"), &kept)?;
        println!("{}: {size} bytes", scenario.display());
        if size > MOST {
            return Err(format!("{}: more than {MOST} bytes", scenario.display()).into());
        }
    }
    Ok(())
}

/// The scenario files of these names; all if there are none.
fn scenarios(names: &[String]) -> Outcome<Vec<PathBuf>> {
    let mut all: Vec<PathBuf> =
        fs::read_dir(BOX)?.map(|entry| Ok(entry?.path())).collect::<Outcome<_>>()?;
    all.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    let is_named =
        |path: &PathBuf, name: &String| path.file_stem().is_some_and(|stem| stem == &**name);
    if let Some(name) = names.iter().find(|name| !all.iter().any(|path| is_named(path, name))) {
        return Err(format!("{BOX}: no scenario `{name}`").into());
    }
    all.retain(|path| names.is_empty() || names.iter().any(|name| is_named(path, name)));
    all.sort();
    Ok(all)
}

/// Packs the recordings of a folder. Returns the size of all together.
fn pack(from: &Path, to: &Path) -> Outcome<u64> {
    let mut size = 0;
    for recording in super::circumstance::recordings(from)? {
        let name = recording.file_name().unwrap_or_default().to_string_lossy();
        let packed = to.join(format!("{name}.gz"));
        gzip(&["-9", "-n", "-c"], &recording, &packed)?;
        size += fs::metadata(&packed)?.len();
    }
    Ok(size)
}

/// Unpacks the recordings of a folder.
fn unpack(from: &Path, to: &Path) -> Outcome<()> {
    for entry in fs::read_dir(from)? {
        let packed = entry?.path();
        let plain = packed.with_extension("");
        if plain.extension().is_some_and(|end| end == "nscope") {
            gzip(&["-d", "-c"], &packed, &to.join(plain.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}

fn gzip(words: &[&str], from: &Path, to: &Path) -> Outcome<()> {
    let status = Command::new("gzip").args(words).arg(from).stdout(File::create(to)?).status()?;
    if status.success() { Ok(()) } else { Err(format!("gzip {}: {status}", from.display()).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_has_a_truth_and_recordings() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(BOX);
        let mut count = 0;
        for entry in fs::read_dir(folder).expect("the scenarios") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|end| end != "toml") {
                continue;
            }
            count += 1;
            let scenario = Scenario::read(&path).expect("a scenario");
            let truth = scenario.truth().expect("known classes");
            let has_ranks = !truth.causes.is_empty() || !truth.allowed.is_empty();
            assert_eq!(has_ranks, scenario.kind != "healthy", "{path:?}");
            let packed = fs::read_dir(path.with_extension("")).expect("its recordings");
            assert!(packed.count() >= 2, "{path:?}");
        }
        assert!(count >= 30, "{count}");
    }

    #[test]
    fn recordings_are_packed_and_unpacked() {
        let name = format!("evaluation-{}", std::process::id());
        let folder = Folder::new(std::env::temp_dir().join(name)).expect("a folder");
        let [from, packed, plain] = ["a", "b", "c"].map(|one| folder.0.join(one));
        for one in [&from, &packed, &plain] {
            fs::create_dir(one).expect("made");
        }
        fs::write(from.join("x-1.nscope"), [7; 5000]).expect("written");
        fs::write(from.join("other.txt"), "x").expect("written");
        assert!(pack(&from, &packed).is_ok_and(|size| size < 1000));
        unpack(&packed, &plain).expect("unpacked");
        assert_eq!(fs::read(plain.join("x-1.nscope")).expect("there"), [7; 5000]);
        assert_eq!(fs::read_dir(&plain).expect("there").count(), 1);
    }
}
