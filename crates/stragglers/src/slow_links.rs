// SPDX-License-Identifier: Apache-2.0
//! Slow links and network interfaces in words and figures.

use crate::finding::{Finding, link_name};
use crate::model::{Job, LinkTraffic};
use crate::onset::Onset;
use ncclscope_findings::{Doubt, Evidence, FindingClass};
use ncclscope_operations::human;
use ncclscope_operations::stats::{count, to_f64};
use std::collections::{BTreeMap, BTreeSet};

/// What may be slow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Unit<'a> {
    /// All links of a worker.
    Card(usize),
    /// Its outgoing links.
    Out(usize),
    /// Its incoming links.
    In(usize),
    /// From one worker to another one.
    Link(usize, usize),
    /// All links of a machine.
    Host(&'a str),
}

/// A slow edge.
pub(crate) struct SlowEdge<'a> {
    pub(crate) edge: &'a LinkTraffic,
    /// The usual time per byte of comparable links, ns.
    pub(crate) usual: f64,
    /// It is slow beyond chance.
    pub(crate) is_sure: bool,
}

/// One line for each slow edge: its cost and the usual one.
fn evidence(class: FindingClass, job: &Job, slow: &[SlowEdge<'_>]) -> Vec<Evidence> {
    let lines = slow.iter().map(|&SlowEdge { edge, usual, .. }| {
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

fn factor(slow: &[SlowEdge<'_>]) -> f64 {
    let factors = slow.iter().map(|of| of.edge.cost() / of.usual.max(1e-9));
    factors.sum::<f64>() / count(slow.len()).max(1.0)
}

/// When the first of these edges became slow.
fn onset(slow: &[SlowEdge<'_>]) -> Option<Onset> {
    let since = |&SlowEdge { edge, usual, .. }: &SlowEdge<'_>| {
        edge.blocks.since((edge.cost() * usual).sqrt())
    };
    slow.iter().filter_map(since).min().map(Onset::Real)
}

/// Additional time of these links, as a share of the run of `span` ns. Links of one
/// communicator are slow at the same time; the times of several communicators are added.
fn most_lost(slow: &[SlowEdge<'_>], span: f64) -> Option<f64> {
    let mut comms: BTreeMap<&str, f64> = BTreeMap::new();
    for of in slow {
        let edge = of.edge;
        let most = comms.entry(&edge.comm).or_default();
        *most = most.max((edge.cost() - of.usual) * to_f64(edge.bytes));
    }
    (span > 0.0).then(|| comms.into_values().sum::<f64>() / span)
}

/// The finding about interfaces or hosts, each of which explains these links.
pub(crate) fn nic_finding(
    job: &Job,
    units: &[Unit<'_>],
    slow: &[SlowEdge<'_>],
    span: f64,
) -> Finding {
    let mut ranks: Vec<u32> = units.iter().flat_map(|unit| roots(job, *unit)).collect();
    ranks.sort_unstable();
    let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    let of_rank = |worker: usize, side: &str| {
        let host = &job.workers[worker].host;
        let host = if host.is_empty() { String::new() } else { format!(" on {host}") };
        let rank = job.workers[worker].rank;
        format!("the network interface of rank {rank}{host} is slow: its {side} are")
    };
    let title = match *units {
        [Unit::Card(worker)] => of_rank(worker, "links"),
        [Unit::Out(worker)] => of_rank(worker, "outgoing links"),
        [Unit::In(worker)] => of_rank(worker, "incoming links"),
        [Unit::Host(_)] => {
            let host = units.iter().find_map(|unit| workers(job, *unit).next());
            let host = host.map_or("", |worker| job.workers[worker].host.as_str());
            format!("the network of {host} is slow: the links of its ranks are")
        }
        _ => {
            format!("the network interface of rank {} is slow to its only peer", names.join(" or "))
        }
    };
    let is_one = units.len() == 1;
    Finding {
        title,
        doubts: if is_one { doubts(slow) } else { vec![Doubt::MembersAlike] },
        root_ranks: ranks,
        ..about(FindingClass::SlowNic, job, slow, span)
    }
}

/// Among few links it takes blocks of time to show that one is slow.
fn doubts(slow: &[SlowEdge<'_>]) -> Vec<Doubt> {
    if slow.iter().any(|edge| edge.is_sure) { Vec::new() } else { vec![Doubt::FewPeers] }
}

/// What findings about links have in common.
fn about(class: FindingClass, job: &Job, slow: &[SlowEdge<'_>], span: f64) -> Finding {
    Finding {
        factor: Some(factor(slow)),
        most_lost_share: most_lost(slow, span),
        onset: onset(slow),
        comm_texts: comms(slow),
        evidence: evidence(class, job, slow),
        ..Finding::of(class)
    }
}

/// The workers whose links a unit has.
fn workers<'j>(job: &'j Job, unit: Unit<'j>) -> impl Iterator<Item = usize> + 'j {
    (0..job.workers.len()).filter(move |&at| match unit {
        Unit::Card(worker) | Unit::Out(worker) | Unit::In(worker) => worker == at,
        Unit::Link(src, dst) => [src, dst].contains(&at),
        Unit::Host(machine) => job.workers[at].machine == machine,
    })
}

fn roots<'j>(job: &'j Job, unit: Unit<'j>) -> impl Iterator<Item = u32> + 'j {
    workers(job, unit).map(|worker| job.workers[worker].rank)
}

/// The finding about a link.
pub(crate) fn link_finding(
    job: &Job,
    (src, dst): (usize, usize),
    slow: &[SlowEdge<'_>],
    span: f64,
) -> Finding {
    let (src, dst) = (job.workers[src].rank, job.workers[dst].rank);
    Finding {
        title: format!("the {} is slow", link_name(src, dst)),
        doubts: doubts(slow),
        root_ranks: vec![src, dst],
        edge: Some([src, dst]),
        ..about(FindingClass::SlowLink, job, slow, span)
    }
}

/// The finding about a link that a GPU may slow down as well as the network.
pub(crate) fn paced_finding(
    job: &Job,
    (src, dst): (usize, usize),
    paced: &[SlowEdge<'_>],
    span: f64,
) -> Finding {
    let [from, to] = [src, dst].map(|worker| job.workers[worker].rank);
    let mut finding = link_finding(job, (src, dst), paced, span);
    finding.title = format!("the {}, or a GPU at one end, is slow", link_name(from, to));
    finding.doubts.push(Doubt::GpuAtOneEnd);
    finding
}

fn comms(slow: &[SlowEdge<'_>]) -> Vec<String> {
    let names: BTreeSet<&String> = slow.iter().map(|of| &of.edge.comm).collect();
    names.into_iter().cloned().collect()
}
