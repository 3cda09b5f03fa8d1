// SPDX-License-Identifier: Apache-2.0
/*!
Which worker waited for which, and when.

In a collective all members wait for the last one to arrive; the rest is transfer, and so is the
time in a collective without another recorded member. A batch of sends
and receives waits for its latest partner; with unknown partners it counts as transfer. No wait is
counted if the spread of the members' ends shows that the clock error exceeds it.

This module does **not** say which worker is to blame for a wait: that is [`crate::blame`].
*/

use crate::clock::Clocks;
use crate::model::{Collective, EndSync, Job, Part};
use crate::steps::Steps;
use std::collections::BTreeMap;

/// A wait, by the job's clock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wait {
    /// Arrival of the worker that waits, ns.
    pub from: f64,
    /// The arrival of the worker it waited for, ns.
    pub to: f64,
    /// The worker it waited for.
    pub on: usize,
    /// Index of the step.
    pub step: usize,
}

/// A transfer, by the job's clock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Transfer {
    /// The arrival of the last member, ns.
    pub from: f64,
    /// The end, ns; of sends, the latest time at which the GPU has done its part.
    pub to: f64,
    /// The earliest time at which the GPU has done its part, ns.
    pub released: f64,
    /// Index of the step.
    pub step: usize,
}

/// Time in which a worker waited or moved data, ns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Idle {
    /// Without the ends of transfers in which its GPU may do other work.
    pub(crate) least: f64,
    /// With them.
    pub(crate) most: f64,
}

/// The waits and transfers of a worker by the job's clock, each list sorted and without overlap.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Timeline {
    /// Its waits.
    pub waits: Vec<Wait>,
    /// Times in which it moved data that all members were ready for.
    pub transfers: Vec<Transfer>,
}

/// The timelines of a job; one set for each step if the steps restart the clock.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Waits {
    workers: usize,
    timelines: Vec<Timeline>,
    restart: bool,
}

impl Waits {
    /// Finds the waits of a job.
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

    /// All waits, each with the worker that waits.
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

    /// The lengths of all waits and transfers, without what they share: (worker, step, time).
    pub(crate) fn idle(&self) -> impl Iterator<Item = (usize, usize, Idle)> {
        let workers = self.workers.max(1);
        self.timelines.iter().enumerate().flat_map(move |(at, line)| {
            line.idle().into_iter().map(move |(step, time)| (at % workers, step, time))
        })
    }

    fn at(&self, worker: usize, step: usize) -> usize {
        if self.restart { step * self.workers + worker } else { worker }
    }

    fn add_collective(&mut self, collective: &Collective, clocks: &Clocks, step: usize) {
        let parts: Vec<Part> = collective.parts.iter().map(|part| on_clock(part, clocks)).collect();
        // Times of groups without a common clock are not comparable.
        let mut lasts: BTreeMap<usize, &Part> = BTreeMap::new();
        for part in &parts {
            let last = lasts.entry(clocks.group(part.worker)).or_insert(part);
            if part.start >= last.start {
                *last = part;
            }
        }
        let error = match collective.ends {
            EndSync::Together => clocks.error.max(spread(parts.iter().map(|part| part.end))),
            EndSync::Apart => clocks.error,
        };
        for part in &parts {
            let released = (part.end, part.end);
            self.add(part, released, lasts[&clocks.group(part.worker)], error, step);
        }
    }

    fn add_batch(&mut self, job: &Job, at: usize, clocks: &Clocks, step: usize) {
        let batch = &job.batches[at];
        let part = on_clock(&batch.part, clocks);
        let is_comparable = |other: &Part| clocks.group(other.worker) == clocks.group(part.worker);
        let partners = batch.partners.iter().map(|&p| on_clock(&job.batches[p].part, clocks));
        let last = partners.filter(is_comparable).max_by(|a, b| a.start.total_cmp(&b.start));
        // With an unknown partner it is unknown whether the worker waited, but it did not work.
        let (earliest, latest) = batch.released;
        let time = |ns| clocks.time(part.worker, ns);
        let released = (time(earliest), time(latest));
        self.add(&part, released, &last.unwrap_or(part), clocks.error, step);
    }

