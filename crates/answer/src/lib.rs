// SPDX-License-Identifier: Apache-2.0
/*!
The first lines of a report: whether a job hangs, is slow or is fine, which ranks cause it, why,
what it costs, and which command says more.

[`Answer::of`] chooses from what the others found: a hang comes before anything slow, and a job in
which nothing was found is fine only if something slow would have been found.

This crate does **not** find anything itself: verdicts are those of `diagnose` and `stragglers`,
figures those of `report`. It does not print.
*/
#![forbid(unsafe_code)]

mod place;
mod text;
mod time;

pub use ncclscope_findings::{Cost, Place};
pub use time::Moment;

use ncclscope_diagnose::{Diagnosis, Verdict};
use ncclscope_findings::{Confidence, FindingClass, Help};
use ncclscope_operations::human::if_one;
use ncclscope_report::Report;
use ncclscope_stragglers::SlowReport;
use ncclscope_stragglers::finding::Finding;
use place::Places;
use serde::Serialize;

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// Ranks wait in NCCL and do not advance.
    Hung,
    /// It advances, and a rank, link or GPU slows it down.
    Slow,
    /// It advances, and nothing slows it down.
    Fine,
    /// The input does not show it.
    Unknown,
}

/// A cause, and the ranks at fault.
#[derive(Clone, Debug, PartialEq)]
struct Cause {
    class: FindingClass,
    confidence: Confidence,
    root_ranks: Vec<u32>,
    /// From which rank to which, for a link.
    edge: Option<[u32; 2]>,
    /// How many times slower than the others.
    factor: Option<f64>,
}

/// The answer, as `answer` in the schema `ncclscope.report/3`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Whether it hangs, is slow or is fine.
    pub state: State,
    /// Since when nothing advances, or the worst finding slows it down, in whole seconds of UTC
    /// (RFC 3339); `None` if that is unknown, and of a job that is fine.
    pub since: Option<String>,
    /// The codes of the causes' classes, worst first.
    pub classes: Vec<&'static str>,
    /// The ranks at fault, ascending: ranks in the job.
    pub root_ranks: Vec<u32>,
    /// Where the first 64 of them run.
    #[serde(rename = "where")]
    pub places: Vec<Place>,
    /// What it costs; `None` where that is unknown.
    pub cost: Option<Cost>,
    /// Why, in one sentence.
    pub why: String,
    /// The commands that say more.
    pub next: Vec<String>,
    #[serde(skip)]
    causes: Vec<Cause>,
    /// The first line after the state.
    #[serde(skip)]
    headline: String,
}

/// What an answer rests on.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Why the job hangs.
    pub hang: &'a Diagnosis,
    /// What slows it down.
    pub slow: &'a SlowReport,
    /// Its figures.
    pub report: &'a Report,
}

impl Answer {
    /// The answer from what was found; `input` is the run as a command names it.
    #[must_use]
    pub fn of(found: Found<'_>, input: &str) -> Answer {
        let (state, causes) = causes(found);
        let places = Places::of(found.report);
        let mut root_ranks: Vec<u32> =
            causes.iter().flat_map(|cause| cause.root_ranks.iter().copied()).collect();
        root_ranks.sort_unstable();
        root_ranks.dedup();
        let mut classes: Vec<&str> = causes.iter().map(|cause| cause.class.code()).collect();
        classes.dedup();
        Answer {
            state,
            since: since(state, found),
            classes,
            places: root_ranks.iter().take(Help::MOST).map(|&rank| places.of_rank(rank)).collect(),
            root_ranks,
            cost: cost(state, found),
            why: text::why(state, &causes, found),
            next: next(state, input),
            headline: text::headline(state, found),
            causes,
        }
    }

    /// The answer where a filter leaves out recordings: there is none. `input` is the run as a
    /// command names it.
    #[must_use]
    pub fn of_a_part(input: &str) -> Answer {
        let state = State::Unknown;
        Answer {
            state,
            since: None,
            classes: Vec::new(),
            root_ranks: Vec::new(),
            places: Vec::new(),
            cost: None,
            why: "only a run as a whole shows whether a rank holds up others".into(),
            next: vec![format!("ncclscope report {input}")],
            causes: Vec::new(),
            headline: "a filter leaves out recordings, and these are not judged alone".into(),
        }
    }
}

