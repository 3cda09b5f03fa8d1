// SPDX-License-Identifier: Apache-2.0
/*!
Slow links (S3), by the wire time per byte of each link and channel, and slow network interfaces
(S4), to which several slow links belong.

Wire time is the time from the network's acceptance of a send to its completion (`SendWait`). It
does not include the time that the sender's GPU or the receiver's buffers take, nor the time in
which the previous send on the same link was still in flight. A link is compared with others that
move pieces of about the same size: those of its communicator, or of all small communicators that
use as many channels for a link, because the channels of a link share its interface. In a mesh of
three or four ranks, where a slow interface leaves no usual link, the links that touch one rank are
compared with those that do not. If the slow links are all links of one rank (outgoing, incoming or
both), its interface is slow; else each slow link is reported by itself.

NCCL's events of profiler API v4 to v7 do not name the interface of a channel, so a channel stands
for a rail.
*/

use crate::finding::Finding;
use crate::limits::Limits;
use crate::model::{Job, LinkTraffic};
use crate::onset::Onset;
use crate::pace::Paces;
use ncclscope_findings::{Doubt, Evidence, FindingClass};
use ncclscope_operations::human;
use ncclscope_operations::stats::{count, median, to_f64, to_u64};
use ncclscope_statistics::{median_mad, median_of_others};
use std::collections::{BTreeMap, BTreeSet};

/// A set of comparable edges, as indices.
pub(crate) type Pool = Vec<usize>;

/// A transfer of fewer bytes takes the network's latency.
const SMALL: f64 = 65_536.0;
/// Minimum excess of such a transfer: ns, or this many times the usual time. Over sockets of one
/// healthy machine, the links of a tree take from 20 to 200 us, because data goes up while the
/// proxy threads still start the operation, and down when they do nothing else.
const LATENCY_NS: f64 = 1e6;
const LATENCIES: f64 = 10.0;
/// The mean excess must exceed that many of its standard errors, as for slow ranks, unless it costs
/// more than this part of the run: a link that is slow for a seventh of the time varies.
const ERRORS: f64 = 3.5;
const CHANCE: f64 = 0.02;

/// Of a small mesh, each link of a slow interface takes this many times as long as any other link.
const FAR: f64 = 2.0;

/// A slow edge, and the usual cost in its pool.
struct SlowEdge {
    at: usize,
    usual: f64,
    /// Most edges of its pool have about the usual cost.
    is_sure: bool,
}

impl SlowEdge {
    /// Whether its excess costs the run enough, and is neither usual nor chance.
    fn matters(&self, edge: &LinkTraffic, span: f64, limits: &Limits) -> bool {
        let extra = (edge.cost() - self.usual) * to_f64(edge.bytes);
        let is_chance = extra < CHANCE * span && varies(edge, self.usual);
        extra > limits.min_extra * span && !is_usual_latency(edge, self.usual) && !is_chance
    }
}

/// All slow edges, and the indices of some of them.
type Slow<'a> = (&'a [SlowEdge], &'a [usize]);

/// Finds the slow links and interfaces of a job that took `span` ns.
pub(crate) fn find(job: &Job, pools: &[Pool], span: f64, limits: &Limits) -> Vec<Finding> {
    let Outliers { slow, paced, judged } = outliers(job, pools, span, limits);
    let mut nics = Nics::new(job, &slow, &judged);
    let mut found = Vec::new();
    while let Some((nic, covered)) = nics.take_worst(job, &slow) {
        let mut finding = nic_finding(job, nic, (&slow, &covered), span);
        // Whether its other links are slow, and what they cost, is unknown.
        if !nics.surely_slow.contains(&nic) {
            finding.doubts = vec![Doubt::FewPeers];
            finding.most_lost_share = None;
        }
        found.push(finding);
    }
    for (pair, covered) in nics.take_pairs(job, &slow) {
        found.push(pair_finding(job, &pair, (&slow, &covered), span));
    }
    let links = by_link(job, &slow, nics.left);
    found.extend(links.into_iter().map(|(link, of)| link_finding(job, link, (&slow, &of), span)));
    let links = by_link(job, &paced, 0..paced.len());
    found.extend(links.into_iter().map(|(link, of)| paced_finding(job, link, (&paced, &of), span)));
    found
}

