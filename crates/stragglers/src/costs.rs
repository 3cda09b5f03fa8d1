// SPDX-License-Identifier: Apache-2.0
/*!
What a finding costs: how much shorter the steps of the job would have been if its ranks, or the
transfers since its begin, had been like their peers, or as before ([`ncclscope_delays`]).
*/

use crate::clock::Clocks;
use crate::finding::Finding;
use crate::model::{CollectiveClass, Job, P2pBatch, Part};
use crate::onset::Onset;
use crate::steps::{Step, Steps};
use ncclscope_delays as delays;
use ncclscope_delays::{Graph, Operation, Peers, Unit};
use ncclscope_findings::{Cost, FindingClass};
use ncclscope_operations::stats::count;
use ncclscope_statistics::mean_and_error;
use std::collections::{BTreeSet, HashMap};

/// Error of the weights of peers, as a share of a step: `all references = healthy twin` holds
/// within 1.2 % on 52 simulated jobs (`../shared/design/judgement.md`, section 0, took the same).
const REFERENCE_ERROR: f64 = 0.01;
/// Minimum number of steps whose durations are known; fewer give no error.
const STEPS: usize = 3;
/// Maximum number of parts of operations that are replayed; each has three moments of 36 bytes. Of
/// larger jobs the last steps are.
const PARTS: usize = 1_300_000;

/// A job that can be replayed.
pub(crate) struct Costs<'a> {
    job: &'a Job,
    graph: Graph,
    peers: Peers,
    steps: &'a [Step],
    /// Duration of each step, ns; NaN if unknown.
    durations: Vec<f64>,
}

impl<'a> Costs<'a> {
    /// The moments of a job; `None` if it has too few steps, or no times of kernels.
    pub(crate) fn of(job: &'a Job, clocks: &Clocks, steps: &'a Steps) -> Option<Costs<'a>> {
        if !job.is_kernel_timed {
            return None;
        }
        let operations = operations(job, clocks, steps, first(job, steps));
        let graph = Graph::of(operations, job.workers.len(), steps.list.len(), job.steps_restart);
        let peers = Peers::of(&graph);
        let durations = graph.durations(&graph.replay(graph.weights()));
        let costs = Costs { job, graph, peers, steps: &steps.list, durations };
        (costs.gains(costs.graph.weights()).len() >= STEPS).then_some(costs)
    }

    /// What a finding costs; `None` if it names neither ranks nor a begin, or if what it is about
    /// has no peers.
    pub(crate) fn cost(&self, finding: &Finding) -> Option<Cost> {
        // What a process without a processor loses is spread over everything that it does, and the
        // noise of its peers is as large: the system's figures are better (a rank with 15 % of a
        // processor among three in the cluster in a box).
        if finding.class == FindingClass::ShortOfCpu {
            return None;
        }
        let is_root = |rank: u32| finding.root_ranks.contains(&rank);
        let workers = self.job.workers.iter().zip(0..).filter(|(worker, _)| is_root(worker.rank));
        let ranks: BTreeSet<u32> = workers.map(|(_, at)| at).collect();
        let unit = match (ranks.is_empty(), finding.onset) {
            (false, _) => Unit::Ranks(&ranks),
            (true, Some(Onset::Job(onset))) => Unit::Since(self.step_at(onset)),
            _ => return None,
        };
        let replaced = self.peers.weights(&self.graph, unit);
        let is_known = match is_late(finding.class) {
            true => replaced.has_work,
            false => replaced.has_transfers,
        };
        if !is_known {
            return None;
        }
        let gains = self.gains(&replaced.weights);
        let (mean, error) = mean_and_error(&gains);
        Some(Cost::between(mean, error + REFERENCE_ERROR, count(self.job.workers.len())))
    }

    /// The first step that does not begin before a time.
    fn step_at(&self, onset: f64) -> u32 {
        let before = self.steps.partition_point(|step| step.start < onset);
        u32::try_from(before).unwrap_or(u32::MAX)
    }

    /// By how much each step is shorter with these weights, as a share of the mean step.
    fn gains(&self, weights: &[f64]) -> Vec<f64> {
        let durations = self.graph.durations(&self.graph.replay(weights));
        let steps = self.durations.iter().zip(durations).zip(self.steps);
        let steps: Vec<(f64, f64)> = steps
            .filter(|((before, _), step)| step.number != Step::NONE && !before.is_nan())
            .map(|((before, after), _)| (*before, before - after))
            .collect();
        let mean = steps.iter().map(|(before, _)| before).sum::<f64>() / count(steps.len());
        steps.iter().map(|(_, gain)| gain / mean).collect()
    }
}

