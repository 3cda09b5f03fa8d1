// SPDX-License-Identifier: Apache-2.0
//! All faults and controls that the simulator knows, each in a job of its own: the rows of the
//! table, whether all is exact, and the same faults in directories that make it harder.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::answered::{Answered, OF_RECORDINGS};
use super::case::{Case, Fault, Folder, Group, Judged};
use super::circumstance::Circumstance;
use super::figures::Truth;
use super::planted::healthy_step_ns;
use super::score::{Cause, Score, shown, words};
use super::silent::{self, SHARES};
use super::table::{Origin, Table};
use crate::outcome::Outcome;

/// Minimum precision and recall of classes and ranks, over all planted faults for one number of
/// ranks.
const LEAST: f64 = 0.98;

/// Jobs to simulate: of each fault one for each seed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Jobs<'a> {
    pub(super) tool: &'a Path,
    pub(super) scratch: &'a Path,
    pub(super) faults: &'a [Fault],
    pub(super) ranks: u64,
    pub(super) seeds: u64,
}

impl Jobs<'_> {
    fn row(&self, group: Group) -> String {
        let word = match group {
            Group::Hang => "hangs",
            Group::Slow => "slow faults",
            Group::Control => "controls",
        };
        self.row_of(word)
    }

    fn row_of(&self, what: &str) -> String {
        row_of(what, self.ranks, self.seeds)
    }

    fn healthy(&self) -> Healthy<'_> {
        Healthy { jobs: self, known: BTreeMap::new() }
    }

    /// Judges all jobs. False if a bound of [`LEAST`] is missed, a control has a verdict, or the
    /// first lines of a report are wrong.
    ///
    /// # Errors
    /// The tool fails.
    pub(super) fn is_good(&self, table: &mut Table) -> Outcome<bool> {
        println!("\n{} ranks, {} seeds", self.ranks, self.seeds);
        let mut total = Total::default();
        let mut healthy = self.healthy();
        for fault in self.faults {
            let mut line = Line::default();
            let row = self.row(fault.group);
            for seed in 1..=self.seeds {
                let case = self.case(fault, seed, Circumstance::Clean);
                let judged = case.run(self.tool, self.scratch)?;
                let truth = Truth::of(&judged.planted);
                let truth = match fault.group {
                    Group::Slow => healthy.costing(truth, &judged.answered, seed)?,
                    Group::Hang | Group::Control => truth,
                };
                let of_row = (row.as_str(), Origin::Simulated);
                table.add(of_row, &case.name(), &truth, &judged.answered);
                line.add(&judged);
                total.add(fault.group, &judged);
            }
            line.print(&fault.name);
        }
        total.print();
        Ok(total.is_good())
    }

    /// Judges the slow faults by what the jobs would save; `each` fault in a row of its own.
    ///
    /// # Errors
    /// The tool fails.
    pub(super) fn slow(&self, table: &mut Table, each: bool) -> Outcome<()> {
        println!("\n{} ranks, slow faults, {} seeds", self.ranks, self.seeds);
        let mut healthy = self.healthy();
        for seed in 1..=self.seeds {
            for fault in self.faults.iter().filter(|fault| fault.group == Group::Slow) {
                let case = self.case(fault, seed, Circumstance::Clean);
                let folder = Folder::new(self.scratch.join(case.name()))?;
                case.simulate(self.tool, &folder.0)?;
                let file = fs::read_to_string(folder.0.join("truth.json"))?;
                let planted: Value = serde_json::from_str(&file)?;
                let truth = Truth::of(&Cause::list(&planted["slow"])?);
                let said =
                    Answered::ask(self.tool, OF_RECORDINGS, std::slice::from_ref(&folder.0))?;
                let truth = healthy.costing(truth, &said, seed)?;
                let all = self.row(Group::Slow);
                let row = if each { self.row_of(&fault.name) } else { all };
                table.add((&row, Origin::Simulated), &case.name(), &truth, &said);
            }
        }
        Ok(())
    }

    fn case(&self, fault: &Fault, seed: u64, circumstance: Circumstance) -> Case {
        Case { fault: fault.clone(), ranks: self.ranks, seed, circumstance }
    }

    /// The first seed of each fault in directories that make it harder: in all of them, or
    /// `in_one`. False if a verdict is not exact.
    ///
    /// # Errors
    /// The tool fails.
    pub(super) fn is_good_in_places(&self, in_one: bool) -> Outcome<bool> {
        println!("\n{:<22} {:>5}  said where it is not exact", "directory", "exact");
        let mut good = true;
        for (at, circumstance) in Circumstance::ODD.into_iter().enumerate() {
            let (first, step) = if in_one { (at, Circumstance::ODD.len()) } else { (0, 1) };
            let (mut line, mut said) = (Line::default(), Vec::new());
            for fault in self.faults.iter().skip(first).step_by(step) {
                let case = self.case(fault, 1, circumstance);
                line.add(&case.run(self.tool, self.scratch)?);
                said.extend(line.said.drain(..).map(|words| format!("{}: {words}", fault.name)));
            }
            let Score { runs, exact, .. } = line.score;
            println!("{:<22} {exact:>2}/{runs:<2}  {}", circumstance.name(), said.join("; "));
            good &= exact == runs && line.answers == runs;
        }
        Ok(good)
    }

    /// Prints the curve over silent ranks, for the first seed of each hang.
    ///
    /// # Errors
    /// The tool fails.
    pub(super) fn print_silent(&self) -> Outcome<()> {
        let mut sums = vec![Score::default(); SHARES.len()];
        for fault in self.faults.iter().filter(|fault| fault.group == Group::Hang) {
            let case = self.case(fault, 1, Circumstance::Clean);
            let scores = silent::curve(&case, self.tool, self.scratch)?;
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
}

/// The name of a row of these jobs.
pub(super) fn row_of(what: &str, ranks: u64, seeds: u64) -> String {
    format!("{what}, {ranks} ranks, {seeds} {}", if seeds == 1 { "seed" } else { "seeds" })
}

/// How long steps take without a fault, by seed.
struct Healthy<'a> {
    jobs: &'a Jobs<'a>,
    known: BTreeMap<u64, f64>,
}

