// SPDX-License-Identifier: Apache-2.0
/*!
What a finding costs: how much shorter the steps of the job would have been if its ranks, or the
transfers since its begin, had been like their peers, or as before ([`ncclscope_delays`]).
*/

use crate::finding::Finding;
use crate::onset::Onset;
use crate::replay::Replay;
use ncclscope_delays::{Quicker, Replaced, Unit};
use ncclscope_findings::{Cost, Doubt, FindingClass};
use ncclscope_limits::slow;
use ncclscope_operations::stats::{count, to_f64};
use ncclscope_statistics::mean_and_error;
use std::collections::BTreeSet;

/// Minimum number of steps whose durations are known; fewer give no error.
const STEPS: usize = 3;

/// The job after the repair of what its findings are about.
pub(crate) struct Repaired {
    /// The weights of all moments, ns.
    pub(crate) weights: Vec<f64>,
    /// Index of the finding whose repair made each moment shorter last.
    pub(crate) owner: Vec<Option<usize>>,
}

/// Repairs one finding after another, that whose repair alone gains most first, and sets the costs
/// of those that can be replayed: what the repair gains after those before it, so that costs add
/// up. (Of two ranks that are equally slow the first repair gains nothing, and the second one all.)
/// Sorts the findings by their costs.
///
/// In an input that lists the work, a rank that neither works nor takes part in an operation may
/// wait for something that was not recorded, and which the repair may also shorten (in a table of a
/// Megatron job the last stage stands for 22.7 s before an operation: a reduction is missing). The
/// replay is then a lower limit.
///
/// Where the operations on a slow link have no peers, as in a job of one communicator, they are
/// replayed as if the link alone kept them, and nothing else was kept by it. The time on the wire
/// is the second estimate. In six recordings of limited interfaces in the cluster in a box the
/// first is up to 6 % above what the interface costs; in simulated rings of three to eight hosts it
/// is up to a fifth below, because the transfers of one operation hold up those of the next.
pub(crate) fn repair(replay: &Replay<'_>, findings: &mut Vec<Finding>) -> Repaired {
    let mut weights = replay.graph.weights().to_vec();
    let usual = replay.durations(&weights);
    let mut gains: Vec<(usize, f64)> = Vec::new();
    for (at, finding) in findings.iter().enumerate() {
        let replaced = replaced(replay, finding, &weights);
        gains.extend(replaced.map(|it| (at, -replay.mean(&it.weights))));
    }
    gains.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (mut owner, mut durations) = (vec![None; weights.len()], usual.clone());
    for (at, _) in gains {
        let finding = &mut findings[at];
        let Some(replaced) = replaced(replay, finding, &weights) else { continue };
        let after = replay.durations(&replaced.weights);
        // What a process without a processor loses is spread over everything that it does, and the
        // noise of its peers is as large: the system's figures are better (a rank with 15 % of a
        // processor among three in the cluster in a box).
        if finding.class != FindingClass::ShortOfCpu && usual.len() >= STEPS {
            let cost = cost(replay, &usual, [&durations, &after]);
            finding.help.cost = Some(match finding.help.cost {
                Some(of_wire) if replaced.is_guess => cost.or(of_wire),
                Some(most) if !replay.job.own.is_empty() => cost.up_to(most),
                _ => cost,
            });
        }
        durations = after;
        for (moment, weight) in replaced.weights.into_iter().enumerate() {
            if weight < weights[moment] {
                owner[moment] = Some(at);
            }
            weights[moment] = weight;
        }
    }
    let places = dearest_first(findings);
    owner.iter_mut().flatten().for_each(|owner| *owner = places[*owner]);
    Repaired { weights, owner }
}

