// SPDX-License-Identifier: Apache-2.0
//! Simulated jobs with faults whose ranks and strengths are given, and what is true of them: by
//! simulations of the same job without some of the faults, and by nothing that the tool judges.
//!
//! Of the tool, the truth has the durations of steps alone.

use std::fmt;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::answered::{Answered, OF_RECORDINGS};
use super::case::{Folder, simulate};
use super::figures::{LEAST_COST, Truth};
use super::score::Cause;
use crate::outcome::Outcome;

/// A fault of a job.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Planted {
    pub(super) name: String,
    pub(super) rank: u64,
    /// Slowdown factor; `None`: that of the simulator.
    pub(super) factor: Option<f64>,
}

/// A job to simulate.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Job {
    pub(super) ranks: u64,
    pub(super) seed: u64,
    /// Sections of the scenario file other than the faults.
    pub(super) shape: String,
    /// At most two.
    pub(super) faults: Vec<Planted>,
    /// True if its fault stops it.
    pub(super) hangs: bool,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} ({} ranks", self.seed, self.ranks)?;
        for Planted { name, rank, factor } in &self.faults {
            write!(f, ", {name} of rank {rank}")?;
            factor.map_or(Ok(()), |factor| write!(f, " x{factor:.2}"))?;
        }
        f.write_str(")")
    }
}

/// A simulation of a job with some of its faults.
struct Run {
    answered: Answered,
    /// `truth.json`.
    truth: Value,
}

impl Run {
    fn step_ns(&self) -> Outcome<f64> {
        Ok(self.answered.step_ns.ok_or("a simulated job has no steps")?)
    }

    fn planted(&self) -> Outcome<Vec<Cause>> {
        let mut all = Cause::list(&self.truth["slow"])?;
        all.extend(Cause::list(&self.truth["verdicts"])?);
        Ok(all)
    }
}

impl Job {
    /// Simulates the job, asks the tool about it, and finds what is true of it.
    ///
    /// # Errors
    /// It cannot be simulated, or the tool fails.
    pub(super) fn judge(&self, tool: &Path, scratch: &Path) -> Outcome<(Truth, Answered)> {
        let run = |faults: &[&Planted], verbs: &[&str]| self.run((tool, scratch), faults, verbs);
        let all: Vec<&Planted> = self.faults.iter().collect();
        let whole = run(&all, OF_RECORDINGS)?;
        let truth = match all.as_slice() {
            [] => Truth::default(),
            _ if self.hangs => Truth::of(&whole.planted()?),
            [_] => {
                let healthy = run(&[], STEPS)?.step_ns()?;
                Truth::of(&whole.planted()?).costing(1.0 - healthy / whole.step_ns()?)
            }
            [a, b, ..] => {
                let alone = [run(&[a], STEPS)?, run(&[b], STEPS)?];
                of_two(&whole, &alone, run(&[], STEPS)?.step_ns()?)?
            }
        };
        Ok((truth, whole.answered))
    }

    fn run(
        &self,
        (tool, scratch): (&Path, &Path),
        faults: &[&Planted],
        verbs: &[&str],
    ) -> Outcome<Run> {
        let folder = Folder::new(scratch.join("planted"))?;
        simulate(tool, &folder.0, &self.scenario(faults), self.ranks, self.seed, &[])?;
        let truth = serde_json::from_str(&fs::read_to_string(folder.0.join("truth.json"))?)?;
        Ok(Run { answered: Answered::ask(tool, verbs, std::slice::from_ref(&folder.0))?, truth })
    }

    fn scenario(&self, faults: &[&Planted]) -> String {
        let fault = |planted: &&Planted| {
            let factor = planted.factor.map(|factor| format!("factor = {factor:.3}\n"));
            let Planted { name, rank, .. } = planted;
            let factor = factor.unwrap_or_default();
            format!("\n[[fault]]\nname = \"{name}\"\nrank = {rank}\n{factor}")
        };
        faults.iter().map(fault).fold(self.shape.clone(), |text, fault| text + &fault)
    }
}

