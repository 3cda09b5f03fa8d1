// SPDX-License-Identifier: Apache-2.0
/*!
Slow links (S3) and slow network interfaces (S4): the smallest set of links, interfaces and hosts
that explains which links are slow.

Wire time is the time from the network's acceptance of a send to its completion (`SendWait`), or to
when the receiver has the data ([`crate::wire`]). It does not include the time that the sender's GPU
or the receiver's buffers take, nor the time in which the previous send on the same link was still
in flight. Links of one role that move pieces of
about the same size over as many channels are *comparable*: the channels of a link share its
interface. For each link the logarithm of its wire time per byte, relative to the usual one of the
comparable links, is to be explained. A unit (a link; the outgoing links, the incoming links or all
links of a rank; all links of a host) multiplies the times of all its links by one factor. The unit
that explains most, less what it takes to name it, is taken, until none explains enough: minimum
description length. An interface whose other links are healthy explains less than the one link that
is slow, and two interfaces with the same links are both named.

NCCL's events of profiler API v4 to v7 do not name the interface of a channel.
*/

use crate::finding::{Finding, link_name};
use crate::looked::{Because, Log, Seen, below};
use crate::model::{Job, LinkTraffic};
use crate::pace::Paces;
use crate::rules::Rule;
use crate::slow_links::{SlowEdge, Unit, link_finding, nic_finding, paced_finding};
use ncclscope_findings::Doubt;
use ncclscope_limits::{links, slow};
use ncclscope_operations::human::{self, percent};
use ncclscope_operations::stats::{count, median, to_f64, to_u64};
use ncclscope_statistics::Limits;
use ncclscope_statistics::{Against, Answer, Blocks, DEVIATION, compare_units};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Role, size class, whether transfers follow an idle time, and channels of a link.
type Like<'a> = (&'a str, u64, bool, usize);

/// The comparable traffic of one link.
struct Flow<'a> {
    src: usize,
    dst: usize,
    edges: Vec<&'a LinkTraffic>,
    /// Wire time per byte, ns.
    cost: f64,
    bytes: f64,
    /// Mean bytes of a transfer.
    piece: f64,
    is_first: bool,
}

/// Comparable links.
struct Pool<'a> {
    flows: Vec<Flow<'a>>,
}

