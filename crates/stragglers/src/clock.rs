// SPDX-License-Identifier: Apache-2.0
/*!
Clock alignment: one clock for all hosts, from the ends of the operations that they did together.

**Idea.** The hosts' clocks differ by milliseconds or more, and waits are compared across hosts. But
no member of an AllReduce can end before all have arrived, and all end within a few network
latencies. So if host *a* reads time *t* at the end of an operation and host *b* reads *u*, then
*t - u* is the difference of their clocks plus noise, and the median over many operations removes
the noise. The ends decide, not the starts: a slow worker starts late, but it does not end late.

**One clock per host.** The workers of a host read the same clock, and no offset is fitted between
them: if the ends of one of them are always late, then it is late, and its clock is right. Of the
workers of a host the first to end an operation stands for the host, so that a late one does not
move the clock of its host either.

**Which operations.** Broadcast, Reduce and single sends do not end together and are ignored
([`EndSync::Apart`]), and so are operations whose only known end is an early stop of their kernel.
Comparing all pairs of a large collective would be quadratic: each host is compared with its
neighbours at distances 1, 2, 4, ... around the ring of hosts, which connects all of them with
`n log n` pairs and keeps every path short.

**Connecting groups.** Pairs make a graph of clocks. Groups that no collective connects, such as
the stages of a pipeline, are linked by sends and receives: a send and its receive end at about the
same time. Batches with one partner come first, because a batch with several ends when the slowest
does. Clocks that nothing connects stay in separate groups; no wait crosses them.

**One pair.** The difference is the median of *a - b*; its error is the median's standard error,
1.4826 x 1.2533 x MAD / sqrt(n), where 1.4826 turns a MAD into a standard deviation and 1.2533 is
the median's penalty over the mean. The MAD of fewer than five samples says little, so a floor is
used. Over runs of seconds clocks drift apart: the slope between the medians of the first and the
last third is used if it is four standard errors from zero.

**All pairs.** Each clock *i* gets one offset *x_i* such that *x_a - x_b* matches the measured
differences *d_ab* best: the weighted least squares solution of *x_a - x_b = d_ab*. Its normal
equations are *L x = y*, where *L* is the graph's Laplacian. `chain` computes a first answer by
adding differences along a spanning tree, and `refine` improves it by conjugate gradients, which
need only products with *L*: memory and time are linear in the pairs. *L* is singular: it does not
determine the common offset of a group, and conjugate gradients leave that as it was. Rates are
solved in the same way.

**Error.** Differences around a cycle of the graph need not add up to zero. The largest amount by
which a pair contradicts the solution is the residual; the larger of that and the largest error of a
pair is [`Clocks::error`], and no shorter wait counts anywhere in the analysis. Pairs of one host
count too, as far as their difference may come from the placement of GPU times on the host's clock.

This module does **not** change times: callers convert them with [`Clocks::time`].
*/

use crate::model::{EndSync, Job, Part, Worker};
use ncclscope_limits::clocks::{self, OF_FEW, ON_HOST, ON_HOST_AT_MOST};
use ncclscope_operations::stats::{count, median};
use ncclscope_statistics::{median_error, median_mad};
use std::collections::{BTreeMap, HashSet};

/// Hosts in an operation are compared at distances 2^0 to 2^(HOPS-1) around their ring.
const HOPS: u32 = 12;
/// The difference between one worker's clock and the job's.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ClockOffset {
    /// The offset in the middle of the run, ns.
    pub ns: f64,
    /// Growth of the offset per ns.
    pub rate: f64,
}

/// The workers' clocks.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Clocks {
    /// Index of each worker's clock; workers of one host share one.
    clocks: Vec<usize>,
    offsets: Vec<ClockOffset>,
    /// Index of each clock's group.
    groups_of: Vec<usize>,
    middle: f64,
    /// The largest amount by which a pair of workers contradicts the solution, ns.
    pub max_residual: f64,
    /// Waits shorter than this are not significant, ns.
    pub error: f64,
    /// Number of pairs of workers that were compared.
    pub pairs: usize,
    /// Number of groups of workers without a common operation; 1 if all are on one clock.
    pub groups: usize,
}