/// The slow edges with these indices, by sender and receiver.
fn by_link(
    job: &Job,
    slow: &[SlowEdge],
    of: impl IntoIterator<Item = usize>,
) -> BTreeMap<(usize, usize), Vec<usize>> {
    let mut links: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for at in of {
        let edge = &job.edges[slow[at].at];
        links.entry((edge.src, edge.dst)).or_default().push(at);
    }
    links
}

/// The edges that are slower than the others of their pool.
#[derive(Default)]
struct Outliers {
    slow: Vec<SlowEdge>,
    /// Those that the GPUs at their ends may slow down.
    paced: Vec<SlowEdge>,
    /// The edges of all pools that could be judged.
    judged: BTreeSet<usize>,
}

fn outliers(job: &Job, pools: &[Pool], span: f64, limits: &Limits) -> Outliers {
    let Outliers { mut slow, mut paced, mut judged } = Outliers::default();
    for pool in pools {
        let edges = || pool.iter().map(|&at| (at, &job.edges[at]));
        let mut costs: Vec<f64> = edges().map(|(_, edge)| edge.cost()).collect();
        let Some((_, mad)) = median_mad(&mut costs) else { continue };
        let beyond = |(at, edge): (usize, &LinkTraffic)| {
            let usual = median_of_others(&costs, edge.cost());
            let limit = (usual + limits.mads * mad).max(limits.edge_factor * usual);
            (edge.cost() > limit).then_some(SlowEdge { at, usual, is_sure: true })
        };
        let of_mesh = in_mesh(job, pool, limits);
        if of_mesh.is_some() || is_judged(&job.edges, pool, limits) {
            judged.extend(pool);
        }
        let found = of_mesh.unwrap_or_else(|| edges().filter_map(beyond).collect());
        let paces = Paces::of(edges().map(|(_, edge)| edge));
        for of in found.into_iter().filter(|of| of.matters(&job.edges[of.at], span, limits)) {
            let is_paced = paces.explain(&job.edges[of.at], of.usual);
            if is_paced { paced.push(of) } else { slow.push(of) }
        }
    }
    Outliers { slow, paced, judged }
}

/// The edges of a small mesh that touch one worker, if each of them takes far longer than any edge
/// between the others: so few links have no usual time.
fn in_mesh(job: &Job, pool: &[usize], limits: &Limits) -> Option<Vec<SlowEdge>> {
    let is_remote = |edge: &LinkTraffic| {
        let [src, dst] = ends(edge).map(|worker| &job.workers[worker].machine);
        src.is_empty() || src != dst
    };
    let remote = || pool.iter().filter(|&&at| is_remote(&job.edges[at]));
    busy(&job.edges, pool).into_iter().find_map(|worker| {
        let touches = |at: &usize| ends(&job.edges[*at]).contains(&worker);
        let (own, others): (Vec<usize>, Vec<usize>) = remote().partition(|at| touches(at));
        let peers = |side| {
            let nic = Nic { worker, side };
            let of = own.iter().map(|&at| &job.edges[at]);
            let of = of.filter(|edge| Nic::of(edge).contains(&nic));
            of.map(|edge| nic.peer(edge)).collect::<BTreeSet<usize>>().len()
        };
        let is_mesh = peers(NicLinks::Out) > 1 && peers(NicLinks::In) > 1;
        let cost = |&at: &usize| job.edges[at].cost();
        let fastest = own.iter().map(cost).fold(f64::MAX, f64::min);
        let slowest = others.iter().map(cost).fold(0.0, f64::max);
        let usual = median(&mut others.iter().map(cost).collect::<Vec<_>>())?;
        let is_far = links(&job.edges, &others) >= limits.min_peers && fastest >= FAR * slowest;
        let slow = |at: usize| SlowEdge { at, usual, is_sure: false };
        (is_mesh && is_far).then(|| own.iter().copied().map(slow).collect())
    })
}