/// The slow links of a job with this traffic that took `span` ns, and those that could not be
/// judged.
pub(crate) fn find(
    job: &Job,
    (edges, span): (&[Cow<'_, LinkTraffic>], f64),
    limits: &Limits,
    log: &mut Log,
) -> (Vec<Finding>, BTreeSet<(usize, usize)>) {
    let pools = pools(job, edges);
    note_few(job, edges, log);
    let links = |is_judged: bool| -> BTreeSet<(usize, usize)> {
        let of = pools.iter().filter(|pool| pool.has_contrast() == is_judged);
        of.flat_map(|pool| pool.flows.iter().map(|flow| (flow.src, flow.dst))).collect()
    };
    let unjudged = links(false).difference(&links(true)).copied().collect();
    note_unjudged(job, &unjudged, log);
    let several: Vec<Pool> = pools.into_iter().filter(|pool| pool.flows.len() > 1).collect();
    // Most links may be slow, in a small mesh: then the usual time is that of the quickest ones.
    let units = Units::of(job, &several);
    let searches = [2, links::QUICK].map(|one_in| Search::of(&units, &several, one_in).explain());
    let best = searches.into_iter().min_by(|a, b| a.cost.total_cmp(&b.cost));
    let found = best.map(|best| best.findings(job, &several, (span, limits), log));
    (found.unwrap_or_default(), unjudged)
}

/// Notes which links have too few transfers to be judged.
fn note_few(job: &Job, edges: &[Cow<'_, LinkTraffic>], log: &mut Log) {
    for edge in edges.iter().filter(|edge| !edge.is_enough()) {
        note_link(job, (edge.src, edge.dst), log, || {
            let saw = format!("channel {}: {}", edge.channel, count_of(edge.transfers));
            let why = format!("fewer than {} transfers", slow::SAMPLES);
            (saw, Because::CannotTell(why), 0.0)
        });
    }
}

/// Notes which links are like no other.
fn note_unjudged(job: &Job, links: &BTreeSet<(usize, usize)>, log: &mut Log) {
    for &link in links {
        note_link(job, link, log, || {
            let why = "a rank at its end is at the end of all links like it";
            ("it has data".into(), Because::CannotTell(why.into()), 0.0)
        });
    }
}

/// Notes what was seen of a link, why it was judged so, and how near it is to the limit.
fn note_link(
    job: &Job,
    (src, dst): (usize, usize),
    log: &mut Log,
    make: impl FnOnce() -> (String, Because, f64),
) {
    let [src, dst] = [src, dst].map(|worker| job.workers[worker].rank);
    log.saw(Rule::SlowLink, || {
        let (saw, because, nearness) = make();
        Seen { subject: link_name(src, dst), ranks: vec![src, dst], saw, because, nearness }
    });
}

fn count_of(transfers: u64) -> String {
    human::count(transfers, "transfer")
}

/// The comparable links with enough transfers.
fn pools<'a>(job: &'a Job, edges: &'a [Cow<'_, LinkTraffic>]) -> Vec<Pool<'a>> {
    // All channels of a link share the interface, however many transfers each has.
    let mut sharing: BTreeMap<(&str, usize, usize), BTreeSet<u8>> = BTreeMap::new();
    for edge in edges {
        sharing.entry((&edge.comm, edge.src, edge.dst)).or_default().insert(edge.channel);
    }
    let mut alike: BTreeMap<Like<'_>, BTreeMap<(usize, usize), Vec<&LinkTraffic>>> =
        BTreeMap::new();
    for edge in edges.iter().filter(|edge| edge.is_enough()) {
        let role = job.roles.get(&edge.comm).map_or("", String::as_str);
        let channels = sharing[&(edge.comm.as_str(), edge.src, edge.dst)].len();
        let like = (role, to_u64(edge.piece().log2()), edge.is_first, channels);
        let flows = alike.entry(like).or_default();
        flows.entry((edge.src, edge.dst)).or_default().push(edge);
    }
    let pool = |((_, _, is_first, _), flows): (Like<'_>, BTreeMap<_, Vec<&'a LinkTraffic>>)| {
        let flows = flows.into_iter().map(|((src, dst), edges)| {
            let bytes = to_f64(edges.iter().map(|edge| edge.bytes).sum::<u64>()).max(1.0);
            let cost = edges.iter().map(|edge| edge.wire_ns).sum::<f64>() / bytes;
            let transfers = to_f64(edges.iter().map(|edge| edge.transfers).sum::<u64>());
            let piece = bytes / transfers.max(1.0);
            Flow { src, dst, edges, cost, bytes, piece, is_first }
        });
        Pool { flows: flows.collect() }
    };
    alike.into_iter().map(pool).collect()
}

impl Flow<'_> {
    /// By how much slower it is than a usual one, as a logarithm; NaN where its pieces do not show
    /// that. A small piece may take as long as the threads at its ends: which of them polls first
    /// depends on its place in a ring or tree.
    fn slowness(&self, usual: f64) -> f64 {
        let excess = (self.cost - usual) * self.piece;
        let is_small = self.piece < links::SMALL || self.is_first;
        let is_latency =
            is_small && excess < links::LATENCY.min(links::LATENCIES * usual * self.piece);
        if is_latency { f64::NAN } else { (self.cost.max(1e-9) / usual.max(1e-9)).ln() }
    }
}

/// The search for units that explain what links take.
struct Search<'a> {
    /// What is left to explain of each flow, in natural spreads; NaN if it shows nothing.
    left: Vec<f64>,
    /// The natural spread of each flow.
    spreads: Vec<f64>,
    /// The usual cost of each pool.
    usual: Vec<f64>,
    /// The flows of each unit.
    units: Vec<(Unit<'a>, Vec<usize>)>,
    /// What it takes to name a unit of each kind, nats.
    names: [f64; 5],
}

