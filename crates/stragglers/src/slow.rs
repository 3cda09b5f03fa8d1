// SPDX-License-Identifier: Apache-2.0
/*!
Slow ranks, stages and data-parallel ranks (S1), and slow hosts of slow ranks (S7).

Blame alone does not decide: in a healthy pipeline each stage waits for the others while the
pipeline fills and drains, and the healthy members of a slow replica work while other replicas wait.
A worker is slow if it has more own time in a step than the others of its kind, if others wait for
it more than for these, and if this repeats. Only steps in which own times are known count
([`crate::coverage`]); where there are too few, those in which collectives lack members allow a
suspicion.
*/

use crate::blame::Blame;
use crate::coverage::Known;
use crate::finding::Finding;
use crate::limits::Limits;
use crate::model::{Job, Worker};
use crate::onset::Onset;
use crate::steps::Step;
use ncclscope_findings::{Doubt, Evidence, FindingClass, SlowPart};
use ncclscope_operations::human::duration;
use ncclscope_operations::stats::{count, median, to_f64};
use ncclscope_statistics::median_of_others;
use std::cell::LazyCell;
use std::collections::BTreeSet;

/// A kernel that starts within this time after its enqueueing found an idle GPU, ns.
const AT_ONCE: f64 = 20e3;
/// If hosts run ahead of their GPUs, kernels start at least this many times later than [`AT_ONCE`].
const AHEAD: f64 = 5.0;

/// The mean excess must exceed that many of its standard errors: if all groups vary from step to
/// step, one of them has the largest mean by chance. Of 300 simulated jobs of 2 to 9 ranks that
/// vary by 15 %, 49 had a slow rank without this limit, 6 with 3, and 2 with 3.5.
const ERRORS: f64 = 3.5;

/// Minimum share of slow steps after the first slow one.
const STAYS: f64 = 0.5;

/// A suspect is waited for this many times as long as the mean of the others: its own time may
/// include waits that were not recorded, but those are not waited for.
const WAITED: f64 = 2.0;

/// The rest of a group that has a slow worker is slow, too, if its excess is this share of that
/// worker's. Less is the worker's effect: those next to it wait for it in part of their own time.
const REST: f64 = 0.5;

/// Workers that are compared as a unit: a worker, a stage, or a data-parallel rank.
#[derive(Clone, PartialEq, Eq, Debug)]
struct WorkerGroup {
    root: SlowPart,
    workers: Vec<usize>,
}

impl WorkerGroup {
    fn alone((at, worker): (usize, &Worker)) -> WorkerGroup {
        WorkerGroup { root: SlowPart::from(worker), workers: vec![at] }
    }

    fn contains(&self, other: &WorkerGroup) -> bool {
        other.workers.iter().all(|worker| self.workers.contains(worker))
    }
}

/// How much more own time a group has than the others, in the steps where that is known.
#[derive(Clone)]
struct Excess {
    /// How well the own time is known in these steps.
    known: Known,
    /// The excess in each step, as a share of the step.
    lost: Vec<f64>,
    /// Number of steps in which the excess exceeds the limits and others wait for the group more
    /// than average.
    hits: usize,
    /// For each step: its start, and whether it is one of `hits`.
    slow: Vec<(f64, bool)>,
    /// The standard error of the mean excess.
    error: f64,
    /// How long the group is waited for in these steps, ns.
    waited: f64,
    /// The mean of the same of the others.
    others_waited: f64,
}

impl Excess {
    fn none(known: Known) -> Excess {
        let (lost, slow) = (Vec::new(), Vec::new());
        Excess { known, lost, hits: 0, slow, error: 0.0, waited: 0.0, others_waited: 0.0 }
    }

    fn is_slow(&self, limits: &Limits) -> bool {
        self.lost.len() >= limits.min_steps
            && count(self.hits) >= limits.min_steps_share * count(self.lost.len())
            && self.mean() >= limits.min_lost
            && self.mean() > ERRORS * self.error
            && (self.known == Known::Whole || self.waited >= WAITED * self.others_waited)
    }

    /// Mean excess over these steps. Random effects cancel out in many steps, because the excess
    /// may be negative.
    fn mean(&self) -> f64 {
        self.lost.iter().sum::<f64>() / count(self.lost.len()).max(1.0)
    }

    /// The variance of the excess, over the steps.
    fn variance(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.lost.iter().map(|lost| (lost - mean).powi(2)).sum();
        squares / (count(self.lost.len()) - 1.0).max(1.0)
    }
}

