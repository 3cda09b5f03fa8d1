// SPDX-License-Identifier: Apache-2.0
/*!
Who waited for whom, and when.

In a collective all wait for the last to arrive; the rest is transfer. Sends and receives that began
as one wait for the latest partner; those of unknown partners count as transfers. Where the members'
ends show that the clocks' error exceeds the spread of the arrivals, no wait is counted.

This module does not say whose fault a wait is: that is [`crate::blame`].
*/

use crate::clock::Clocks;
use crate::model::{Collective, Ends, Job, Part};
use crate::steps::Steps;

/// A wait, by the job's clock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wait {
    /// From its worker's arrival, ns,
    pub from: f64,
    /// to the arrival of the one it waited for.
    pub to: f64,
    /// Whom it waited for.
    pub on: usize,
    /// Index of the step.
    pub step: usize,
}

/// A transfer, by the job's clock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Transfer {
    /// From the last one's arrival, ns,
    pub from: f64,
    /// to the end.
    pub to: f64,
    /// Index of the step.
    pub step: usize,
}

/// What a worker did of what we know, by the job's clock, each list by time and without overlap.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Timeline {
    /// Its waits.
    pub waits: Vec<Wait>,
    /// When it moved data that all others were ready for.
    pub transfers: Vec<Transfer>,
}

/// The timelines of a job. A job whose steps restart the clock has those of each step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Waits {
    workers: usize,
    timelines: Vec<Timeline>,
    restart: bool,
}

impl Waits {
    /// Those of a job.
    #[must_use]
    pub fn find(job: &Job, clocks: &Clocks, steps: &Steps) -> Waits {
        let workers = job.workers.len();
        let epochs = if job.steps_restart { steps.list.len() } else { 1 };
        let mut waits = Waits {
            workers,
            timelines: vec![Timeline::default(); workers * epochs],
            restart: job.steps_restart,
        };
        for (collective, &step) in job.collectives.iter().zip(&steps.of_collective) {
            waits.add_collective(collective, clocks, step);
        }
        for (at, &step) in steps.of_batch.iter().enumerate() {
            waits.add_batch(job, at, clocks, step);
        }
        waits.timelines.iter_mut().for_each(Timeline::settle);
        waits
    }

    /// A worker's timeline in a step.
    #[must_use]
    pub fn timeline(&self, worker: usize, step: usize) -> &Timeline {
        &self.timelines[self.at(worker, step)]
    }

    /// All waits, with who waited.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Wait)> {
        let workers = self.workers.max(1);
        self.timelines
            .iter()
            .enumerate()
            .flat_map(move |(at, line)| line.waits.iter().map(move |wait| (at % workers, wait)))
    }

    #[cfg(test)]
    pub(crate) fn timeline_mut(&mut self, worker: usize, step: usize) -> &mut Timeline {
        let at = self.at(worker, step);
        &mut self.timelines[at]
    }

    /// The lengths of all waits and transfers, with whose and in which step they are.
    pub(crate) fn idle(&self) -> impl Iterator<Item = (usize, usize, f64)> {
        let workers = self.workers.max(1);
        self.timelines.iter().enumerate().flat_map(move |(at, line)| {
            let waits = line.waits.iter().map(|wait| (wait.step, wait.to - wait.from));
            let transfers = line.transfers.iter().map(|t| (t.step, t.to - t.from));
            waits.chain(transfers).map(move |(step, time)| (at % workers, step, time))
        })
    }

    fn at(&self, worker: usize, step: usize) -> usize {
        if self.restart { step * self.workers + worker } else { worker }
    }

    fn add_collective(&mut self, collective: &Collective, clocks: &Clocks, step: usize) {
        let parts: Vec<Part> = collective.parts.iter().map(|part| on_clock(part, clocks)).collect();
        let Some(last) = parts.iter().max_by(|a, b| a.start.total_cmp(&b.start)).copied() else {
            return;
        };
        if parts.len() < 2 {
            return;
        }
        let error = match collective.ends {
            Ends::Together => clocks.error.max(spread(parts.iter().map(|part| part.end))),
            Ends::Apart => clocks.error,
        };
        for part in &parts {
            self.add(part, &last, error, step);
        }
    }

    fn add_batch(&mut self, job: &Job, at: usize, clocks: &Clocks, step: usize) {
        let batch = &job.batches[at];
        let partners = batch.partners.iter().map(|&p| on_clock(&job.batches[p].part, clocks));
        let last = partners.max_by(|a, b| a.start.total_cmp(&b.start));
        let part = on_clock(&batch.part, clocks);
        // With an unknown partner it may have waited or not, but it did not work.
        self.add(&part, &last.unwrap_or(part), clocks.error, step);
    }

    /// A worker's part in something that `last` came to last.
    fn add(&mut self, part: &Part, last: &Part, error: f64, step: usize) {
        let to = last.start.min(part.end);
        let at = self.at(part.worker, step);
        let timeline = &mut self.timelines[at];
        let mut from = part.start;
        // A wait that the clocks are not sure of is moving data, as it is no work in any case.
        if part.worker != last.worker && to - part.start > error {
            timeline.waits.push(Wait { from, to, on: last.worker, step });
            from = to;
        }
        if part.end > from {
            timeline.transfers.push(Transfer { from, to: part.end, step });
        }
    }
}

impl Timeline {
    /// Sorts, and cuts what overlaps: of two waits at a time the first to begin counts.
    fn settle(&mut self) {
        self.waits.sort_unstable_by(|a, b| a.from.total_cmp(&b.from));
        let mut end = f64::MIN;
        self.waits.retain_mut(|wait| {
            wait.from = wait.from.max(end);
            end = end.max(wait.to);
            wait.to > wait.from
        });
        self.transfers.sort_unstable_by(|a, b| a.from.total_cmp(&b.from));
        let mut end = f64::MIN;
        self.transfers.retain_mut(|transfer| {
            transfer.from = transfer.from.max(end);
            end = end.max(transfer.to);
            transfer.to > transfer.from
        });
    }
}

/// A part by the job's clock.
pub(crate) fn on_clock(part: &Part, clocks: &Clocks) -> Part {
    let time = |ns| clocks.time(part.worker, ns);
    Part { start: time(part.start), end: time(part.end), ..*part }
}

/// From the least to the greatest.
pub(crate) fn spread(values: impl Iterator<Item = f64>) -> f64 {
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
    (high - low).max(0.0)
}

/// The last to arrive at a collective, without clocks: the one that took the shortest, as all end
/// it together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LastArriver {
    /// Index in [`Job::collectives`].
    pub collective: usize,
    /// Who; `None` where the ends are further apart than the arrivals.
    pub worker: Option<usize>,
    /// How much later it came than the first, ns.
    pub late: f64,
}

/// The last arrivers of all collectives that end together and have at least two members, in the
/// order of the job's.
#[must_use]
pub fn last_arrivers(job: &Job, clocks: &Clocks) -> Vec<LastArriver> {
    let mut found = Vec::new();
    for (at, collective) in job.collectives.iter().enumerate() {
        if collective.ends != Ends::Together || collective.parts.len() < 2 {
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