/// What a search found.
struct Explained<'a> {
    usual: Vec<f64>,
    /// Units with the same links, and their flows.
    found: Vec<(Vec<Unit<'a>>, Vec<usize>)>,
    /// What is not explained, and what it takes to name the units, nats.
    cost: f64,
}

/// What a flow says against a healthy link, nats.
fn loss(left: f64) -> f64 {
    if left.is_nan() { 0.0 } else { (left * left / 2.0).min(links::BOUND) }
}

impl<'a> Search<'a> {
    /// One in so many comparable links costs less than the usual one.
    fn of(units: &Units<'a>, pools: &[Pool<'_>], one_in: usize) -> Search<'a> {
        let usual = pools.iter().map(|pool| {
            let mut costs: Vec<f64> = pool.flows.iter().map(|flow| flow.cost).collect();
            costs.sort_unstable_by(f64::total_cmp);
            costs[costs.len() / one_in]
        });
        let usual: Vec<f64> = usual.collect();
        let of_pools: Vec<Vec<f64>> = pools
            .iter()
            .zip(&usual)
            .map(|(pool, usual)| pool.flows.iter().map(|flow| flow.slowness(*usual)).collect())
            .collect();
        // By how much quick links are quicker: slow ones may be half of all.
        let spread = |values: &mut Vec<f64>| {
            values.retain(|value| *value <= 0.0);
            values.iter_mut().for_each(|value| *value = -*value);
            median(values)
                .map_or(links::SPREAD, |deviation| links::SPREAD.max(DEVIATION * deviation))
        };
        let few = of_pools.iter().filter(|pool| pool.len() < links::MANY);
        let of_few = spread(&mut few.flatten().copied().collect());
        let (mut left, mut spreads) = (Vec::new(), Vec::new());
        for mut pool in of_pools {
            let values = pool.clone();
            let spread = if values.len() < links::MANY { of_few } else { spread(&mut pool) };
            spreads.extend(values.iter().map(|_| spread));
            left.extend(values.iter().map(|value| value / spread));
        }
        let (units, names) = (units.shown(&left), units.names);
        Search { left, spreads, usual, units, names }
    }

    /// By what factor a unit is slow, as a logarithm, and how much better it explains its links
    /// than nothing does, nats.
    fn gain(&self, (unit, flows): &(Unit<'_>, Vec<usize>)) -> Option<(f64, f64)> {
        let slowness = flows.iter().map(|&at| self.left[at] * self.spreads[at]);
        let mut slowness: Vec<f64> = slowness.filter(|it| !it.is_nan()).collect();
        slowness.sort_unstable_by(f64::total_cmp);
        // Nearly all links of a slow interface are slow.
        let factor = *slowness.get(slowness.len().saturating_sub(1) / 4)?;
        let better =
            |&at: &usize| loss(self.left[at]) - loss(self.left[at] - factor / self.spreads[at]);
        let gain = flows.iter().map(better).sum::<f64>() - self.name(*unit);
        (factor >= links::FACTOR.ln()).then_some((factor, gain))
    }

    fn name(&self, unit: Unit<'_>) -> f64 {
        let [cards, sides, links, hosts, factor] = self.names;
        factor
            + match unit {
                Unit::Card(_) => cards,
                Unit::Out(_) | Unit::In(_) => sides,
                Unit::Link(..) => links,
                Unit::Host(_) => hosts,
            }
    }

    /// The interfaces that have the same links as a unit, if that is one; else the unit alone.
    fn with_the_same(&self, unit: usize, of_flow: &[Vec<usize>]) -> Vec<Unit<'a>> {
        let (one, flows) = &self.units[unit];
        let beside = flows.first().map_or(&[][..], |&flow| &of_flow[flow]);
        let is_same = |at: &&usize| {
            let (other, of) = &self.units[**at];
            matches!((one, other), (Unit::Card(_), Unit::Card(_))) && of == flows || **at == unit
        };
        beside.iter().filter(is_same).map(|&at| self.units[at].0).collect()
    }

    fn explain(mut self) -> Explained<'a> {
        let mut gains: Vec<Option<(f64, f64)>> =
            self.units.iter().map(|it| self.gain(it)).collect();
        let mut of_flow: Vec<Vec<usize>> = vec![Vec::new(); self.left.len()];
        for (unit, (_, flows)) in self.units.iter().enumerate() {
            flows.iter().for_each(|&flow| of_flow[flow].push(unit));
        }
        let (mut found, mut names) = (Vec::new(), 0.0);
        loop {
            let known = gains.iter().enumerate().filter_map(|(at, gain)| Some((at, (*gain)?)));
            let best = known.max_by(|a, b| a.1.1.total_cmp(&b.1.1).then(b.0.cmp(&a.0)));
            let Some((best, (factor, _))) = best.filter(|(_, (_, gain))| *gain >= links::ENOUGH)
            else {
                break;
            };
            let flows = self.units[best].1.clone();
            names += self.name(self.units[best].0);
            let alike = self.with_the_same(best, &of_flow);
            for &flow in &flows {
                self.left[flow] -= factor / self.spreads[flow];
            }
            let changed: BTreeSet<usize> =
                flows.iter().flat_map(|&flow| of_flow[flow].iter().copied()).collect();
            for unit in changed {
                gains[unit] = self.gain(&self.units[unit]);
            }
            found.push((alike, flows));
        }
        // A wider spread explains links worse, each by the logarithm of its width.
        let losses = self.left.iter().zip(&self.spreads);
        let losses = losses.map(|(left, spread)| loss(*left) + (spread / links::SPREAD).ln());
        let cost = losses.sum::<f64>() + names;
        Explained { usual: self.usual, found, cost }
    }
}

