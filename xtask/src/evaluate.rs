// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask evaluate`: how often `ncclscope diagnose` and `ncclscope stragglers` are right.
//!
//! Jobs with a planted fault, and controls without, are simulated (`ncclscope simulate`) or, with
//! `--standin`, run on real NCCL with the rig's scenario files; the tool judges their recordings,
//! and what it says is compared with what was planted. Pairs of jobs show how often `ncclscope
//! compare` is right (`--compare` alone; with `--standin` on real NCCL). `--small` is what CI runs.
//! The exit status is 1 where a bound of [`LEAST`] is missed, a control has a verdict, a comparison
//! is wrong too often, or a verdict's time grows faster than the job.

mod answer;
mod case;
mod circumstance;
mod compare;
mod compare_standin;
mod cost;
mod large;
mod score;
mod silent;
mod standin;
mod vectors;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use case::{Case, Fault, Folder, Group, Judged};
use circumstance::Circumstance;
use clap::{Args, value_parser};
use cost::Pair;
use score::{Cause, Score, shown, words};
use serde_json::{Value, json};
use silent::SHARES;

use crate::nccl::Release;
use crate::outcome::Outcome;
use crate::{build, nccl};

/// Minimum precision and recall of classes and ranks, over all planted faults for one number of
/// ranks.
const LEAST: f64 = 0.98;
/// The release and CUDA version for `--standin`.
const RELEASE: (&str, u8) = ("2.28.9", 12);

