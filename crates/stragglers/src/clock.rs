// SPDX-License-Identifier: Apache-2.0
/*!
One clock for all workers, from the ends of what they did together.

The members of an AllReduce end it within some network latencies of each other, so the median
difference of two workers' ends, over many operations, is how far their clocks are apart. Least
squares over all pairs gives each worker one offset (and over long runs a rate); what the pairs then
still disagree by is the residual, and the whole analysis takes no shorter wait seriously.

Broadcasts, Reduces and single sends do not end together and are left out, and so is what has no
end but an early stop of its kernel. Workers of one host have one clock: what their ends are apart
by beyond an error of their GPUs' is no clock's fault, but that of a rank that is always late. Sends
and receives count only where no collective joins two groups of workers, as between the stages of a
pipeline; there batches with one partner each go before all others.

This module does not change times; [`Clocks::time`] does.
*/

use crate::model::{Ends, Job, Part};
use crate::robust::{count, median, median_mad};
use std::collections::{BTreeMap, HashSet};

/// Pairs of an operation that are compared: neighbours at these powers of two around its ring of
/// members, which joins all and stays small for thousands.
const HOPS: u32 = 12;
/// A clock's rate is fitted from this much time on, ns.
const RATE_SPAN: f64 = 2e9;
/// and from this many operations of a pair.
const RATE_SAMPLES: usize = 32;
/// What a median of a handful of operations may be off by, ns.
const FEW_ERROR: f64 = 1e6;
/// A handful.
const FEW: usize = 5;
/// The same on one host, where all clocks are set alike.
const FEW_ERROR_ON_HOST: f64 = 1e4;
/// What clocks of one host can be apart, ns: of their GPUs, as they are placed on the host's. More
/// is a rank that is always late.
const APART_ON_HOST: f64 = 5e4;

/// How far one worker's clock is from the job's.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Offset {
    /// At the time 0 of [`Clocks`], ns.
    pub ns: f64,
    /// Growth per ns.
    pub rate: f64,
}

/// The workers' clocks.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Clocks {
    offsets: Vec<Offset>,
    middle: f64,
    /// What pairs of workers still disagree by, at most, ns.
    pub max_residual: f64,
    /// No wait below this means anything, ns.
    pub error: f64,
    /// Pairs of workers compared.
    pub pairs: usize,
    /// Groups of workers that nothing joins; 1 if all are on one clock.
    pub groups: usize,
}

impl Clocks {
    /// Those of a job's workers.
    #[must_use]
    pub fn fit(job: &Job) -> Clocks {
        let mut pairs = Pairs::default();
        for collective in job.collectives.iter().filter(|c| c.ends == Ends::Together) {
            pairs.add_members(&collective.parts);
        }
        let mut graph = Graph::new(job.workers.len());
        graph.join_all(&pairs.0);
        let hosts = graph.join_hosts(job);
        for is_single in [true, false] {
            let more = between_groups(job, &graph, is_single);
            graph.join_all(&more.0);
            pairs.0.extend(more.0);
        }
        let middle = pairs.middle();
        let mut links = pairs.links(job, middle);
        links.extend(hosts);
        let offsets = solve(job.workers.len(), &links);
        let residual = |link: &Link| {
            let (a, b) = (offsets[link.a], offsets[link.b]);
            (link.ns - (a.ns - b.ns)).abs()
        };
        let max_residual = links.iter().map(residual).fold(0.0, f64::max);
        let scatter = links.iter().map(|link| link.error).fold(0.0, f64::max);
        Clocks {
            offsets,
            middle,
            max_residual,
            error: max_residual.max(scatter),
            pairs: links.len(),
            groups: graph.groups(),
        }
    }

    /// A worker's time on the job's clock, ns.
    #[must_use]
    pub fn time(&self, worker: usize, ns: f64) -> f64 {
        let offset = self.offsets.get(worker).copied().unwrap_or_default();
        ns - offset.ns - offset.rate * (ns - self.middle)
    }

