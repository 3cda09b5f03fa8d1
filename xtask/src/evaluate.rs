// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask evaluate`: how often `ncclscope diagnose`, `stragglers` and `report` are right, in
//! one table.
//!
//! A row is a group of jobs: with planted faults, and controls without, that `ncclscope simulate`
//! wrote; jobs that are drawn by a seed; files and recordings of jobs that others or real NCCL ran.
//! What a fault costs is known from a simulation of the same job without it. The repository keeps
//! the columns ([`kept::FILE`]), and a column that is worse is an error. `--small` is what CI runs.
//!
//! With `--standin`, the rig's scenario files run on real NCCL. Pairs of jobs show how often
//! `ncclscope compare` is right (`--compare` alone; with `--standin` on real NCCL).
//!
//! The exit status is 1 where a column is worse, a bound of [`simulated`] is missed, a comparison
//! is wrong too often, or a verdict's time grows faster than the job.

mod answer;
mod answered;
mod case;
mod circumstance;
mod compare;
mod compare_standin;
mod dice;
mod drawn;
mod figures;
mod kept;
mod large;

mod others;
mod planted;
mod recorded;
mod score;
mod silent;
mod simulated;
mod standin;
mod table;
mod tool;
mod vectors;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use case::{Fault, Folder};
use clap::{Args, value_parser};
use score::{Score, words};
use simulated::Jobs;
use table::Table;

use crate::build::{self, Profile};
use crate::nccl::{self, Release};
use crate::outcome::Outcome;

/// The release and CUDA version for `--standin`.
const RELEASE: (&str, u8) = ("2.28.9", 12);
/// Sizes of jobs, and seeds of each fault.
const SIZES: (&[u64], u64) = (&[16, 64, 256], 3);
const SMALL_SIZES: (&[u64], u64) = (&[16], 1);
const FULL_SIZES: (&[u64], u64) = (&[64, 256], 10);
/// Ranks of the larger jobs of `--small`.
const LARGER: u64 = 64;

/// What `cargo xtask evaluate` takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What CI runs: few jobs, most of 16 ranks, all of which must be as good as the kept ones
    #[arg(long, conflicts_with_all = ["ranks", "seeds"])]
    small: bool,
    /// Only the slow faults, a row each: ten seeds with 64 and 256 ranks
    #[arg(long, conflicts_with = "small")]
    full: bool,
    /// Sizes of the simulated jobs [default: 16,64,256]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    #[arg(value_parser = value_parser!(u64).range(1..))]
    ranks: Vec<u64>,
    /// Jobs of each fault and size [default: 3]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Plant only these; nothing is compared with the kept figures
    #[arg(long = "fault", value_name = "F", conflicts_with = "keep")]
    faults: Vec<String>,
    /// Only random jobs, of this seed
    #[arg(long, value_name = "SEED")]
    random: Option<u64>,
    /// Number of random jobs
    #[arg(long, value_name = "N", default_value_t = 100)]
    jobs: u64,
    /// Only this number of healthy jobs
    #[arg(long, value_name = "N")]
    healthy: Option<u64>,
    /// Only the files of others, and recordings of real NCCL
    #[arg(long)]
    others: bool,
    /// Keep the figures of the rows that are run
    #[arg(long)]
    keep: bool,
    /// Run the scenarios of the cluster in a box again, and keep their recordings; needs root
    #[arg(long, value_name = "NAME", num_args = 0..)]
    record: Option<Vec<String>>,
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
}

/// Random and healthy jobs of `--small`, and of a run of everything.
const SMALL_DRAWN: [u64; 2] = [8, 50];
const DRAWN: [u64; 2] = [100, 2_000];

impl Options {
    /// Sizes of jobs, and seeds of each fault.
    fn sizes(&self) -> (Vec<u64>, u64) {
        let (ranks, seeds) = match (self.small, self.full) {
            (true, _) => SMALL_SIZES,
            (_, true) => FULL_SIZES,
            _ => SIZES,
        };
        let given = (!self.ranks.is_empty()).then(|| self.ranks.clone());
        (given.unwrap_or_else(|| ranks.to_vec()), self.seeds.unwrap_or(seeds))
    }
}