/// Sorts findings by cost; those without a known cost keep their order, and those that a slow link
/// may explain come last. Returns the new place of each.
pub(crate) fn dearest_first(findings: &mut Vec<Finding>) -> Vec<usize> {
    let cost = |finding: &Finding| finding.help.cost.map_or(0.0, |cost| cost.step_share);
    let is_doubted = |finding: &Finding| {
        finding.doubts.iter().any(|doubt| matches!(doubt, Doubt::SlowLinkThere(_)))
    };
    let mut all: Vec<(usize, Finding)> = std::mem::take(findings).into_iter().enumerate().collect();
    all.sort_by(|(_, a), (_, b)| {
        is_doubted(a).cmp(&is_doubted(b)).then(cost(b).total_cmp(&cost(a)))
    });
    let mut places = vec![0; all.len()];
    all.iter().enumerate().for_each(|(place, (at, _))| places[*at] = place);
    findings.extend(all.into_iter().map(|(_, finding)| finding));
    places
}

/// By how much the steps of the second durations are shorter than those of the first, as a share of
/// the steps as they were, ns.
fn cost(replay: &Replay<'_>, usual: &[f64], [before, after]: [&[f64]; 2]) -> Cost {
    let mean = usual.iter().sum::<f64>() / count(usual.len());
    let steps = before.iter().zip(after);
    let gains: Vec<f64> = steps.map(|(before, after)| (before - after) / mean).collect();
    let (gain, error) = mean_and_error(&gains);
    Cost::between(gain, error + slow::REFERENCES, count(replay.job.workers.len()))
}

/// These weights, but with those of what a finding is about at their peers; `None` if it names
/// neither ranks nor a begin, or if what it is about has no peers.
fn replaced(replay: &Replay<'_>, finding: &Finding, weights: &[f64]) -> Option<Replaced> {
    let workers = replay.job.workers.iter().zip(0..);
    let roots = workers.filter(|(worker, _)| finding.root_ranks.contains(&worker.rank));
    let ranks: BTreeSet<u32> = roots.map(|(_, at)| at).collect();
    let unit = match (ranks.is_empty(), finding.onset) {
        (false, _) => Unit::Ranks(&ranks),
        (true, Some(Onset::Job(onset))) => Unit::Since(replay.step_at(onset)),
        _ => return None,
    };
    let replaced = replay.peers.weights(&replay.graph, unit, weights);
    let is_known = match is_late(finding.class) {
        true => replaced.has_work,
        false => replaced.has_transfers,
    };
    let weights = if is_known { &replaced.weights } else { weights };
    let link = without_link(replay, finding, ranks, weights);
    link.or_else(|| is_known.then_some(replaced))
}

/// These weights, but with the operations on a slow link or card that have no peers as quick as if
/// it was usual; `None` if there are none.
fn without_link(
    replay: &Replay<'_>,
    finding: &Finding,
    ranks: BTreeSet<u32>,
    weights: &[f64],
) -> Option<Replaced> {
    let is_link = matches!(finding.class, FindingClass::SlowLink | FindingClass::SlowNic);
    let factor = finding.factor.filter(|_| is_link && finding.most_lost_share.is_some())?;
    let comms = replay.comms.iter().zip(0..);
    let comms = comms.filter(|(comm, _)| finding.comm_texts.iter().any(|text| text == *comm));
    let since = finding.onset.map(|onset| match onset {
        Onset::Job(ns) => ns,
        Onset::Real(ns) => to_f64(ns.saturating_sub(replay.job.origin_ns.unwrap_or(0))),
    });
    let since = since.map_or(0, |ns| replay.step_at(ns));
    let link = Quicker { ranks, comms: comms.map(|(_, at)| at).collect(), since, factor };
    let replaced = replay.peers.weights(&replay.graph, Unit::Link(&link), weights);
    replaced.has_transfers.then_some(replaced)
}

/// Whether a finding is about the work of ranks, rather than about their transfers.
fn is_late(class: FindingClass) -> bool {
    matches!(class, FindingClass::SlowRank | FindingClass::SlowLaunch)
}