/// Whether a link of small pieces takes no longer for one than the threads at its ends may: which
/// of them polls first depends on its place in a ring or tree.
fn is_usual_latency(edge: &LinkTraffic, usual: f64) -> bool {
    let excess = (edge.cost() - usual) * edge.piece();
    let is_small = edge.piece() < SMALL || edge.is_first;
    is_small && excess < LATENCY_NS.min(LATENCIES * usual * edge.piece())
}

/// Whether the cost of a link varies so much from time to time that its mean is no larger than
/// that of others but by chance.
fn varies(edge: &LinkTraffic, usual: f64) -> bool {
    let slow = (edge.cost() * usual).sqrt();
    edge.blocks.errors_above(usual, slow).is_some_and(|errors| errors < ERRORS)
}

/// The links with enough transfers but too few others to compare with. A slow interface has a link
/// in either direction, and neither may be the usual link of the pool.
pub(crate) fn unjudged(
    edges: &[LinkTraffic],
    pools: &[Pool],
    limits: &Limits,
) -> BTreeSet<(usize, usize)> {
    let enough = (0..edges.len()).filter(|&at| edges[at].is_enough(limits));
    let judged = pools.iter().filter(|pool| is_judged(edges, pool, limits)).flatten().copied();
    let pairs = |at: usize| (edges[at].src, edges[at].dst);
    let judged: BTreeSet<(usize, usize)> = judged.map(pairs).collect();
    enough.map(pairs).filter(|pair| !judged.contains(pair)).collect()
}

/// Whether there are enough links in a pool to say which are slow, whichever interface is.
fn is_judged(edges: &[LinkTraffic], pool: &[usize], limits: &Limits) -> bool {
    links(edges, pool) > 2 * limits.min_peers && has_majority(edges, pool)
}

/// A communicator with at least this many links is a pool of its own, if its median link is a
/// healthy one whichever interface is slow.
const LINKS: usize = 8;

/// Sets of comparable edges: the edges of a communicator with pieces of about the same size. If
/// those are few links, the edges of all such communicators with the same number of channels.
pub(crate) fn pools(edges: &[LinkTraffic], limits: &Limits) -> Vec<Pool> {
    let mut by_comm: BTreeMap<(&str, u64, bool), Vec<usize>> = BTreeMap::new();
    // All of them share the interface, however many transfers each has.
    let mut sharing: BTreeMap<&str, BTreeSet<(usize, usize, u8)>> = BTreeMap::new();
    for (at, edge) in edges.iter().enumerate() {
        sharing.entry(&edge.comm).or_default().insert((edge.src, edge.dst, edge.channel));
        if edge.is_enough(limits) {
            let size = to_u64(edge.piece().log2());
            by_comm.entry((&edge.comm, size, edge.is_first)).or_default().push(at);
        }
    }
    let (mut pools, mut rest) = (Vec::new(), BTreeMap::<(u64, bool, usize), Vec<usize>>::new());
    for ((comm, size, is_first), pool) in by_comm {
        if links(edges, &pool) >= LINKS && has_majority(edges, &pool) {
            pools.push(pool);
        } else {
            let all = &sharing[comm];
            let pairs: BTreeSet<(usize, usize)> = all.iter().map(|&(a, b, _)| (a, b)).collect();
            let channels = all.len().div_ceil(pairs.len().max(1));
            rest.entry((size, is_first, channels)).or_default().extend(pool);
        }
    }
    pools.extend(rest.into_values().filter(|pool| links(edges, pool) > limits.min_peers));
    pools
}