impl Clocks {
    /// Aligns the clocks of a job's workers.
    #[must_use]
    pub fn fit(job: &Job) -> Clocks {
        let clocks = clocks_of(job);
        let is_sound = sound(job, &clocks);
        let (mut pairs, mut on_host) = (EndDifferences::default(), EndDifferences::default());
        for collective in job.collectives.iter().filter(|c| c.ends == EndSync::Together) {
            let mut hosts: BTreeMap<usize, Vec<&Part>> = BTreeMap::new();
            for part in collective.parts.iter().filter(|part| is_sound[part.worker]) {
                hosts.entry(clocks[part.worker]).or_default().push(part);
            }
            let ends = |parts: &Vec<&Part>| parts.iter().map(|p| p.end).fold(f64::MAX, f64::min);
            pairs.add_ring(&hosts.iter().map(|(&at, parts)| (at, ends(parts))).collect::<Vec<_>>());
            for parts in hosts.values() {
                let ends: Vec<_> = parts.iter().map(|part| (part.worker, part.end)).collect();
                on_host.add_ring(&ends);
            }
        }
        let mut groups = ClockGroups::new(clocks.iter().max().map_or(0, |last| last + 1));
        groups.join_all(&pairs.0);
        for is_single in [true, false] {
            let more = between_groups(job, &clocks, &groups, is_single);
            groups.join_all(&more.0);
            pairs.0.extend(more.0);
        }
        let middle = pairs.middle();
        let links = pairs.links(!job.steps_restart, middle, OF_FEW);
        let mut on_host = on_host.links(false, middle, ON_HOST);
        on_host.retain(|link| link.ns.abs() <= ON_HOST_AT_MOST);
        let offsets = solve(groups.0.len(), &links);
        let residual = |link: &PairOffset| {
            let (a, b) = (offsets[link.a], offsets[link.b]);
            (link.ns - (a.ns - b.ns)).abs()
        };
        let contradictions = links.iter().map(residual);
        let contradictions = contradictions.chain(on_host.iter().map(|link| link.ns.abs()));
        let max_residual = contradictions.fold(0.0, f64::max);
        let floor = if clocks.len() > groups.0.len() { ON_HOST } else { 0.0 };
        let errors = links.iter().chain(&on_host).map(|link| link.error);
        let scatter = errors.fold(floor, f64::max);
        Clocks {
            offsets,
            groups_of: (0..groups.0.len()).map(|at| groups.find(at)).collect(),
            clocks,
            middle,
            max_residual,
            error: max_residual.max(scatter),
            pairs: links.len() + on_host.len(),
            groups: groups.groups(),
        }
    }

    /// A worker's time on the job's clock, ns.
    #[must_use]
    pub fn time(&self, worker: usize, ns: f64) -> f64 {
        let offset = self.offset(worker);
        ns - offset.ns - offset.rate * (ns - self.middle)
    }

    /// The difference between a worker's clock and the job's.
    #[must_use]
    pub fn offset(&self, worker: usize) -> ClockOffset {
        self.of(&self.offsets, worker)
    }

    /// Index of a worker's clock: that of its host.
    pub(crate) fn host(&self, worker: usize) -> usize {
        self.clocks.get(worker).copied().unwrap_or_default()
    }

    /// Index of a worker's group. Only times within one group are comparable.
    #[must_use]
    pub fn group(&self, worker: usize) -> usize {
        self.of(&self.groups_of, worker)
    }

    /// The entry of a worker's clock in a list indexed by clock.
    fn of<T: Copy + Default>(&self, list: &[T], worker: usize) -> T {
        let clock = self.clocks.get(worker);
        clock.and_then(|&clock| list.get(clock)).copied().unwrap_or_default()
    }
}

/// The clock of each worker, numbered from 0 in the order of the workers.
fn clocks_of(job: &Job) -> Vec<usize> {
    let (mut known, mut next) = (BTreeMap::new(), 0);
    let mut clock = |worker: &Worker| {
        let has_host = !worker.machine.is_empty();
        let clock = known.get(&worker.machine).copied().filter(|_| has_host).unwrap_or(next);
        known.insert(worker.machine.clone(), clock);
        next = next.max(clock + 1);
        clock
    };
    job.workers.iter().map(&mut clock).collect()
}

/// Whether the ends of each worker count: those of a recording with gaps may be missing, and are
/// then later ones. Where all recordings of a host have gaps, there is nothing better.
fn sound(job: &Job, clocks: &[usize]) -> Vec<bool> {
    let is_whole = |worker: &usize| !job.gappy.contains(worker);
    let whole: HashSet<usize> =
        (0..clocks.len()).filter(is_whole).map(|worker| clocks[worker]).collect();
    let workers = (0..clocks.len()).zip(clocks);
    workers.map(|(worker, clock)| is_whole(&worker) || !whole.contains(clock)).collect()
}

/// Samples (time, difference of ends) of each pair of clocks or workers.
#[derive(Default)]
struct EndDifferences(BTreeMap<(usize, usize), Vec<(f64, f64)>>);