    /// Adds a worker's part in an operation at which `last` arrived last, and which `released` its
    /// GPU at the earliest and at the latest.
    fn add(&mut self, part: &Part, released: (f64, f64), last: &Part, error: f64, step: usize) {
        let to = last.start.min(released.1);
        let at = self.at(part.worker, step);
        let timeline = &mut self.timelines[at];
        let mut from = part.start;
        // A wait within the clock error counts as a transfer, because it is not work in any case.
        if part.worker != last.worker && to - part.start > error {
            timeline.waits.push(Wait { from, to, on: last.worker, step });
            from = to;
        }
        if released.1 > from {
            let (released, to) = (released.0.max(from), released.1);
            timeline.transfers.push(Transfer { from, to, released, step });
        }
    }
}

impl Timeline {
    /// Sorts both lists and removes overlaps, in favour of the earlier entry; but a transfer from
    /// which the GPU is released ends where the next begins.
    fn settle(&mut self) {
        self.waits.sort_unstable_by(|a, b| a.from.total_cmp(&b.from));
        let mut end = f64::MIN;
        self.waits.retain_mut(|wait| {
            wait.from = wait.from.max(end);
            end = end.max(wait.to);
            wait.to > wait.from
        });
        self.transfers.sort_unstable_by(|a, b| a.from.total_cmp(&b.from));
        let starts: Vec<f64> = self.transfers.iter().skip(1).map(|next| next.from).collect();
        for (transfer, next) in self.transfers.iter_mut().zip(starts) {
            transfer.to = transfer.to.min(next.max(transfer.released));
        }
        let mut end = f64::MIN;
        self.transfers.retain_mut(|transfer| {
            transfer.from = transfer.from.max(end);
            transfer.released = transfer.released.max(transfer.from);
            end = end.max(transfer.to);
            transfer.to > transfer.from
        });
    }

    /// The length of each wait and transfer, less what those before it cover, and its step.
    fn idle(&self) -> Vec<(usize, Idle)> {
        let waits = self.waits.iter().map(|wait| (wait.from, wait.to, wait.to, wait.step));
        let transfers = self.transfers.iter().map(|t| (t.from, t.released, t.to, t.step));
        let mut all: Vec<_> = waits.chain(transfers).collect();
        all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let (mut least_end, mut most_end) = (f64::MIN, f64::MIN);
        let lengths = all.into_iter().map(|(from, released, to, step)| {
            let least = (released - from.max(least_end)).max(0.0);
            let most = (to - from.max(most_end)).max(0.0);
            (least_end, most_end) = (least_end.max(released), most_end.max(to));
            (step, Idle { least, most })
        });
        lengths.collect()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU that has delivered its data at 14 may work while the proxy sends until 20.
    #[test]
    fn time_in_which_a_gpu_may_work_is_told_apart_and_none_counts_twice() {
        let transfer = |from, released, to| Transfer { from, to, released, step: 0 };
        let idle = |transfers: &[Transfer]| {
            let waits = vec![Wait { from: 0.0, to: 10.0, on: 1, step: 0 }];
            let mut line = Timeline { waits, transfers: transfers.to_vec() };
            line.settle();
            let sum = |of: fn(&Idle) -> f64| line.idle().iter().map(|(_, idle)| of(idle)).sum();
            let sums: (f64, f64) = (sum(|idle| idle.least), sum(|idle| idle.most));
            sums
        };
        assert_eq!(idle(&[transfer(5.0, 14.0, 20.0)]), (14.0, 20.0));
        // Its next transfer begins at 16, and ends before the proxy has sent all.
        assert_eq!(idle(&[transfer(5.0, 14.0, 20.0), transfer(16.0, 18.0, 18.0)]), (16.0, 18.0));
        assert_eq!(idle(&[transfer(5.0, 14.0, 20.0), transfer(12.0, 24.0, 24.0)]), (24.0, 24.0));
    }
}
