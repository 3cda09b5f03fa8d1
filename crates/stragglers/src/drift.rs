// SPDX-License-Identifier: Apache-2.0
/*!
Collectives that became slower (S2), that are slower than comparable ones (S5), or that changed
their algorithm (S6).

The shortest time that any member spent in a collective is its transfer time: that member arrived
last and did not wait. This needs no clock alignment, and does not include lateness. Transfer times
are compared within one communicator, function, size, algorithm, protocol and number of channels:
the end of the run with its beginning (S2). Communicators without network traffic are also compared
with others of the same size (S5): ranks in all slow ones and in no healthy one are suspects. S6 is
a change of the algorithm, protocol or number of channels.
*/

use crate::clock::Clocks;
use crate::finding::Finding;
use crate::limits::Limits;
use crate::model::{Collective, Job, Part};
use crate::onset::Onset;
use crate::waits::on_clock;
use ncclscope_findings::{Doubt, Evidence, FindingClass};
use ncclscope_operations::human;
use ncclscope_operations::stats::{count, median};
use ncclscope_statistics::{median_mad, median_of_others};
use std::collections::{BTreeMap, BTreeSet};

/// Minimum number of samples of one class in a third of the run; [`Limits::min_samples`] applies to
/// all slowed classes together.
const FEWEST: usize = 5;
/// With fewer samples, S2 is a suspicion: this many of a class in a third of the run, and of all
/// slowed classes together.
const FEW: (usize, usize) = (3, 6);
/// It then takes that each of the last third lasted this many times as long as the longest of the
/// first third, and a cost of this share of the run.
const APART: (f64, f64) = (1.5, 0.02);

/// In a run of few steps some classes look slower by chance, because the collectives of a step have
/// much in common. With fewer steps than this in a third of the run, the comparable classes must
/// have become slower, too, if less clearly.
const SURE: usize = 20;
/// Minimum share of them: a slower network slows down all. In a healthy job of 8,192 ranks whose
/// computing times vary, half of 32 communicators were slower in the last three steps than in the
/// first three.
const MOST: f64 = 0.9;

/// Minimum share of slow samples after the first slow one.
const STAYS: f64 = 0.8;

/// Function, size, members and shape.
type ComparableKey<'a> = (&'a str, Option<u64>, u32, usize);

/// A collective: end and transfer time, ns, and its step.
type Sample = (f64, f64, Option<i64>);
/// The transfer times of collectives by class and shape.
pub(crate) type Samples = BTreeMap<(usize, usize), Vec<Sample>>;

/// Finds changes in a run of `span` ns. Communicators in `explained` are skipped, because their
/// slowness has another cause.
pub(crate) fn find(
    job: &Job,
    (clocks, mut samples): (&Clocks, Samples),
    (explained, span): (&BTreeSet<String>, f64),
    limits: &Limits,
) -> Vec<Finding> {
    let mut found = Vec::new();
    if !job.is_kernel_timed {
        return found;
    }
    samples.retain(|(class, _), _| !explained.contains(&job.classes[*class].comm));
    let mut slower: Vec<SlowedClass> = samples
        .iter()
        .filter_map(|(&(class, shape), list)| slower((class, shape), list, limits))
        .collect();
    leave_out_chance(job, &samples, &mut slower, limits);
    found.extend(drifted(job, slower, span, limits));
    found.extend(inside(job, &samples, span, limits));
    found.extend(reconfigured(job, clocks, limits));
    found
}

/// Transfer times of complete collectives by class and shape, sorted by end.
pub(crate) fn samples(job: &Job, clocks: &Clocks) -> Samples {
    let mut samples: BTreeMap<(usize, usize), Vec<Sample>> = BTreeMap::new();
    for collective in job.collectives.iter().filter(|c| is_complete(job, c)) {
        let parts = collective.parts.iter();
        let shortest = parts.clone().map(|p| p.end - p.start).fold(f64::MAX, f64::min);
        let end = parts.map(|part: &Part| on_clock(part, clocks).end).fold(f64::MIN, f64::max);
        let sample = (end, shortest, collective.step);
        samples.entry((collective.class, collective.shape)).or_default().push(sample);
    }
    if !job.steps_restart {
        samples.values_mut().for_each(|list| list.sort_unstable_by(|a, b| a.0.total_cmp(&b.0)));
    }
    samples
}

