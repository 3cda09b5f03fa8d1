// SPDX-License-Identifier: Apache-2.0
//! The state of a job and its causes, derived from the results of the other analyses.

use ncclscope_diagnose::{Diagnosis, Ends};
use ncclscope_findings::{Finding, FindingClass};
use ncclscope_operations::human::{count, if_one};
use ncclscope_report::Report;
use ncclscope_stragglers::SlowReport;
use serde::Serialize;

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// The job is over, and it ended by an error or because processes of it died.
    Crashed,
    /// Ranks wait in NCCL and do not advance.
    Hung,
    /// The job advances, but a rank, link or GPU slows it down.
    Slow,
    /// The job advances, and nothing slows it down.
    Fine,
    /// The input does not show the state.
    Unknown,
}

impl State {
    /// The first word of a report.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            State::Crashed => "CRASHED",
            State::Hung => "HUNG",
            State::Slow => "SLOW",
            State::Fine => "FINE",
            State::Unknown => "CANNOT TELL",
        }
    }
}

/// The results of the analyses from which an answer is made.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Why the job hangs: the result of `diagnose`.
    pub hang: &'a Diagnosis,
    /// What slows the job down: the result of `stragglers`.
    pub slow: &'a SlowReport,
    /// The figures of the job: the result of `report`.
    pub report: &'a Report,
}

/// A question about a job: the state and the causes, worst first, if the answer is yes.
type Question = fn(Found<'_>) -> Option<(State, Vec<Finding>)>;

/// The questions in their order: the first one with an answer decides. What happened before is
/// told in a second line ([`past`]).
const QUESTIONS: [Question; 4] = [crashed, hung, stands_still, slow];

/// The state of the job and its causes, the worst first.
pub(crate) fn causes(found: Found<'_>) -> (State, Vec<Finding>) {
    let answer = QUESTIONS.iter().find_map(|question| question(found));
    answer.unwrap_or_else(|| match doubt(found) {
        Some(_) => (State::Unknown, Vec::new()),
        None => (State::Fine, Vec::new()),
    })
}

/// Did it crash? Only a job that is over did. If ranks waited in NCCL, the reason why they did
/// comes first, unless it is that a process ended.
fn crashed(found: Found<'_>) -> Option<(State, Vec<Finding>)> {
    let hang = found.hang;
    let ending = hang.ending.as_ref()?;
    let has_died = hang.findings.first().is_some_and(is_death);
    let waits = hang.waiting_ranks != 0 && !hang.findings.is_empty();
    let is_crash = has_died || ending.is_crash() && !waits;
    is_crash.then(|| (State::Crashed, hang.findings.clone()))
}

/// Do ranks wait for something that does not come?
fn hung(found: Found<'_>) -> Option<(State, Vec<Finding>)> {
    let hang = found.hang;
    // Operations with mismatched calls may have ended, with wrong results, so that the job need
    // not hang.
    let state = if is_mismatch_without_wait(hang) { State::Unknown } else { State::Hung };
    (!hang.findings.is_empty()).then(|| (state, hang.findings.clone()))
}

/// Does nothing of it move, although no finding says why? Whether it was slow says nothing about
/// that.
fn stands_still(found: Found<'_>) -> Option<(State, Vec<Finding>)> {
    found.hang.standstill.map(|_| (State::Unknown, Vec::new()))
}

/// Is it slow?
fn slow(found: Found<'_>) -> Option<(State, Vec<Finding>)> {
    let findings = &found.slow.findings;
    (!findings.is_empty()).then(|| (State::Slow, findings.clone()))
}

/// What slowed a job down before it crashed or stood still, without what is said of the ranks that
/// ended first: the others waited for these.
pub(crate) fn past<'a>(state: State, causes: &[Finding], found: Found<'a>) -> Option<&'a Finding> {
    let is_new = |finding: &&Finding| {
        let is_named = |rank: &u32| causes.iter().any(|one| one.blamed().contains(rank));
        !finding.root_ranks.iter().any(is_named)
    };
    let is_over = state == State::Crashed || stands_still(found).is_some();
    found.slow.findings.iter().filter(|_| is_over && state != State::Slow).find(is_new)
}

/// True if a finding is that a process is gone.
pub(crate) fn is_death(finding: &Finding) -> bool {
    finding.class == FindingClass::ProcessGone
}

/// True if ranks made different calls, or ran them with different settings, and no rank waits.
pub(crate) fn is_mismatch_without_wait(hang: &Diagnosis) -> bool {
    let is_mismatch = |finding: &Finding| {
        use FindingClass::{CallMismatch, P2pMismatch, SettingsMismatch};
        matches!(finding.class, CallMismatch | P2pMismatch | SettingsMismatch)
    };
    hang.waiting_ranks == 0 && !hang.findings.is_empty() && hang.findings.iter().all(is_mismatch)
}

/// Why a job without findings may still not be fine; `None` if there is no reason for doubt.
pub(crate) fn doubt(found: Found<'_>) -> Option<String> {
    doubt_of_hang(found).or_else(|| found.slow.quiet.first().cloned())
}

/// Why a job without findings may still hang or have ended badly.
pub(crate) fn doubt_of_hang(found: Found<'_>) -> Option<String> {
    let Found { hang, report, .. } = found;
    let is_empty = report.operations.is_empty() && report.open_operations.is_empty();
    if is_empty {
        return Some("no operation was recorded".into());
    }
    if hang.waiting_ranks != 0 || hang.standstill.is_some() {
        return hang.notes.last().cloned();
    }
    if let Some(hidden) = &hang.hidden {
        return Some(hidden.text.clone());
    }
    if let missing @ 1.. = hang.missing_ranks() {
        let have = if_one(missing, "has", "have");
        let of = count(hang.job_ranks, "rank");
        return Some(format!("{missing} of {of} {have} no readable recording"));
    }
    if let removed @ 1.. = report.lost.removed {
        let were = if_one(removed, "recording was", "recordings were");
        return Some(format!(
            "{removed} {were} removed while written: what came before is missing"
        ));
    }
    is_all_broken_off(hang).then(|| ALL_BROKEN_OFF.into())
}

/// True if no process of the job ended in order, and the job was not started with `run`, so that
/// nothing else shows whether it ended by an error.
pub(crate) fn is_all_broken_off(hang: &Diagnosis) -> bool {
    let ending = hang.ending.as_ref();
    ending.is_some_and(|ending| ending.command.is_none() && ending.ends == Ends::BrokenOff)
}

/// The doubt about a job that looks fine, and of which no process ended in order.
const ALL_BROKEN_OFF: &str = "no process ended in order: all were ended by a signal, a crash or \
    `_exit`, and no recording shows why; see the first error in the launcher's log";