/// Finds slow groups of workers.
pub(crate) fn find(job: &Job, blames: &[Blame], steps: &[Step], limits: &Limits) -> Vec<Finding> {
    let mut found: Vec<(WorkerGroup, Finding)> = Vec::new();
    let levels = levels(&job.workers);
    // Each worker beside all others.
    let workers = LazyCell::new(|| match levels.first() {
        Some((all, _)) => excesses(all, blames, steps, limits),
        None => Vec::new(),
    });
    for (level, is_of_workers) in &levels {
        // If all members of a group are slow, the group is reported.
        for group in level.iter().filter(|group| group.workers.len() > 1) {
            let inside = found.iter().filter(|(of, _)| group.contains(of));
            let named: usize = inside.map(|(of, _)| of.workers.len()).sum();
            if named == group.workers.len() {
                found.retain(|(of, _)| !group.contains(of));
                let excess = excesses(level, blames, steps, limits);
                let of = level.iter().zip(excess).find(|(of, _)| *of == group);
                found.extend(of.map(|(_, of)| (group.clone(), finding(job, group, &of))));
            }
        }
        // A group is not slow because of one slow member, so that members already found are left
        // out.
        let left = without(level, &found, &job.gappy);
        let all = excesses(&left, blames, steps, limits);
        // A worker that is alone in its group was compared with all workers before.
        let is_new = |group: &WorkerGroup| *is_of_workers || group.workers.len() > 1;
        let new = left.iter().zip(all).filter(|(group, excess)| {
            let is_slow = is_new(group) && excess.is_slow(limits);
            is_slow && excess.mean() >= REST * worst_inside(group.root, level, &found)
        });
        let of_group = |group: &WorkerGroup| match group.workers.len() {
            1 => None,
            _ => slow_members(group, job, &workers),
        };
        let new = new.flat_map(|(group, excess)| {
            of_group(group).unwrap_or_else(|| vec![(group.clone(), excess)])
        });
        let new = new.map(|(group, of)| (group.clone(), finding(job, &group, &of)));
        let new: Vec<_> = new.collect();
        found.extend(new);
    }
    let mut findings: Vec<Finding> = found.into_iter().map(|(_, finding)| finding).collect();
    host_bound(job, &mut findings);
    findings
}

/// The workers that make a group slow, each alone, given the excess of each worker; `None` if all
/// do. Beside a rank that is much slower, a slow one is hardly waited for, but its group is.
fn slow_members(
    group: &WorkerGroup,
    job: &Job,
    workers: &[Excess],
) -> Option<Vec<(WorkerGroup, Excess)>> {
    let member = |&at: &usize| (WorkerGroup::alone((at, &job.workers[at])), workers[at].clone());
    let mut members: Vec<(WorkerGroup, Excess)> = group.workers.iter().map(member).collect();
    let most = members.iter().map(|(_, excess)| excess.mean()).fold(0.0, f64::max);
    members.retain(|(_, excess)| excess.mean() >= REST * most);
    (1..group.workers.len()).contains(&members.len()).then_some(members)
}

/// The greatest excess of what was found inside the whole group with this root, as a share of the
/// step.
fn worst_inside(root: SlowPart, level: &[WorkerGroup], found: &[(WorkerGroup, Finding)]) -> f64 {
    let whole = level.iter().find(|group| group.root == root);
    let inside = found.iter().filter(|(of, _)| whole.is_some_and(|whole| whole.contains(of)));
    inside.filter_map(|(_, finding)| finding.lost_share).fold(0.0, f64::max)
}

/// The groups without workers that were already found or whose recordings have gaps.
fn without(
    level: &[WorkerGroup],
    found: &[(WorkerGroup, Finding)],
    gappy: &BTreeSet<usize>,
) -> Vec<WorkerGroup> {
    let mut out: BTreeSet<usize> =
        found.iter().flat_map(|(group, _)| &group.workers).copied().collect();
    out.extend(gappy);
    let reduced = level.iter().map(|group| WorkerGroup {
        root: group.root,
        workers: group.workers.iter().copied().filter(|worker| !out.contains(worker)).collect(),
    });
    reduced.filter(|group| !group.workers.is_empty()).collect()
}