fn is_complete(job: &Job, collective: &Collective) -> bool {
    let members = job.classes[collective.class].members as usize;
    collective.parts.len() > 1 && collective.parts.len() >= members
}

/// A class and shape of collectives that became slower.
struct SlowedClass {
    class: usize,
    shape: usize,
    /// Number of samples in the first third.
    before: usize,
    /// Number of steps in the first third; of samples where steps are unknown.
    steps: usize,
    usual: f64,
    mad: f64,
    now: f64,
    /// Time lost in the last third, ns.
    extra: f64,
    /// Time of the first slow sample, ns.
    since: Option<f64>,
    /// No sample of the last third is near one of the first third.
    is_apart: bool,
}

/// S2: compares the last third with the first third.
fn slower((class, shape): (usize, usize), list: &[Sample], limits: &Limits) -> Option<SlowedClass> {
    let (early, late) = thirds(list);
    let before = early.len();
    if before < FEW.0 {
        return None;
    }
    let (usual, mad) = median_mad(&mut times(early))?;
    let now = median(&mut times(late))?;
    // The times of small collectives cluster around several values. A value that was common in the
    // first third is not a slowdown.
    let often = high(early);
    let limit = (usual + limits.mads * mad).max(limits.drift_factor * often);
    let extra = (now - usual) * count(before);
    let since = first(list, (usual * now).sqrt());
    let slowest = times(early).into_iter().fold(0.0, f64::max);
    let is_apart = late.iter().all(|sample| sample.1 >= APART.0 * slowest);
    let steps = steps(early);
    let found =
        SlowedClass { class, shape, before, steps, usual, mad, now, extra, since, is_apart };
    (now > limit).then_some(found)
}

/// The first and the last third of the samples.
fn thirds(list: &[Sample]) -> (&[Sample], &[Sample]) {
    let third = list.len() / 3;
    (&list[..third], &list[list.len() - third..])
}

fn times(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.1).collect()
}

/// The number of steps that samples are of; of samples where steps are unknown.
fn steps(samples: &[Sample]) -> usize {
    let known: Option<BTreeSet<i64>> = samples.iter().map(|sample| sample.2).collect();
    known.map_or(samples.len(), |steps| steps.len())
}

/// Leaves out the classes that may be slower by chance ([`SURE`], [`MOST`]).
fn leave_out_chance(job: &Job, samples: &Samples, slower: &mut Vec<SlowedClass>, limits: &Limits) {
    if slower.iter().all(|it| it.steps >= SURE) {
        return;
    }
    // The number of comparable classes, and how many of them rose.
    let mut alike: BTreeMap<ComparableKey<'_>, (usize, usize)> = BTreeMap::new();
    for (&of, list) in samples.iter().filter(|(_, list)| thirds(list).0.len() >= FEW.0) {
        let (all, rose) = alike.entry(comparable(job, of)).or_default();
        *all += 1;
        *rose += usize::from(rises(list, limits));
    }
    slower.retain(|it| {
        let (all, rose) = alike[&comparable(job, (it.class, it.shape))];
        it.steps >= SURE || count(rose) >= MOST * count(all)
    });
}

/// True if the transfers of the last third took longer than those of the first, however much they
/// vary.
fn rises(list: &[Sample], limits: &Limits) -> bool {
    let (early, late) = thirds(list);
    let medians = median(&mut times(early)).zip(median(&mut times(late)));
    medians.is_some_and(|(first, last)| last > limits.drift_factor * first)
}

/// What collectives that can be compared have in common.
fn comparable(job: &Job, (class, shape): (usize, usize)) -> ComparableKey<'_> {
    let of = &job.classes[class];
    (&*of.func, of.bytes, of.members, shape)
}

