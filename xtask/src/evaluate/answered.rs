// SPDX-License-Identifier: Apache-2.0
//! What the tool says about a job: its state, its findings with their costs, and the first row of
//! CAUSES OF THE WAITING.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::score::{Cause, float};
use super::tool::Spent;
use crate::outcome::Outcome;

/// The name of no part of the job.
pub(super) const NONE: &str = "none";

/// What the tool says about a job.
#[derive(Debug, Clone, Default)]
pub(super) struct Answered {
    /// The state in the report; `None` without one.
    pub(super) state: Option<String>,
    pub(super) findings: Vec<Said>,
    /// The part of the job in the first row of CAUSES OF THE WAITING.
    pub(super) first_row: Option<FirstRow>,
    /// The mean duration of a step, ns; `None` without steps.
    pub(super) step_ns: Option<f64>,
    pub(super) spent: Spent,
}

/// The first row of a list of causes.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct FirstRow {
    /// The part of the job, in words; `none` if it is none.
    pub(super) part: String,
    /// The ranks at fault.
    pub(super) ranks: BTreeSet<u64>,
}

/// A finding, and its cost as a share of a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Said {
    pub(super) cause: Cause,
    /// The part of the job that is slow, in words; `none` if there is none.
    pub(super) root: String,
    pub(super) cost: Option<f64>,
    pub(super) interval: Option<[f64; 2]>,
}

/// The JSON of each verb that was asked; null of those that were not.
#[derive(Debug, Clone, Default)]
pub(super) struct Verbs {
    pub(super) report: Value,
    pub(super) stragglers: Value,
    pub(super) diagnose: Value,
}

/// The verbs for recordings.
pub(super) const OF_RECORDINGS: &[&str] = &["report", "stragglers"];

impl Answered {
    /// Asks these verbs about files or folders.
    ///
    /// # Errors
    /// A verb fails, or names an unknown class.
    pub(super) fn ask(tool: &Path, verbs: &[&str], inputs: &[PathBuf]) -> Outcome<Answered> {
        let (mut said, mut spent) = (Verbs::default(), Spent::default());
        for verb in verbs {
            let mut command = Command::new(tool);
            let json = spent.json(command.args([verb, "--format", "json"]).args(inputs))?;
            match *verb {
                "report" => said.report = json,
                "stragglers" => said.stragglers = json,
                _ => said.diagnose = json,
            }
        }
        Answered::read(&said, spent)
    }

    /// Reads what the verbs said.
    ///
    /// # Errors
    /// A class is unknown.
    pub(super) fn read(said: &Verbs, spent: Spent) -> Outcome<Answered> {
        let Verbs { report, stragglers, diagnose } = said;
        let mut findings = Said::list(&stragglers["findings"])?;
        findings.extend(Said::list(&diagnose["findings"])?);
        let state = report["answer"]["state"].as_str();
        // Where `diagnose` was not asked, the report's causes are its findings.
        if diagnose.is_null() && state != Some("SLOW") {
            findings.extend(Said::list(&report["answer"]["causes"])?);
        }
        Ok(Answered {
            state: state.map(str::to_owned),
            findings,
            first_row: first_row(stragglers),
            step_ns: step_ns(stragglers),
            spent,
        })
    }

    /// The findings without their costs.
    pub(super) fn causes(&self) -> Vec<Cause> {
        self.findings.iter().map(|said| said.cause.clone()).collect()
    }
}

impl Said {
    fn list(array: &Value) -> Outcome<Vec<Said>> {
        let rows = array.as_array().into_iter().flatten();
        let costs = rows.map(|row| {
            let end = |at: usize| row["cost"]["interval"][at].as_f64();
            (
                part(&row["root"]),
                row["cost"]["step_share"].as_f64(),
                end(0).zip(end(1)).map(<[f64; 2]>::from),
            )
        });
        let causes = Cause::list(array)?.into_iter();
        Ok(causes
            .zip(costs)
            .map(|(cause, (root, cost, interval))| Said { cause, root, cost, interval })
            .collect())
    }
}

/// The mean duration of a step, ns.
fn step_ns(stragglers: &Value) -> Option<f64> {
    let steps = stragglers["steps"].as_array()?;
    let all: f64 = steps.iter().filter_map(|step| step["duration_ns"].as_f64()).sum();
    // A row may combine several steps.
    let count: u64 = steps.iter().map(|step| step["step_count"].as_u64().unwrap_or(1)).sum();
    (count > 0).then(|| all / float(count))
}

/// The first of the causes of the waiting; `None` without a list.
fn first_row(stragglers: &Value) -> Option<FirstRow> {
    let first = stragglers["causes"].as_array()?.first();
    let ranks = first.and_then(|first| first["root_ranks"].as_array()).into_iter().flatten();
    Some(FirstRow {
        part: first.map_or_else(|| part(&Value::Null), |first| part(&first["root"])),
        ranks: ranks.filter_map(Value::as_u64).collect(),
    })
}

/// A part of a job in words, as the tool prints it.
fn part(root: &Value) -> String {
    let words = [("rank", "rank"), ("DP rank", "dp_rank"), ("stage", "stage")];
    let words = words
        .iter()
        .filter_map(|(word, key)| root[*key].as_u64().map(|number| format!("{word} {number}")));
    let words: Vec<String> = words.collect();
    if words.is_empty() { NONE.to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn findings_costs_and_the_first_row_are_read() {
        let said = Verbs {
            report: json!({
                "answer": {"state": "SLOW", "causes": [{"class": "S1", "root_ranks": [3]}]},
            }),
            stragglers: json!({
                "steps": [{"duration_ns": 125}, {"duration_ns": 140}],
                "causes": [{"root": {"rank": 3}, "root_ranks": [3]}],
                "findings": [{"class": "S1", "root_ranks": [3],
                    "cost": {"step_share": 0.2, "interval": [0.1, 0.3]}}],
            }),
            diagnose: Value::Null,
        };
        let answered = Answered::read(&said, Spent::default()).expect("known classes");
        let [only] = &answered.findings[..] else { panic!("{answered:?}") };
        assert_eq!((only.cost, only.interval), (Some(0.2), Some([0.1, 0.3])));
        let first = FirstRow { part: "rank 3".into(), ranks: [3].into() };
        assert_eq!(answered.first_row, Some(first));
        let listed = |causes: Value| first_row(&json!({"causes": causes}));
        let link = listed(json!([{"root": null, "root_ranks": [4, 5]}]));
        assert_eq!(link, Some(FirstRow { part: NONE.into(), ranks: [4, 5].into() }));
        assert_eq!(listed(json!([])).map(|row| row.part), Some(NONE.into()));
        assert_eq!(answered.step_ns, Some(132.5));
        assert_eq!(answered.state.as_deref(), Some("SLOW"));
    }

    #[test]
    fn causes_of_a_hang_are_those_of_the_report_unless_diagnose_was_asked() {
        let cause = json!([{"class": "H1a", "root_ranks": [1]}]);
        let report = json!({"answer": {"state": "HUNG", "causes": cause}});
        let mut said = Verbs { report, ..Verbs::default() };
        let count = |said: &Verbs| {
            Answered::read(said, Spent::default()).expect("known classes").findings.len()
        };
        assert_eq!(count(&said), 1);
        said.diagnose = json!({"findings": cause});
        assert_eq!(count(&said), 1);
    }

    #[test]
    fn parts_have_the_names_of_the_tool() {
        assert_eq!(part(&json!({"dp_rank": 0, "stage": 3})), "DP rank 0, stage 3");
        assert_eq!(part(&Value::Null), "none");
    }
}