/// The sets of groups to compare: workers (true), then stages, then data-parallel ranks. A set has
/// at least two groups.
fn levels(workers: &[Worker]) -> Vec<(Vec<WorkerGroup>, bool)> {
    let mut levels =
        vec![(workers.iter().enumerate().map(WorkerGroup::alone).collect::<Vec<_>>(), true)];
    for is_stage in [true, false] {
        let key = |worker: &Worker| if is_stage { worker.stage } else { worker.dp_rank };
        let keys: BTreeSet<u32> = workers.iter().filter_map(key).collect();
        let group = |&number: &u32| WorkerGroup {
            root: if is_stage {
                SlowPart { stage: Some(number), ..SlowPart::default() }
            } else {
                SlowPart { dp_rank: Some(number), ..SlowPart::default() }
            },
            workers: (0..workers.len()).filter(|&at| key(&workers[at]) == Some(number)).collect(),
        };
        levels.push((keys.iter().map(group).collect(), false));
    }
    levels.retain(|(level, _)| level.len() > 1);
    levels
}

fn own(group: &WorkerGroup, blame: &Blame) -> f64 {
    group.workers.iter().map(|&worker| blame.own[worker]).sum()
}

/// The excess of each group in the steps in which everything is known, or, if these are too few, in
/// the steps that at least allow a suspicion.
fn excesses(
    level: &[WorkerGroup],
    blames: &[Blame],
    steps: &[Step],
    limits: &Limits,
) -> Vec<Excess> {
    let of = |known| excesses_where(known, level, blames, steps, limits);
    let (whole, suspected) = (of(Known::Whole), of(Known::Suspected));
    let pairs = whole.into_iter().zip(suspected);
    let is_enough = |whole: &Excess| whole.lost.len() >= limits.min_steps;
    pairs.map(|(whole, other)| if is_enough(&whole) { whole } else { other }).collect()
}

/// The excess of each group in the steps in which its own time and that of half of the groups are
/// known at least this well.
fn excesses_where(
    known: Known,
    level: &[WorkerGroup],
    blames: &[Blame],
    steps: &[Step],
    limits: &Limits,
) -> Vec<Excess> {
    let mut found: Vec<Excess> = level.iter().map(|_| Excess::none(known)).collect();
    for (blame, step) in blames.iter().zip(steps) {
        let is_known = |group: &WorkerGroup| group.workers.iter().all(|&w| blame.known[w] >= known);
        let groups: Vec<usize> = (0..level.len()).filter(|&at| is_known(&level[at])).collect();
        if groups.len() < 2 || 2 * groups.len() < level.len() {
            continue;
        }
        let busy = |of: &[f64]| groups.iter().map(|&at| mean(&level[at], of)).collect::<Vec<_>>();
        let (least, most) = (busy(&blame.busy), busy(&blame.busy_at_most));
        let mut sorted = most.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let all: f64 = level.iter().map(|group| own(group, blame)).sum();
        let gate = limits.min_lateness_ns.max(limits.min_lost * step.duration);
        for ((&at, busy), busy_at_most) in groups.iter().zip(least).zip(most) {
            let excess = &mut found[at];
            let more = busy - median_of_others(&sorted, busy_at_most);
            let waited = own(&level[at], blame);
            excess.waited += waited;
            excess.others_waited += (all - waited) / (count(level.len()) - 1.0);
            let is_waited_for = waited * count(level.len()) > all;
            let is_hit = more >= gate && is_waited_for && step.duration > 0.0;
            excess.hits += usize::from(is_hit);
            excess.slow.push((step.start, is_hit));
            excess.lost.push(if step.duration > 0.0 { more / step.duration } else { 0.0 });
        }
    }
    set_errors(&mut found);
    found
}

/// Sets the standard error of each mean excess, from the variance of the group's own steps or that
/// of the other groups, whichever is less: the own one is also large if the group is slow only now
/// and then.
fn set_errors(all: &mut [Excess]) {
    let mut variances: Vec<f64> = all.iter().map(Excess::variance).collect();
    variances.sort_unstable_by(f64::total_cmp);
    for excess in all {
        let own = excess.variance();
        let variance = own.min(median_of_others(&variances, own));
        excess.error = (variance / count(excess.lost.len()).max(1.0)).sqrt();
    }
}

/// The mean of a group's workers.
fn mean(group: &WorkerGroup, of: &[f64]) -> f64 {
    let sum: f64 = group.workers.iter().map(|&worker| of[worker]).sum();
    sum / count(group.workers.len()).max(1.0)
}