/// The finding if the slowed classes have enough samples, or, as a suspicion, if the times of few
/// are far apart.
fn drifted(job: &Job, slower: Vec<SlowedClass>, span: f64, limits: &Limits) -> Option<Finding> {
    let seen = |of: &[SlowedClass]| of.iter().map(|it| it.before).sum::<usize>();
    let (many, few): (Vec<_>, Vec<_>) = slower.into_iter().partition(|it| it.before >= FEWEST);
    if seen(&many) as u64 >= limits.min_samples {
        let is_costly = most_lost(job, &many) >= limits.min_extra * span;
        return is_costly.then(|| slowed(job, &many, None));
    }
    let apart: Vec<_> = many.into_iter().chain(few).filter(|it| it.is_apart).collect();
    let is_enough = seen(&apart) >= FEW.1 && most_lost(job, &apart) >= APART.1 * span;
    is_enough.then(|| slowed(job, &apart, Some(Doubt::FewSamples)))
}

/// Time from which transfers take longer than `limit`.
fn first(list: &[Sample], limit: f64) -> Option<f64> {
    let slow: Vec<(f64, bool)> = list.iter().map(|&(end, time, _)| (end, time > limit)).collect();
    Onset::first(&slow, STAYS)
}

/// Maximum time lost by one worker. Communicators that run in parallel lose the same time.
fn most_lost(job: &Job, slower: &[SlowedClass]) -> f64 {
    let mut lost = vec![0.0; job.workers.len()];
    for it in slower {
        members(job, it.class).into_iter().for_each(|worker| lost[worker] += it.extra);
    }
    lost.into_iter().fold(0.0, f64::max)
}

/// The 90th percentile.
fn high(samples: &[Sample]) -> f64 {
    let mut values = times(samples);
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() * 9 / 10).copied().unwrap_or(0.0)
}

/// One finding for all slowed classes, because the likely cause is one network or one switch.
fn slowed(job: &Job, slower: &[SlowedClass], doubt: Option<Doubt>) -> Finding {
    let factors = slower.iter().map(|it| it.now / it.usual);
    let comms: BTreeSet<&String> = slower.iter().map(|it| &job.classes[it.class].comm).collect();
    let line = |it: &SlowedClass| {
        let text = format!(
            "{}, {}: the transfer took {} at first (median of {}, MAD {}) and {} at the end",
            describe(job, it.class),
            job.shapes[it.shape],
            human::duration(it.usual),
            it.before,
            human::duration(it.mad),
            human::duration(it.now)
        );
        let figures = [("before_ns", it.usual), ("mad_ns", it.mad), ("now_ns", it.now)];
        Evidence::about(FindingClass::TransfersSlowed, text).with(figures)
    };
    Finding {
        title: format!(
            "transfers became slower during the run, on {}",
            human::count(comms.len(), "communicator")
        ),
        doubts: doubt.into_iter().collect(),
        factor: median(&mut factors.collect::<Vec<_>>()),
        // The median, because with many classes some look early or late by chance.
        onset: median(&mut slower.iter().filter_map(|it| it.since).collect::<Vec<_>>())
            .map(Onset::Job),
        comm_texts: comms.into_iter().cloned().collect(),
        evidence: slower.iter().map(line).collect(),
        ..Finding::of(FindingClass::TransfersSlowed)
    }
}

fn describe(job: &Job, class: usize) -> String {
    let class = &job.classes[class];
    let size = class.bytes.map_or_else(String::new, |bytes| format!(" of {}", human::bytes(bytes)));
    format!("{}{size} on communicator {}", class.func, class.comm)
}

/// Number of communicators without network traffic that have too few others to compare with.
pub(crate) fn unjudged(job: &Job, samples: &Samples, limits: &Limits) -> usize {
    let comms = |of: &Vec<ClassTime<'_>>| -> Vec<&str> {
        of.iter().map(|time| job.classes[time.class].comm.as_str()).collect()
    };
    let (judged, others): (Vec<_>, Vec<_>) =
        alike(job, samples, limits).into_values().partition(|of| of.len() > limits.min_peers);
    let judged: BTreeSet<&str> = judged.iter().flat_map(comms).collect();
    let others: BTreeSet<&str> = others.iter().flat_map(comms).collect();
    others.difference(&judged).count()
}

/// S5: communicators without network traffic that are slower than comparable ones.
fn inside(job: &Job, samples: &Samples, span: f64, limits: &Limits) -> Vec<Finding> {
    let alike = alike(job, samples, limits);
    merged(alike.values().flat_map(|classes| compare(job, classes, span, limits)).collect())
}

