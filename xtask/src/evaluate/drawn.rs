// SPDX-License-Identifier: Apache-2.0
//! Jobs that are drawn: their sizes, their machines, and their faults. A seed gives the same jobs
//! each time.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::case::{Fault, Group};
use super::dice::Dice;
use super::planted::{Job, Planted};
use super::simulated::row_of;
use super::table::{Origin, Table};
use crate::outcome::Outcome;

/// Numbers of ranks, small ones more often: their jobs take less time.
const RANKS: [u64; 12] = [4, 4, 6, 8, 8, 8, 12, 16, 16, 24, 32, 64];
/// Attempts to draw a job that can be simulated: not every fault fits every job.
const ATTEMPTS: u64 = 100;
/// How far the seeds of two runs are apart, so that they share no job.
const RUN: u64 = 1_000_000;
/// The seed of the healthy jobs.
const HEALTHY: u64 = 1;
/// Ranks of a job with two given faults.
const PAIR_RANKS: u64 = 16;

/// Faults that are planted together: of the same rank and of others, of the same kind and of
/// several.
const PAIRS: [[(&str, u64, f64); 2]; 6] = [
    [("slow-gpu", 5, 1.5), ("slow-link", 10, 6.0)],
    [("slow-gpu", 3, 1.5), ("slow-kernels", 12, 30.0)],
    [("slow-gpu", 2, 1.3), ("slow-gpu", 9, 1.5)],
    [("slow-nic", 6, 6.0), ("slow-gpu", 6, 1.3)],
    [("slow-nvlink", 1, 8.0), ("slow-nic", 13, 6.0)],
    [("launch-bound", 4, 1.5), ("slow-gpu", 11, 1.5)],
];

/// The seed of today: days since 1970.
///
/// # Errors
/// The clock is before 1970.
pub(super) fn today() -> Outcome<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 86_400)
}

/// Judges jobs with no fault, one or two.
///
/// # Errors
/// The tool fails.
pub(super) fn random(
    table: &mut Table,
    (tool, scratch): (&Path, &Path),
    faults: &[Fault],
    (seed, jobs): (u64, u64),
) -> Outcome<()> {
    println!("\nrandom jobs: cargo xtask evaluate --random {seed} --jobs {jobs}");
    for number in 0..jobs {
        let draw = |dice: &mut Dice| some_faults(dice, faults);
        let (truth, said, job) = judged((tool, scratch), seed * RUN + number, draw)?;
        table.add(("random jobs", Origin::Drawn), &job.to_string(), &truth, &said);
    }
    Ok(())
}

/// Judges jobs without a fault: the same ones each time.
///
/// # Errors
/// The tool fails.
pub(super) fn healthy(
    table: &mut Table,
    (tool, scratch): (&Path, &Path),
    jobs: u64,
) -> Outcome<()> {
    println!("\nhealthy jobs");
    let row = format!("healthy, {jobs} jobs");
    for number in 0..jobs {
        let (truth, said, job) =
            judged((tool, scratch), HEALTHY * RUN + number, |_| Ok((vec![], false)))?;
        table.add((&row, Origin::Simulated), &job.to_string(), &truth, &said);
    }
    Ok(())
}

/// Judges each of [`PAIRS`] with the first seeds.
///
/// # Errors
/// The tool fails.
pub(super) fn pairs(table: &mut Table, (tool, scratch): (&Path, &Path), seeds: u64) -> Outcome<()> {
    println!("\npairs of faults");
    let row = row_of("pairs of faults", PAIR_RANKS, seeds);
    for seed in 1..=seeds {
        for pair in PAIRS {
            let planted = |(name, rank, factor): (&str, u64, f64)| Planted {
                name: name.to_owned(),
                rank,
                factor: Some(factor),
            };
            let (ranks, shape, faults) = (PAIR_RANKS, String::new(), pair.map(planted).to_vec());
            let job = Job { ranks, seed, shape, faults, hangs: false };
            let (truth, said) = job.judge(tool, scratch)?;
            table.add((&row, Origin::Simulated), &job.to_string(), &truth, &said);
        }
    }
    Ok(())
}

type Judged = (super::figures::Truth, super::answered::Answered, Job);

/// Draws and judges a job. One whose fault does not fit, or is that of all ranks, is drawn again;
/// any other failure is an error that names the job.
fn judged(
    (tool, scratch): (&Path, &Path),
    seed: u64,
    draw: impl Fn(&mut Dice) -> Outcome<(Vec<Draft>, bool)>,
) -> Outcome<Judged> {
    let mut dice = Dice::new(seed);
    for _ in 0..ATTEMPTS {
        let (drafts, hangs) = draw(&mut dice)?;
        let (ranks, shape) = shape(&mut dice)?;
        let place = |draft: Draft, dice: &mut Dice| Planted {
            name: draft.name,
            rank: dice.below(ranks),
            factor: draft.factor,
        };
        let faults = drafts.into_iter().map(|draft| place(draft, &mut dice)).collect();
        let job = Job { ranks, seed, shape, faults, hangs };
        match job.judge(tool, scratch) {
            Ok((truth, said)) if truth.can_be_found(ranks) => return Ok((truth, said, job)),
            Ok(_) => {}
            Err(error) if is_refused(&error.to_string()) => {}
            Err(error) => return Err(format!("{job}: {error}\n{}", job.shape).into()),
        }
    }
    Err(format!("seed {seed}: no job in {ATTEMPTS} attempts").into())
}

