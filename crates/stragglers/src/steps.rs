// SPDX-License-Identifier: Apache-2.0
/*!
The training steps of a job: from marks in the input, or from repeating operations.

Without marks, a step ends with each collective of one class: among the classes with the most
members, the rarest one. A training step has at least one such collective, often for the norm of the
gradients. It may have several, as with gradients in buckets of one size: then the times between
them repeat, with the longest before the first of a step (`rhythm`). If there are more than
`MOST` steps, several are combined into one.

A step that is not completely recorded on some worker is ignored: missing operations would look like
work.
*/

use crate::clock::Clocks;
use crate::model::{Job, Part};
use crate::robust::median;
use std::collections::BTreeMap;

/// Maximum number of steps that are derived without marks.
const MOST: usize = 200;
/// Minimum number of occurrences of a class of collectives that delimits steps.
const REPEATS: usize = 10;
/// Maximum number of collectives of that class in a step.
const MOST_IN_STEP: usize = 64;
/// Minimum ratio of the longest interval between two of them to the median of the others.
const PAUSE: f64 = 1.5;
/// Maximum number of intervals that are searched for a rhythm.
const SEARCHED: usize = 2000;
/// Maximum share of the intervals' differences that a rhythm may leave unexplained.
const UNEXPLAINED: f64 = 0.4;

/// A training step of the job.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Step {
    /// Its number in the input; [`Step::NONE`] for operations that belong to no step.
    pub number: i64,
    /// Start, ns on the job's clock; without meaning if times restart in each step.
    pub start: f64,
    /// Duration, ns.
    pub duration: f64,
}

impl Step {
    /// Number of the operations before the first step, and of incomplete steps.
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
        let ends = ends_of_steps(&delimiters(job, clocks));
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

/// Time from which the operations of all workers are complete, on the job's clock.
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

/// Those ends of delimiting collectives that are the last in their step.
fn ends_of_steps(ends: &[f64]) -> Vec<f64> {
    let intervals: Vec<f64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (size, last) = rhythm(&intervals).unwrap_or((1, 0));
    ends.iter().skip(last).step_by(size).copied().collect()
}

/// The number of intervals in the rhythm, and which of them is the longest, the pause before a
/// step. `None` if they are all alike, or follow no rhythm.
fn rhythm(intervals: &[f64]) -> Option<(usize, usize)> {
    let intervals = &intervals[..intervals.len().min(SEARCHED)];
    let most = MOST_IN_STEP.min(intervals.len() / REPEATS);
    let usual = median(&mut intervals.to_vec())?;
    let differences: f64 = intervals.iter().map(|interval| (interval - usual).abs()).sum();
    (2..=most).find_map(|size| {
        let phase = |at| intervals.iter().skip(at).step_by(size).copied();
        let medians = (0..size).map(|at| median(&mut phase(at).collect::<Vec<f64>>()));
        let medians: Vec<f64> = medians.map(Option::unwrap_or_default).collect();
        let left: f64 =
            intervals.iter().zip(medians.iter().cycle()).map(|(i, m)| (i - m).abs()).sum();
        let (longest, pause) = medians.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
        let mut others = medians.clone();
        others.remove(longest);
        let is_pause = *pause > PAUSE * median(&mut others)?;
        let is_rhythm = is_pause && left < UNEXPLAINED * differences;
        is_rhythm.then_some((size, longest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends of `steps` steps of `size` collectives 5 apart with a pause before each step, of which
    /// the first is cut off `cut` collectives after its beginning.
    fn ends(steps: usize, size: usize, pause: impl Fn(usize) -> f64, cut: usize) -> Vec<f64> {
        let mut now = 0.0;
        let mut ends = Vec::new();
        for step in 0..steps {
            for at in 0..size {
                now += if at == 0 { pause(step) } else { 5.0 };
                ends.push(now);
            }
        }
        ends.split_off(cut)
    }

    #[test]
    fn equal_buckets_of_gradients_are_one_step() {
        for (size, cut) in [(1, 0), (2, 0), (4, 0), (4, 3), (7, 2)] {
            let all =
                ends(40, size, |step| 100.0 + f64::from(u8::try_from(step % 7).unwrap()), cut);
            let steps = ends_of_steps(&all);
            assert_eq!(steps.len(), 40, "{size} {cut}");
            // Each is the last end of a step: a pause follows.
            let after = |end: &f64| all.iter().find(|other| *other > end).map(|next| next - end);
            assert!(steps.iter().filter_map(after).all(|pause| pause >= 100.0), "{size} {cut}");
        }
    }

    #[test]
    fn no_rhythm_is_made_of_noise_or_of_a_run_without_pauses() {
        let alike: Vec<f64> = ends(60, 1, |_| 50.0, 0);
        assert_eq!(ends_of_steps(&alike), alike);
        // A pause now and then, at no fixed distance.
        let noisy = ends(200, 1, |step| if (step * step) % 23 == 4 { 300.0 } else { 50.0 }, 0);
        assert_eq!(ends_of_steps(&noisy), noisy);
        assert_eq!(ends_of_steps(&[]), [0.0; 0]);
        assert_eq!(ends_of_steps(&[3.0]), [3.0]);
    }
}
