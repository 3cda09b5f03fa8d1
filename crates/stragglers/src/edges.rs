// SPDX-License-Identifier: Apache-2.0
/*!
Slow links: the time that a send spends on the wire, per byte, by link and channel (S3), and whether
the slow ones meet in one network card (S4).

The wire's time is that between the network's taking a send and its being done (`SendWait`): what
the sender's GPU or the receiver's buffers cost is not in it, nor the time in which the send before
it on the same link was still under way. A link is compared with others that
move pieces of about the same size: those of its communicator, or of all small ones. Slow links that
are all those of one rank, out, in or both, are its card's; else each is a link of its own.

Which card a channel uses is not in NCCL's events of profiler API v4 to v7, so channels stand for
rails.
*/

use crate::model::Job;
use crate::report::{Finding, Limits};
use crate::robust::{count, median_mad, median_of_others};
use ncclscope_findings::{Confidence, FindingClass};
use ncclscope_operations::stats::{to_f64, to_u64};
use std::collections::{BTreeMap, BTreeSet};

/// What one sender moved to one receiver over one channel.
#[derive(Clone, PartialEq, Debug)]
pub struct Edge {
    /// The communicator's name.
    pub comm: String,
    /// Index of the sender in [`Job::workers`].
    pub src: usize,
    /// The receiver's.
    pub dst: usize,
    /// Channel.
    pub channel: u8,
    /// Steps with a size.
    pub transfers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their time on the wire, ns.
    pub wire_ns: f64,
}

impl Edge {
    /// Wire time of a byte, ns.
    #[must_use]
    pub fn cost(&self) -> f64 {
        self.wire_ns / to_f64(self.bytes.max(1))
    }

    fn piece(&self) -> f64 {
        to_f64(self.bytes) / to_f64(self.transfers.max(1))
    }
}

/// An edge that is slow, and how.
struct Slow {
    at: usize,
    usual: f64,
}

/// The slow links and cards of a job that took `span` ns.
pub(crate) fn find(job: &Job, span: f64, limits: &Limits) -> Vec<Finding> {
    let slow = outliers(&job.edges, span, limits);
    let mut left: BTreeSet<usize> = (0..slow.len()).collect();
    let mut found = Vec::new();
    while let Some((card, covered)) = worst_card(job, &slow, &left) {
        left.retain(|at| !covered.contains(at));
        found.push(card_finding(job, card, &slow, &covered));
    }
    while let Some((cards, covered)) = worst_pair(job, &slow, &left) {
        left.retain(|at| !covered.contains(at));
        found.push(pair_finding(job, &cards, &slow, &covered));
    }
    let mut links: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for at in left {
        let edge = &job.edges[slow[at].at];
        links.entry((edge.src, edge.dst)).or_default().push(at);
    }
    found.extend(links.into_iter().map(|(link, of)| link_finding(job, link, &slow, &of)));
    found
}

/// The edges that are slower than others of their pool.
fn outliers(edges: &[Edge], span: f64, limits: &Limits) -> Vec<Slow> {
    let mut slow = Vec::new();
    for pool in pools(edges, limits) {
        let mut costs: Vec<f64> = pool.iter().map(|&at| edges[at].cost()).collect();
        let Some((_, mad)) = median_mad(&mut costs) else { continue };
        for at in pool {
            let edge = &edges[at];
            let usual = median_of_others(&costs, edge.cost());
            let limit = (usual + limits.mads * mad).max(limits.edge_factor * usual);
            let extra = (edge.cost() - usual) * to_f64(edge.bytes);
            if edge.cost() > limit && extra > limits.min_extra * span {
                slow.push(Slow { at, usual });
            }
        }
    }
    slow
}

/// Links of a communicator that are compared by themselves from so many on: so few are slow then
/// that the median is not one of them.
const LINKS: usize = 8;

/// Edges to compare with each other: those of a communicator that move pieces of about the same
/// size; where these are few links, those of all such communicators together.
fn pools(edges: &[Edge], limits: &Limits) -> Vec<Vec<usize>> {
    let mut by_comm: BTreeMap<(&str, u32), Vec<usize>> = BTreeMap::new();
    for (at, edge) in edges.iter().enumerate() {
        if edge.transfers >= limits.min_samples && edge.bytes > 0 {
            let size = to_u64(edge.piece().log2());
            by_comm.entry((&edge.comm, u32::try_from(size).unwrap_or(0))).or_default().push(at);
        }
    }
    let (mut pools, mut rest) = (Vec::new(), BTreeMap::<u32, Vec<usize>>::new());
    for ((_, size), pool) in by_comm {
        if links(edges, &pool) >= LINKS {
            pools.push(pool);
        } else {
            rest.entry(size).or_default().extend(pool);
        }
    }
    pools.extend(rest.into_values().filter(|pool| links(edges, pool) > limits.min_peers));
    pools
}