/// The comparable classes of communicators without network traffic, with their times.
fn alike<'s>(
    job: &'s Job,
    samples: &'s Samples,
    limits: &Limits,
) -> BTreeMap<ComparableKey<'s>, Vec<ClassTime<'s>>> {
    let networked = job.edges.iter().map(|edge| &edge.comm).chain(&job.networked);
    let networked: BTreeSet<&str> = networked.map(String::as_str).collect();
    let mut alike = BTreeMap::<ComparableKey<'_>, Vec<ClassTime<'_>>>::new();
    for (&(class, shape), list) in samples {
        let of = &job.classes[class];
        let mut values = times(list);
        // Collectives of unknown size are not comparable.
        let is_other = of.bytes.is_none() || networked.contains(of.comm.as_str());
        if is_other || (values.len() as u64) < limits.min_samples {
            continue;
        }
        if let Some(usual) = median(&mut values) {
            let key = comparable(job, (class, shape));
            alike.entry(key).or_default().push(ClassTime { class, list, usual });
        }
    }
    alike
}

/// Merges findings of which one rank is a suspect in all.
fn merged(found: Vec<Finding>) -> Vec<Finding> {
    let mut paths: Vec<Finding> = Vec::new();
    for one in found {
        let is_same =
            |path: &&mut Finding| path.root_ranks.iter().any(|r| one.root_ranks.contains(r));
        let Some(path) = paths.iter_mut().find(is_same) else {
            paths.push(one);
            continue;
        };
        path.root_ranks.retain(|rank| one.root_ranks.contains(rank));
        path.comm_texts.extend(one.comm_texts);
        path.evidence.extend(one.evidence);
        path.factor = path.factor.zip(one.factor).map(|(a, b)| a.max(b));
        path.most_lost_share = path.most_lost_share.zip(one.most_lost_share).map(|(a, b)| a + b);
        path.onset = path.onset.or(one.onset);
    }
    paths
}

/// A class, its collectives, and their median time, ns.
struct ClassTime<'s> {
    class: usize,
    list: &'s [Sample],
    usual: f64,
}

