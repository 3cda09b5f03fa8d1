// SPDX-License-Identifier: Apache-2.0
//! Since when a job is over, hangs or is slow, and what that costs.

use crate::cause::{Found, State};
use crate::time::Moment;
use ncclscope_diagnose::Diagnosis;
use ncclscope_findings::Cost;
use ncclscope_operations::stats::to_f64;
use ncclscope_report::Report;
use std::collections::BTreeMap;

/// An hour, ns.
const HOUR_NS: f64 = 3600.0 * 1e9;

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
    let gpus = to_f64(gpus(found.report));
    match state {
        State::Hung => Cost::of(1.0, gpus),
        State::Slow => {
            let cost = of_all(found)?;
            Cost::of(cost.step_share, gpus)
                .map(|of| Cost { gpu_hours_per_day: of.gpu_hours_per_day, ..cost })
        }
        State::Crashed | State::Fine | State::Unknown => None,
    }
}

/// What all findings of a slow job cost together: the costs from replays add up; one without a
/// replay counts only if it is higher than they are.
fn of_all(found: Found<'_>) -> Option<Cost> {
    let costs = || found.slow.findings.iter().filter_map(|finding| finding.help.cost);
    let replayed = costs().filter(|cost| cost.interval.is_some()).reduce(Cost::and);
    let other = costs().filter(|cost| cost.interval.is_none());
    replayed.into_iter().chain(other).max_by(|a, b| a.step_share.total_cmp(&b.step_share))
}

/// The GPU-hours of a crashed job; `None` if not all of its ranks tell their times.
pub(crate) fn used_gpu_hours(state: State, report: &Report) -> Option<f64> {
    let rows = report.ranks.iter().map(|row| (row.rank, row.start_ns, row.end_ns));
    (state == State::Crashed).then(|| hours(rows, gpus(report))).flatten()
}

/// The hours of all `gpus` ranks together, from the rank and the times of each row; a rank has a
/// row for each of its communicators.
fn hours(
    rows: impl Iterator<Item = (Option<u32>, Option<u64>, Option<u64>)>,
    gpus: u64,
) -> Option<f64> {
    let mut ranks: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (rank, start, end) in rows {
        let (start, end) = (start?, end?);
        let known = ranks.entry(rank?).or_insert((start, end));
        *known = (known.0.min(start), known.1.max(end));
    }
    let all: u64 = ranks.values().map(|(start, end)| end.saturating_sub(*start)).sum();
    (ranks.len() as u64 == gpus).then_some(to_f64(all) / HOUR_NS)
}

/// Number of GPUs of the job: its ranks, with one GPU each.
pub(crate) fn gpus(report: &Report) -> u64 {
    let largest = report.ranks.iter().filter_map(|row| row.nranks).max().unwrap_or(0);
    u64::from(largest).max(report.processes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hours_are_those_of_all_ranks_or_none() {
        let hour = 3_600_000_000_000;
        let row = |rank, from: u64, to: u64| (Some(rank), Some(from * hour), Some(to * hour));
        let two = [row(0, 1, 3), row(0, 2, 4), row(1, 2, 3)];
        assert_eq!(hours(two.into_iter(), 2), Some(4.0), "rank 0 has two communicators");
        assert_eq!(hours(two.into_iter(), 3), None, "a rank is missing");
        assert_eq!(hours([row(0, 1, 2), (Some(1), None, Some(1))].into_iter(), 2), None);
    }
}