/// The units of the pools' flows.
struct Units<'a> {
    /// Sender and receiver of each flow.
    ends: Vec<(usize, usize)>,
    /// The numbers of the flows of each unit.
    flows: BTreeMap<Unit<'a>, Vec<usize>>,
    /// What it takes to name a unit of each kind, nats.
    names: [f64; 5],
}

impl<'a> Units<'a> {
    fn of(job: &'a Job, pools: &[Pool<'_>]) -> Units<'a> {
        let ends = pools.iter().flat_map(|pool| &pool.flows).map(|flow| (flow.src, flow.dst));
        let ends: Vec<(usize, usize)> = ends.collect();
        let machine = |worker: usize| job.workers.get(worker).map_or("", |of| of.machine.as_str());
        let workers: BTreeSet<usize> = ends.iter().flat_map(|&(src, dst)| [src, dst]).collect();
        let mut of_machine: BTreeMap<&str, usize> = BTreeMap::new();
        workers.iter().for_each(|&worker| *of_machine.entry(machine(worker)).or_default() += 1);
        let mut flows: BTreeMap<Unit<'_>, Vec<usize>> = BTreeMap::new();
        for (at, &(src, dst)) in ends.iter().enumerate() {
            let machines = [src, dst].map(machine);
            // The only worker of a machine is its card, and what stays within a machine does not
            // use its network.
            let is_host = |machine: &&str| {
                !machine.is_empty() && machines[0] != machines[1] && of_machine[machine] > 1
            };
            let hosts = machines.into_iter().filter(is_host).map(Unit::Host);
            let cards = [Unit::Card(src), Unit::Card(dst), Unit::Out(src), Unit::In(dst)];
            let of = cards.into_iter().chain([Unit::Link(src, dst)]).chain(hosts);
            of.for_each(|unit| flows.entry(unit).or_default().push(at));
        }
        let ln = |number: usize| count(number.max(1)).ln();
        let (ranks, hosts) = (ln(workers.len()), ln(of_machine.len()));
        let names = [ranks, ln(2 * workers.len()), 2.0 * ranks, hosts, ln(ends.len()) / 2.0];
        Units { ends, flows, names }
    }

    /// The units that can explain what is `left` of the flows, which is NaN where a flow does not
    /// show its speed: where only one link shows it, the link is named.
    fn shown(&self, left: &[f64]) -> Vec<(Unit<'a>, Vec<usize>)> {
        let has_several = |flows: &[usize]| {
            let mut links = flows.iter().filter(|&&at| !left[at].is_nan()).map(|&at| self.ends[at]);
            links.next().is_some_and(|first| links.any(|link| link != first))
        };
        let is_shown =
            |unit: &Unit<'_>, flows: &[usize]| matches!(unit, Unit::Link(..)) || has_several(flows);
        let shown = self.flows.iter().filter(|(unit, flows)| is_shown(unit, flows));
        shown.map(|(unit, flows)| (*unit, flows.clone())).collect()
    }
}

