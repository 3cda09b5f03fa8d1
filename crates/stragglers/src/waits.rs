// SPDX-License-Identifier: Apache-2.0
//! The members of collectives that arrive last.

use crate::clock::Clocks;
use crate::model::{EndSync, Job, Part};

/// A part with times on the job's clock.
pub(crate) fn on_clock(part: &Part, clocks: &Clocks) -> Part {
    let time = |ns| clocks.time(part.worker, ns);
    Part { start: time(part.start), end: time(part.end), ..*part }
}

/// Difference between the largest and the smallest value.
pub(crate) fn spread(values: impl Iterator<Item = f64>) -> f64 {
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
    (high - low).max(0.0)
}

/// The last member to arrive at a collective. Needs no common clock: because all members end
/// together, the last to arrive spent the shortest time in it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LastArriver {
    /// Index in [`Job::collectives`].
    pub collective: usize,
    /// The worker; `None` if the ends are further apart than the arrivals.
    pub worker: Option<usize>,
    /// How much later it arrived than the first member, ns.
    pub late: f64,
}

/// The last arrivers of all collectives that end together and have at least two members, in job
/// order.
#[must_use]
pub fn last_arrivers(job: &Job, clocks: &Clocks) -> Vec<LastArriver> {
    let mut found = Vec::new();
    for (at, collective) in job.collectives.iter().enumerate() {
        if collective.ends != EndSync::Together || collective.parts.len() < 2 {
            continue;
        }
        let took = |part: &Part| part.end - part.start;
        let shortest = collective.parts.iter().min_by(|a, b| took(a).total_cmp(&took(b)));
        let late = spread(collective.parts.iter().map(took));
        let ends = collective.parts.iter().map(|part| clocks.time(part.worker, part.end));
        let worker = shortest.filter(|_| late > spread(ends)).map(|part| part.worker);
        found.push(LastArriver { collective: at, worker, late });
    }
    found
}