/// Whether most links in a pool are healthy, whichever interface is slow.
fn has_majority(edges: &[LinkTraffic], pool: &[usize]) -> bool {
    busy(edges, pool).is_empty()
}

/// The workers, four at most, at an end of half of the links of a pool or more, as in a full mesh
/// of four: if the interface of one is slow, slow links are as usual as others.
fn busy(edges: &[LinkTraffic], pool: &[usize]) -> Vec<usize> {
    let mut by_worker: BTreeMap<usize, BTreeSet<(usize, usize)>> = BTreeMap::new();
    for edge in pool.iter().map(|&at| &edges[at]) {
        for end in [edge.src, edge.dst] {
            by_worker.entry(end).or_default().insert((edge.src, edge.dst));
        }
    }
    let all = links(edges, pool);
    by_worker.retain(|_, links| 2 * links.len() >= all);
    by_worker.into_keys().collect()
}

/// Number of links (pairs of workers) in a pool.
fn links(edges: &[LinkTraffic], pool: &[usize]) -> usize {
    pool.iter().map(|&at| (edges[at].src, edges[at].dst)).collect::<BTreeSet<_>>().len()
}

/// Outgoing links, incoming links, or all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum NicLinks {
    Both,
    Out,
    In,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Nic {
    worker: usize,
    side: NicLinks,
}

impl Nic {
    /// The interfaces that an edge uses.
    fn of(edge: &LinkTraffic) -> [Nic; 4] {
        let nic = |worker, side| Nic { worker, side };
        let (src, dst) = (edge.src, edge.dst);
        [
            nic(src, NicLinks::Both),
            nic(src, NicLinks::Out),
            nic(dst, NicLinks::Both),
            nic(dst, NicLinks::In),
        ]
    }

    /// The worker at the other end of one of its edges.
    fn peer(self, edge: &LinkTraffic) -> usize {
        if edge.src == self.worker && self.side != NicLinks::In { edge.dst } else { edge.src }
    }
}

/// The interfaces that may be slow, and the slow edges without a finding.
struct Nics {
    /// Indices of these slow edges.
    left: BTreeSet<usize>,
    /// The slow edges of each interface, of those in `left`.
    covered: BTreeMap<Nic, BTreeSet<usize>>,
    /// The interfaces that send at least three quarters of their bytes over slow edges, of those on
    /// edges that could be judged.
    mostly_slow: BTreeSet<Nic>,
    /// Those that do so of all their bytes.
    surely_slow: BTreeSet<Nic>,
    /// The number of slow edges of those that lead to at least two peers.
    candidates: BTreeMap<Nic, usize>,
}

impl Nics {
    fn new(job: &Job, slow: &[SlowEdge], judged: &BTreeSet<usize>) -> Nics {
        let is_slow: BTreeSet<usize> = slow.iter().map(|slow| slow.at).collect();
        let mut bytes: BTreeMap<Nic, [u64; 3]> = BTreeMap::new();
        for (at, edge) in job.edges.iter().enumerate() {
            let is_slow = is_slow.contains(&at);
            // Small transfers are bound by latency, and would not show a slow interface.
            let shows = judged.contains(&at) && edge.piece() >= SMALL;
            let counts = [is_slow, is_slow || shows, true];
            for nic in Nic::of(edge) {
                let sums = bytes.entry(nic).or_default().iter_mut();
                sums.zip(counts).for_each(|(sum, counts)| *sum += u64::from(counts) * edge.bytes);
            }
        }
        let mostly = |of: usize| {
            let is_most = |(_, sums): &(&Nic, &[u64; 3])| 4 * sums[0] >= 3 * sums[of];
            bytes.iter().filter(is_most).map(|(&nic, _)| nic).collect::<BTreeSet<Nic>>()
        };
        let mut covered: BTreeMap<Nic, BTreeSet<usize>> = BTreeMap::new();
        for (at, slow) in slow.iter().enumerate() {
            for nic in Nic::of(&job.edges[slow.at]) {
                covered.entry(nic).or_default().insert(at);
            }
        }
        let mut nics = Nics {
            left: (0..slow.len()).collect(),
            covered,
            mostly_slow: mostly(1),
            surely_slow: mostly(2),
            candidates: BTreeMap::new(),
        };
        nics.mostly_slow.clone().into_iter().for_each(|nic| nics.update(job, slow, nic));
        nics
    }

