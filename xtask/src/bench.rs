// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask bench`: what a callback costs, against the bounds of SPECIFICATION.md.
//!
//! Two ways. The plain one plays loads with the neutral driver, in rounds that interleave the
//! plugin with others that do nearly nothing ([`driver`], [`loads`]), and holds the medians
//! against a table of bounds ([`bounds`]). `--instructions` counts instructions instead, which are
//! the same on a busy machine, and holds them against the parent commit's ([`instructions`]).
//!
//! The driver and the floors are not part of this repository: neither is tuned for the other.

mod bounds;
mod driver;
mod instructions;
mod loads;
mod observe;
mod report;
mod runs;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::{Outcome, Usage};
use driver::Driver;
use runs::Runs;

const ROUNDS: usize = 5;

/// What the command line asks for.
#[derive(Debug, PartialEq)]
enum Task {
    Loads(Loads),
    Instructions { against: Option<String> },
}

#[derive(Debug, PartialEq)]
struct Loads {
    rounds: usize,
    /// Where the results go as JSON.
    json: Option<PathBuf>,
    /// Whether a bound that does not hold is a failure.
    gate: bool,
}

/// Runs the benchmarks. Exit status 1 where a bound does not hold and `--gate` is given, or where
/// callbacks take more instructions than they may.
pub(crate) fn run(args: &[String]) -> Outcome {
    match task(args)? {
        Task::Loads(loads) => measure(&loads),
        Task::Instructions { against } => instructions::run(against.as_deref()),
    }
}

fn task(args: &[String]) -> Result<Task, Usage> {
    let mut loads = Loads { rounds: ROUNDS, json: None, gate: false };
    let (mut counts, mut against, mut of_loads) = (false, None, false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| Usage(format!("bench {arg} takes a value")));
        match arg.as_str() {
            "--instructions" => counts = true,
            "--against" => against = Some(value()?.clone()),
            "--gate" => loads.gate = true,
            "--json" => loads.json = Some(value()?.into()),
            "--rounds" => {
                let rounds = value()?.parse().ok().filter(|&rounds| rounds > 0);
                loads.rounds = rounds.ok_or_else(|| Usage("--rounds takes a number".into()))?;
            }
            _ => return Err(Usage(format!("bench takes no argument `{arg}`"))),
        }
        of_loads |= matches!(arg.as_str(), "--gate" | "--json" | "--rounds");
    }
    match (counts, of_loads) {
        (true, true) => Err(Usage("bench --instructions takes `--against REV` alone".into())),
        (true, false) => Ok(Task::Instructions { against }),
        (false, _) if against.is_some() => Err(Usage("--against goes with --instructions".into())),
        (false, _) => Ok(Task::Loads(loads)),
    }
}

/// The target folder: that of this program.
fn target() -> Outcome<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.ancestors().nth(2).ok_or("this program is in no target folder")?.to_owned())
}

fn measure(loads: &Loads) -> Outcome {
    let driver = Driver::compile(&target()?)?;
    crate::build::products(crate::build::Profile::Dist)?;
    let mut runs = Runs::default();
    for round in 1..=loads.rounds {
        for load in loads::LOADS {
            eprintln!("round {round} of {}: {}", loads.rounds, load.name);
            for subject in load.subjects {
                runs.add(load, subject, driver.run(load, subject)?);
            }
        }
    }
    let rows = report::rows(&runs);
    print!("{}", report::table(&rows));
    if let Some(path) = &loads.json {
        std::fs::write(path, report::json(&rows, &runs, loads.rounds))?;
    }
    let holds = rows.iter().all(|row| row.verdict == report::Verdict::Ok);
    Ok(if holds || !loads.gate { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &str) -> Result<Task, Usage> {
        task(&words.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_line_is_read() {
        let all = Loads { rounds: 2, json: Some("x.json".into()), gate: true };
        let read = words("--gate --rounds 2 --json x.json").expect("it is well formed");
        assert_eq!(read, Task::Loads(all));
        let against = Some("v1".to_owned());
        let read = words("--instructions --against v1").expect("it is well formed");
        assert_eq!(read, Task::Instructions { against });
        for wrong in ["--rounds", "--rounds 0", "--against v1", "--instructions --gate", "fast"] {
            assert!(words(wrong).is_err(), "{wrong}");
        }
    }
}
