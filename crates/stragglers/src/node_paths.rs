// SPDX-License-Identifier: Apache-2.0
/*!
Paths between the GPUs of a host that are slow (S5): communicators without network traffic whose
collectives take longer than comparable ones.

Collectives of equal function, size, members, algorithm, protocol and channels are comparable. What
those of a communicator take longer than the median of other communicators is its cost, and the one
test ([`ncclscope_statistics`]) says which cost too much. Ranks in all slow communicators and in no
healthy one are suspects.
*/

use crate::finding::Finding;
use crate::looked::{Because, Log, Seen};
use crate::onset::Onset;
use crate::rules::Rule;
use crate::transfers::{Kind, Transfers, usual};
use ncclscope_findings::{Doubt, Evidence, FindingClass};
use ncclscope_limits::slow;
use ncclscope_operations::human;
use ncclscope_statistics::Limits;
use ncclscope_statistics::{Against, Answer, Blocks, Effect, compare_units, median_of_others};
use std::collections::{BTreeMap, BTreeSet};

/// Slow communicators with common members.
type Path<'a> = (BTreeSet<usize>, Vec<(&'a str, &'a Effect)>);
/// Function, size, members and shape.
type ComparableKey<'a> = (&'a str, u64, u32, usize);

/// The communicators without network traffic, and the slow ones of them.
pub(crate) struct NodePaths<'a> {
    transfers: &'a Transfers<'a>,
    /// The times of each kind, and the usual times of comparable ones, ns.
    kinds: BTreeMap<Kind, [f64; 2]>,
    excess: BTreeMap<&'a str, Vec<f64>>,
    answers: Vec<Answer>,
    /// All of them.
    comms: BTreeSet<&'a str>,
}

