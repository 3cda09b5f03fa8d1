// SPDX-License-Identifier: Apache-2.0
/*!
How long operations take to transfer, by class and step.

The shortest time that any member spent in a collective, or either end in a send, is its transfer
time: that member arrived last and did not wait. This needs no clock alignment, and does not include
lateness.
*/

use crate::model::{Collective, Job, P2pBatch};
use crate::steps::{Step, Steps};
use ncclscope_operations::human;
use ncclscope_operations::stats::{count, median};
use std::collections::{BTreeMap, BTreeSet};

/// Operations that are alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// A class of collectives, and their algorithm, protocol and channels.
    Collective(usize, usize),
    /// A class of sends and receives.
    P2p(usize),
}

/// An operation: index of its step in [`Transfers::steps`], and its transfer time, ns.
pub(crate) type Sample = (usize, f64);

/// The transfer times of a job's complete operations.
pub(crate) struct Transfers<'a> {
    pub(crate) job: &'a Job,
    /// The steps, without what belongs to none.
    pub(crate) steps: Vec<Step>,
    /// Mean duration of a step, ns.
    mean: f64,
    /// Times by kind, in the order of steps.
    pub(crate) kinds: BTreeMap<Kind, Vec<Sample>>,
    /// The workers of each communicator.
    pub(crate) members: BTreeMap<&'a str, BTreeSet<usize>>,
}

impl<'a> Transfers<'a> {
    /// The times of a job; none if it has no times of kernels.
    pub(crate) fn of(job: &'a Job, steps: &Steps) -> Transfers<'a> {
        let mut places = vec![None; steps.list.len()];
        let all = steps.list.iter().enumerate().filter(|(_, step)| step.is_timed());
        all.clone().zip(0..).for_each(|((at, _), place)| places[at] = Some(place));
        let list: Vec<Step> = all.map(|(_, step)| *step).collect();
        let mut kinds: BTreeMap<Kind, Vec<Sample>> = BTreeMap::new();
        let timed = if job.is_kernel_timed { &job.collectives[..] } else { &[] };
        for (collective, &step) in timed.iter().zip(&steps.of_collective) {
            let Some(place) = places[step].filter(|_| is_complete(job, collective)) else {
                continue;
            };
            let parts = collective.parts.iter().map(|part| part.end - part.start);
            let sample = (place, parts.fold(f64::MAX, f64::min));
            let kind = Kind::Collective(collective.class, collective.shape);
            kinds.entry(kind).or_default().push(sample);
        }
        let timed = if job.is_kernel_timed { &job.batches[..] } else { &[] };
        for (batch, &step) in timed.iter().zip(&steps.of_batch) {
            let known = places[step].zip(batch.class).filter(|_| is_matched(job, batch));
            let Some((place, class)) = known else { continue };
            let sample = (place, transfer(job, batch));
            kinds.entry(Kind::P2p(class)).or_default().push(sample);
        }
        kinds.values_mut().for_each(|samples| samples.sort_by_key(|(step, _)| *step));
        let mean = list.iter().map(|step| step.duration).sum::<f64>() / count(list.len()).max(1.0);
        Transfers { job, steps: list, mean, kinds, members: members(job) }
    }

    /// By how much the operations of each communicator take longer than usual in each step, as
    /// shares of a step in the mean of its members; NaN where it has none. Kinds without a usual
    /// time are left out.
    pub(crate) fn excess(&self, usual: &BTreeMap<Kind, f64>) -> BTreeMap<&'a str, Vec<f64>> {
        let mut comms: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (&kind, usual) in usual {
            let name = self.comm(kind);
            let of = comms.entry(name).or_insert_with(|| vec![f64::NAN; self.steps.len()]);
            // A batch is one member's.
            let share = match kind {
                Kind::Collective(..) => 1.0,
                Kind::P2p(_) => 1.0 / count(self.members.get(name).map_or(1, BTreeSet::len)),
            };
            for &(step, ns) in &self.kinds[&kind] {
                let known = if of[step].is_nan() { 0.0 } else { of[step] };
                of[step] = known + share * (ns - usual) / self.mean;
            }
        }
        comms
    }

    /// The ranks of a communicator.
    pub(crate) fn ranks(&self, comm: &str) -> Vec<u32> {
        let members = self.members.get(comm).into_iter().flatten();
        members.map(|&worker| self.job.workers[worker].rank).collect()
    }

    /// The communicator of a kind.
    pub(crate) fn comm(&self, kind: Kind) -> &'a str {
        match kind {
            Kind::Collective(class, _) => &self.job.classes[class].comm,
            Kind::P2p(class) => &self.job.p2p_classes[class].comm,
        }
    }

    /// A kind in words.
    pub(crate) fn describe(&self, kind: Kind) -> String {
        match kind {
            Kind::Collective(class, shape) => {
                format!("{}, {}", describe(self.job, class), self.job.shapes[shape])
            }
            Kind::P2p(class) => {
                let class = &self.job.p2p_classes[class];
                format!("{}{} on communicator {}", class.func, size(class.bytes), class.comm)
            }
        }
    }
}

/// The median transfer time of samples, ns.
pub(crate) fn usual(samples: &[Sample]) -> Option<f64> {
    median(&mut samples.iter().map(|(_, ns)| *ns).collect::<Vec<_>>())
}

/// A class of collectives in words.
pub(crate) fn describe(job: &Job, class: usize) -> String {
    let class = &job.classes[class];
    format!("{}{} on communicator {}", class.func, size(class.bytes), class.comm)
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| format!(" of {}", human::bytes(bytes)))
}

/// The transfer time of sends and receives, ns.
fn transfer(job: &Job, batch: &P2pBatch) -> f64 {
    let duration = |batch: &P2pBatch| batch.part.end - batch.part.start;
    let ends = batch.partners.iter().map(|&at| duration(&job.batches[at]));
    ends.fold(duration(batch), f64::min)
}

/// True if both ends of each of its sends and receives are known.
fn is_matched(job: &Job, batch: &P2pBatch) -> bool {
    let has_end = |&at: &usize| job.batches[at].has_end;
    let is_known = batch.has_end && !batch.is_lacking && !batch.partners.is_empty();
    is_known && batch.partners.iter().all(has_end)
}

/// The workers of each communicator.
fn members(job: &Job) -> BTreeMap<&str, BTreeSet<usize>> {
    let mut members: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for collective in &job.collectives {
        let class = &job.classes[collective.class];
        let of = members.entry(&class.comm).or_default();
        // A job has many collectives, and few communicators.
        if of.len() < class.members as usize {
            of.extend(collective.parts.iter().map(|part| part.worker));
        }
    }
    for batch in &job.batches {
        if let Some(class) = batch.class {
            members.entry(&job.p2p_classes[class].comm).or_default().insert(batch.part.worker);
        }
    }
    members
}

fn is_complete(job: &Job, collective: &Collective) -> bool {
    let members = job.classes[collective.class].members as usize;
    collective.parts.len() > 1 && collective.parts.len() >= members
}
