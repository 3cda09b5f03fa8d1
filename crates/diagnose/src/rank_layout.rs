// SPDX-License-Identifier: Apache-2.0
//! Which ranks of the job the members of a communicator are that have no input.

use crate::job::{CommKind, Communicator, Job, Vector};
use std::collections::{BTreeMap, BTreeSet};

/// Maps ranks of a communicator to ranks of the job. A missing member has no input with its job
/// rank. Launchers usually form groups of ranks at a constant distance, which known members show;
/// if only one member is known, the distance in other communicators of the same size and role is
/// used.
pub(crate) struct RankLayouts {
    /// Distance of job ranks between neighbours in a communicator, by number of ranks and role;
    /// `None` if such communicators differ.
    steps: BTreeMap<(u32, Option<String>), Option<i64>>,
    /// The missing rank of the job, if exactly one is missing.
    pub(crate) only_missing: Option<u32>,
}

impl RankLayouts {
    pub(crate) fn new(job: &Job) -> RankLayouts {
        let mut steps: BTreeMap<(u32, Option<String>), Option<i64>> = BTreeMap::new();
        let mut ranks = 0;
        for comm in job.comms.iter().filter(|comm| comm.kind == CommKind::Collectives) {
            ranks = ranks.max(comm.nranks);
            if let Some(layout) = layout(job, comm) {
                let step =
                    steps.entry((comm.nranks, comm.role.clone())).or_insert(Some(layout.step));
                *step = step.filter(|step| *step == layout.step);
            }
        }
        let known: BTreeSet<u32> =
            job.processes.iter().filter_map(|process| process.rank).collect();
        let mut missing = (0..ranks).filter(|rank| !known.contains(rank));
        let only_missing = missing.next().filter(|_| missing.next().is_none());
        RankLayouts { steps, only_missing }
    }

    pub(crate) fn of(&self, job: &Job, comm: &Communicator) -> Option<RankLayout> {
        let by_others = || {
            let step = (*self.steps.get(&(comm.nranks, comm.role.clone()))?)?;
            let [one] = comm.vectors.as_slice() else { return None };
            let rank = i64::from(job.processes[one.process as usize].rank?);
            Some(RankLayout { start: rank - step * i64::from(one.rank), step })
        };
        layout(job, comm).or_else(by_others)
    }
}

/// Job ranks as a linear function of the ranks of a communicator.
#[derive(Clone, Copy)]
pub(crate) struct RankLayout {
    start: i64,
    step: i64,
}

impl RankLayout {
    pub(crate) fn at(self, rank: u32) -> Option<u32> {
        u32::try_from(self.start + self.step * i64::from(rank)).ok()
    }
}

fn layout(job: &Job, comm: &Communicator) -> Option<RankLayout> {
    let global = |vector: &Vector| Some(i64::from(job.processes[vector.process as usize].rank?));
    let points: Vec<(i64, i64)> =
        comm.vectors.iter().filter_map(|v| Some((i64::from(v.rank), global(v)?))).collect();
    let (&(x0, y0), &(x1, y1)) = (points.first()?, points.last()?);
    if x0 == x1 {
        return None;
    }
    let step = (y1 - y0) / (x1 - x0);
    let layout = RankLayout { start: y0 - step * x0, step };
    points.iter().all(|&(x, y)| layout.start + layout.step * x == y).then_some(layout)
}
