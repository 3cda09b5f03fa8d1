// SPDX-License-Identifier: Apache-2.0
/*!
The training steps of a job: from marks in the input, or from repeating operations.

Without marks, a step ends with each collective of one class: among the classes with the most
members, the rarest one. A training step has at least one such collective, often for the norm of the
gradients. It may have several, as with gradients in buckets of one size: then the times between
them repeat, with the longest before the first of a step (`rhythm`). If there are more than
`MOST` steps, several are combined into one ([`Step::count`]).

A step that is not completely recorded on some worker is ignored: missing operations would look like
work.
*/

use crate::clock::Clocks;
use crate::model::{Job, Part};
use ncclscope_limits::slow;
use ncclscope_operations::stats::{count, median};
use std::collections::BTreeMap;

/// Maximum number of steps that are derived without marks.
const MOST: usize = 200;
/// Maximum number of collectives of that class in a step.
const MOST_IN_STEP: usize = 64;
/// Maximum number of intervals that are searched for a rhythm.
const SEARCHED: usize = 2000;
/// A training step of the job.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Step {
    /// Its number in the input, of combined steps that of the first; [`Step::NONE`] for operations
    /// that belong to no step.
    pub number: i64,
    /// Start, ns on the job's clock, which restarts with each step if times do.
    pub start: f64,
    /// Duration, ns; of combined steps that of all together.
    pub duration: f64,
    /// How many training steps it combines; 1 if they are marked.
    pub count: usize,
}

impl Step {
    /// Number of the operations before the first step, and of incomplete steps.
    pub const NONE: i64 = i64::MIN;

    /// True if it is a whole step whose duration is known.
    pub(crate) fn is_timed(&self) -> bool {
        self.number != Step::NONE && self.duration > 0.0
    }

    /// The mean duration of the training steps that it combines, ns.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.duration / count(self.count.max(1))
    }
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

