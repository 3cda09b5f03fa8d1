// SPDX-License-Identifier: Apache-2.0
/*!
The training steps of a job: from marks in the input, or from repeating operations.

Without marks, a step ends with each collective of one class: among the classes with the most
members, the rarest one. A training step has at least one such collective, often for the norm of the
gradients. If there are more than `MOST`, several are combined into one step.

A step that is not completely recorded on some worker is ignored: missing operations would look like
work.
*/

use crate::clock::Clocks;
use crate::model::{Job, Part};
use crate::robust::median;
use std::collections::BTreeMap;

/// The most steps that are made without marks.
const MOST: usize = 200;
/// How often a class of collectives must occur to delimit steps.
const REPEATS: usize = 10;

/// A training step of the job.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Step {
    /// Its number in the input; [`Step::NONE`] for operations that belong to no step.
    pub number: i64,
    /// When it began, ns on the job's clock; of no use if times restart in each step.
    pub start: f64,
    /// Duration, ns.
    pub duration: f64,
}

impl Step {
    /// The number of operations before the first step, and of incomplete steps.
    pub const NONE: i64 = i64::MIN;
}

/// How the steps were found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepSource {
    /// By marks in the input.
    Marked,
    /// By a repeating collective.
    Repeating,
    /// Not at all: the whole run is one step.
    Whole,
}

/// The steps of a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Steps {
    /// The steps, by number.
    pub list: Vec<Step>,
    /// The step index of each collective.
    pub of_collective: Vec<usize>,
    /// The step index of each batch.
    pub of_batch: Vec<usize>,
    /// The step index of each element of [`Job::own`].
    pub of_own: Vec<usize>,
    /// How they were found.
    pub source: StepSource,
}

impl Steps {
    /// All parts of the job with their step indices.
    pub(crate) fn parts<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = (&'a Part, usize)> {
        let collectives = job.collectives.iter().zip(&self.of_collective);
        let collectives = collectives.flat_map(|(c, &at)| c.parts.iter().map(move |p| (p, at)));
        let batches = job.batches.iter().zip(&self.of_batch).map(|(b, &at)| (&b.part, at));
        let own = job.own.iter().zip(&self.of_own).map(|((part, _), &at)| (part, at));
        collectives.chain(batches).chain(own)
    }

    /// Finds the steps of a job.
    #[must_use]
    pub fn of(job: &Job, clocks: &Clocks) -> Steps {
        let marked = job.collectives.iter().map(|c| c.step);
        let mut marked = marked.chain(job.batches.iter().map(|b| b.step));
        if job.steps_restart || marked.any(|step| step.is_some()) {
            return Steps::marked(job, clocks);
        }
        Steps::repeating(job, clocks)
    }

    fn marked(job: &Job, clocks: &Clocks) -> Steps {
        // Operations without a mark come before the first step.
        let number = |step: Option<i64>| step.unwrap_or(Step::NONE);
        let own = job.own.iter().map(|(part, step)| (part, *step));
        let mut spans: BTreeMap<i64, (f64, f64)> = BTreeMap::new();
        for (part, step) in parts(job).chain(own) {
            let (start, end) =
                (clocks.time(part.worker, part.start), clocks.time(part.worker, part.end));
            let span = spans.entry(number(step)).or_insert((start, end));
            *span = (span.0.min(start), span.1.max(end));
        }
        let index: BTreeMap<i64, usize> = spans.keys().copied().zip(0..).collect();
        let find = |step: Option<i64>| index.get(&number(step)).copied().unwrap_or(0);
        let mut list: Vec<Step> = spans
            .iter()
            .map(|(&number, &(start, end))| Step { number, start, duration: end - start })
            .collect();
        if !job.steps_restart {
            let whole = whole_from(job, clocks);
            for (step, span) in list.iter_mut().zip(spans.values()) {
                step.number = if span.0 > whole { step.number } else { Step::NONE };
            }
            // A step lasts from its first arrival to the first arrival of the next step.
            let starts: Vec<f64> = spans.values().map(|span| span.0).collect();
            for (step, pair) in list.iter_mut().zip(starts.windows(2)) {
                step.duration = (pair[1] - pair[0]).max(step.duration / 2.0);
            }
        }
        Steps {
            list,
            of_collective: job.collectives.iter().map(|c| find(c.step)).collect(),
            of_batch: job.batches.iter().map(|b| find(b.step)).collect(),
            of_own: job.own.iter().map(|(_, step)| find(*step)).collect(),
            source: StepSource::Marked,
        }
    }