/// The slow paths that comparable classes show: one for all slow classes with a common member.
fn compare(job: &Job, classes: &[ClassTime<'_>], span: f64, limits: &Limits) -> Vec<Finding> {
    let mut times: Vec<f64> = classes.iter().map(|kind| kind.usual).collect();
    let Some((_, mad)) = median_mad(&mut times).filter(|_| classes.len() > limits.min_peers) else {
        return Vec::new();
    };
    let is_slow = |one: &&ClassTime<'_>| {
        let usual = median_of_others(&times, one.usual);
        let limit = (usual + limits.mads * mad).max(limits.drift_factor * usual);
        one.usual > limit && count(one.list.len()) * (one.usual - usual) > limits.min_extra * span
    };
    let (slow, healthy): (Vec<&ClassTime<'_>>, Vec<_>) = classes.iter().partition(is_slow);
    let mut paths: Vec<(BTreeSet<usize>, Vec<&ClassTime<'_>>)> = Vec::new();
    for one in slow {
        let own = members(job, one.class);
        match paths.iter_mut().find(|(common, _)| !common.is_disjoint(&own)) {
            Some((common, of)) => {
                common.retain(|worker| own.contains(worker));
                of.push(one);
            }
            None => paths.push((own, vec![one])),
        }
    }
    let good: BTreeSet<usize> = healthy.iter().flat_map(|one| members(job, one.class)).collect();
    let Some(usual) = median(&mut healthy.iter().map(|one| one.usual).collect::<Vec<_>>()) else {
        return Vec::new();
    };
    let path = |(common, of): (BTreeSet<usize>, Vec<&ClassTime<'_>>)| {
        let suspects = common.difference(&good).map(|&worker| job.workers[worker].rank).collect();
        Finding { root_ranks: suspects, ..slow_path(job, &of, usual, span) }
    };
    paths.into_iter().map(path).collect()
}

/// A slow path, by the classes that it slows down and the usual time of the others, ns.
fn slow_path(job: &Job, slow: &[&ClassTime<'_>], usual: f64, span: f64) -> Finding {
    let line = |one: &&ClassTime<'_>| {
        let text = format!(
            "{} takes {}, on others {}",
            describe(job, one.class),
            human::duration(one.usual),
            human::duration(usual)
        );
        let figures = [("own_ns", one.usual), ("others_ns", usual)];
        Evidence::about(FindingClass::SlowNodePath, text).with(figures)
    };
    // Communicators that run in parallel lose the same time.
    let extra = |one: &&ClassTime<'_>| count(one.list.len()) * (one.usual - usual);
    let onsets = slow.iter().filter_map(|one| first(one.list, (usual * one.usual).sqrt()));
    Finding {
        title: "a path between GPUs is slow: NVLink, PCIe or shared memory".into(),
        doubts: vec![Doubt::OtherCause(FindingClass::GpuNotConsuming)],
        factor: Some(slow.iter().map(|one| one.usual).fold(0.0, f64::max) / usual),
        most_lost_share: (span > 0.0).then(|| slow.iter().map(extra).fold(0.0, f64::max) / span),
        onset: median(&mut onsets.collect::<Vec<_>>()).map(Onset::Job),
        comm_texts: slow.iter().map(|one| job.classes[one.class].comm.clone()).collect(),
        evidence: slow.iter().map(line).collect(),
        ..Finding::of(FindingClass::SlowNodePath)
    }
}

fn members(job: &Job, class: usize) -> BTreeSet<usize> {
    let of_class = job.collectives.iter().filter(|c| c.class == class);
    of_class.flat_map(|c| c.parts.iter().map(|part| part.worker)).collect()
}

/// S6: the usual shape of the last third differs from that of the first third.
fn reconfigured(job: &Job, clocks: &Clocks, limits: &Limits) -> Option<Finding> {
    let mut by_class: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for collective in &job.collectives {
        by_class.entry(collective.class).or_default().push(collective.shape);
    }
    let onset = |class: usize, after: usize| {
        let of_class = job.collectives.iter().filter(|one| one.class == class);
        let start = |one: &Collective| {
            one.parts.iter().map(|part| on_clock(part, clocks).start).fold(f64::MAX, f64::min)
        };
        let times: Vec<_> = of_class.map(|one| (start(one), one.shape == after)).collect();
        Onset::first(&times, STAYS)
    };
    let mut onsets = Vec::new();
    let mut changes: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    let mut seen = 0;
    for (&class, shapes) in &by_class {
        let third = shapes.len() / 3;
        let (before, after) = (usual(&shapes[..third]), usual(&shapes[shapes.len() - third..]));
        if let (Some(before), Some(after)) = (before, after)
            && before != after
            && third >= FEWEST
        {
            changes.entry((before, after)).or_default().push(class);
            onsets.extend(onset(class, after));
            seen += third;
        }
    }
    if (seen as u64) < limits.min_samples {
        return None;
    }
    let line = |((before, after), classes): (&(usize, usize), &Vec<usize>)| {
        let names: Vec<String> = classes.iter().map(|&class| describe(job, class)).collect();
        let (before, after) = (&job.shapes[*before], &job.shapes[*after]);
        let text = format!("{}: at first {before}, at the end {after}", names.join("; "));
        Evidence::about(FindingClass::AlgorithmChanged, text)
    };
    let comms: BTreeSet<&String> =
        changes.values().flatten().map(|&class| &job.classes[class].comm).collect();
    Some(Finding {
        title: "NCCL runs collectives differently than at first".into(),
        onset: onsets.into_iter().reduce(f64::min).map(Onset::Job),
        comm_texts: comms.into_iter().cloned().collect(),
        evidence: changes.iter().map(line).collect(),
        ..Finding::of(FindingClass::AlgorithmChanged)
    })
}

/// The shape of at least four in five collectives, if there is one.
fn usual(shapes: &[usize]) -> Option<usize> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for &shape in shapes {
        *counts.entry(shape).or_default() += 1;
    }
    let (&shape, &most) = counts.iter().max_by_key(|(_, count)| **count)?;
    (5 * most >= 4 * shapes.len()).then_some(shape)
}