fn causes(found: Found<'_>) -> (State, Vec<Cause>) {
    let Found { hang, slow, .. } = found;
    let of_verdict = |verdict: &Verdict| Cause {
        class: verdict.class,
        confidence: verdict.confidence,
        root_ranks: verdict.root_ranks.clone(),
        edge: verdict.edge,
        factor: None,
    };
    let of_finding = |finding: &Finding| Cause {
        class: finding.class,
        confidence: finding.confidence,
        root_ranks: finding.root_ranks.clone(),
        edge: finding.edge,
        factor: finding.factor,
    };
    if !hang.findings.is_empty() {
        let causes = hang.findings.iter().map(of_verdict).collect();
        // Calls that differ may have ended, with wrong results.
        let state = if is_mismatch_without_wait(hang) { State::Unknown } else { State::Hung };
        return (state, causes);
    }
    if !slow.findings.is_empty() {
        return (State::Slow, slow.findings.iter().map(of_finding).collect());
    }
    let state = if doubt(found).is_some() { State::Unknown } else { State::Fine };
    (state, Vec::new())
}

/// Ranks made different calls, and none waits.
pub(crate) fn is_mismatch_without_wait(hang: &Diagnosis) -> bool {
    let is_mismatch = |verdict: &Verdict| {
        matches!(verdict.class, FindingClass::CallMismatch | FindingClass::P2pMismatch)
    };
    hang.waiting_ranks == 0 && !hang.findings.is_empty() && hang.findings.iter().all(is_mismatch)
}

/// Why a job in which nothing was found may not be fine.
fn doubt(found: Found<'_>) -> Option<String> {
    let Found { hang, slow, report } = found;
    let is_empty = report.operations.is_empty() && report.open_operations.is_empty();
    if is_empty {
        return Some("no operation was recorded".into());
    }
    if hang.waiting_ranks != 0 {
        return hang.notes.last().cloned();
    }
    let silent = hang.silent_ranks.len();
    if silent != 0 {
        let have = if_one(silent, "has", "have");
        return Some(format!("{silent} of {} ranks {have} no recording", silent + hang.ranks));
    }
    slow.quiet.first().cloned()
}

/// Since when it hangs or is slow; of several findings the worst tells.
fn since(state: State, found: Found<'_>) -> Option<String> {
    match state {
        State::Hung => hung_since_ns(found).map(|ns| Moment::from_ns(ns).rfc3339()),
        State::Slow => found.slow.findings.first()?.help.since.clone(),
        State::Fine | State::Unknown => None,
    }
}

/// Since when the ranks that wait longest do so.
fn hung_since_ns(found: Found<'_>) -> Option<u64> {
    let end = found.report.ranks.iter().filter_map(|row| row.end_ns).max()?;
    Some(end.saturating_sub(age_ns(found.hang)?))
}

/// How long the oldest operation that waits has been in flight, ns.
fn age_ns(hang: &Diagnosis) -> Option<u64> {
    hang.findings.iter().filter_map(|verdict| verdict.age_ns).max()
}

fn cost(state: State, found: Found<'_>) -> Option<Cost> {
    let share = match state {
        State::Hung => 1.0,
        State::Slow => found.slow.findings.first().and_then(|finding| finding.lost_share)?,
        State::Fine | State::Unknown => return None,
    };
    let gpus = ncclscope_operations::stats::to_f64(gpus(found.report));
    Cost::of(share, gpus)
}

/// The ranks of the job: one GPU each.
fn gpus(report: &Report) -> u64 {
    let largest = report.ranks.iter().filter_map(|row| row.nranks).max().unwrap_or(0);
    u64::from(largest).max(report.processes.len() as u64)
}

fn next(state: State, input: &str) -> Vec<String> {
    let verbs: &[&str] = match state {
        State::Hung => &["diagnose"],
        State::Slow => &["stragglers"],
        State::Fine => &["report --full", "view"],
        State::Unknown => &["report --full"],
    };
    verbs.iter().map(|verb| format!("ncclscope {verb} {input}")).collect()
}
