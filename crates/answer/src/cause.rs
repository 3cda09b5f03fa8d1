// SPDX-License-Identifier: Apache-2.0
//! The state of a job and its causes, derived from the results of the other analyses.

use ncclscope_diagnose::{Diagnosis, Verdict};
use ncclscope_findings::{Confidence, FindingClass};
use ncclscope_operations::human::if_one;
use ncclscope_report::Report;
use ncclscope_stragglers::SlowReport;
use ncclscope_stragglers::finding::Finding;
use serde::{Serialize, Serializer};

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
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
            State::Hung => "HUNG",
            State::Slow => "SLOW",
            State::Fine => "FINE",
            State::Unknown => "CANNOT TELL",
        }
    }
}

/// A cause and the ranks at fault.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Cause {
    /// In JSON its code.
    #[serde(serialize_with = "code")]
    pub(crate) class: FindingClass,
    pub(crate) confidence: Confidence,
    pub(crate) root_ranks: Vec<u32>,
    /// Sending and receiving rank, if the cause is a link.
    pub(crate) edge: Option<[u32; 2]>,
    /// How many times slower it is than the others, if it is slow.
    pub(crate) factor: Option<f64>,
    /// The cause in words, without the ranks.
    pub(crate) text: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn code<S: Serializer>(class: &FindingClass, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(class.code())
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

/// The state of the job and its causes, the worst first.
pub(crate) fn causes(found: Found<'_>) -> (State, Vec<Cause>) {
    let Found { hang, slow, .. } = found;
    let of_verdict = |verdict: &Verdict| Cause {
        class: verdict.class,
        confidence: verdict.confidence,
        root_ranks: verdict.root_ranks.clone(),
        edge: verdict.edge,
        factor: None,
        text: verdict.meaning().to_owned(),
    };
    let of_finding = |finding: &Finding| Cause {
        class: finding.class,
        confidence: finding.confidence,
        root_ranks: finding.root_ranks.clone(),
        edge: finding.edge,
        factor: finding.factor,
        text: finding.class.title().to_owned(),
    };
    if !hang.findings.is_empty() {
        let causes = hang.findings.iter().map(of_verdict).collect();
        // Operations with mismatched calls may have ended, with wrong results, so that the job need
        // not hang.
        let state = if is_mismatch_without_wait(hang) { State::Unknown } else { State::Hung };
        return (state, causes);
    }
    if !slow.findings.is_empty() {
        return (State::Slow, slow.findings.iter().map(of_finding).collect());
    }
    let state = if doubt(found).is_some() { State::Unknown } else { State::Fine };
    (state, Vec::new())
}

/// True if ranks made different calls, or ran them with different settings, and no rank waits.
pub(crate) fn is_mismatch_without_wait(hang: &Diagnosis) -> bool {
    let is_mismatch = |verdict: &Verdict| {
        use FindingClass::{CallMismatch, P2pMismatch, SettingsMismatch};
        matches!(verdict.class, CallMismatch | P2pMismatch | SettingsMismatch)
    };
    hang.waiting_ranks == 0 && !hang.findings.is_empty() && hang.findings.iter().all(is_mismatch)
}

/// Why a job without findings may still not be fine; `None` if there is no reason for doubt.
pub(crate) fn doubt(found: Found<'_>) -> Option<String> {
    let Found { hang, slow, report } = found;
    let is_empty = report.operations.is_empty() && report.open_operations.is_empty();
    if is_empty {
        return Some("no operation was recorded".into());
    }
    if hang.waiting_ranks != 0 {
        return hang.notes.last().cloned();
    }
    if let Some(hidden) = &hang.hidden {
        return Some(hidden.text.clone());
    }
    let silent = hang.silent_ranks.len();
    if silent != 0 {
        let have = if_one(silent, "has", "have");
        return Some(format!(
            "{silent} of {} ranks {have} no readable recording",
            silent + hang.ranks
        ));
    }
    slow.quiet.first().cloned()
}