/// A flow with what its pool shows of it.
struct Judged<'a> {
    flow: &'a Flow<'a>,
    usual: f64,
    slowness: f64,
    is_sure: bool,
    is_paced: bool,
}

impl Explained<'_> {
    /// The units that may cost the run of `span` ns what matters.
    fn findings(
        &self,
        job: &Job,
        pools: &[Pool<'_>],
        (span, limits): (f64, &Limits),
        log: &mut Log,
    ) -> Vec<Finding> {
        let of_pools = pools.iter().zip(&self.usual);
        let judged = of_pools.flat_map(|(pool, &usual)| pool.judged(usual, limits));
        let judged: Vec<Judged<'_>> = judged.collect();
        let mut explained = BTreeSet::new();
        let mut finding = |(units, flows): &(Vec<Unit<'_>>, Vec<usize>)| {
            explained.extend(flows.iter().copied());
            let flows = || flows.iter().map(|&at| &judged[at]);
            let slow: Vec<&Judged<'_>> =
                flows().filter(|of| of.slowness >= links::FACTOR.ln()).collect();
            let mut finding = of_unit(job, units, &slow, span);
            let is_costly = finding.most_lost_share.is_some_and(|most| most >= limits.least_cost);
            let all: f64 = flows().map(|of| of.flow.bytes).sum();
            let unknown = flows().filter(|of| of.slowness.is_nan()).map(|of| of.flow.bytes);
            // Whether its other links are slow, and what they cost, is unknown.
            if links::UNKNOWN * unknown.sum::<f64>() > all {
                finding.doubts = vec![Doubt::FewPeers];
                finding.most_lost_share = None;
            }
            log.saw(Rule::SlowLink, || seen(&finding, limits));
            is_costly.then_some(finding)
        };
        let found = self.found.iter().filter_map(&mut finding).collect();
        let rest = judged.iter().enumerate().filter(|(at, _)| !explained.contains(at));
        rest.for_each(|(_, of)| of.note(job, log));
        found
    }
}

/// What was seen of links that the search explains.
fn seen(finding: &Finding, limits: &Limits) -> Seen {
    let cost = finding.most_lost_share.unwrap_or_default();
    let factor = finding.factor.unwrap_or(1.0);
    Seen {
        subject: finding.subject(),
        ranks: finding.root_ranks.clone(),
        saw: format!(
            "{factor:.2} times the usual time per byte, at most {} of the run",
            percent(cost)
        ),
        because: match cost >= limits.least_cost {
            true => Because::Found,
            false => Because::Not(below(limits)),
        },
        nearness: cost / limits.least_cost,
    }
}

impl Judged<'_> {
    /// Notes a link that no slow unit explains.
    fn note(&self, job: &Job, log: &mut Log) {
        let Judged { flow, usual, slowness, .. } = self;
        note_link(job, (flow.src, flow.dst), log, || {
            let saw = format!(
                "{:.2} times the usual time per byte in pieces of {}",
                flow.cost / usual.max(1e-9),
                human::bytes(to_u64(flow.piece))
            );
            let because = if slowness.is_nan() {
                Because::Not(
                    "small pieces, and those after a pause, show how quick threads are".into(),
                )
            } else if *slowness >= links::FACTOR.ln() {
                Because::Not("links like it differ by as much".into())
            } else {
                Because::Not(format!("less than {} times", links::FACTOR))
            };
            (
                saw,
                because,
                if slowness.is_nan() { 0.0 } else { (slowness / links::FACTOR.ln()).max(0.0) },
            )
        });
    }
}

