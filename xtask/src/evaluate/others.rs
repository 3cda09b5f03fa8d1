// SPDX-License-Identifier: Apache-2.0
//! Files of jobs that others ran, in `../shared/data`, with their truth as its README gives it.

use std::path::{Path, PathBuf};

use super::answered::Answered;
use super::figures::{Expected, Truth};
use super::table::{Origin, Table};
use crate::outcome::Outcome;

/// Where the files are.
const DATA: &str = "../shared/data";

/// A job, and what is true of it.
struct Case {
    row: &'static str,
    /// Files or folders below [`DATA`].
    inputs: &'static [&'static str],
    verb: &'static str,
    truth: Known,
}

/// What is known of a job. Any of the classes is right, and any of the sets of ranks.
struct Known {
    classes: &'static [&'static str],
    ranks: &'static [&'static [u64]],
    /// See [`Truth::allowed`].
    allowed: &'static [u64],
    /// See [`Truth::parts`].
    parts: &'static [&'static str],
    cost: Option<f64>,
}

/// Nothing is wrong.
const FINE: Known = Known { classes: &[], ranks: &[], allowed: &[], parts: &[], cost: None };

const FAULTY: &[&[u64]] = &[&[9, 14]];
/// Two ranks differ, and nothing shows which of them is wrong.
const EITHER: &[&[u64]] = &[&[0], &[1]];
const DUMPS: &str = "others: Flight Recorder";
const RAS: &str = "others: RAS";
const KINETO: &str = "others: PyTorch traces";

const fn hang(
    row: &'static str,
    inputs: &'static [&'static str],
    class: &'static [&'static str],
    ranks: &'static [&'static [u64]],
) -> Case {
    Case { row, inputs, verb: "diagnose", truth: Known { classes: class, ranks, ..FINE } }
}

const CASES: &[Case] = &[
    Case {
        row: "others: Megatron's operations",
        inputs: &["straggler/trace-AR.parquet"],
        verb: "stragglers",
        // 1 - trem / tori of mw-AR.json: the authors' simulation without the slow worker.
        truth: Known {
            classes: &["S1"],
            ranks: &[&[0]],
            parts: &["DP rank 0, stage 0"],
            cost: Some(0.494),
            ..FINE
        },
    },
    Case {
        row: KINETO,
        inputs: &["kineto/dlrm_kineto.tar.gz"],
        verb: "stragglers",
        truth: Known { allowed: &[7], parts: &["rank 7"], ..FINE },
    },
    Case {
        row: KINETO,
        inputs: &["field/kineto-missing-ranks", "field/kineto-missing-ranks/the-other-half"],
        verb: "stragglers",
        truth: Known { allowed: &[7], parts: &["rank 7"], ..FINE },
    },
    Case {
        row: KINETO,
        inputs: &["field/kineto-missing-ranks"],
        verb: "stragglers",
        truth: Known { allowed: &[7], ..FINE },
    },
    hang(DUMPS, &["flight-recorder/gpu_error_2nd"], &["H3c"], FAULTY),
    hang(DUMPS, &["flight-recorder/lock_gil_1st"], &["H1a"], FAULTY),
    hang(DUMPS, &["field/fr-json-real-form"], &["H1a"], FAULTY),
    hang(DUMPS, &["field/fr-names-with-time"], &["H1a"], FAULTY),
    hang(DUMPS, &["field/fr-torch-2.15/pickle"], &["H1a"], &[&[2]]),
    hang(DUMPS, &["field/fr-torch-2.15/json"], &["H1a"], &[&[2]]),
    hang(DUMPS, &["field/fr-torch-2.15/json-as-written"], &["H1a"], &[&[2]]),
    hang(DUMPS, &["field/fr-json-tutorial-crash"], &["H2"], EITHER),
    hang(DUMPS, &["field/fr-json-tutorial-crash/fr-pickle"], &["H2"], EITHER),
    hang(DUMPS, &["field/fr-coalesced-size"], &["H2"], EITHER),
    hang(RAS, &["field/ras-2.28-missing-comma/ray_dead_2_28_9.json"], &["H1b"], &[&[1]]),
    hang(RAS, &["field/ras-2.28-missing-comma/ray_dead_comma_fixed.json"], &["H1b"], &[&[1]]),
    hang(RAS, &["field/ras-multi-communicator/ray_multicomm.json"], &["H1a"], &[&[3]]),
    hang(RAS, &["field/ras-multi-communicator/nc-ok.json"], &["H1a"], &[&[3]]),
    hang(RAS, &["field/ras-text/ras_text_incomplete.txt"], &["H1b"], &[&[21]]),
    hang(RAS, &["field/ras-text/ras_text_straggler_launch.txt"], &["H1a"], &[&[7]]),
    Case {
        row: RAS,
        inputs: &[
            "field/ras-running-job/running.json",
            "field/ras-running-job/running-30s-later.json",
        ],
        verb: "diagnose",
        truth: FINE,
    },
];

impl Known {
    fn truth(&self) -> Outcome<Truth> {
        let classes = self.classes.iter().map(|class| class.parse());
        let classes: Vec<_> = classes.collect::<Result<_, _>>()?;
        let ranks = self.ranks.iter().map(|set| set.iter().copied().collect()).collect();
        let cause = Expected { classes, ranks };
        Ok(Truth {
            has_fault: !cause.classes.is_empty() || !self.allowed.is_empty(),
            causes: if cause.classes.is_empty() { vec![] } else { vec![cause] },
            allowed: self.allowed.iter().copied().collect(),
            parts: self.parts.iter().map(|&part| part.to_owned()).collect(),
            cost: self.cost,
            is_slow: self.cost.is_some(),
        })
    }
}

/// Judges all files; without the folder, says so in each row.
///
/// # Errors
/// The tool fails.
pub(super) fn run(table: &mut Table, tool: &Path) -> Outcome<()> {
    println!("\nfiles of others");
    let data = Path::new(DATA);
    for case in CASES {
        if !data.is_dir() {
            table.leave_out(case.row, "../shared is missing");
            continue;
        }
        let inputs: Vec<PathBuf> = case.inputs.iter().map(|input| data.join(input)).collect();
        let said = Answered::ask(tool, &[case.verb], &inputs)?;
        let job = case.inputs.join(" ");
        table.add((case.row, Origin::Others), &job, &case.truth.truth()?, &said);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_a_truth() {
        for case in CASES {
            let truth = case.truth.truth().expect("known classes");
            let is_said = !truth.causes.is_empty() || !truth.allowed.is_empty();
            assert!(is_said || case.inputs[0].contains("running"), "{:?}", case.inputs);
        }
    }
}