    /// How far a worker's clock is from the job's.
    #[must_use]
    pub fn offset(&self, worker: usize) -> Offset {
        self.offsets.get(worker).copied().unwrap_or_default()
    }
}

/// Differences of ends, with when they were seen, by pair of workers.
#[derive(Default)]
struct Pairs(BTreeMap<(usize, usize), Vec<(f64, f64)>>);

impl Pairs {
    fn add(&mut self, a: &Part, b: &Part) {
        let (a, b) = if a.worker < b.worker { (a, b) } else { (b, a) };
        if a.worker != b.worker {
            self.0.entry((a.worker, b.worker)).or_default().push((a.end, a.end - b.end));
        }
    }

    fn add_members(&mut self, parts: &[Part]) {
        let n = parts.len();
        // By worker, so that an operation's pairs are the same each time.
        let mut ring: Vec<&Part> = parts.iter().collect();
        ring.sort_unstable_by_key(|part| part.worker);
        for hop in (0..HOPS).map(|hop| 1usize << hop).take_while(|hop| *hop <= n / 2) {
            for at in 0..n {
                // Half way round each pair comes twice.
                if 2 * hop == n && at >= hop {
                    break;
                }
                self.add(ring[at], ring[(at + hop) % n]);
            }
        }
    }

    /// The middle of the time that is covered.
    fn middle(&self) -> f64 {
        let times = || self.0.values().flatten().map(|sample| sample.0);
        let (first, last) = (times().fold(f64::MAX, f64::min), times().fold(f64::MIN, f64::max));
        if first > last { 0.0 } else { f64::midpoint(first, last) }
    }

    fn links(self, job: &Job, middle: f64) -> Vec<Link> {
        let same_host = |a: usize, b: usize| {
            let machine = &job.workers[a].machine;
            !machine.is_empty() && *machine == job.workers[b].machine
        };
        let pairs = self.0.into_iter();
        let links = pairs.filter_map(|((a, b), samples)| {
            let rated = !job.steps_restart;
            Link::of((a, b), samples, middle, rated, same_host(a, b))
        });
        links.collect()
    }
}

/// The clocks of two workers against each other.
struct Link {
    a: usize,
    b: usize,
    /// a's clock less b's in the middle of the run, ns.
    ns: f64,
    /// Its growth per ns.
    rate: f64,
    /// How well `ns` is known.
    error: f64,
    weight: f64,
}

impl Link {
    fn of(
        (a, b): (usize, usize),
        mut samples: Vec<(f64, f64)>,
        middle: f64,
        is_rated: bool,
        is_same_host: bool,
    ) -> Option<Link> {
        let rate = if is_rated && !is_same_host { rate(&mut samples) } else { 0.0 };
        let level = |&(t, d): &(f64, f64)| d - rate * (t - middle);
        let mut levels: Vec<f64> = samples.iter().map(level).collect();
        let (ns, mad) = median_mad(&mut levels)?;
        let n = levels.len();
        let ns = if is_same_host { ns.clamp(-APART_ON_HOST, APART_ON_HOST) } else { ns };
        let few = if is_same_host { FEW_ERROR_ON_HOST } else { FEW_ERROR };
        let floor = if n < FEW { few } else { 0.0 };
        // A median's standard error, of noise that a MAD describes.
        let error = (1.4826 * 1.2533 * mad / count(n).sqrt()).max(floor);
        Some(Link { a, b, ns, rate, error, weight: count(n.min(1000)).sqrt() })
    }
}

/// How fast two clocks drift apart: from the medians of the first and the last third. 0 where that
/// is not sure.
fn rate(samples: &mut [(f64, f64)]) -> f64 {
    samples.sort_unstable_by(|x, y| x.0.total_cmp(&y.0));
    let n = samples.len();
    let span = samples.last().zip(samples.first()).map_or(0.0, |(last, first)| last.0 - first.0);
    if n < RATE_SAMPLES || span < RATE_SPAN {
        return 0.0;
    }
    let part = |part: &[(f64, f64)]| -> Option<(f64, f64, f64)> {
        let mut times: Vec<f64> = part.iter().map(|sample| sample.0).collect();
        let mut values: Vec<f64> = part.iter().map(|sample| sample.1).collect();
        let (value, mad) = median_mad(&mut values)?;
        Some((median(&mut times)?, value, 1.86 * mad / count(part.len()).sqrt()))
    };
    let (Some(a), Some(b)) = (part(&samples[..n / 3]), part(&samples[n - n / 3..])) else {
        return 0.0;
    };
    let (moved, error) = (b.1 - a.1, a.2.hypot(b.2));
    if b.0 > a.0 && moved.abs() > 4.0 * error { moved / (b.0 - a.0) } else { 0.0 }
}

