// SPDX-License-Identifier: Apache-2.0
//! `ncclscope compare` on simulated runs: how often it raises an alarm for equal runs, and how
//! often it finds a function that became 5 % slower.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::case::{Folder, simulate};
use super::score::float;
use super::tool::json;
use crate::outcome::Outcome;

/// Maximum share of equal pairs with an alarm.
const ALARMS: f64 = 0.02;
/// Minimum share of slower functions that are found.
const FOUND: f64 = 0.95;
/// The slower functions, in turn.
const FUNCTIONS: [&str; 3] = ["AllReduce", "AllGather", "ReduceScatter"];
const RANKS: u64 = 16;
/// The slowdown factor, as a scenario and as a number.
const SLOWER: (&str, f64) = ("1.05", 0.05);

/// Numbers of pairs, and of the results for them.
#[derive(Debug, Default)]
struct Counts {
    pairs: u64,
    /// Equal pairs with a row that is slower or faster.
    alarms: u64,
    /// Slower functions that were found.
    found: u64,
    /// Rows of other functions that are slower, and rows that are faster.
    wrong: u64,
    /// Equal pairs with the answer `unknown`.
    unknown: u64,
}

/// Prints the figures. False if a bound is missed.
pub(super) fn is_good(tool: &Path, scratch: &Path, pairs: u64) -> Outcome<bool> {
    let mut counts = Counts::default();
    for (pair, func) in (0..pairs).zip(FUNCTIONS.iter().cycle()) {
        counts.add(tool, scratch, pair, func)?;
    }
    let share = |of: u64| float(of) / float(counts.pairs.max(1));
    println!(
        "\ncompare, {RANKS} ranks: {} of {} equal pairs alarm, {} unknown; {} of {} \
         functions that are {:.0} % slower are found, with {} wrong rows",
        counts.alarms,
        counts.pairs,
        counts.unknown,
        counts.found,
        counts.pairs,
        100.0 * SLOWER.1,
        counts.wrong,
    );
    Ok(share(counts.alarms) < ALARMS && share(counts.found) >= FOUND)
}

impl Counts {
    /// Adds a run, an equal one, and one with a slower function, each with its own seed.
    fn add(&mut self, tool: &Path, scratch: &Path, pair: u64, func: &str) -> Outcome<()> {
        let runs = Folder::new(scratch.join(format!("compare-{pair}")))?;
        let slower = format!(
            "[[fault]]\nname = \"slow-function\"\nfunc = \"{func}\"\nfactor = {}\n",
            SLOWER.0
        );
        let run = |name: &str, scenario: &str, seed: u64| -> Outcome<_> {
            let folder = runs.0.join(name);
            simulate(tool, &folder, scenario, RANKS, seed, &[])?;
            Ok(folder)
        };
        let seed = 3 * pair + 1;
        let (a, equal) = (run("a", "", seed)?, run("equal", "", seed + 1)?);
        let slow = run("slow", &slower, seed + 2)?;
        let compare = |b: &Path| {
            let mut command = Command::new(tool);
            json(command.args(["compare", "--format", "json"]).arg(&a).arg(b))
        };
        self.pairs += 1;
        let same = compare(&equal)?;
        let alarms = changed(&same, "slower").chain(changed(&same, "faster"));
        let alarms: Vec<String> = alarms.map(|row| row["key"].to_string()).collect();
        if !alarms.is_empty() {
            println!("equal pair {pair}: {}", alarms.join(", "));
        }
        self.alarms += u64::from(!alarms.is_empty());
        self.unknown += u64::from(same["answer"]["state"] == "UNKNOWN");
        let different = compare(&slow)?;
        let is_it = |row: &&Value| row["key"]["kind"] == "transfer" && row["key"]["func"] == func;
        let found = changed(&different, "slower").any(|row| is_it(&row));
        if !found {
            println!("pair {pair}: {func} is not found: {}", different["answer"]["what"]);
        }
        self.found += u64::from(found);
        let is_other = |row: &&Value| row["key"]["kind"] == "transfer" && !is_it(row);
        let others = changed(&different, "slower").filter(is_other).count();
        self.wrong += (others + changed(&different, "faster").count()) as u64;
        Ok(())
    }
}

/// The rows with a verdict.
pub(super) fn changed<'a>(
    comparison: &'a Value,
    verdict: &'a str,
) -> impl Iterator<Item = &'a Value> {
    let rows = comparison["rows"].as_array().into_iter().flatten();
    rows.filter(move |row| row["verdict"] == verdict)
}