pub(crate) fn run(mut options: Options) -> Outcome {
    if let Some(names) = &options.record {
        recorded::record(names)?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.small {
        options = Options { no_silent: true, pairs: 8, ..options };
    }
    let scratch = Folder::new(PathBuf::from(format!("target/evaluate-{}", std::process::id())))?;
    if options.standin {
        let folder = build::products(Profile::Release)?;
        return Ok(status(on_standin(&options, (&folder, &scratch.0))?));
    }
    let tool = build::tool(if options.small { Profile::Tests } else { Profile::Release })?;
    if options.compare {
        return Ok(status(compare::is_good(&tool, &scratch.0, options.pairs)?));
    }
    let mut table = Table::default();
    let good = fill(&options, (&tool, &scratch.0), &mut table)?;
    Ok(status(compared(&options, &table)? && good))
}

fn status(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the table, and keeps it or compares it with what is kept.
fn compared(options: &Options, table: &Table) -> Outcome<bool> {
    table.print();
    let kept = Path::new(kept::FILE);
    if options.keep {
        table.keep(kept)?;
        return Ok(true);
    }
    Ok(!options.faults.is_empty() || table.is_as_good_as(kept, options.small)?)
}

/// Runs the jobs of the table. False if a bound is missed.
fn fill(options: &Options, paths: (&Path, &Path), table: &mut Table) -> Outcome<bool> {
    let (tool, scratch) = paths;
    let faults = chosen(tool, &options.faults)?;
    let jobs = |ranks, seeds| Jobs { tool, scratch, faults: &faults, ranks, seeds };
    if options.random.is_some() || options.healthy.is_some() || options.others {
        if let Some(seed) = options.random {
            drawn::random(table, paths, &faults, (seed, options.jobs))?;
        }
        if let Some(count) = options.healthy {
            drawn::healthy(table, paths, count)?;
        }
        if options.others {
            others::run(table, tool)?;
            recorded::run(table, paths)?;
        }
        return Ok(true);
    }
    let (sizes, seeds) = options.sizes();
    if options.full {
        sizes.iter().try_for_each(|&ranks| jobs(ranks, seeds).slow(table, true))?;
        return Ok(true);
    }
    if !options.faults.is_empty() {
        return each_fault(options, jobs, table);
    }
    // The tool uses one core most of the time.
    let second = Folder::new(scratch.join("second"))?;
    let (good, rest) = thread::scope(|scope| {
        let rest = scope.spawn(|| {
            let rest = other_jobs(options, (tool, &second.0), &faults, seeds);
            rest.map_err(|error| error.to_string())
        });
        let good = each_fault(options, jobs, table);
        (good, rest.join())
    });
    table.append(rest.map_err(|_| "the thread of the other jobs panicked")??);
    // What follows measures processor time.
    Ok(good? & large::is_good(tool, scratch)? & compare::is_good(tool, scratch, options.pairs)?)
}

/// Runs jobs with one fault each. False if a bound is missed.
fn each_fault<'a>(
    options: &Options,
    jobs: impl Fn(u64, u64) -> Jobs<'a>,
    table: &mut Table,
) -> Outcome<bool> {
    let (sizes, seeds) = options.sizes();
    let mut good = true;
    for &ranks in &sizes {
        let jobs = jobs(ranks, seeds);
        good &= jobs.is_good(table)?;
        good &= jobs.is_good_in_places(options.small)?;
        if !options.no_silent {
            jobs.print_silent()?;
        }
        good &= vectors::is_good(jobs.tool, jobs.scratch, jobs.faults, ranks, seeds)?;
    }
    Ok(good)
}

/// Runs the jobs that are not those of each fault.
fn other_jobs(
    options: &Options,
    paths: (&Path, &Path),
    faults: &[Fault],
    seeds: u64,
) -> Outcome<Table> {
    let (tool, scratch) = paths;
    let mut table = Table::default();
    if options.small {
        Jobs { tool, scratch, faults, ranks: LARGER, seeds }.slow(&mut table, false)?;
    }
    drawn::pairs(&mut table, paths, seeds)?;
    let [random, healthy] = if options.small { SMALL_DRAWN } else { DRAWN };
    drawn::random(&mut table, paths, faults, (drawn::today()?, random))?;
    drawn::healthy(&mut table, paths, healthy)?;
    others::run(&mut table, tool)?;
    recorded::run(&mut table, paths)?;
    Ok(table)
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

/// The rig's scenarios, or pairs of its runs. False if a result is not exact.
fn on_standin(options: &Options, (folder, scratch): (&Path, &Path)) -> Outcome<bool> {
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
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let parsed = |words| crate::options::<Options>(words);
        let options = parsed("--ranks 8,64 --seeds 2 --fault killed --no-silent");
        let options = options.expect("all are known");
        assert_eq!(options.sizes(), (vec![8, 64], 2));
        assert_eq!(options.faults, ["killed"]);
        assert!(options.no_silent && !options.standin && options.record.is_none());
        let sizes = |words| parsed(words).expect("all are known").sizes();
        assert_eq!(sizes(""), (vec![16, 64, 256], 3));
        assert_eq!(sizes("--small"), (vec![16], 1));
        assert_eq!(sizes("--full --seeds 2"), (vec![64, 256], 2));
        let drawn = parsed("--random 7 --jobs 3 --keep").expect("all are known");
        assert_eq!((drawn.random, drawn.jobs, drawn.healthy), (Some(7), 3, None));
        assert_eq!(parsed("--record").expect("all scenarios").record, Some(vec![]));
        for wrong in [
            "--ranks x",
            "--seeds 0",
            "--fault",
            "--ranks 8,,9",
            "--small --seeds 2",
            "--fault killed --keep",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