impl StepSource {
    /// The source in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            StepSource::Marked => "marks",
            StepSource::Repeating => "repetition",
            StepSource::Whole => "none",
        }
    }
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
        let MarkedSteps { of_collective, of_batch } = marked_steps(job, clocks);
        let collectives = job.collectives.iter().zip(&of_collective);
        let collectives = collectives.flat_map(|(c, &step)| c.parts.iter().map(move |p| (p, step)));
        let batches = job.batches.iter().zip(&of_batch).map(|(b, &step)| (&b.part, step));
        let mut spans: BTreeMap<i64, (f64, f64)> = BTreeMap::new();
        for (part, step) in collectives.chain(batches).chain(own) {
            let (start, end) =
                (clocks.time(part.worker, part.start), clocks.time(part.worker, part.end));
            let span = spans.entry(number(step)).or_insert((start, end));
            *span = (span.0.min(start), span.1.max(end));
        }
        let index: BTreeMap<i64, usize> = spans.keys().copied().zip(0..).collect();
        let find = |step: Option<i64>| index.get(&number(step)).copied().unwrap_or(0);
        let mut list: Vec<Step> = spans
            .iter()
            .map(|(&number, &(start, end))| Step { number, start, duration: end - start, count: 1 })
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
            of_collective: of_collective.into_iter().map(find).collect(),
            of_batch: of_batch.into_iter().map(find).collect(),
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
        let mut counts: Vec<usize> = ends.chunks(group).map(<[f64]>::len).collect();
        // Operations that begin after the last delimiter form one more step.
        let begins = |parts: &[Part], last: f64| {
            parts.iter().all(|part| clocks.time(part.worker, part.start) > last)
        };
        let is_more = |last: f64| {
            job.collectives.iter().any(|collective| begins(&collective.parts, last))
                || job.batches.iter().any(|batch| begins(&[batch.part], last))
        };
        if bounds.last().is_none_or(|&last| is_more(last)) {
            bounds.push(end);
            counts.push(1);
        }
        let find = |time: f64| bounds.partition_point(|&b| b < time).min(bounds.len() - 1);
        // The delimiters are such ends: one that ends later on some ranks is of its own step, too.
        let step = |parts: &[Part]| find(usual_end(parts, clocks).unwrap_or(f64::MIN));
        let starts = std::iter::once(start).chain(bounds.iter().copied());
        let whole = whole_from(job, clocks);
        let numbers = (0_i64..).step_by(group);
        let list =
            starts.zip(&bounds).zip(numbers).zip(counts).map(|(((start, end), number), count)| {
                Step {
                    number: if start > whole { number } else { Step::NONE },
                    start,
                    duration: (end - start).max(0.0),
                    count,
                }
            });
        Steps {
            list: list.collect(),
            of_collective: job.collectives.iter().map(|c| step(&c.parts)).collect(),
            of_batch: job.batches.iter().map(|b| step(&[b.part])).collect(),
            of_own: job.own.iter().map(|(part, _)| step(&[*part])).collect(),
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

/// The marked steps of the collectives and of the batches.
#[derive(Debug)]
struct MarkedSteps {
    of_collective: Vec<Option<i64>>,
    of_batch: Vec<Option<i64>>,
}

/// The steps of operations, also of those whose ranks mark no steps: often only one rank does. A
/// collective has the step of a member that marks steps, a batch that of a partner; else it is the
/// step that runs when the operation ends.
fn marked_steps(job: &Job, clocks: &Clocks) -> MarkedSteps {
    let mut steps = MarkedSteps {
        of_collective: job.collectives.iter().map(|c| c.step).collect(),
        of_batch: job.batches.iter().map(|b| b.step).collect(),
    };
    if job.steps_restart || job.unmarked.is_empty() {
        return steps;
    }
    let mut starts: BTreeMap<i64, f64> = BTreeMap::new();
    for (part, step) in parts(job) {
        let start = clocks.time(part.worker, part.start);
        step.map(|step| starts.entry(step).and_modify(|at| *at = at.min(start)).or_insert(start));
    }
    let mut starts: Vec<(f64, i64)> = starts.into_iter().map(|(step, at)| (at, step)).collect();
    starts.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let running = |parts: &[Part]| {
        let ends = parts.iter().map(|part| clocks.time(part.worker, part.end));
        let end = ends.fold(f64::MIN, f64::max);
        let next = starts.partition_point(|(start, _)| *start <= end);
        next.checked_sub(1).map(|at| starts[at].1)
    };
    let is_unmarked = |part: &Part| job.unmarked.contains(&part.worker);
    for (step, collective) in steps.of_collective.iter_mut().zip(&job.collectives) {
        if step.is_none() && collective.parts.iter().all(is_unmarked) {
            *step = running(&collective.parts);
        }
    }
    for (step, batch) in steps.of_batch.iter_mut().zip(&job.batches) {
        if step.is_none() && is_unmarked(&batch.part) {
            let of_partner = batch.partners.iter().find_map(|&at| job.batches[at].step);
            *step = of_partner.or_else(|| running(&[batch.part]));
        }
    }
    steps
}

/// The ends of the collectives that delimit steps, in time order.
fn delimiters(job: &Job, clocks: &Clocks) -> Vec<f64> {
    let mut counts: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for collective in &job.collectives {
        let (members, count) = counts.entry(collective.class).or_default();
        *members = collective.parts.len().max(*members);
        *count += 1;
    }
    let often = counts.iter().filter(|(_, (_, count))| *count >= slow::REPEATS);
    let best = often.min_by_key(|(_, (members, count))| (usize::MAX - members, *count));
    let Some((&class, _)) = best else { return Vec::new() };
    let of_class = job.collectives.iter().filter(|c| c.class == class);
    let mut ends: Vec<f64> = of_class.filter_map(|c| usual_end(&c.parts, clocks)).collect();
    ends.sort_unstable_by(f64::total_cmp);
    ends
}

/// The median end of an operation's members, on the job's clock.
fn usual_end(parts: &[Part], clocks: &Clocks) -> Option<f64> {
    median(&mut parts.iter().map(|part| clocks.time(part.worker, part.end)).collect::<Vec<_>>())
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
    let most = MOST_IN_STEP.min(intervals.len() / slow::REPEATS);
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
        let is_pause = *pause > slow::PAUSE * median(&mut others)?;
        let is_rhythm = is_pause && left < slow::UNEXPLAINED * differences;
        is_rhythm.then_some((size, longest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Collective, EndSync, P2pBatch, Worker};

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

    /// A pipeline of three ranks, of which only the first marks its steps.
    #[test]
    fn batches_of_ranks_that_mark_no_steps_belong_to_the_steps_of_others() {
        let mut job = Job {
            workers: (0..3).map(|rank| Worker::new(rank, "")).collect(),
            unmarked: [1, 2].into(),
            ..Job::default()
        };
        let mut add = |worker, at, step: Option<i64>, partner: usize| {
            let part = Part { worker, start: at, end: at + 5.0 };
            let partners = vec![partner];
            let (is_lacking, has_end) = (false, true);
            let batch = P2pBatch {
                class: None,
                part,
                released: (part.end, part.end),
                step,
                partners,
                is_lacking,
                has_end,
            };
            job.batches.push(batch);
        };
        for step in 0..3u8 {
            let (at, first) = (f64::from(step) * 100.0, usize::from(step) * 4);
            add(0, at, Some(step.into()), first + 1);
            add(1, at, None, first);
            add(1, at + 50.0, None, first + 3);
            add(2, at + 20.0, None, first + 2);
        }
        // At the end of each step rank 0 waits for the others.
        for step in 0..3u8 {
            let at = f64::from(step) * 100.0;
            let arrivals = [(0, at + 10.0), (1, at + 60.0), (2, at + 60.0)];
            let part = |(worker, start)| Part { worker, start, end: at + 70.0 };
            job.collectives.push(Collective {
                class: 0,
                shape: 0,
                step: Some(step.into()),
                ends: EndSync::Together,
                has_ends: true,
                parts: arrivals.map(part).into(),
            });
        }
        let steps = Steps::of(&job, &Clocks::default());
        assert_eq!(steps.list.iter().map(|step| step.number).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(steps.of_batch, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        let as_marked = Job { unmarked: [].into(), ..job.clone() };
        let unmarked = Steps::of(&as_marked, &Clocks::default()).of_batch;
        assert_ne!(unmarked, steps.of_batch, "what a rank without marks did was before all steps");
        // What comes before the first mark belongs to no step.
        job.batches[1].part = Part { worker: 1, start: -20.0, end: -10.0 };
        job.batches[1].partners.clear();
        let steps = Steps::of(&job, &Clocks::default());
        assert_eq!(steps.list[0].number, Step::NONE);
        assert_eq!(steps.of_batch[..3], [1, 0, 1]);
    }

    #[test]
    fn steps_that_are_combined_are_counted() {
        let mut job = Job { workers: vec![Worker::new(0, "")], ..Job::default() };
        for step in 0..405_u32 {
            let start = 100.0 * f64::from(step);
            job.collectives.push(Collective {
                class: 0,
                shape: 0,
                step: None,
                ends: EndSync::Together,
                has_ends: true,
                parts: vec![Part { worker: 0, start, end: start + 10.0 }],
            });
        }
        let Steps { list, .. } = Steps::of(&job, &Clocks::default());
        assert_eq!(list.iter().map(|step| step.count).sum::<usize>(), 405);
        assert_eq!((list.len(), list[1].number, list[1].count), (135, 3, 3));
        assert!(list[1..].iter().all(|step| (step.mean() - 100.0).abs() < 1e-9), "{list:?}");
        let marked = job.collectives.iter().cloned().zip(0..);
        let marked = marked.map(|(one, step)| Collective { step: Some(step), ..one });
        job.collectives = marked.collect();
        let Steps { list, .. } = Steps::of(&job, &Clocks::default());
        assert!(list.len() == 405 && list.iter().all(|step| step.count == 1));
    }

    #[test]
    fn a_last_collective_that_ends_later_on_some_ranks_is_no_step_of_its_own() {
        let workers = (0..3).map(|rank| Worker::new(rank, "")).collect();
        let mut job = Job { workers, ..Job::default() };
        for step in 0..12_u32 {
            let at = 100.0 * f64::from(step);
            let ends = [(0, at + 10.0), (1, at + 10.1), (2, at + 10.2)];
            job.collectives.push(Collective {
                class: 0,
                shape: 0,
                step: None,
                ends: EndSync::Together,
                has_ends: true,
                parts: ends.map(|(worker, end)| Part { worker, start: at, end }).into(),
            });
        }
        let count = |job: &Job| Steps::of(job, &Clocks::default()).list.len();
        assert_eq!(count(&job), 12);
        let steps = Steps::of(&job, &Clocks::default());
        assert_eq!(steps.of_collective, (0..12).collect::<Vec<_>>(), "each ends its own step");
        // What begins later is.
        let after = Part { worker: 1, start: 1_150.0, end: 1_160.0 };
        job.collectives.push(Collective {
            class: 1,
            shape: 0,
            step: None,
            ends: EndSync::Apart,
            has_ends: true,
            parts: vec![after],
        });
        assert_eq!(count(&job), 13);
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