    /// Decides anew whether an interface is a candidate.
    fn update(&mut self, job: &Job, slow: &[SlowEdge], nic: Nic) {
        self.candidates.remove(&nic);
        let Some(covered) = self.covered.get(&nic) else { return };
        let peers: BTreeSet<usize> =
            covered.iter().map(|&at| nic.peer(&job.edges[slow[at].at])).collect();
        if peers.len() >= 2 && self.mostly_slow.contains(&nic) {
            self.candidates.insert(nic, covered.len());
        }
    }

    /// Takes the interface with the most slow links, which must carry most of its bytes and lead to
    /// at least two peers. Bytes are counted instead of transfers, because small transfers are
    /// bound by latency on any interface.
    fn take_worst(&mut self, job: &Job, slow: &[SlowEdge]) -> Option<(Nic, Vec<usize>)> {
        let worst = |(nic, links): &(&Nic, &usize)| (**links, nic.side == NicLinks::Both);
        let (&nic, _) = self.candidates.iter().max_by_key(worst)?;
        let taken: Vec<usize> = self.covered.get(&nic)?.iter().copied().collect();
        let mut changed: BTreeSet<Nic> = BTreeSet::new();
        for at in &taken {
            self.left.remove(at);
            for nic in Nic::of(&job.edges[slow[*at].at]) {
                self.covered.entry(nic).or_default().remove(at);
                changed.insert(nic);
            }
        }
        changed.into_iter().for_each(|nic| self.update(job, slow, nic));
        Some((nic, taken))
    }

    /// Takes the pairs of ranks that are slow to each other in both directions, but to no other
    /// rank. If only one of them has no other links, its interface is slow; if neither has, either
    /// may be.
    fn take_pairs(&mut self, job: &Job, slow: &[SlowEdge]) -> Vec<(Vec<usize>, Vec<usize>)> {
        let mut pairs: BTreeMap<[usize; 2], Vec<usize>> = BTreeMap::new();
        for &at in &self.left {
            let [src, dst] = ends(&job.edges[slow[at].at]);
            pairs.entry([src.min(dst), src.max(dst)]).or_default().push(at);
        }
        let mut pairs: Vec<Vec<usize>> = pairs.into_values().collect();
        pairs.sort_unstable_by_key(|covered| covered.first().copied());
        let is_nic_slow =
            |&worker: &usize| self.surely_slow.contains(&Nic { worker, side: NicLinks::Both });
        let slow_pair = |covered: Vec<usize>| {
            let sources: BTreeSet<usize> =
                covered.iter().map(|&at| job.edges[slow[at].at].src).collect();
            let first = ends(&job.edges[slow[*covered.first()?].at]);
            let nics: Vec<usize> = first.into_iter().filter(is_nic_slow).collect();
            (sources.len() == 2 && !nics.is_empty()).then_some((nics, covered))
        };
        let found: Vec<(Vec<usize>, Vec<usize>)> =
            pairs.into_iter().filter_map(slow_pair).collect();
        for at in found.iter().flat_map(|(_, covered)| covered) {
            self.left.remove(at);
        }
        found
    }
}

fn ends(edge: &LinkTraffic) -> [usize; 2] {
    [edge.src, edge.dst]
}