impl Healthy<'_> {
    /// The truth about a job of this seed, with its cost.
    fn costing(&mut self, truth: Truth, said: &Answered, seed: u64) -> Outcome<Truth> {
        let Jobs { tool, scratch, ranks, .. } = *self.jobs;
        let healthy_ns = match self.known.get(&seed) {
            Some(known) => *known,
            None => healthy_step_ns(tool, scratch, ranks, seed)?,
        };
        self.known.insert(seed, healthy_ns);
        Ok(truth.costing(1.0 - healthy_ns / said.step_ns.ok_or("a simulated job has no steps")?))
    }
}

/// The results for all seeds of a fault.
#[derive(Debug, Default)]
struct Line {
    score: Score,
    /// Number of reports whose first lines are right.
    answers: u64,
    said: Vec<String>,
}

impl Line {
    fn add(&mut self, judged: &Judged) {
        self.score += &judged.score;
        if !judged.score.is_exact() {
            let found = words(&judged.answered.causes());
            self.said.push(format!("{found} for {}", words(&judged.planted)));
        }
        self.said.extend(judged.mistake.clone());
        self.answers += u64::from(judged.mistake.is_none());
    }

    /// Prints what is not exact.
    fn print(&self, name: &str) {
        let Score { runs, exact, .. } = self.score;
        if !self.said.is_empty() {
            println!("  {name}: {exact} of {runs} exact: {}", self.said.join("; "));
        }
    }
}

/// The results for all faults of one number of ranks.
#[derive(Debug, Default)]
struct Total {
    faults: BTreeMap<Group, Score>,
    controls: Score,
    /// Number of reports whose first lines are wrong.
    mistakes: u64,
}

impl Total {
    fn add(&mut self, group: Group, judged: &Judged) {
        self.mistakes += u64::from(judged.mistake.is_some());
        match group {
            Group::Control => self.controls += &judged.score,
            group => *self.faults.entry(group).or_default() += &judged.score,
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

    fn print(&self) {
        for (group, score) in &self.faults {
            for (what, tally) in [("classes", score.all_classes()), ("ranks", score.ranks)] {
                let [precision, recall] = [tally.precision(), tally.recall()].map(shown);
                println!("{group:?} {what}: precision {precision}, recall {recall}");
            }
        }
        println!(
            "verdicts on controls: {}; reports whose first five lines are wrong: {}",
            self.false_verdicts(),
            self.mistakes
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn rows_are_named_by_their_jobs() {
        let here = Path::new(".");
        let jobs = Jobs { tool: here, scratch: here, faults: &[], ranks: 16, seeds: 3 };
        assert_eq!(jobs.row(Group::Slow), "slow faults, 16 ranks, 3 seeds");
        assert_eq!(Jobs { seeds: 1, ..jobs }.row_of("drift"), "drift, 16 ranks, 1 seed");
    }
}
