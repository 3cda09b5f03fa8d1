// SPDX-License-Identifier: Apache-2.0
/*!
Slow ranks, stages and data-parallel ranks: S1, and S7 where a slow rank's host is behind it.

Blame alone does not decide: in a healthy pipeline each stage waits for the others while it fills
and drains, and the healthy members of a slow replica work while other replicas wait. So what counts
is that a worker has more time of its own in a step than the others of its kind, that others wait
for it more than for these, and that this comes again. */

use crate::blame::Blame;
use crate::model::{Job, Worker};
use crate::report::{Finding, Limits, Root};
use crate::robust::{count, median, median_of_others};
use crate::steps::Step;
use ncclscope_findings::{Confidence, FindingClass};
use std::collections::BTreeSet;

/// A kernel that starts this soon after its enqueueing found an idle GPU, ns.
const AT_ONCE: f64 = 20e3;
/// Others' kernels start so many times later than that where their hosts run ahead.
const AHEAD: f64 = 5.0;

/// Workers that may be slow together.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Group {
    root: Root,
    workers: Vec<usize>,
}

/// How much more time of its own a group has than the others, for each step.
struct Excess {
    /// As a share of the step.
    lost: Vec<f64>,
    /// Steps in which that is above the limits, and others wait for the group more than on average.
    hits: usize,
}

impl Excess {
    /// Over all steps: chance evens out, as the excess of others counts against.
    fn mean(&self) -> f64 {
        self.lost.iter().sum::<f64>() / count(self.lost.len()).max(1.0)
    }
}

/// Who is slow.
pub(crate) fn find(job: &Job, blames: &[Blame], steps: &[Step], limits: &Limits) -> Vec<Finding> {
    let mut found: Vec<(Group, Finding)> = Vec::new();
    for level in levels(&job.workers) {
        // All of a group that are slow one by one are slow as a group.
        for group in level.iter().filter(|group| group.workers.len() > 1) {
            let is_inside = |of: &Group| of.workers.iter().all(|w| group.workers.contains(w));
            let inside = found.iter().filter(|(of, _)| is_inside(of));
            let named: usize = inside.map(|(of, _)| of.workers.len()).sum();
            if named == group.workers.len() {
                found.retain(|(of, _)| !is_inside(of));
                let excess = excesses(&level, blames, steps, limits);
                let of = level.iter().zip(excess).find(|(of, _)| *of == group);
                found.extend(of.map(|(_, of)| (group.clone(), finding(job, group, &of, blames))));
            }
        }
        // What a slow worker costs its group is not the group's fault.
        let left = without(level, &found, &job.gappy);
        for (group, excess) in left.iter().zip(excesses(&left, blames, steps, limits)) {
            let often = steps.len() >= limits.min_steps
                && count(excess.hits) >= limits.min_steps_share * count(steps.len());
            if often && excess.mean() >= limits.min_lost {
                found.push((group.clone(), finding(job, group, &excess, blames)));
            }
        }
    }
    let mut findings: Vec<Finding> = found.into_iter().map(|(_, finding)| finding).collect();
    findings.sort_by(|a, b| b.lost.total_cmp(&a.lost));
    host_bound(job, &mut findings);
    findings
}

/// The groups without the workers that are named already, or that cannot be judged.
fn without(level: Vec<Group>, found: &[(Group, Finding)], gappy: &BTreeSet<usize>) -> Vec<Group> {
    let mut out: BTreeSet<usize> =
        found.iter().flat_map(|(group, _)| &group.workers).copied().collect();
    out.extend(gappy);
    let reduced = level.into_iter().map(|group| Group {
        workers: group.workers.into_iter().filter(|worker| !out.contains(worker)).collect(),
        ..group
    });
    reduced.filter(|group| !group.workers.is_empty()).collect()
}

/// The groups to compare with each other: each worker, then each stage, then each data-parallel
/// rank, as far as there are several.
fn levels(workers: &[Worker]) -> Vec<Vec<Group>> {
    let alone =
        |(at, worker): (usize, &Worker)| Group { root: Root::of(worker), workers: vec![at] };
    let mut levels = vec![workers.iter().enumerate().map(alone).collect::<Vec<_>>()];
    for is_stage in [true, false] {
        let key = |worker: &Worker| if is_stage { worker.stage } else { worker.dp_rank };
        let keys: BTreeSet<u32> = workers.iter().filter_map(key).collect();
        let group = |&number: &u32| Group {
            root: if is_stage { Root::stage(number) } else { Root::dp_rank(number) },
            workers: (0..workers.len()).filter(|&at| key(&workers[at]) == Some(number)).collect(),
        };
        levels.push(keys.iter().map(group).collect());
    }
    levels.retain(|level| level.len() > 1);
    levels
}

