// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask bench`: what a callback costs, against the bounds of SPECIFICATION.md.
//!
//! There are two ways. The plain one plays loads with the neutral driver, in rounds that interleave
//! the plugin with others that do nearly nothing ([`driver`], [`loads`]), and compares the medians
//! with a table of bounds ([`bounds`]). `--instructions` counts instructions instead, which do not
//! change on a busy machine, and compares them with the parent commit's ([`instructions`]).
//!
//! The driver and the floors are kept outside of this repository, so that neither is tuned for the
//! other.

mod bounds;
mod driver;
mod instructions;
mod loads;
mod observe;
mod report;
mod runs;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::outcome::Outcome;
use driver::Driver;
use runs::Runs;

/// What `cargo xtask bench` takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How often each load is played
    #[arg(long, value_name = "N", default_value = "5")]
    rounds: NonZeroUsize,
    /// Processes in which the cost of a callback is compared; 0 for none
    #[arg(long, value_name = "N", default_value = "30")]
    starts: usize,
    /// A file for the results, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail where a bound does not hold
    #[arg(long)]
    gate: bool,
    /// Count instructions instead
    #[arg(long, conflicts_with_all = ["rounds", "starts", "json", "gate"])]
    instructions: bool,
    /// The commit to compare with [default: the parent, or HEAD if the tree differs from it]
    #[arg(long, value_name = "REV", requires = "instructions")]
    against: Option<String>,
}

/// Runs the benchmarks. Exit status 1 if `--gate` is given and a bound is exceeded, or if callbacks
/// take more instructions than allowed.
pub(crate) fn run(options: &Options) -> Outcome {
    match options.instructions {
        true => instructions::run(&target()?, options.against.as_deref()),
        false => measure(options),
    }
}

/// The target folder in which this program was built.
fn target() -> Outcome<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.ancestors().nth(2).ok_or("this program is in no target folder")?.to_owned())
}

fn measure(options: &Options) -> Outcome {
    let rounds = options.rounds.get();
    let driver = Driver::compile(&target()?)?;
    crate::build::products(crate::build::Profile::Dist)?;
    let mut runs = Runs::default();
    for round in 1..=rounds {
        for load in loads::LOADS {
            eprintln!("round {round} of {rounds}: {}", load.name);
            for subject in load.subjects {
                runs.add(load, subject, driver.run(load, subject)?);
            }
        }
    }
    for start in 1..=options.starts {
        eprintln!("process start {start} of {}", options.starts);
        for subject in loads::STARTS.subjects {
            runs.add(loads::STARTS, subject, driver.run(loads::STARTS, subject)?);
        }
    }
    let rows = report::rows(&runs);
    print!("{}", report::table(&rows));
    if let Some(path) = &options.json {
        std::fs::write(path, report::json(&rows, &runs, rounds))?;
    }
    let holds = rows.iter().all(|row| row.verdict == report::Verdict::Ok);
    Ok(if holds || !options.gate { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read() {
        let read = |words| crate::options::<Options>(words);
        let all = read("--gate --rounds 2 --starts 0 --json x.json").expect("it is well formed");
        assert!(all.gate && all.rounds.get() == 2 && all.json == Some("x.json".into()));
        assert_eq!((all.starts, read("").expect("nothing is required").starts), (0, 30));
        let counts = read("--instructions --against v1").expect("it is well formed");
        assert!(counts.instructions && counts.against.as_deref() == Some("v1"));
        for wrong in ["--rounds", "--rounds 0", "--against v1", "--instructions --gate", "fast"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