impl EndDifferences {
    /// Adds the two ends of one operation.
    fn add(&mut self, a: (usize, f64), b: (usize, f64)) {
        let (a, b) = if a.0 < b.0 { (a, b) } else { (b, a) };
        self.0.entry((a.0, b.0)).or_default().push((a.1, a.1 - b.1));
    }

    /// Adds the ends of one operation. If they are sorted by place, all operations of a
    /// communicator compare the same pairs.
    fn add_ring(&mut self, ends: &[(usize, f64)]) {
        let mut ring = ends.to_vec();
        ring.sort_unstable_by_key(|end| end.0);
        let n = ring.len();
        for hop in (0..HOPS).map(|hop| 1usize << hop).take_while(|hop| *hop <= n / 2) {
            for at in 0..n {
                // At half the ring's length, each pair would occur twice.
                if 2 * hop == n && at >= hop {
                    break;
                }
                self.add(ring[at], ring[(at + hop) % n]);
            }
        }
    }

    /// The middle of the covered time, ns.
    fn middle(&self) -> f64 {
        let times = || self.0.values().flatten().map(|sample| sample.0);
        let (first, last) = (times().fold(f64::MAX, f64::min), times().fold(f64::MIN, f64::max));
        if first > last { 0.0 } else { f64::midpoint(first, last) }
    }

    /// The measured offset of each pair. With few operations, the error is at least `few`.
    fn links(self, is_rated: bool, middle: f64, few: f64) -> Vec<PairOffset> {
        let pairs = self.0.into_iter();
        let links = pairs
            .filter_map(|(pair, samples)| PairOffset::of(pair, samples, middle, is_rated, few));
        links.collect()
    }
}

/// The measured offset between two clocks.
struct PairOffset {
    a: usize,
    b: usize,
    /// Clock a minus clock b in the middle of the run, ns.
    ns: f64,
    /// Growth of the offset per ns.
    rate: f64,
    /// Standard error of `ns`.
    error: f64,
    weight: f64,
}

impl PairOffset {
    fn of(
        (a, b): (usize, usize),
        mut samples: Vec<(f64, f64)>,
        middle: f64,
        is_rated: bool,
        few: f64,
    ) -> Option<PairOffset> {
        let rate = if is_rated { rate(&mut samples) } else { 0.0 };
        let level = |&(t, d): &(f64, f64)| d - rate * (t - middle);
        let mut levels: Vec<f64> = samples.iter().map(level).collect();
        let (ns, mad) = median_mad(&mut levels)?;
        let n = levels.len();
        // The standard error of a median; see the module's documentation.
        let floor = if n < clocks::FEW { few } else { 0.0 };
        let error = median_error(mad, n).max(floor);
        Some(PairOffset { a, b, ns, rate, error, weight: count(n.min(1000)).sqrt() })
    }
}

/// The rate at which two clocks drift apart, from the medians of the first and the last third; 0 if
/// not significant, or too large for clocks ([`clocks::MOST_RATE`]).
fn rate(samples: &mut [(f64, f64)]) -> f64 {
    samples.sort_unstable_by(|x, y| x.0.total_cmp(&y.0));
    let n = samples.len();
    let span = samples.last().zip(samples.first()).map_or(0.0, |(last, first)| last.0 - first.0);
    if n < clocks::RATE_SAMPLES || span < clocks::RATE_SPAN {
        return 0.0;
    }
    let part = |part: &[(f64, f64)]| -> Option<(f64, f64, f64)> {
        let mut times: Vec<f64> = part.iter().map(|sample| sample.0).collect();
        let mut values: Vec<f64> = part.iter().map(|sample| sample.1).collect();
        let (value, mad) = median_mad(&mut values)?;
        Some((median(&mut times)?, value, median_error(mad, part.len())))
    };
    let (Some(a), Some(b)) = (part(&samples[..n / 3]), part(&samples[n - n / 3..])) else {
        return 0.0;
    };
    // Not `hypot`, which needs glibc 2.35.
    let (moved, error) = (b.1 - a.1, (a.2 * a.2 + b.2 * b.2).sqrt());
    let rate = if b.0 > a.0 && moved.abs() > clocks::RATE_ERRORS * error {
        moved / (b.0 - a.0)
    } else {
        0.0
    };
    if rate.abs() <= clocks::MOST_RATE { rate } else { 0.0 }
}