/// The finding about units with the same links, of which these are slow.
fn of_unit<'a>(job: &Job, units: &[Unit<'_>], slow: &[&'a Judged<'a>], span: f64) -> Finding {
    let edges = slow.iter().flat_map(|of| {
        let edge = |edge: &&'a LinkTraffic| SlowEdge { edge, usual: of.usual, is_sure: of.is_sure };
        of.flow.edges.iter().map(edge)
    });
    let edges: Vec<SlowEdge> = edges.collect();
    match *units {
        [Unit::Link(src, dst)] if slow.iter().all(|of| of.is_paced) => {
            paced_finding(job, (src, dst), &edges, span)
        }
        [Unit::Link(src, dst)] => link_finding(job, (src, dst), &edges, span),
        _ => nic_finding(job, units, &edges, span),
    }
}

impl Pool<'_> {
    /// True if no worker is at an end of all its links: else its slow card slows all of them.
    fn has_contrast(&self) -> bool {
        let ends = |flow: &Flow| BTreeSet::from([flow.src, flow.dst]);
        let shared = self.flows.iter().map(ends).reduce(|shared, ends| &shared & &ends);
        shared.is_some_and(|shared| shared.is_empty())
    }

    fn judged(&self, usual: f64, limits: &Limits) -> Vec<Judged<'_>> {
        let paces = Paces::of(self.flows.iter().flat_map(|flow| flow.edges.iter().copied()));
        let flows = self.flows.iter().zip(self.surely_slow(usual, limits));
        let judged = flows.map(|(flow, is_sure)| {
            let is_paced = |edge: &&LinkTraffic| paces.explain(edge, usual);
            let (slowness, is_paced) = (flow.slowness(usual), flow.edges.iter().all(is_paced));
            Judged { flow, usual, slowness, is_sure, is_paced }
        });
        judged.collect()
    }

    /// Whether each flow, if it is slow, is surely so: among many the spread shows what chance
    /// does, among few the blocks of time.
    fn surely_slow(&self, usual: f64, limits: &Limits) -> Vec<bool> {
        if self.flows.len() >= links::MANY {
            return vec![true; self.flows.len()];
        }
        let merged = self.flows.iter().map(|flow| {
            let mut blocks = crate::time_blocks::TimeBlocks::default();
            flow.edges.iter().for_each(|edge| blocks.merge(&edge.blocks));
            blocks
        });
        let merged: Vec<_> = merged.collect();
        let mut blocks = Blocks::new(self.flows.len());
        crate::time_blocks::excesses(&merged, usual).for_each(|block| blocks.push(block));
        let answers = compare_units(&blocks, Against::Usual, limits);
        answers.iter().map(Answer::is_slow).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_findings::FindingClass;

    fn findings(job: &Job) -> Vec<Finding> {
        let limits = Limits::default();
        let edges: Vec<Cow<'_, LinkTraffic>> = job.edges.iter().map(Cow::Borrowed).collect();
        find(job, (&edges, 1e9), &limits, &mut Log::new(None)).0
    }
    use crate::model::{Pace, Worker};
    use crate::time_blocks::TimeBlocks;

    /// Sender, receiver, and whether the link is six times as slow.
    type Flow = (u32, u32, bool);

    fn flow(&(src, dst, is_slow): &Flow) -> LinkTraffic {
        LinkTraffic {
            comm: "c".into(),
            src: src as usize,
            dst: dst as usize,
            channel: 0,
            transfers: 100,
            bytes: 100 << 20,
            wire_ns: f64::from(100 << 20) * if is_slow { 6.0 } else { 1.0 },
            pace: Pace::default(),
            blocks: TimeBlocks::default(),
            sample: Vec::new(),
            is_first: false,
        }
    }

    /// Class and ranks of the findings among links with equal traffic.
    fn found(flows: &[Flow]) -> Vec<(FindingClass, Vec<u32>)> {
        let mut job = Job {
            workers: (0..32).map(|rank| Worker::new(rank, "")).collect(),
            edges: flows.iter().map(flow).collect(),
            ..Job::default()
        };
        // A pool of healthy links, whose transfers are too small to matter.
        for rank in 16..31 {
            job.edges.push(flow(&(rank, rank + 1, false)));
        }
        for &(src, dst, _) in flows {
            job.edges.push(LinkTraffic { bytes: 800, ..flow(&(src, dst, false)) });
        }
        let all = findings(&job);
        all.into_iter().map(|f| (f.class, f.root_ranks)).collect()
    }

    #[test]
    fn an_interface_that_is_slow_to_several_peers_is_reported_once() {
        let both = [(0, 1, true), (1, 0, true), (0, 2, true), (2, 0, true), (1, 3, false)];
        assert_eq!(found(&both), [(FindingClass::SlowNic, vec![0])]);
        // A ring: each rank sends to one rank and receives from another.
        assert_eq!(
            found(&[(1, 2, true), (2, 3, true), (3, 4, false)]),
            [(FindingClass::SlowNic, vec![2])]
        );
    }

    /// Most bytes of a rank are of a ring of small pieces, which are as fast as those of others.
    #[test]
    fn small_transfers_do_not_clear_an_interface() {
        let found = |piece: u64| {
            let slow = [(0, 1, true), (1, 0, true), (0, 2, true), (2, 0, true)];
            let healthy = (3..14).map(|rank| (rank, rank + 1, false));
            let mut job = Job {
                workers: (0..16).map(|rank| Worker::new(rank, "")).collect(),
                edges: slow.into_iter().chain(healthy).map(|one| flow(&one)).collect(),
                ..Job::default()
            };
            job.edges.extend((0..16).map(|rank| LinkTraffic {
                comm: "ring".into(),
                bytes: 1 << 30,
                transfers: (1 << 30) / piece,
                wire_ns: f64::from(1 << 30),
                ..flow(&(rank, (rank + 1) % 16, false))
            }));
            let all = findings(&job).into_iter();
            all.map(|one| (one.class, one.root_ranks, one.doubts)).collect::<Vec<_>>()
        };
        assert_eq!(found(48 << 10), [(FindingClass::SlowNic, vec![0], vec![Doubt::FewPeers])]);
        let all = found(1 << 20);
        assert!(all.len() == 4 && all.iter().all(|one| one.0 == FindingClass::SlowLink), "{all:?}");
    }

    #[test]
    fn one_slow_link_is_not_an_interface() {
        assert_eq!(found(&[(0, 1, true), (1, 0, false)]), [(FindingClass::SlowLink, vec![0, 1])]);
        // Slow in both directions, but both ranks are fast with others.
        let path = [(0, 1, true), (1, 0, true), (0, 2, false), (1, 3, false), (3, 1, false)];
        assert_eq!(
            found(&path),
            [(FindingClass::SlowLink, vec![0, 1]), (FindingClass::SlowLink, vec![1, 0])]
        );
    }

    /// Two channels share an interface, which sends and receives use alone.
    #[test]
    fn links_are_compared_with_those_of_as_many_channels() {
        let edge = |comm: String, src: usize, dst, channel, cost| {
            let bytes = 100 << 20;
            let wire_ns = f64::from(100 << 20) * cost;
            LinkTraffic {
                comm,
                src,
                dst,
                channel,
                transfers: 100,
                bytes,
                wire_ns,
                pace: Pace::default(),
                blocks: TimeBlocks::default(),
                sample: Vec::new(),
                is_first: false,
            }
        };
        let mut job =
            Job { workers: (0..32).map(|rank| Worker::new(rank, "")).collect(), ..Job::default() };
        for at in 0..4 {
            let rings =
                (0..2).map(|of| edge(format!("dp{at}"), 8 * at, (8 * at + 8) % 32, of, 2.0));
            job.edges.extend(rings);
            let pairs = (0..4).map(|of| edge(format!("pp{at}{of}"), 4 * at + of, 16 + of, 0, 1.0));
            job.edges.extend(pairs);
        }
        assert!(findings(&job).is_empty());
        job.edges[0].wire_ns *= 3.0;
        let found = findings(&job);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!((found[0].class, found[0].edge), (FindingClass::SlowLink, Some([0, 8])));
        job.edges[0].wire_ns /= 3.0;
        // A channel shares the interface however few of its transfers are known.
        for edge in job.edges.iter_mut().filter(|edge| edge.channel == 1) {
            (edge.transfers, edge.bytes, edge.wire_ns) = (2, 2 << 20, f64::from(4 << 20));
        }
        assert!(findings(&job).is_empty());
    }

    #[test]
    fn an_interface_with_one_peer_may_be_either_ones() {
        assert_eq!(found(&[(0, 1, true), (1, 0, true)]), [(FindingClass::SlowNic, vec![0, 1])]);
        // Rank 1 is fast with others, so it is not at fault.
        let one = [(0, 1, true), (1, 0, true), (1, 2, false), (2, 1, false), (3, 1, false)];
        assert_eq!(found(&one), [(FindingClass::SlowNic, vec![0])]);
    }

    /// Whether a link of eight is slow, given how many times and ns longer a transfer of this size
    /// takes there.
    fn is_slow(size: u64, is_first: bool, times: f64, wire_ns: f64) -> bool {
        let edge = |src: usize| LinkTraffic {
            comm: "c".into(),
            src,
            dst: (src + 1) % 8,
            channel: 0,
            transfers: 100,
            bytes: 100 * size,
            wire_ns: 100.0 * wire_ns * if src == 3 { times } else { 1.0 },
            pace: Pace::default(),
            blocks: TimeBlocks::default(),
            sample: Vec::new(),
            is_first,
        };
        let workers = (0..8).map(|rank| Worker::new(rank, "")).collect();
        let job = Job { workers, edges: (0..8).map(edge).collect(), ..Job::default() };
        !findings(&job).is_empty()
    }

    #[test]
    fn a_small_piece_may_take_as_long_as_the_threads_of_its_ends() {
        for (size, is_first) in [(2_048, false), (1 << 20, true)] {
            assert!(!is_slow(size, is_first, 8.0, 40e3), "280 us more");
            assert!(is_slow(size, is_first, 30.0, 40e3) && is_slow(size, is_first, 12.0, 4e6));
        }
        assert!(is_slow(1 << 20, false, 2.0, 400e3), "a large piece shows the rate");
    }

    /// Each of a thousand ranks sends to the next 32, and one in four of them does so slowly.
    #[test]
    fn many_slow_interfaces_are_found_at_once() {
        let edge = |(src, by): (usize, usize)| LinkTraffic {
            comm: "c".into(),
            src,
            dst: (src + by) % 1000,
            channel: 0,
            transfers: 100,
            bytes: 100 << 20,
            wire_ns: 1e8,
            pace: Pace::default(),
            blocks: TimeBlocks::default(),
            sample: Vec::new(),
            is_first: false,
        };
        let all = (0..1000).flat_map(|src| (1..=32).map(move |by| (src, by)));
        let workers = (0..1000).map(|rank| Worker::new(rank, "")).collect();
        let mut job = Job { workers, edges: all.map(edge).collect(), ..Job::default() };
        for edge in job.edges.iter_mut().filter(|edge| edge.src % 4 == 0) {
            edge.wire_ns *= 6.0;
        }
        let start = std::time::Instant::now();
        let found = findings(&job);
        let took = start.elapsed();
        assert_eq!(found.len(), 250, "{:?}", found.first());
        assert!(
            found
                .iter()
                .all(|one| one.class == FindingClass::SlowNic && one.root_ranks[0] % 4 == 0)
        );
        // To judge every unit again for each finding would take minutes.
        assert!(took.as_secs() < 20, "{took:?}");
    }
}