/// What `cargo xtask evaluate` takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What CI runs: 16 ranks, one seed, no ranks without a recording
    #[arg(long, conflicts_with_all = ["ranks", "seeds"])]
    small: bool,
    /// Sizes of the simulated jobs
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "64,1024")]
    #[arg(value_parser = value_parser!(u64).range(1..))]
    ranks: Vec<u64>,
    /// Jobs of each fault and size
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = value_parser!(u64).range(1..))]
    seeds: u64,
    /// Plant only these
    #[arg(long = "fault", value_name = "F")]
    faults: Vec<String>,
    /// Leave out the jobs of which some ranks have no recording
    #[arg(long)]
    no_silent: bool,
    /// Only `ncclscope compare`: equal runs, and runs with one slower function
    #[arg(long)]
    compare: bool,
    /// Pairs of runs to compare
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = value_parser!(u64).range(1..))]
    pairs: u64,
    /// Run the rig's scenarios on real NCCL instead
    #[arg(long)]
    standin: bool,
    /// A file for the results, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(mut options: Options) -> Outcome {
    if options.small {
        options = Options { ranks: vec![16], seeds: 1, no_silent: true, pairs: 8, ..options };
    }
    let profile = if options.small { build::Profile::Tests } else { build::Profile::Release };
    let folder = build::products(profile)?;
    let tool = folder.join("ncclscope");
    let scratch = Folder::new(PathBuf::from("target/evaluate"))?;
    let mut good = true;
    let mut rows = Vec::new();
    if options.standin {
        good &= on_standin(&options, (&folder, &scratch.0), &mut rows)?;
    } else if options.compare {
        good &= compare::is_good(&tool, &scratch.0, options.pairs)?;
    } else {
        let faults = chosen(&tool, &options.faults)?;
        for &ranks in &options.ranks {
            good &= simulated(&options, &tool, &scratch.0, &faults, ranks, &mut rows)?;
            good &= vectors::is_good(&tool, &scratch.0, &faults, ranks, options.seeds)?;
        }
        if options.faults.is_empty() {
            good &= large::is_good(&tool, &scratch.0)?;
            good &= compare::is_good(&tool, &scratch.0, options.pairs)?;
        }
    }
    if let Some(file) = &options.json {
        let report = json!({"schema": "ncclscope.evaluation/1", "rows": rows});
        fs::write(file, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The faults named on the command line; all if there are none.
fn chosen(tool: &Path, names: &[String]) -> Outcome<Vec<Fault>> {
    let mut faults = Fault::all(tool)?;
    if let Some(name) = names.iter().find(|&name| faults.iter().all(|fault| fault.name != *name)) {
        return Err(format!("evaluate: no fault `{name}`").into());
    }
    faults.retain(|fault| names.is_empty() || names.contains(&fault.name));
    Ok(faults)
}

/// The whole evaluation for one number of ranks. False if a bound is missed.
fn simulated(
    options: &Options,
    tool: &Path,
    scratch: &Path,
    faults: &[Fault],
    ranks: u64,
    rows: &mut Vec<Value>,
) -> Outcome<bool> {
    println!("\n{ranks} ranks, {} seeds\n", options.seeds);
    println!(
        "{:<22} {:>5} {:>6} {:>9}  said where it is not exact",
        "fault", "exact", "ranks", "detected"
    );
    let mut total = Total::default();
    let mut healthy = BTreeMap::new();
    for fault in faults {
        let mut line = Line::default();
        for seed in 1..=options.seeds {
            let case =
                Case { fault: fault.clone(), ranks, seed, circumstance: Circumstance::Clean };
            let judged = case.run(tool, scratch)?;
            rows.push(row(&case.name(), &judged.planted, &judged.found, &judged.score));
            line.add(&judged);
            total.add(fault.group, &judged);
            if fault.group == Group::Slow {
                if let Entry::Vacant(new) = healthy.entry(seed) {
                    new.insert(cost::healthy_ns(tool, scratch, ranks, seed)?);
                }
                total.costs.extend(Pair::of(&judged.slow, healthy[&seed]));
            }
        }
        println!("{}", line.shown(&fault.name));
    }
    total.print();
    let are_costs_right = cost::is_good(&total.costs);
    if !options.no_silent {
        print_silent(tool, scratch, faults, ranks)?;
    }
    let is_good = total.is_good() && are_costs_right;
    Ok(is_good && in_places(options, tool, scratch, faults, ranks, rows)?)
}

/// The first seed of each fault in directories that make it harder: in all of them, or in the small
/// evaluation in one. False if a verdict is not exact.
fn in_places(
    options: &Options,
    tool: &Path,
    scratch: &Path,
    faults: &[Fault],
    ranks: u64,
    rows: &mut Vec<Value>,
) -> Outcome<bool> {
    println!("\n{:<22} {:>5}  said where it is not exact", "directory", "exact");
    let mut good = true;
    for (at, circumstance) in Circumstance::ODD.into_iter().enumerate() {
        let (first, step) = if options.small { (at, Circumstance::ODD.len()) } else { (0, 1) };
        let (mut line, mut said) = (Line::default(), Vec::new());
        for fault in faults.iter().skip(first).step_by(step) {
            let case = Case { fault: fault.clone(), ranks, seed: 1, circumstance };
            let judged = case.run(tool, scratch)?;
            rows.push(row(&case.name(), &judged.planted, &judged.found, &judged.score));
            line.add(&judged);
            said.extend(line.said.drain(..).map(|words| format!("{}: {words}", fault.name)));
        }
        let Score { runs, exact, .. } = line.score;
        println!("{:<22} {exact:>2}/{runs:<2}  {}", circumstance.name(), said.join("; "));
        good &= exact == runs && line.answers == runs;
    }
    Ok(good)
}

fn row(name: &str, planted: &[Cause], found: &[Cause], score: &Score) -> Value {
    let list = |causes: &[Cause]| -> Vec<Value> {
        causes.iter().map(|c| json!({"class": c.class.code(), "root_ranks": c.ranks})).collect()
    };
    json!({"case": name, "planted": list(planted), "found": list(found), "exact": score.is_exact()})
}

/// The results for all seeds of a fault.
#[derive(Debug, Default)]
struct Line {
    score: Score,
    /// Number of reports whose first lines are right.
    answers: u64,
    slowest_s: f64,
    said: Vec<String>,
}

impl Line {
    fn add(&mut self, judged: &Judged) {
        self.score += &judged.score;
        self.slowest_s = self.slowest_s.max(judged.detected_s.unwrap_or(0.0));
        if !judged.score.is_exact() {
            self.said.push(format!("{} for {}", words(&judged.found), words(&judged.planted)));
        }
        self.said.extend(judged.mistake.clone());
        self.answers += u64::from(judged.mistake.is_none());
    }

    fn shown(&self, name: &str) -> String {
        let Score { runs, exact, .. } = self.score;
        let detected =
            if self.slowest_s > 0.0 { format!("{:.0} s", self.slowest_s) } else { "-".into() };
        let ranks = shown(self.score.ranks.recall());
        format!(
            "{name:<22} {exact:>2}/{runs:<2} {ranks:>6} {detected:>9}  {}",
            self.said.join("; ")
        )
    }
}

/// The results for all faults of one number of ranks.
#[derive(Debug, Default)]
struct Total {
    faults: BTreeMap<Group, Score>,
    controls: Score,
    control_hours: f64,
    costs: Vec<Pair>,
    /// Number of reports whose first lines are wrong.
    mistakes: u64,
}

impl Total {
    fn add(&mut self, group: Group, judged: &Judged) {
        self.mistakes += u64::from(judged.mistake.is_some());
        if group == Group::Control {
            self.controls += &judged.score;
            self.control_hours += judged.rank_hours;
        } else {
            *self.faults.entry(group).or_default() += &judged.score;
        }
    }

    /// Number of verdicts on controls.
    fn false_verdicts(&self) -> u64 {
        self.controls.all_classes().wrong
    }

    fn is_good(&self) -> bool {
        let reaches =
            |score: &Score| score.all_classes().reaches(LEAST) && score.ranks.reaches(LEAST);
        self.faults.values().all(reaches) && self.false_verdicts() == 0 && self.mistakes == 0
    }

    #[expect(clippy::cast_precision_loss, reason = "a few verdicts")]
    fn print(&self) {
        println!("\n{:<10} {:>10} {:>10}", "class", "precision", "recall");
        for (class, tally) in self.faults.values().flat_map(|score| &score.classes) {
            let (name, of) = (class.code(), [tally.precision(), tally.recall()].map(shown));
            println!("{name:<10} {:>10} {:>10}", of[0], of[1]);
        }
        for (group, score) in &self.faults {
            let (classes, ranks) = (score.all_classes(), score.ranks);
            for (what, tally) in [("classes", classes), ("ranks", ranks)] {
                let name = format!("{group:?} {what}");
                println!(
                    "{name:<14} {:>6} {:>10}",
                    shown(tally.precision()),
                    shown(tally.recall())
                );
            }
        }
        println!("reports whose first five lines are wrong: {}", self.mistakes);
        let per_thousand = self.false_verdicts() as f64 * 1000.0 / self.control_hours.max(1e-9);
        println!(
            "controls: {} verdicts in {} runs, {:.1} rank-hours: {per_thousand:.1} per 1,000",
            self.false_verdicts(),
            self.controls.runs,
            self.control_hours,
        );
    }
}

/// Prints the curve over silent ranks, for the first seed of each hang.
fn print_silent(tool: &Path, scratch: &Path, faults: &[Fault], ranks: u64) -> Outcome<()> {
    let mut sums = vec![Score::default(); SHARES.len()];
    for fault in faults.iter().filter(|fault| fault.group == Group::Hang) {
        let case = Case { fault: fault.clone(), ranks, seed: 1, circumstance: Circumstance::Clean };
        let scores = silent::curve(&case, tool, scratch)?;
        sums.iter_mut().zip(&scores).for_each(|(sum, score)| *sum += score);
    }
    println!("\nhealthy ranks that are silent, and what is left of hang verdicts");
    println!(
        "{:>7} {:>12} {:>12} {:>12} {:>12}",
        "silent", "class prec.", "class rec.", "rank prec.", "rank rec."
    );
    for (share, sum) in SHARES.iter().zip(&sums) {
        let (classes, ranks) = (sum.all_classes(), sum.ranks);
        let shares = [classes.precision(), classes.recall(), ranks.precision(), ranks.recall()];
        let shares: Vec<String> = shares.iter().map(|&s| format!("{:>12}", shown(s))).collect();
        println!("{:>6}% {}", share, shares.join(" "));
    }
    Ok(())
}

/// The rig's scenarios, or pairs of its runs. False if a result is not exact.
fn on_standin(
    options: &Options,
    (folder, scratch): (&Path, &Path),
    rows: &mut Vec<Value>,
) -> Outcome<bool> {
    let release = Release::new(RELEASE.0, RELEASE.1)?;
    nccl::fetch_all(std::slice::from_ref(&release))?;
    if options.compare {
        return compare_standin::is_good(folder, &release, scratch);
    }
    println!("\n{:<22} {:<6} said", "scenario", "exact");
    let mut good = true;
    for found in standin::run(folder, &release, scratch)? {
        let exact = found.score.is_exact();
        good &= exact;
        let said = words(&found.found);
        let instead = if exact { String::new() } else { format!(" for {}", words(&found.planted)) };
        if let Some(causes) = &found.from_vectors {
            let same = Score::of(&found.found, causes).is_exact();
            good &= same;
            println!(
                "{:<22} {:<6} {}",
                "  from its agent",
                if same { "yes" } else { "NO" },
                words(causes)
            );
        }
        println!("{:<22} {:<6} {said}{instead}", found.scenario, if exact { "yes" } else { "NO" });
        rows.push(row(found.scenario, &found.planted, &found.found, &found.score));
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let parsed = |words| crate::options::<Options>(words);
        let options = parsed("--ranks 8,64 --seeds 2 --fault killed --no-silent --json x.json");
        let options = options.expect("all are known");
        assert_eq!((options.ranks, options.seeds), (vec![8, 64], 2));
        assert_eq!(options.faults, ["killed"]);
        assert!(options.no_silent && !options.standin);
        assert_eq!(parsed("").expect("defaults").ranks, [64, 1024]);
        for wrong in ["--ranks x", "--seeds 0", "--fault", "--ranks 8,,9", "--small --seeds 2"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_verdict_on_a_control_fails_and_a_missed_fault_too() {
        let cause =
            |class: &str| Cause { class: class.parse().expect("a class"), ranks: [1].into() };
        let judged = |planted: &[Cause], found: &[Cause]| Judged {
            score: Score::of(planted, found),
            ..Judged::default()
        };
        let mut total = Total::default();
        total.add(Group::Control, &judged(&[], &[]));
        total.add(Group::Hang, &judged(&[cause("H1a")], &[cause("H1a")]));
        assert!(total.is_good());
        total.add(Group::Control, &judged(&[], &[cause("S2")]));
        assert!(!total.is_good());
        let mut total = Total::default();
        total.add(Group::Slow, &judged(&[cause("S1")], &[]));
        assert!(!total.is_good());
    }
}