/// How long a step of a job without a fault takes, ns.
///
/// # Errors
/// It cannot be simulated, or the tool fails.
pub(super) fn healthy_step_ns(tool: &Path, scratch: &Path, ranks: u64, seed: u64) -> Outcome<f64> {
    let job = Job { ranks, seed, shape: String::new(), faults: vec![], hangs: false };
    job.run((tool, scratch), &[], STEPS)?.step_ns()
}

/// The verb that knows the durations of steps.
const STEPS: &[&str] = &["stragglers"];

/// What is true of a job with two faults: a fault must be named if the job would save enough
/// without it alone; if neither would save that, because each hides the other, the one that costs
/// more where it is alone.
fn of_two(whole: &Run, alone: &[Run; 2], healthy_ns: f64) -> Outcome<Truth> {
    let whole_ns = whole.step_ns()?;
    let alone_ns = [alone[0].step_ns()?, alone[1].step_ns()?];
    let planted = [alone[0].planted()?, alone[1].planted()?];
    let must = must_be_named(whole_ns, alone_ns, healthy_ns);
    let named = planted.iter().zip(must).filter(|(_, must)| *must).flat_map(|(causes, _)| causes);
    let named: Vec<Cause> = named.cloned().collect();
    let mut truth = Truth::of(&named);
    truth.has_fault = true;
    truth.allowed = planted.iter().flatten().flat_map(|cause| cause.ranks.clone()).collect();
    Ok(truth.costing(1.0 - healthy_ns / whole_ns))
}

/// Which of two faults must be named, from the durations of steps with both, with each alone, and
/// without.
fn must_be_named(both: f64, alone: [f64; 2], healthy: f64) -> [bool; 2] {
    let saved = [both - alone[1], both - alone[0]].map(|saved| saved / both >= LEAST_COST);
    match saved {
        [false, false] if 1.0 - healthy / both >= LEAST_COST => {
            let is_first = alone[0] >= alone[1];
            [is_first, !is_first]
        }
        _ => saved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planted(name: &str, rank: u64, factor: Option<f64>) -> Planted {
        Planted { name: name.into(), rank, factor }
    }

    #[test]
    fn of_two_faults_those_that_save_time_must_be_named() {
        assert_eq!(must_be_named(130.0, [120.0, 110.0], 100.0), [true, true]);
        assert_eq!(must_be_named(120.0, [120.0, 101.0], 100.0), [true, false]);
        assert_eq!(must_be_named(120.0, [119.9, 119.8], 100.0), [true, false], "one hides");
        assert_eq!(must_be_named(101.0, [101.0, 100.0], 100.0), [false, false]);
    }

    #[test]
    fn what_each_fault_costs_comes_from_the_jobs_without_it() {
        let run = |step_ns: f64, class: &str, rank: u64| Run {
            answered: Answered { step_ns: Some(step_ns), ..Answered::default() },
            truth: serde_json::json!({"slow": [{"class": class, "root_ranks": [rank]}]}),
        };
        let whole = run(125.0, "S1", 0);
        let truth = of_two(&whole, &[run(124.9, "S1", 3), run(100.2, "S3", 5)], 100.0);
        let truth = truth.expect("known classes");
        assert!(truth.cost.is_some_and(|cost| (cost - 0.2).abs() < 1e-9), "{truth:?}");
        assert_eq!(truth.causes.len(), 1);
        assert!(truth.causes[0].ranks == [[3].into()] && truth.allowed.contains(&5), "{truth:?}");
    }

    #[test]
    fn a_scenario_has_its_faults() {
        let faults = vec![planted("slow-gpu", 3, Some(2.0)), planted("killed", 1, None)];
        let shape = "[job]\nsteps = 8\n".to_owned();
        let job = Job { ranks: 8, seed: 1, shape, faults, hangs: false };
        let [a, b] = &job.faults[..] else { panic!("two") };
        let text = job.scenario(&[a, b]);
        assert!(text.contains("name = \"slow-gpu\"\nrank = 3\nfactor = 2.000\n"), "{text}");
        assert!(text.ends_with("name = \"killed\"\nrank = 1\n"), "{text}");
        assert_eq!(job.scenario(&[]), job.shape);
        assert_eq!(job.to_string(), "seed 1 (8 ranks, slow-gpu of rank 3 x2.00, killed of rank 1)");
    }
}