    fn repeating(job: &Job, clocks: &Clocks) -> Steps {
        let ends = delimiters(job, clocks);
        let times = || parts(job).map(|(part, _)| part);
        let start = times().map(|p| clocks.time(p.worker, p.start)).fold(f64::MAX, f64::min);
        let end = times().map(|p| clocks.time(p.worker, p.end)).fold(f64::MIN, f64::max);
        let group = ends.len().div_ceil(MOST).max(1);
        let mut bounds: Vec<f64> = ends.chunks(group).filter_map(|c| c.last().copied()).collect();
        // Operations after the last delimiter form one more step.
        if bounds.last().is_some_and(|&last| end > last) || bounds.is_empty() {
            bounds.push(end);
        }
        let find = |time: f64| bounds.partition_point(|&b| b < time).min(bounds.len() - 1);
        let arrival = |parts: &[Part]| {
            let ends = parts.iter().map(|p| clocks.time(p.worker, p.end));
            find(ends.fold(f64::MIN, f64::max))
        };
        let starts = std::iter::once(start).chain(bounds.iter().copied());
        let whole = whole_from(job, clocks);
        let list = starts.zip(&bounds).zip(0..).map(|((start, end), number)| Step {
            number: if start > whole { number } else { Step::NONE },
            start,
            duration: (end - start).max(0.0),
        });
        Steps {
            list: list.collect(),
            of_collective: job.collectives.iter().map(|c| arrival(&c.parts)).collect(),
            of_batch: job.batches.iter().map(|b| arrival(&[b.part])).collect(),
            of_own: job.own.iter().map(|(part, _)| arrival(&[*part])).collect(),
            source: if ends.is_empty() { StepSource::Whole } else { StepSource::Repeating },
        }
    }
}

/// The time from which the operations of all workers are complete, by the job's clock.
fn whole_from(job: &Job, clocks: &Clocks) -> f64 {
    let all = job.whole_from.iter().map(|(&worker, &ns)| clocks.time(worker, ns));
    all.fold(f64::MIN, f64::max)
}

fn parts(job: &Job) -> impl Iterator<Item = (&Part, Option<i64>)> {
    let collectives = job.collectives.iter().flat_map(|c| c.parts.iter().map(|p| (p, c.step)));
    collectives.chain(job.batches.iter().map(|b| (&b.part, b.step)))
}

/// The ends of the collectives that delimit steps, in time order.
fn delimiters(job: &Job, clocks: &Clocks) -> Vec<f64> {
    let mut counts: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for collective in &job.collectives {
        let (members, count) = counts.entry(collective.class).or_default();
        *members = collective.parts.len().max(*members);
        *count += 1;
    }
    let often = counts.iter().filter(|(_, (_, count))| *count >= REPEATS);
    let best = often.min_by_key(|(_, (members, count))| (usize::MAX - members, *count));
    let Some((&class, _)) = best else { return Vec::new() };
    let of_class = job.collectives.iter().filter(|c| c.class == class);
    let mut ends: Vec<f64> = of_class
        .filter_map(|c| {
            let mut ends: Vec<f64> = c.parts.iter().map(|p| clocks.time(p.worker, p.end)).collect();
            median(&mut ends)
        })
        .collect();
    ends.sort_unstable_by(f64::total_cmp);
    ends
}