impl<'a> NodePaths<'a> {
    pub(crate) fn of(transfers: &'a Transfers<'a>, limits: &Limits) -> NodePaths<'a> {
        let job = transfers.job;
        let networked = job.edges.iter().map(|edge| &edge.comm).chain(&job.networked);
        let networked: BTreeSet<&str> = networked.map(String::as_str).collect();
        let mut alike: BTreeMap<ComparableKey<'_>, Vec<(Kind, f64)>> = BTreeMap::new();
        let mut comms = BTreeSet::new();
        for (&kind, samples) in &transfers.kinds {
            let Kind::Collective(class, shape) = kind else { continue };
            let of = &job.classes[class];
            if networked.contains(of.comm.as_str()) {
                continue;
            }
            comms.insert(of.comm.as_str());
            // Collectives of unknown size are not comparable.
            if let Some((bytes, own)) = of.bytes.zip(usual(samples)) {
                let key = (&*of.func, bytes, of.members, shape);
                alike.entry(key).or_default().push((kind, own));
            }
        }
        let mut kinds = BTreeMap::new();
        for of in alike.values().filter(|of| of.len() >= slow::COMMUNICATORS) {
            let mut sorted: Vec<f64> = of.iter().map(|(_, own)| *own).collect();
            sorted.sort_unstable_by(f64::total_cmp);
            let usual = |own: f64| [own, median_of_others(&sorted, own)];
            kinds.extend(of.iter().map(|&(kind, own)| (kind, usual(own))));
        }
        let usual = kinds.iter().map(|(&kind, [_, usual])| (kind, *usual)).collect();
        let excess = transfers.excess(&usual);
        let mut blocks = Blocks::new(excess.len());
        for step in 0..transfers.steps.len() {
            blocks.push(excess.values().map(|values| values[step]));
        }
        let answers = compare_units(&blocks, Against::Usual, limits);
        NodePaths { transfers, kinds, excess, answers, comms }
    }

    /// Number of communicators without network traffic that have none to compare with.
    pub(crate) fn unjudged(&self) -> usize {
        self.comms.len() - self.excess.len()
    }

    /// The slow paths: one for all slow communicators with a common member.
    pub(crate) fn find(&self, limits: &Limits, log: &mut Log) -> Vec<Finding> {
        self.note(limits, log);
        let members = &self.transfers.members;
        let judged = self.excess.keys().zip(&self.answers);
        let (slow, healthy): (Vec<_>, Vec<_>) =
            judged.map(|(comm, answer)| (*comm, answer)).partition(|(_, of)| of.is_slow());
        let mut paths: Vec<Path<'_>> = Vec::new();
        for (comm, answer) in slow {
            let own = &members[comm];
            match paths.iter_mut().find(|(common, _)| !common.is_disjoint(own)) {
                Some((common, of)) => {
                    common.retain(|worker| own.contains(worker));
                    of.push((comm, answer.effect()));
                }
                None => paths.push((own.clone(), vec![(comm, answer.effect())])),
            }
        }
        let good: BTreeSet<usize> =
            healthy.iter().flat_map(|(comm, _)| members[comm].iter().copied()).collect();
        let finding = |(common, of): Path<'_>| {
            let suspects = common.difference(&good);
            let ranks = suspects.map(|&worker| self.transfers.job.workers[worker].rank);
            Finding { root_ranks: ranks.collect(), ..self.path(&of, limits) }
        };
        paths.into_iter().map(finding).collect()
    }

    /// Notes what the test says about each communicator.
    fn note(&self, limits: &Limits, log: &mut Log) {
        let answers: BTreeMap<&&str, &Answer> = self.excess.keys().zip(&self.answers).collect();
        for comm in &self.comms {
            log.saw(Rule::SlowNodePath, || {
                let subject = format!("communicator {comm}");
                let ranks = self.transfers.ranks(comm);
                if let Some(answer) = answers.get(comm) {
                    return Seen::of((subject, ranks), (answer, "step"), limits);
                }
                let why = format!("fewer than {} communicators are like it", slow::COMMUNICATORS);
                let saw = "it has no network traffic".into();
                Seen { subject, ranks, saw, because: Because::CannotTell(why), nearness: 0.0 }
            });
        }
    }

    /// A slow path, by the communicators that it slows down.
    fn path(&self, slow: &[(&str, &Effect)], limits: &Limits) -> Finding {
        let names: BTreeSet<&str> = slow.iter().map(|(comm, _)| *comm).collect();
        let of = self.kinds.iter().filter(|(kind, [own, usual])| {
            names.contains(self.transfers.comm(**kind)) && own > usual
        });
        let line = |(&kind, &[own, usual]): (&Kind, &[f64; 2])| {
            let text = format!(
                "{} takes {}, on others {}",
                self.transfers.describe(kind),
                human::duration(own),
                human::duration(usual)
            );
            let figures = [("own_ns", own), ("others_ns", usual)];
            Evidence::about(FindingClass::SlowNodePath, text).with(figures)
        };
        let onset = slow.iter().filter_map(|(comm, _)| self.onset(comm, limits)).reduce(f64::min);
        let factors = of.clone().map(|(_, [own, usual])| own / usual);
        Finding {
            title: "a path between GPUs is slow: NVLink, PCIe or shared memory".into(),
            doubts: vec![Doubt::OtherCause(FindingClass::GpuNotConsuming)],
            factor: factors.reduce(f64::max),
            // Communicators that run in parallel lose the same time.
            most_lost_share: slow.iter().map(|(_, effect)| effect.mean).reduce(f64::max),
            onset: onset.map(Onset::Job),
            comm_texts: names.iter().map(|&comm| comm.to_owned()).collect(),
            evidence: of.map(line).collect(),
            ..Finding::of(FindingClass::SlowNodePath)
        }
    }

    /// Start of the first step from which on a communicator costs what matters.
    fn onset(&self, comm: &str, limits: &Limits) -> Option<f64> {
        let steps = self.transfers.steps.iter().zip(&self.excess[comm]);
        let known = steps.filter(|(_, excess)| !excess.is_nan());
        let slow = known.map(|(step, excess)| (step.start, *excess >= limits.least_cost));
        Onset::first(&slow.collect::<Vec<_>>(), slow::STAYS)
    }
}