/// Pairs of workers; channels are not counted.
fn links(edges: &[Edge], pool: &[usize]) -> usize {
    pool.iter().map(|&at| (edges[at].src, edges[at].dst)).collect::<BTreeSet<_>>().len()
}

/// Which of a rank's links: those out, in, or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Out,
    In,
    Both,
}

#[derive(Clone, Copy, Debug)]
struct Card {
    worker: usize,
    side: Side,
}

impl Card {
    /// The worker at the other end, if the edge is this card's.
    fn peer(self, edge: &Edge) -> Option<usize> {
        let is_out = edge.src == self.worker && self.side != Side::In;
        let is_in = edge.dst == self.worker && self.side != Side::Out;
        if is_out {
            Some(edge.dst)
        } else if is_in {
            Some(edge.src)
        } else {
            None
        }
    }

    /// The slow edges that are its own, of those left.
    fn covers(self, job: &Job, slow: &[Slow], left: &BTreeSet<usize>) -> Vec<usize> {
        let is_own = |at: &usize| self.peer(&job.edges[slow[*at].at]).is_some();
        left.iter().copied().filter(is_own).collect()
    }

    /// Three quarters of what goes over its links goes over slow ones.
    fn is_mostly(self, job: &Job, slow: &[Slow]) -> bool {
        let is_slow: BTreeSet<usize> = slow.iter().map(|slow| slow.at).collect();
        let own = job.edges.iter().enumerate().filter(|(_, edge)| self.peer(edge).is_some());
        let (all, bad) = own.fold((0, 0), |(all, bad), (at, edge)| {
            (all + edge.bytes, bad + if is_slow.contains(&at) { edge.bytes } else { 0 })
        });
        4 * bad >= 3 * all
    }
}

/// The card whose slow links are most: they carry most of what it sends and receives, from or to
/// two peers or more. Small transfers take latency, whatever the card, so that bytes count.
fn worst_card(job: &Job, slow: &[Slow], left: &BTreeSet<usize>) -> Option<(Card, Vec<usize>)> {
    let sides = [Side::Both, Side::Out, Side::In];
    let workers = left.iter().flat_map(|&at| ends(&job.edges[slow[at].at]));
    let workers: BTreeSet<usize> = workers.collect();
    let cards = workers.iter().flat_map(|&w| sides.map(|side| Card { worker: w, side }));
    let scored = cards.filter_map(|card| {
        let covered = card.covers(job, slow, left);
        let peers = covered.iter().filter_map(|&at| card.peer(&job.edges[slow[at].at]));
        let peers = peers.collect::<BTreeSet<_>>().len();
        (peers >= 2 && card.is_mostly(job, slow)).then_some((card, covered))
    });
    scored.max_by_key(|(card, covered)| (covered.len(), card.side == Side::Both))
}

/// Two ranks that are slow to each other both ways, and to no other rank: whose card it is, nothing
/// tells if neither of them has other links; else it is that of the one that has none.
fn worst_pair(
    job: &Job,
    slow: &[Slow],
    left: &BTreeSet<usize>,
) -> Option<(Vec<usize>, Vec<usize>)> {
    left.iter().find_map(|&first| {
        let pair = ends(&job.edges[slow[first].at]);
        let is_between = |at: &usize| {
            let [src, dst] = ends(&job.edges[slow[*at].at]);
            pair == [src, dst] || pair == [dst, src]
        };
        let covered: Vec<usize> = left.iter().copied().filter(is_between).collect();
        let ways: BTreeSet<usize> = covered.iter().map(|&at| job.edges[slow[at].at].src).collect();
        let is_card = |&worker: &usize| Card { worker, side: Side::Both }.is_mostly(job, slow);
        let cards: Vec<usize> = pair.into_iter().filter(is_card).collect();
        (ways.len() == 2 && !cards.is_empty()).then_some((cards, covered))
    })
}

fn ends(edge: &Edge) -> [usize; 2] {
    [edge.src, edge.dst]
}

/// How slow some edges are, as text: cost, the usual one, and channels.
fn evidence(job: &Job, slow: &[Slow], of: &[usize]) -> Vec<String> {
    let lines = of.iter().map(|&at| {
        let (edge, usual) = (&job.edges[slow[at].at], slow[at].usual);
        format!(
            "rank {} to {}, communicator {}, channel {}: {:.3} ns a byte on the wire over {} \
             transfers, the others {:.3}",
            job.workers[edge.src].rank,
            job.workers[edge.dst].rank,
            edge.comm,
            edge.channel,
            edge.cost(),
            edge.transfers,
            usual
        )
    });
    lines.collect()
}

fn factor(job: &Job, slow: &[Slow], of: &[usize]) -> f64 {
    let sum: f64 =
        of.iter().map(|&at| job.edges[slow[at].at].cost() / slow[at].usual.max(1e-9)).sum();
    sum / count(of.len()).max(1.0)
}