/// One line for each slow edge: its cost and the usual one.
fn evidence(class: FindingClass, job: &Job, slow: &[SlowEdge], of: &[usize]) -> Vec<Evidence> {
    let lines = of.iter().map(|&at| {
        let (edge, usual) = (&job.edges[slow[at].at], slow[at].usual);
        let (src, dst) = (job.workers[edge.src].rank, job.workers[edge.dst].rank);
        let text = format!(
            "rank {src} to {dst}, communicator {}, channel {}: {} GB/s on the wire over {}, the \
             others {}",
            edge.comm,
            edge.channel,
            human::three(gbs(edge.cost())),
            human::count(edge.transfers, "transfer"),
            human::three(gbs(usual))
        );
        let figures = [
            ("transfer_gbs", gbs(edge.cost())),
            ("others_transfer_gbs", gbs(usual)),
            ("ns_per_byte", edge.cost()),
            ("others_ns_per_byte", usual),
            ("transfers", to_f64(edge.transfers)),
        ];
        let line = Evidence { peer: Some(dst), ..Evidence::of(class, src, text) };
        Evidence { channel: Some(edge.channel), ..line.with(figures) }
    });
    lines.collect()
}

/// Bandwidth in GB/s from the cost per byte in ns.
fn gbs(cost: f64) -> f64 {
    1.0 / cost.max(1e-9)
}

fn factor(job: &Job, slow: &[SlowEdge], of: &[usize]) -> f64 {
    let sum: f64 =
        of.iter().map(|&at| job.edges[slow[at].at].cost() / slow[at].usual.max(1e-9)).sum();
    sum / count(of.len()).max(1.0)
}

/// When the first of these edges became slow.
fn onset(job: &Job, slow: &[SlowEdge], of: &[usize]) -> Option<Onset> {
    let since = |&at: &usize| {
        let (edge, usual) = (&job.edges[slow[at].at], slow[at].usual);
        edge.blocks.since((edge.cost() * usual).sqrt())
    };
    of.iter().filter_map(since).min().map(Onset::Real)
}

fn doubts(slow: &[SlowEdge], of: &[usize]) -> Vec<Doubt> {
    let is_sure = of.iter().any(|&at| slow[at].is_sure);
    if is_sure { Vec::new() } else { vec![Doubt::FewPeers] }
}

/// Additional time of the links in `of`, as a share of the run of `span` ns. Links of one
/// communicator are slow at the same time; the times of several communicators are added.
fn most_lost(job: &Job, (slow, of): Slow<'_>, span: f64) -> Option<f64> {
    let mut comms: BTreeMap<&str, f64> = BTreeMap::new();
    for &at in of {
        let edge = &job.edges[slow[at].at];
        let most = comms.entry(&edge.comm).or_default();
        *most = most.max((edge.cost() - slow[at].usual) * to_f64(edge.bytes));
    }
    (span > 0.0).then(|| comms.into_values().sum::<f64>() / span)
}

fn nic_finding(job: &Job, nic: Nic, (slow, of): Slow<'_>, span: f64) -> Finding {
    let worker = &job.workers[nic.worker];
    let side = match nic.side {
        NicLinks::Both => "links",
        NicLinks::Out => "outgoing links",
        NicLinks::In => "incoming links",
    };
    let host = if worker.host.is_empty() { String::new() } else { format!(" on {}", worker.host) };
    Finding {
        title: format!(
            "the network interface of rank {}{host} is slow: its {side} are",
            worker.rank
        ),
        doubts: doubts(slow, of),
        root_ranks: vec![worker.rank],
        factor: Some(factor(job, slow, of)),
        most_lost_share: most_lost(job, (slow, of), span),
        onset: onset(job, slow, of),
        comm_texts: comms(job, slow, of),
        evidence: evidence(FindingClass::SlowNic, job, slow, of),
        ..Finding::of(FindingClass::SlowNic)
    }
}