fn finding(job: &Job, group: &WorkerGroup, excess: &Excess) -> Finding {
    let steps = excess.lost.len();
    let lost = excess.mean();
    let line = |text: String| Evidence::about(FindingClass::SlowRank, text);
    let text = format!(
        "its own time in a step exceeds the others' by {:.1} % of the step, and by more than the \
         limit in {} of {steps} steps",
        100.0 * lost,
        excess.hits
    );
    let figures = [
        ("excess_share", lost),
        ("steps_over_limit", to_f64(excess.hits as u64)),
        ("steps", to_f64(steps as u64)),
    ];
    let is_whole = excess.known == Known::Whole;
    Finding {
        title: format!("{} is slow, and the other ranks wait for it", group.root.name()),
        doubts: if is_whole { Vec::new() } else { vec![Doubt::PeerNotRecorded] },
        root: Some(group.root),
        root_ranks: group.workers.iter().map(|&worker| job.workers[worker].rank).collect(),
        lost_share: Some(lost),
        steps: Some(excess.hits),
        onset: Onset::first(&excess.slow, STAYS).map(Onset::Job),
        evidence: vec![line(text).with(figures)],
        ..Finding::of(FindingClass::SlowRank)
    }
}

/// Turns S1 into S7 if a slow rank's kernels start at once while those of the others queue: its
/// host does not launch fast enough.
fn host_bound(job: &Job, findings: &mut [Finding]) {
    let delay = |is_of: &dyn Fn(u32) -> bool| {
        let of = job.launches.iter().filter(|launch| is_of(job.workers[launch.worker].rank));
        median(&mut of.map(|launch| launch.delay).collect::<Vec<_>>())
    };
    for finding in findings {
        let [rank] = finding.root_ranks[..] else { continue };
        let delays = (delay(&|other| other == rank), delay(&|other| other != rank));
        let (Some(own), Some(others)) = delays else { continue };
        // Delays below AHEAD * AT_ONCE do not show that the other hosts run ahead.
        if own <= AT_ONCE && others >= AHEAD * AT_ONCE {
            finding.class = FindingClass::SlowLaunch;
            finding.title = format!("the host of rank {rank} launches too slowly for its GPU");
            finding.doubts.push(Doubt::OtherCause(FindingClass::SlowRank));
            let figures = [("launch_delay_ns", own), ("others_launch_delay_ns", others)];
            let text = delays_text(own, others);
            let line = Evidence::of(FindingClass::SlowLaunch, rank, text);
            finding.evidence.push(line.with(figures));
        }
    }
}