/// The pairs of sends and receives between groups that are not connected yet.
fn between_groups(
    job: &Job,
    clocks: &[usize],
    groups: &ClockGroups,
    is_single: bool,
) -> EndDifferences {
    let mut pairs = EndDifferences::default();
    let has_one = |at: usize| {
        let partners = &job.batches[at].partners;
        let workers: HashSet<usize> =
            partners.iter().map(|&p| job.batches[p].part.worker).collect();
        workers.len() == 1
    };
    for (at, batch) in job.batches.iter().enumerate() {
        for &other in batch.partners.iter().filter(|&&other| other > at) {
            let partner = &job.batches[other];
            let place = |part: &Part| (clocks[part.worker], part.end);
            let (a, b) = (place(&batch.part), place(&partner.part));
            let is_new = groups.find(a.0) != groups.find(b.0);
            if is_new && (!is_single || (has_one(at) && has_one(other))) {
                pairs.add(a, b);
            }
        }
    }
    pairs
}

/// Connected clocks, as a union-find forest.
struct ClockGroups(Vec<usize>);

impl ClockGroups {
    fn new(clocks: usize) -> ClockGroups {
        ClockGroups((0..clocks).collect())
    }

    fn find(&self, mut at: usize) -> usize {
        while self.0[at] != at {
            at = self.0[at];
        }
        at
    }

    fn join_all(&mut self, pairs: &BTreeMap<(usize, usize), Vec<(f64, f64)>>) {
        for &(a, b) in pairs.keys() {
            let (a, b) = (self.find(a), self.find(b));
            // The smaller index becomes the root, so that paths stay short for clocks in order.
            let (low, high) = (a.min(b), a.max(b));
            self.0[high] = low;
        }
    }

    fn groups(&self) -> usize {
        self.0.iter().enumerate().filter(|&(at, &parent)| at == parent).count()
    }
}

/// The least squares solution: one offset for each clock.
fn solve(clocks: usize, links: &[PairOffset]) -> Vec<ClockOffset> {
    let values = |value: fn(&PairOffset) -> f64| {
        let mut x = chain(clocks, links, value);
        refine(&mut x, links, value);
        x
    };
    let (ns, rates) = (values(|link| link.ns), values(|link| link.rate));
    ns.into_iter().zip(rates).map(|(ns, rate)| ClockOffset { ns, rate }).collect()
}

/// A first solution: sums of offsets along a spanning tree of each group.
fn chain(clocks: usize, links: &[PairOffset], value: fn(&PairOffset) -> f64) -> Vec<f64> {
    let mut next: Vec<Vec<(usize, f64)>> = vec![Vec::new(); clocks];
    for link in links {
        next[link.a].push((link.b, -value(link)));
        next[link.b].push((link.a, value(link)));
    }
    let mut found: Vec<Option<f64>> = vec![None; clocks];
    let mut queue = std::collections::VecDeque::new();
    for first in 0..clocks {
        if found[first].is_none() {
            found[first] = Some(0.0);
            queue.push_back((first, 0.0));
        }
        while let Some((at, here)) = queue.pop_front() {
            for &(other, step) in &next[at] {
                if found[other].is_none() {
                    found[other] = Some(here + step);
                    queue.push_back((other, here + step));
                }
            }
        }
    }
    found.into_iter().map(Option::unwrap_or_default).collect()
}

/// Conjugate gradients on the normal equations, starting at `x`.
fn refine(x: &mut [f64], links: &[PairOffset], value: fn(&PairOffset) -> f64) {
    let apply = |v: &[f64]| {
        let mut out = vec![0.0; v.len()];
        for link in links {
            let flow = link.weight * (v[link.a] - v[link.b]);
            out[link.a] += flow;
            out[link.b] -= flow;
        }
        out
    };
    let mut wanted = vec![0.0; x.len()];
    for link in links {
        wanted[link.a] += link.weight * value(link);
        wanted[link.b] -= link.weight * value(link);
    }
    let mut r: Vec<f64> = wanted.iter().zip(apply(x)).map(|(b, ax)| b - ax).collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    // A smaller residual is only rounding error, which the singular matrix cannot reduce.
    let enough = dot(&wanted, &wanted) * f64::EPSILON * 1e-9;
    let (mut p, mut rr) = (r.clone(), dot(&r, &r));
    for _ in 0..2 * x.len() {
        let ap = apply(&p);
        let curvature = dot(&p, &ap);
        if rr <= enough || curvature <= 0.0 {
            break;
        }
        let alpha = rr / curvature;
        for ((x, r), (p, ap)) in x.iter_mut().zip(&mut r).zip(p.iter().zip(&ap)) {
            *x += alpha * p;
            *r -= alpha * ap;
        }
        let next = dot(&r, &r);
        let beta = next / rr;
        p.iter_mut().zip(&r).for_each(|(p, r)| *p = r + beta * *p);
        rr = next;
    }
}