fn card_finding(job: &Job, card: Card, slow: &[Slow], of: &[usize]) -> Finding {
    let worker = &job.workers[card.worker];
    let side = match card.side {
        Side::Both => "links",
        Side::Out => "outgoing links",
        Side::In => "incoming links",
    };
    let host = if worker.host.is_empty() { String::new() } else { format!(" on {}", worker.host) };
    Finding {
        title: format!("the network card of rank {}{host} is slow: its {side} are", worker.rank),
        confidence: Confidence::Confirmed,
        root_ranks: vec![worker.rank],
        factor: Some(factor(job, slow, of)),
        comms: comms(job, slow, of),
        evidence: evidence(job, slow, of),
        ..Finding::of(FindingClass::SlowNic)
    }
}

fn pair_finding(job: &Job, cards: &[usize], slow: &[Slow], of: &[usize]) -> Finding {
    let mut ranks: Vec<u32> = cards.iter().map(|&worker| job.workers[worker].rank).collect();
    ranks.sort_unstable();
    let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    Finding {
        title: format!("the network card of rank {} is slow, to its one peer", names.join(" or ")),
        confidence: Confidence::Suspect,
        root_ranks: ranks,
        factor: Some(factor(job, slow, of)),
        comms: comms(job, slow, of),
        evidence: evidence(job, slow, of),
        ..Finding::of(FindingClass::SlowNic)
    }
}

fn link_finding(job: &Job, (src, dst): (usize, usize), slow: &[Slow], of: &[usize]) -> Finding {
    let (src, dst) = (job.workers[src].rank, job.workers[dst].rank);
    Finding {
        title: format!("the link from rank {src} to rank {dst} is slow"),
        confidence: Confidence::Confirmed,
        root_ranks: vec![src, dst],
        edge: Some([src, dst]),
        factor: Some(factor(job, slow, of)),
        comms: comms(job, slow, of),
        evidence: evidence(job, slow, of),
        ..Finding::of(FindingClass::SlowLink)
    }
}

fn comms(job: &Job, slow: &[Slow], of: &[usize]) -> Vec<String> {
    let names: BTreeSet<&String> = of.iter().map(|&at| &job.edges[slow[at].at].comm).collect();
    names.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Worker;

    /// What goes from one rank to another, and whether it takes six times as long.
    type Flow = (u32, u32, bool);

    /// Class and ranks of what is found among links that each carry as much as the others.
    fn found(flows: &[Flow]) -> Vec<(FindingClass, Vec<u32>)> {
        let edge = |&(src, dst, is_slow): &Flow| Edge {
            comm: "c".into(),
            src: src as usize,
            dst: dst as usize,
            channel: 0,
            transfers: 100,
            bytes: 100 << 20,
            wire_ns: f64::from(100 << 20) * if is_slow { 6.0 } else { 1.0 },
        };
        let mut job = Job {
            workers: (0..32).map(|rank| Worker::new(rank, "")).collect(),
            edges: flows.iter().map(edge).collect(),
            ..Job::default()
        };
        // A pool of others, none of them slow; and what is too small for a card to matter.
        for rank in 16..31 {
            job.edges.push(edge(&(rank, rank + 1, false)));
        }
        for &(src, dst, _) in flows {
            job.edges.push(Edge { bytes: 800, ..edge(&(src, dst, false)) });
        }
        let all = find(&job, 1e9, &Limits::default());
        all.into_iter().map(|f| (f.class, f.root_ranks)).collect()
    }

    #[test]
    fn a_card_that_is_slow_to_several_peers_is_told_once() {
        let both = [(0, 1, true), (1, 0, true), (0, 2, true), (2, 0, true), (1, 3, false)];
        assert_eq!(found(&both), [(FindingClass::SlowNic, vec![0])]);
        // A ring: out to the one, in from the other.
        assert_eq!(
            found(&[(1, 2, true), (2, 3, true), (3, 4, false)]),
            [(FindingClass::SlowNic, vec![2])]
        );
    }

    #[test]
    fn one_slow_link_is_no_card() {
        assert_eq!(found(&[(0, 1, true), (1, 0, false)]), [(FindingClass::SlowLink, vec![0, 1])]);
        // Slow both ways, but both ranks do well with others.
        let path = [(0, 1, true), (1, 0, true), (0, 2, false), (1, 3, false), (3, 1, false)];
        assert_eq!(
            found(&path),
            [(FindingClass::SlowLink, vec![0, 1]), (FindingClass::SlowLink, vec![1, 0])]
        );
    }

    #[test]
    fn a_card_with_one_peer_is_that_of_either() {
        assert_eq!(found(&[(0, 1, true), (1, 0, true)]), [(FindingClass::SlowNic, vec![0, 1])]);
        // What goes well between 1 and others speaks for 1.
        let one = [(0, 1, true), (1, 0, true), (1, 2, false), (2, 1, false), (3, 1, false)];
        assert_eq!(found(&one), [(FindingClass::SlowNic, vec![0])]);
    }
}