/// How long after their enqueueing kernels start, as text. The error of the clocks can make the
/// time of a GPU without a queue negative.
fn delays_text(own: f64, others: f64) -> String {
    let own = if own < 1.0 { "at once".into() } else { duration(own) };
    let others = duration(others);
    format!(
        "its kernels start {own}, the others' {others} after they are enqueued: its GPU has \
         nothing else to do"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reproducible noise from -1 to 1.
    fn noise(seed: u64, step: u64, worker: u64) -> f64 {
        let mut x = (seed << 40) ^ (step << 20) ^ worker;
        for _ in 0..3 {
            x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            x ^= x >> 29;
        }
        to_f64(x >> 11) / to_f64(1u64 << 52) - 1.0
    }

    /// Ranks of the findings in 20 steps of 1 s, given the work of a rank in a step, in s.
    fn found(ranks: u32, work: impl Fn(u64, u64) -> f64) -> Vec<u32> {
        let job = Job {
            workers: (0..ranks).map(|rank| Worker::new(rank, "")).collect(),
            ..Job::default()
        };
        let of_step = |step: u64| {
            let busy: Vec<f64> = (0..ranks.into()).map(|rank| 1e9 * work(step, rank)).collect();
            let least = busy.iter().copied().fold(f64::MAX, f64::min);
            blame(busy.iter().map(|busy| busy - least).collect(), busy)
        };
        named(&job, &(0..20).map(of_step).collect::<Vec<_>>()).concat()
    }

    /// The blame of a step in which everything is known, given the blame for own work and the own
    /// time of each worker, ns.
    fn blame(own: Vec<f64>, busy: Vec<f64>) -> Blame {
        let (total, known) = (own.iter().sum(), vec![Known::Whole; busy.len()]);
        Blame { total, own, busy_at_most: busy.clone(), busy, known, ..Blame::none(0) }
    }

    /// The ranks of each finding in steps of 1 s.
    fn named(job: &Job, blames: &[Blame]) -> Vec<Vec<u32>> {
        let step = |(number, _): (i64, &Blame)| Step {
            number,
            start: 1e9 * to_f64(number.unsigned_abs()),
            duration: 1e9,
            count: 1,
        };
        let steps: Vec<Step> = (0..).zip(blames).map(step).collect();
        let all = find(job, blames, &steps, &Limits::default());
        all.into_iter().map(|finding| finding.root_ranks).collect()
    }

    #[test]
    fn of_ranks_that_vary_hardly_ever_one_is_slow() {
        for ranks in [2, 3, 5, 8] {
            let is_wrong = |seed: &u64| {
                let work = |step, rank| 0.5 + 0.3 * noise(*seed, step, rank);
                !found(ranks, work).is_empty()
            };
            let wrong = (0..100).filter(is_wrong).count();
            assert!(wrong <= 1, "{ranks} ranks: {wrong} of 100 jobs");
        }
    }

    #[test]
    fn a_rank_that_is_slow_now_and_then_among_steady_ones_is_named() {
        for (ranks, often) in [(2, 2), (3, 4), (5, 4), (8, 4)] {
            let work = |step: u64, rank| {
                let is_slow = rank == 1 && step.is_multiple_of(often);
                0.5 + 0.01 * noise(7, step, rank) + if is_slow { 0.3 } else { 0.0 }
            };
            assert_eq!(found(ranks, work), [1], "{ranks} ranks");
        }
    }

    /// Three replicas of one rank each, of which only rank 0 makes others wait for long. Rank 1 is
    /// within the limits of all ranks. Without rank 0 it would exceed those of rank 2 alone.
    #[test]
    fn a_rank_is_compared_with_all_ranks_and_not_again_with_those_left() {
        let worker = |rank| Worker { dp_rank: Some(rank), ..Worker::new(rank, "") };
        let job = Job { workers: (0..3).map(worker).collect(), ..Job::default() };
        let (own, busy) = (vec![3e8, 1e7, 0.0], vec![8e8, 6e8, 5e8]);
        assert_eq!(named(&job, &vec![blame(own, busy); 20]), [[0]]);
    }

    /// Two stages of two ranks. Rank 0 is three times as slow, and rank 1, which shares its stage,
    /// waits for it in part of its own time.
    #[test]
    fn the_rest_of_a_stage_is_not_slow_because_of_its_slow_rank() {
        let worker = |rank| Worker { stage: Some(rank / 2), ..Worker::new(rank, "") };
        let job = Job { workers: (0..6).map(worker).collect(), ..Job::default() };
        let found = |rest: f64| {
            let (own, busy) = (vec![6e8, rest, 0.0, 0.0, 0.0, 0.0], vec![9e8, 3e8 + rest]);
            let busy = [busy, vec![3e8; 4]].concat();
            named(&job, &vec![blame(own, busy); 20])
        };
        assert_eq!(found(8e7), [[0]]);
        // As slow as rank 0, half as slow.
        assert_eq!(found(6e8), [[0, 1]]);
    }

    /// Two stages of two ranks. Rank 1 makes others wait for most of the time, and of stage 1 only
    /// rank 2 is slow.
    #[test]
    fn a_stage_is_not_slow_because_of_one_rank_that_is_hardly_waited_for() {
        let worker = |rank| Worker { stage: Some(rank / 2), ..Worker::new(rank, "") };
        let job = Job { workers: (0..4).map(worker).collect(), ..Job::default() };
        let found = |last: f64| {
            let (own, busy) = (vec![0.0, 6e8, 1e8, 1e7], vec![2e8, 9e8, 4e8, last]);
            named(&job, &vec![blame(own, busy); 20])
        };
        assert_eq!(found(2e8), [vec![1], vec![2]]);
        assert_eq!(found(4e8), [vec![1], vec![2, 3]]);
    }

    #[test]
    fn delays_have_units_and_are_never_negative() {
        let ahead = "the others' 86.0 ms after they are enqueued: its GPU has nothing else to do";
        for own in [-31_000.0, 0.0] {
            let text = delays_text(own, 85_991_000.0);
            assert_eq!(text, format!("its kernels start at once, {ahead}"));
        }
        let text = delays_text(12_340.0, 85_991_000.0);
        assert_eq!(text, format!("its kernels start 12.3 us, {ahead}"));
    }
}