fn own(group: &Group, blame: &Blame) -> f64 {
    group.workers.iter().map(|&worker| blame.own[worker]).sum()
}

/// The excess of each group of a level.
fn excesses(level: &[Group], blames: &[Blame], steps: &[Step], limits: &Limits) -> Vec<Excess> {
    let mut found: Vec<Excess> = level.iter().map(|_| Excess { lost: vec![], hits: 0 }).collect();
    for (blame, step) in blames.iter().zip(steps) {
        let busy: Vec<f64> = level.iter().map(|group| busy(group, blame)).collect();
        let mut sorted = busy.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let all: f64 = level.iter().map(|group| own(group, blame)).sum();
        let gate = limits.min_lateness_ns.max(limits.min_lost * step.duration);
        for ((group, busy), excess) in level.iter().zip(busy).zip(&mut found) {
            let more = busy - median_of_others(&sorted, busy);
            let is_waited_for = own(group, blame) * count(level.len()) > all;
            excess.hits += usize::from(more >= gate && is_waited_for && step.duration > 0.0);
            excess.lost.push(if step.duration > 0.0 { more / step.duration } else { 0.0 });
        }
    }
    found
}

/// A group's own time for each of its workers, ns.
fn busy(group: &Group, blame: &Blame) -> f64 {
    let sum: f64 = group.workers.iter().map(|&worker| blame.busy[worker]).sum();
    sum / count(group.workers.len()).max(1.0)
}

fn finding(job: &Job, group: &Group, excess: &Excess, blames: &[Blame]) -> Finding {
    let steps = excess.lost.len();
    let total: f64 = blames.iter().map(|blame| blame.total).sum();
    let mine: f64 = blames.iter().map(|blame| own(group, blame)).sum();
    let lost = excess.mean();
    let share = if total > 0.0 { mine / total } else { 0.0 };
    let evidence = vec![
        format!("{:.0} % of all waiting leads back to what it does by itself", 100.0 * share),
        format!(
            "its own time in a step is longer than the others' by {:.1} % of the step, and by more \
             than the limit in {} of {steps} steps",
            100.0 * lost,
            excess.hits
        ),
    ];
    Finding {
        title: format!("{} is slow, and others wait for it", group.root.name()),
        confidence: confidence(job),
        root: Some(group.root),
        root_ranks: group.workers.iter().map(|&worker| job.workers[worker].rank).collect(),
        share: Some(share),
        lost,
        steps: Some(excess.hits),
        evidence,
        ..Finding::of(FindingClass::SlowRank)
    }
}

fn confidence(job: &Job) -> Confidence {
    if job.is_kernel_timed { Confidence::Confirmed } else { Confidence::Suspect }
}

/// Of slow ranks whose kernels start at once, while the others' queue, the host cannot keep up: S7
/// in place of S1.
fn host_bound(job: &Job, findings: &mut [Finding]) {
    let delay = |is_of: &dyn Fn(u32) -> bool| {
        let of = job.launches.iter().filter(|launch| is_of(job.workers[launch.worker].rank));
        median(&mut of.map(|launch| launch.delay).collect::<Vec<_>>())
    };
    for finding in findings {
        let [rank] = finding.root_ranks[..] else { continue };
        let delays = (delay(&|other| other == rank), delay(&|other| other != rank));
        let (Some(own), Some(others)) = delays else { continue };
        // Below that it is not known how long a start takes.
        if own <= AT_ONCE && others >= AHEAD * AT_ONCE {
            finding.class = FindingClass::SlowLaunch;
            finding.title = format!("the host of rank {rank} launches too slowly for its GPU");
            finding.confidence = Confidence::Suspect;
            finding.evidence.push(format!(
                "its kernels start {:.0} us after they are enqueued, the others' {:.0} us: its \
                 GPU has nothing else to do",
                own / 1e3,
                others / 1e3
            ));
        }
    }
}
