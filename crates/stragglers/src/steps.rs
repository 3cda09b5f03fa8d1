// SPDX-License-Identifier: Apache-2.0
/*!
The steps of a job: as the input tells them, or as its operations repeat.

Where nothing marks steps, the kind of collective that joins the most workers and is the rarest of
these begins one each time it ends: a training step has at least one such, often the norm of the
gradients. More than `MOST` of them are taken together.

A step that some worker's recording does not hold wholly is none: what is missing would look like
work.
*/

use crate::clock::Clocks;
use crate::model::{Job, Part};
use crate::robust::median;
use std::collections::BTreeMap;

/// Steps that are made at most where nothing marks them.
const MOST: usize = 200;
/// Times that a kind of collective must occur to begin steps.
const REPEATS: usize = 10;

/// One step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Step {
    /// Its number, as the input has it; [`Step::NONE`] of what belongs to no step.
    pub number: i64,
    /// How long it took, ns.
    pub duration: f64,
}

impl Step {
    /// The number of what is before the first step, and of steps that are not whole.
    pub const NONE: i64 = i64::MIN;
}

/// Where the steps are from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The input tells.
    Marked,
    /// They were found by what repeats.
    Repeating,
    /// All is one.
    Whole,
}

/// The steps of a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Steps {
    /// By number.
    pub list: Vec<Step>,
    /// Index of each collective's.
    pub of_collective: Vec<usize>,
    /// Index of each batch's.
    pub of_batch: Vec<usize>,
    /// Index of the step of each of [`Job::own`].
    pub of_own: Vec<usize>,
    /// Where they are from.
    pub source: Source,
}

impl Steps {
    /// All parts of the job with the index of their step.
    pub(crate) fn parts<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = (&'a Part, usize)> {
        let collectives = job.collectives.iter().zip(&self.of_collective);
        let collectives = collectives.flat_map(|(c, &at)| c.parts.iter().map(move |p| (p, at)));
        let batches = job.batches.iter().zip(&self.of_batch).map(|(b, &at)| (&b.part, at));
        let own = job.own.iter().zip(&self.of_own).map(|((part, _), &at)| (part, at));
        collectives.chain(batches).chain(own)
    }

    /// Those of a job.
    #[must_use]
    pub fn of(job: &Job, clocks: &Clocks) -> Steps {
        let told = job.collectives.iter().map(|c| c.step);
        let mut told = told.chain(job.batches.iter().map(|b| b.step));
        if job.steps_restart || told.any(|step| step.is_some()) {
            return Steps::told(job, clocks);
        }
        Steps::repeating(job, clocks)
    }

    fn told(job: &Job, clocks: &Clocks) -> Steps {
        // What the input tells no step of is before the first.
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
            .map(|(&number, &(start, end))| Step { number, duration: end - start })
            .collect();
        if !job.steps_restart {
            let whole = whole_from(job, clocks);
            for (step, span) in list.iter_mut().zip(spans.values()) {
                step.number = if span.0 > whole { step.number } else { Step::NONE };
            }
            // From one step's first arrival to the next one's.
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
            source: Source::Marked,
        }
    }

    fn repeating(job: &Job, clocks: &Clocks) -> Steps {
        let ends = delimiters(job, clocks);
        let times = || parts(job).map(|(part, _)| part);
        let start = times().map(|p| clocks.time(p.worker, p.start)).fold(f64::MAX, f64::min);
        let end = times().map(|p| clocks.time(p.worker, p.end)).fold(f64::MIN, f64::max);
        let group = ends.len().div_ceil(MOST).max(1);
        let mut bounds: Vec<f64> = ends.chunks(group).filter_map(|c| c.last().copied()).collect();
        // What follows the last delimiter is a step only if it is about as long as one.
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
            duration: (end - start).max(0.0),
        });
        Steps {
            list: list.collect(),
            of_collective: job.collectives.iter().map(|c| arrival(&c.parts)).collect(),
            of_batch: job.batches.iter().map(|b| arrival(&[b.part])).collect(),
            of_own: job.own.iter().map(|(part, _)| arrival(&[*part])).collect(),
            source: if ends.is_empty() { Source::Whole } else { Source::Repeating },
        }
    }
}

/// From when on all workers' operations are whole, by the job's clock.
fn whole_from(job: &Job, clocks: &Clocks) -> f64 {
    let all = job.whole_from.iter().map(|(&worker, &ns)| clocks.time(worker, ns));
    all.fold(f64::MIN, f64::max)
}

/// All parts with their steps.
fn parts(job: &Job) -> impl Iterator<Item = (&Part, Option<i64>)> {
    let collectives = job.collectives.iter().flat_map(|c| c.parts.iter().map(|p| (p, c.step)));
    collectives.chain(job.batches.iter().map(|b| (&b.part, b.step)))
}

/// The ends of the collectives that end steps, by time.
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
