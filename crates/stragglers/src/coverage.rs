// SPDX-License-Identifier: Apache-2.0
/*!
Where the recordings show enough to judge a worker: its own time in a step is known if all members
of its operations there were recorded.

A collective, or a batch of sends and receives, whose other members were not recorded hides for whom
a worker waited. Recordings are missing, end earlier (a host was copied first) or begin later; only
the steps that all members cover then count. A step in which only collectives lack members, or in a
job whose sends and receives cannot be matched at all, allows a suspicion, no more. In an input that
shows the work itself, each step with operations counts.
*/

use crate::clock::Clocks;
use crate::finding::Finding;
use crate::model::Job;
use crate::steps::{Step, Steps};
use ncclscope_findings::Doubt;
use ncclscope_limits::slow;
use ncclscope_operations::human;
use ncclscope_operations::stats::median;
use std::collections::BTreeMap;

/// How well a worker's own time in a step is known; ordered from worst to best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Known {
    /// Unknown: the worker has no operation in the step, or the other end of a send or receive was
    /// not recorded.
    Nothing,
    /// Uncertain: collectives lack members that were not recorded, or no send could be matched in
    /// the job.
    Suspected,
    /// Known: all members of all its operations were recorded.
    Whole,
}

/// How well the own time of each worker is known, by step.
pub(crate) fn known(job: &Job, steps: &Steps) -> Vec<Vec<Known>> {
    let mut all = vec![vec![Known::Nothing; job.workers.len()]; steps.list.len()];
    for (part, step) in steps.parts(job) {
        all[step][part.worker] = Known::Whole;
    }
    if !job.own.is_empty() {
        return all;
    }
    let mut at_most = |step: usize, worker: usize, most: Known| {
        let known = &mut all[step][worker];
        *known = most.min(*known);
    };
    for (collective, &step) in job.collectives.iter().zip(&steps.of_collective) {
        if job.is_lacking(collective) {
            collective.parts.iter().for_each(|part| at_most(step, part.worker, Known::Suspected));
        }
    }
    for (batch, &step) in job.batches.iter().zip(&steps.of_batch) {
        if batch.is_lacking {
            at_most(step, batch.part.worker, Known::Nothing);
        } else if batch.partners.is_empty() {
            // The other ends are unknown in all recordings.
            at_most(step, batch.part.worker, Known::Suspected);
        }
    }
    all
}

/// Notes about ranks without a recording, or with one that ends early or begins late.
pub(crate) fn notes(job: &Job, clocks: &Clocks, steps: &[Step]) -> Vec<String> {
    let mut notes = Vec::new();
    if !job.unrecorded.is_empty() {
        let what = "what others waited for there is unknown";
        let input = if job.is_of_traces { "trace" } else { "readable recording" };
        notes.push(format!("no {input} of {}: {what}", names(&job.unrecorded)));
    }
    let is_lacking = job.batches.iter().any(|batch| batch.is_lacking)
        || job.collectives.iter().any(|collective| job.is_lacking(collective));
    if job.steps_restart || !is_lacking {
        return notes;
    }
    let step = median(&mut steps.iter().map(|step| step.duration).collect::<Vec<_>>());
    let apart = slow::APART.max(slow::STEPS_APART * step.unwrap_or(0.0));
    let spans = spans(job, clocks);
    let first = spans.values().map(|span| span.0).fold(f64::MAX, f64::min);
    let last = spans.values().map(|span| span.1).fold(f64::MIN, f64::max);
    let early = spans.iter().map(|(&rank, span)| (rank, last - span.1));
    let late = spans.iter().map(|(&rank, span)| (rank, span.0 - first));
    notes.extend(uneven(early.collect(), apart, "end", "before the last"));
    notes.extend(uneven(late.collect(), apart, "begin", "after the first"));
    notes
}

/// Why the causes of waiting are uncertain in traces: ranks have none, the traces do not show what
/// belongs together, or there is communication beside NCCL.
pub(crate) fn doubts(job: &Job) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    if job.is_of_traces && !job.unrecorded.is_empty() {
        let count: u64 = job.unrecorded.iter().map(|(a, b)| u64::from(b - a) + 1).sum();
        let of = job.workers.len() as u64 + count;
        doubts.push(Doubt::TracesMissing(job.unrecorded.clone(), of));
    }
    if job.is_matched_by_time {
        doubts.push(Doubt::MatchedByTime);
    }
    doubts.extend(job.beside.clone().map(Doubt::BesideNccl));
    doubts
}

/// Adds these doubts to findings that name a rank. A trace does not show
/// whom a rank sends to or receives from, so that it may have waited for a rank without a trace.
pub(crate) fn doubt(job: &Job, findings: &mut [Finding]) {
    let doubts = doubts(job);
    for finding in findings.iter_mut().filter(|finding| !finding.root_ranks.is_empty()) {
        finding.doubts.extend(doubts.iter().cloned());
    }
}

/// First arrival and last end of each rank, on the job's clock.
fn spans(job: &Job, clocks: &Clocks) -> BTreeMap<u32, (f64, f64)> {
    let mut spans: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    let parts = job.collectives.iter().flat_map(|collective| &collective.parts);
    for part in parts.chain(job.batches.iter().map(|batch| &batch.part)) {
        let (start, end) =
            (clocks.time(part.worker, part.start), clocks.time(part.worker, part.end));
        let span = spans.entry(job.workers[part.worker].rank).or_insert((start, end));
        *span = (span.0.min(start), span.1.max(end));
    }
    spans
}

/// A note about the recordings that end or begin more than `apart` ns from the others.
fn uneven(off: Vec<(u32, f64)>, apart: f64, verb: &str, what: &str) -> Option<String> {
    let far: Vec<(u32, f64)> = off.into_iter().filter(|(_, ns)| *ns > apart).collect();
    let most = far.iter().map(|(_, ns)| *ns).fold(0.0, f64::max);
    let ranks: Vec<u32> = far.iter().map(|(rank, _)| *rank).collect();
    (!ranks.is_empty()).then(|| {
        format!(
            "the recordings of {} {verb} up to {} {what}: only the time that the members of an \
             operation cover together shows who is slow",
            names(&human::ranges(ranks.iter().copied())),
            human::duration(most)
        )
    })
}

/// Maximum number of ranges that a note lists.
const MOST: usize = 8;

fn names(ranges: &[(u32, u32)]) -> String {
    let list = human::list_of_ranges(ranges, MOST);
    let is_one = matches!(ranges, [(first, last)] if first == last);
    format!("{} {list}", if is_one { "rank" } else { "ranks" })
}