/// The pairs of sends and receives between groups that nothing joins yet.
fn between_groups(job: &Job, graph: &Graph, is_single: bool) -> Pairs {
    let mut pairs = Pairs::default();
    let has_one = |at: usize| {
        let partners = &job.batches[at].partners;
        let workers: HashSet<usize> =
            partners.iter().map(|&p| job.batches[p].part.worker).collect();
        workers.len() == 1
    };
    for (at, batch) in job.batches.iter().enumerate() {
        for &other in batch.partners.iter().filter(|&&other| other > at) {
            let partner = &job.batches[other];
            let is_new = graph.find(batch.part.worker) != graph.find(partner.part.worker);
            if is_new && (!is_single || (has_one(at) && has_one(other))) {
                pairs.add(&batch.part, &partner.part);
            }
        }
    }
    pairs
}

/// Which workers are joined.
struct Graph(Vec<usize>);

impl Graph {
    fn new(workers: usize) -> Graph {
        Graph((0..workers).collect())
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
            // Towards the smaller, so that chains stay short for workers in order.
            let (low, high) = (a.min(b), a.max(b));
            self.0[high] = low;
        }
    }

    /// Joins the workers of each host that nothing joins yet: they have one clock.
    fn join_hosts(&mut self, job: &Job) -> Vec<Link> {
        let (mut links, mut first) = (Vec::new(), BTreeMap::new());
        for (b, worker) in job.workers.iter().enumerate().filter(|(_, w)| !w.machine.is_empty()) {
            let a = *first.entry(&worker.machine).or_insert(b);
            let (low, high) = (self.find(a).min(self.find(b)), self.find(a).max(self.find(b)));
            if low != high {
                self.0[high] = low;
                links.push(Link {
                    a,
                    b,
                    ns: 0.0,
                    rate: 0.0,
                    error: FEW_ERROR_ON_HOST,
                    weight: 1.0,
                });
            }
        }
        links
    }

    fn groups(&self) -> usize {
        self.0.iter().enumerate().filter(|&(at, &parent)| at == parent).count()
    }
}

/// Least squares: one offset for each worker, so that differences are those of the links.
fn solve(workers: usize, links: &[Link]) -> Vec<Offset> {
    let values = |value: fn(&Link) -> f64| {
        let mut x = chain(workers, links, value);
        refine(&mut x, links, value);
        x
    };
    let (ns, rates) = (values(|link| link.ns), values(|link| link.rate));
    ns.into_iter().zip(rates).map(|(ns, rate)| Offset { ns, rate }).collect()
}

/// A first answer: along the links from one worker of each group to the others.
fn chain(workers: usize, links: &[Link], value: fn(&Link) -> f64) -> Vec<f64> {
    let mut next: Vec<Vec<(usize, f64)>> = vec![Vec::new(); workers];
    for link in links {
        next[link.a].push((link.b, -value(link)));
        next[link.b].push((link.a, value(link)));
    }
    let mut found: Vec<Option<f64>> = vec![None; workers];
    let mut queue = std::collections::VecDeque::new();
    for first in 0..workers {
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

/// Conjugate gradients on the normal equations, from `x` on. The matrix is a graph's Laplacian:
/// what it does not determine, the common offset of a group, stays as it is.
fn refine(x: &mut [f64], links: &[Link], value: fn(&Link) -> f64) {
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
    // Beyond that is rounding, along which the matrix has no hold.
    let enough = dot(&wanted, &wanted) * 1e-24;
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
