// SPDX-License-Identifier: Apache-2.0
//! Since when a job is over, hangs or is slow, and what that costs.

use crate::cause::{Found, State};
use crate::time::Moment;
use ncclscope_diagnose::Diagnosis;
use ncclscope_findings::Cost;
use ncclscope_report::Report;

/// Time since when the job is over, hangs or is slow, as text; for a slow job that of the worst
/// finding.
pub(crate) fn since(state: State, found: Found<'_>) -> Option<String> {
    match state {
        State::Crashed => crashed(found),
        State::Hung => hung_since_ns(found)
            .map(|ns| Moment::from_ns(ns).rfc3339())
            // Calls that differ may have no operation in flight: since the call then.
            .or_else(|| found.hang.findings.first()?.help.since.clone()),
        State::Slow => found.slow.findings.first()?.help.since.clone(),
        State::Fine | State::Unknown => None,
    }
}

/// When the first processes ended, else since when others waited for them, else the latest recorded
/// time, as text.
fn crashed(found: Found<'_>) -> Option<String> {
    let text = |ns| Moment::from_ns(ns).rfc3339();
    let first = found.hang.ending.as_ref().and_then(|ending| ending.first.as_ref());
    let waited = || found.hang.findings.first()?.help.since.clone();
    let latest = || found.report.ranks.iter().filter_map(|row| row.end_ns).max().map(text);
    first.map(|first| text(first.end_ns)).or_else(waited).or_else(latest)
}

/// Time since when the oldest waiting operation is in flight, ns since 1970.
fn hung_since_ns(found: Found<'_>) -> Option<u64> {
    let end = found.report.ranks.iter().filter_map(|row| row.end_ns).max()?;
    Some(end.saturating_sub(age_ns(found.hang)?))
}

/// How long the oldest operation that waits has been in flight, ns.
pub(crate) fn age_ns(hang: &Diagnosis) -> Option<u64> {
    hang.findings.iter().filter_map(|verdict| verdict.age_ns).max()
}

/// The cost of the hang or slowdown; `None` if unknown.
pub(crate) fn cost(state: State, found: Found<'_>) -> Option<Cost> {
    let gpus = ncclscope_operations::stats::to_f64(gpus(found.report));
    match state {
        State::Hung => Cost::of(1.0, gpus),
        State::Slow => {
            let cost = found.slow.findings.first()?.help.cost?;
            Cost::of(cost.step_share, gpus).map(|of| Cost { is_most: cost.is_most, ..of })
        }
        State::Crashed | State::Fine | State::Unknown => None,
    }
}

/// Number of GPUs of the job: its ranks, with one GPU each.
pub(crate) fn gpus(report: &Report) -> u64 {
    let largest = report.ranks.iter().filter_map(|row| row.nranks).max().unwrap_or(0);
    u64::from(largest).max(report.processes.len() as u64)
}