/// True if the simulator says that a job is impossible: usage, exit status 2.
fn is_refused(error: &str) -> bool {
    error.contains("\"simulate\"") && error.contains("exit status: 2")
}

/// A fault before its rank is drawn.
struct Draft {
    name: String,
    factor: Option<f64>,
}

/// No fault in two of ten jobs, a hang in one, one slow fault in four, two in three. True if the
/// job hangs.
fn some_faults(dice: &mut Dice, faults: &[Fault]) -> Outcome<(Vec<Draft>, bool)> {
    let of = |group: Group| -> Vec<&Fault> {
        faults.iter().filter(|fault| fault.group == group).collect()
    };
    let (hangs, slow) = (of(Group::Hang), of(Group::Slow));
    let kind = dice.below(10);
    if kind == 2 {
        let name = dice.one(&hangs)?.name.clone();
        return Ok((vec![Draft { name, factor: None }], true));
    }
    let count = match kind {
        0 | 1 => 0,
        3..=6 => 1,
        _ => 2,
    };
    let mut drafts: Vec<Draft> = Vec::new();
    while drafts.len() < count {
        let name = dice.one(&slow)?.name.clone();
        // Twice the same whole-job fault is one fault.
        if drafts.iter().all(|other| other.name != name) {
            drafts.push(Draft { factor: strength(dice, &name), name });
        }
    }
    Ok((drafts, false))
}

/// A slowdown factor: what a fault slows down differs, and so does what matters to a job.
fn strength(dice: &mut Dice, fault: &str) -> Option<f64> {
    let (low, high) = match fault {
        "algo-change" => return None,
        "slow-kernels" => (5.0, 60.0),
        "slow-gpu" | "long-last-stage" | "launch-bound" => (1.1, 3.0),
        _ => (1.5, 12.0),
    };
    // As often twice as strong from one as from any other strength.
    Some(dice.between(f64::ln(low), f64::ln(high)).exp())
}

/// The number of ranks, and the sections of a scenario file about the job and the machine.
fn shape(dice: &mut Dice) -> Outcome<(u64, String)> {
    let ranks = *dice.one(&RANKS)?;
    let stages: Vec<u64> =
        [0, 1, 2, 4].into_iter().filter(|pp| *pp == 0 || ranks % pp == 0).collect();
    let hosts: Vec<u64> =
        [0, 2, 4, 8].into_iter().filter(|per| *per == 0 || ranks % per == 0).collect();
    let (pp, per_host) = (*dice.one(&stages)?, *dice.one(&hosts)?);
    let (steps, microbatches) = (10 + dice.below(15), 1 + dice.below(4));
    let job = format!(
        "[job]\npp = {pp}\nper_host = {per_host}\nsteps = {steps}\nmicrobatches = {microbatches}\n"
    );
    let machine = format!(
        "[machine]\nnetwork_gb_s = {:.1}\nnetwork_ns = {}\nforward_us = {}\njitter = {:.3}\n\
         call_ns = {}\nclock_offset_ms = {:.1}\nclock_drift_ppm = {:.1}\n",
        dice.between(10.0, 50.0),
        3_000 + dice.below(17_000),
        4_000 + dice.below(20_000),
        dice.between(0.0, 0.04),
        5_000 + dice.below(15_000),
        dice.between(0.0, 500.0),
        dice.between(0.0, 50.0),
    );
    Ok((ranks, job + &machine))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults() -> Vec<Fault> {
        let all = [("killed", Group::Hang), ("slow-gpu", Group::Slow), ("drift", Group::Slow)];
        all.map(|(name, group)| Fault { name: name.into(), group }).to_vec()
    }

    #[test]
    fn a_seed_gives_the_same_job() {
        let of = |seed| shape(&mut Dice::new(seed)).expect("sizes");
        assert_eq!(of(5), of(5));
        assert_ne!(of(5), of(6));
        for seed in 0..200 {
            let (ranks, text) = of(seed);
            let parsed: toml::Table = text.parse().expect("a scenario");
            let of = |key: &str| parsed["job"][key].as_integer().expect("a number");
            assert!((4..=64).contains(&ranks) && of("steps") >= 10, "{text}");
            assert!(ranks % of("pp").max(1).unsigned_abs() == 0, "{text}");
        }
    }

    #[test]
    fn all_numbers_of_faults_come_up() {
        let mut counts = [0; 4];
        for seed in 0..300 {
            let (drafts, hangs) =
                some_faults(&mut Dice::new(seed), &faults()).expect("there are faults");
            counts[if hangs { 3 } else { drafts.len() }] += 1;
            let names: Vec<&str> = drafts.iter().map(|draft| &*draft.name).collect();
            assert!(names != ["drift", "drift"] && names != ["slow-gpu", "slow-gpu"]);
        }
        assert!(counts.iter().all(|count| *count > 15), "{counts:?}");
    }

    #[test]
    fn only_what_the_simulator_refuses_is_drawn_again() {
        let refused = "\"ncclscope\" \"simulate\" \"x\": exit status: 2: drift: one host";
        assert!(is_refused(refused));
        assert!(!is_refused("\"ncclscope\" \"report\" \"x\": exit status: 3: damaged"));
    }
}