/// Whether a finding is about the work of ranks, rather than about their transfers.
fn is_late(class: FindingClass) -> bool {
    matches!(class, FindingClass::SlowRank | FindingClass::SlowLaunch)
}

/// The first of the last steps that have no more than [`PARTS`].
fn first(job: &Job, steps: &Steps) -> usize {
    let mut parts = vec![0; steps.list.len()];
    steps.parts(job).for_each(|(_, step)| parts[step] += 1);
    let mut left = PARTS;
    let fits = |parts: &&usize| {
        left = left.saturating_sub(**parts);
        left > 0
    };
    steps.list.len() - parts.iter().rev().take_while(fits).count()
}

/// The operations of a job on its clock, from a step on. Those of earlier steps have no parts.
fn operations(job: &Job, clocks: &Clocks, steps: &Steps, first_step: usize) -> Vec<Operation> {
    let mut kinds = Kinds::default();
    let part = |part: &Part| delays::Part {
        rank: index(part.worker),
        arrival: clocks.time(part.worker, part.start),
        end: clocks.time(part.worker, part.end),
    };
    let mut all = Vec::with_capacity(job.collectives.len() + job.batches.len());
    for (collective, &step) in job.collectives.iter().zip(&steps.of_collective) {
        let (kind, comm) = kinds.of_collective(job, &job.classes[collective.class]);
        let is_in = step >= first_step;
        let parts = collective.parts.iter().filter(|_| is_in).map(part).collect();
        all.push(Operation { kind, comm, step: index(step), parts, partners: Vec::new() });
    }
    let first = all.len();
    for (batch, &step) in job.batches.iter().zip(&steps.of_batch) {
        let (kind, comm) = kinds.of_batch(job, batch);
        let partners: BTreeSet<u32> = batch.partners.iter().map(|&at| index(first + at)).collect();
        let parts = std::iter::once(&batch.part).filter(|_| step >= first_step).map(part);
        let (parts, partners) = (parts.collect(), partners.into_iter().collect());
        all.push(Operation { kind, comm, step: index(step), parts, partners });
    }
    all
}

fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Role, function and size of comparable operations.
type Kind<'a> = (String, &'a str, Option<u64>);

/// Numbers for the kinds of operations, and for communicators.
#[derive(Default)]
struct Kinds<'a> {
    kinds: HashMap<Kind<'a>, u32>,
    comms: HashMap<&'a str, u32>,
}

impl<'a> Kinds<'a> {
    fn of_collective(&mut self, job: &Job, class: &'a CollectiveClass) -> (u32, u32) {
        let role = job.roles.get(&class.comm).cloned();
        let role = role.unwrap_or_else(|| class.members.to_string());
        self.numbers((role, &class.func, class.bytes), &class.comm)
    }

    fn of_batch(&mut self, job: &'a Job, batch: &P2pBatch) -> (u32, u32) {
        let Some(class) = batch.class.map(|at| &job.p2p_classes[at]) else {
            return self.numbers((String::new(), "", None), "");
        };
        let role = job.roles.get(&class.comm).cloned().unwrap_or_default();
        self.numbers((role, class.func, class.bytes), &class.comm)
    }

    fn numbers(&mut self, kind: Kind<'a>, comm: &'a str) -> (u32, u32) {
        let (kinds, comms) = (index(self.kinds.len()), index(self.comms.len()));
        (*self.kinds.entry(kind).or_insert(kinds), *self.comms.entry(comm).or_insert(comms))
    }
}
