// SPDX-License-Identifier: Apache-2.0
/*!
GPUs that are slow inside collectives (N5): data to take and room to pass it on are there, and the
kernel, which runs, moves neither.

The GPU's part in a network transfer is the time from the arrival of data to its being taken
(`RecvGPUWait`), and from a free buffer to its being filled (`SendGPUWait`). Either alone may be the
neighbours' fault: a ring takes data only when it can pass it on. Both at once, on one channel and
while the kernel runs, is the GPU's own. Where a ring goes on inside the host, nothing tells.
*/

use crate::model::Job;
use crate::report::{Finding, Limits, Root};
use crate::robust::median_of_others;
use ncclscope_findings::{Confidence, FindingClass};
use ncclscope_operations::human;
use std::collections::BTreeMap;

/// What one GPU held up in a communicator.
#[derive(Clone, PartialEq, Debug)]
pub struct Stall {
    /// The communicator's name.
    pub comm: String,
    /// Index in [`Job::workers`].
    pub worker: usize,
    /// Network transfers that it took part in.
    pub transfers: u64,
    /// For how long it could have gone on and did not, mean of its channels, ns.
    pub ns: f64,
}

/// The GPUs that hold up a job of `span` ns for more of it than the limit.
pub(crate) fn find(job: &Job, span: f64, limits: &Limits) -> Vec<Finding> {
    let mut comms: BTreeMap<&str, Vec<&Stall>> = BTreeMap::new();
    for stall in job.stalls.iter().filter(|stall| stall.transfers >= limits.min_samples) {
        comms.entry(&stall.comm).or_default().push(stall);
    }
    let mut slow: BTreeMap<usize, Vec<(&Stall, f64)>> = BTreeMap::new();
    for stalls in comms.into_values() {
        let mut all: Vec<f64> = stalls.iter().map(|stall| stall.ns).collect();
        all.sort_unstable_by(f64::total_cmp);
        for stall in stalls {
            let usual = median_of_others(&all, stall.ns);
            if stall.ns > limits.stall_factor * usual {
                slow.entry(stall.worker).or_default().push((stall, usual));
            }
        }
    }
    let lost = |of: &[(&Stall, f64)]| of.iter().map(|(s, usual)| s.ns - usual).sum::<f64>();
    slow.retain(|_, of| span > 0.0 && lost(of) >= limits.min_stalled * span);
    slow.iter().map(|(&worker, of)| finding(job, worker, of, lost(of) / span)).collect()
}

fn finding(job: &Job, worker: usize, of: &[(&Stall, f64)], lost: f64) -> Finding {
    let root = Root::of(&job.workers[worker]);
    let line = |(stall, usual): &(&Stall, f64)| {
        format!(
            "communicator {}: for {} of its kernels' time data and room for it were there and the \
             GPU moved neither, {} on the others' median, over {} transfers",
            stall.comm,
            human::duration(stall.ns),
            human::duration(*usual),
            stall.transfers
        )
    };
    Finding {
        title: format!("the GPU of {} is slow inside collectives", root.name()),
        confidence: Confidence::Confirmed,
        root: Some(root),
        root_ranks: vec![job.workers[worker].rank],
        lost,
        comms: of.iter().map(|(stall, _)| stall.comm.clone()).collect(),
        evidence: of.iter().map(line).collect(),
        ..Finding::of(FindingClass::GpuNotConsuming)
    }
}