fn pair_finding(job: &Job, nics: &[usize], (slow, of): Slow<'_>, span: f64) -> Finding {
    let mut ranks: Vec<u32> = nics.iter().map(|&worker| job.workers[worker].rank).collect();
    ranks.sort_unstable();
    let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    Finding {
        title: format!(
            "the network interface of rank {} is slow to its only peer",
            names.join(" or ")
        ),
        doubts: vec![Doubt::MembersAlike],
        root_ranks: ranks,
        factor: Some(factor(job, slow, of)),
        most_lost_share: most_lost(job, (slow, of), span),
        onset: onset(job, slow, of),
        comm_texts: comms(job, slow, of),
        evidence: evidence(FindingClass::SlowNic, job, slow, of),
        ..Finding::of(FindingClass::SlowNic)
    }
}

fn link_finding(job: &Job, (src, dst): (usize, usize), (slow, of): Slow<'_>, span: f64) -> Finding {
    let (src, dst) = (job.workers[src].rank, job.workers[dst].rank);
    Finding {
        title: format!("the link from rank {src} to rank {dst} is slow"),
        doubts: doubts(slow, of),
        root_ranks: vec![src, dst],
        edge: Some([src, dst]),
        factor: Some(factor(job, slow, of)),
        most_lost_share: most_lost(job, (slow, of), span),
        onset: onset(job, slow, of),
        comm_texts: comms(job, slow, of),
        evidence: evidence(FindingClass::SlowLink, job, slow, of),
        ..Finding::of(FindingClass::SlowLink)
    }
}

/// The finding about a link that a GPU may slow down as well as the network.
fn paced_finding(job: &Job, (src, dst): (usize, usize), paced: Slow<'_>, span: f64) -> Finding {
    let [from, to] = [src, dst].map(|worker| job.workers[worker].rank);
    let mut finding = link_finding(job, (src, dst), paced, span);
    finding.title = format!("the link from rank {from} to rank {to}, or a GPU at one end, is slow");
    finding.doubts.push(Doubt::GpuAtOneEnd);
    finding
}

fn comms(job: &Job, slow: &[SlowEdge], of: &[usize]) -> Vec<String> {
    let names: BTreeSet<&String> = of.iter().map(|&at| &job.edges[slow[at].at].comm).collect();
    names.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(job: &Job) -> Vec<Finding> {
        let limits = Limits::default();
        find(job, &pools(&job.edges, &limits), 1e9, &limits)
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

    #[test]
    fn a_mesh_of_four_without_a_finding_is_not_judged() {
        let unjudged_of = |ranks: u32| {
            let pairs = (0..ranks).flat_map(|src| (0..ranks).map(move |dst| (src, dst)));
            let flows: Vec<Flow> =
                pairs.filter(|(src, dst)| src != dst).map(|(src, dst)| (src, dst, false)).collect();
            let edges: Vec<LinkTraffic> = flows.iter().map(flow).collect();
            let limits = Limits::default();
            unjudged(&edges, &pools(&edges, &limits), &limits).len()
        };
        assert_eq!([4, 5].map(unjudged_of), [12, 0]);
    }

    /// Each of a thousand ranks sends to the next 32, and all of these links are slow.
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
            is_first: false,
        };
        let all = (0..1000).flat_map(|src| (1..=32).map(move |by| (src, by)));
        let job = Job { edges: all.map(edge).collect(), ..Job::default() };
        let slow: Vec<SlowEdge> =
            (0..job.edges.len()).map(|at| SlowEdge { at, usual: 1e-3, is_sure: true }).collect();
        let mut nics = Nics::new(&job, &slow, &BTreeSet::new());
        let start = std::time::Instant::now();
        let found = std::iter::from_fn(|| nics.take_worst(&job, &slow)).count();
        let took = start.elapsed();
        assert!(found > 900 && nics.left.len() < 1000, "{found}");
        // To compare each interface with all links would take minutes.
        assert!(took.as_secs() < 20, "{took:?}");
    }
}
