// SPDX-License-Identifier: Apache-2.0
/*!
GPUs that are slow inside collectives (N5): the kernel runs, data has arrived and a send buffer is
free, and the kernel uses neither.

The GPU's part in a network transfer is the time from the arrival of data until the GPU takes it
(`RecvGPUWait`), and from a free send buffer until the GPU fills it (`SendGPUWait`). Either alone
may be caused by the neighbours: a ring takes data only when it can pass it on. Both at once, on one
channel and while the kernel runs, are the GPU's fault. Where a ring continues inside the host, no
event shows this.
*/

use crate::finding::Finding;
use crate::limits::Limits;
use crate::model::{GpuStall, Job};
use ncclscope_findings::{Evidence, FindingClass, SlowPart};
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;
use ncclscope_statistics::median_of_others;
use std::collections::BTreeMap;

/// Finds GPUs that held up a job of `span` ns and so many steps for more than the limit. In short
/// runs with few steps, a single pause of a process on a busy machine can be as long.
pub(crate) fn find(job: &Job, (steps, span): (usize, f64), limits: &Limits) -> Vec<Finding> {
    if steps < limits.min_steps && span < limits.min_span_ns {
        return Vec::new();
    }
    let mut slow: BTreeMap<usize, Vec<(&GpuStall, f64)>> = BTreeMap::new();
    for stalls in comparable(job, limits) {
        let mut all: Vec<f64> = stalls.iter().map(|stall| stall.ns).collect();
        all.sort_unstable_by(f64::total_cmp);
        for stall in stalls {
            let usual = median_of_others(&all, stall.ns);
            if stall.ns > limits.stall_factor * usual {
                slow.entry(stall.worker).or_default().push((stall, usual));
            }
        }
    }
    let lost = |of: &[(&GpuStall, f64)]| of.iter().map(|(s, usual)| s.ns - usual).sum::<f64>();
    slow.retain(|_, of| span > 0.0 && lost(of) >= limits.min_stalled * span);
    slow.iter().map(|(&worker, of)| finding(job, worker, of, lost(of) / span)).collect()
}

/// A GPU is compared with others if its transfers show as much of what it did as this share of the
/// transfers that show most: in a host whose other GPUs have no network in a ring, one may have it
/// on both sides there, and the others only in small trees.
const ALIKE: f64 = 0.5;

/// The stalls of each communicator in which those of several GPUs are known equally well.
fn comparable<'j>(job: &'j Job, limits: &Limits) -> impl Iterator<Item = Vec<&'j GpuStall>> {
    let is_enough = |stall: &&GpuStall| stall.shown > 0 && stall.transfers >= limits.min_samples;
    let mut comms: BTreeMap<&str, Vec<&GpuStall>> = BTreeMap::new();
    for stall in job.stalls.iter().filter(is_enough) {
        comms.entry(&stall.comm).or_default().push(stall);
    }
    let alike = comms.into_values().map(|mut stalls| {
        let most = stalls.iter().map(|stall| stall.shown).max().unwrap_or_default();
        stalls.retain(|stall| to_f64(stall.shown) >= ALIKE * to_f64(most));
        stalls
    });
    alike.filter(|stalls| stalls.len() > 1)
}

/// The least share of a GPU's network traffic in which its part must be known: a slow GPU does not
/// show in a small collective now and then.
const KNOWN_SHARE: f64 = 0.1;

/// Number of workers whose GPUs cannot be judged: their part in transfers is not known, or there is
/// no other GPU to compare with.
pub(crate) fn unjudged(job: &Job, limits: &Limits) -> usize {
    let mut known: BTreeMap<usize, f64> = BTreeMap::new();
    for stall in comparable(job, limits).flatten() {
        *known.entry(stall.worker).or_default() += to_f64(stall.bytes);
    }
    let mut all: BTreeMap<usize, f64> = BTreeMap::new();
    for stall in &job.stalls {
        *all.entry(stall.worker).or_default() += to_f64(stall.bytes);
    }
    let is_judged = |(worker, bytes): &(&usize, &f64)| {
        **bytes >= KNOWN_SHARE * all.get(worker).copied().unwrap_or_default()
    };
    job.workers.len().saturating_sub(known.iter().filter(is_judged).count())
}

fn finding(job: &Job, worker: usize, of: &[(&GpuStall, f64)], lost: f64) -> Finding {
    let root = SlowPart::from(&job.workers[worker]);
    let line = |(stall, usual): &(&GpuStall, f64)| {
        let text = format!(
            "communicator {}: for {} of its kernels' time, data and a free buffer were there and \
             the GPU used neither; median of the others {}; {} transfers",
            stall.comm,
            human::duration(stall.ns),
            human::duration(*usual),
            stall.transfers
        );
        let figures = [("stalled_ns", stall.ns), ("others_ns", *usual)];
        Evidence::of(FindingClass::GpuNotConsuming, job.workers[worker].rank, text).with(figures)
    };
    Finding {
        title: format!("the GPU of {} is slow inside collectives", root.name()),
        root: Some(root),
        root_ranks: vec![job.workers[worker].rank],
        lost_share: Some(lost),
        comm_texts: of.iter().map(|(stall, _)| stall.comm.clone()).collect(),
        evidence: of.iter().map(line).collect(),
        ..Finding::of(FindingClass::GpuNotConsuming)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Worker;

    fn stall(comm: &str, worker: usize, ns: f64) -> GpuStall {
        let bytes = 118 << 20;
        GpuStall { comm: comm.into(), worker, transfers: 118, bytes, ns, shown: bytes }
    }

    /// The ranks of the findings in a run of so many steps and ns.
    fn found(job: &Job, run: (usize, f64)) -> Vec<u32> {
        let all = find(job, run, &Limits::default());
        all.into_iter().flat_map(|finding| finding.root_ranks).collect()
    }

    #[test]
    fn a_gpu_without_both_directions_or_without_others_is_not_judged() {
        let one_way = GpuStall { shown: 0, ..stall("c", 2, 0.0) };
        let few = GpuStall { transfers: 3, ..stall("c", 3, 0.0) };
        let job = Job {
            workers: (0..6).map(|rank| Worker::new(rank, "")).collect(),
            stalls: vec![stall("c", 0, 0.0), stall("c", 1, 0.0), one_way, few, stall("d", 4, 0.0)],
            ..Job::default()
        };
        assert_eq!(unjudged(&job, &Limits::default()), 4);
        // Rank 1 sends much more in a ring in which nothing shows its part.
        let ring = GpuStall { bytes: 118 << 30, shown: 0, ..stall("e", 1, 0.0) };
        let job = Job { stalls: [job.stalls, vec![ring]].concat(), ..job };
        assert_eq!(unjudged(&job, &Limits::default()), 5);
    }

    /// A ring of 24 ranks on hosts of three, of which two have network on both sides.
    #[test]
    fn a_gpu_is_not_compared_with_those_of_which_nothing_is_known() {
        let one_way = |worker| GpuStall { shown: 0, ..stall("c", worker, 0.0) };
        let job = |both: &[(usize, f64)]| Job {
            workers: (0..6).map(|rank| Worker::new(rank, "")).collect(),
            stalls: (0..6)
                .map(|worker| match both.iter().find(|(at, _)| *at == worker) {
                    Some(&(_, ns)) => stall("c", worker, ns),
                    None => one_way(worker),
                })
                .collect(),
            ..Job::default()
        };
        let found = |both: &[(usize, f64)]| found(&job(both), (20, 1e9));
        assert_eq!(found(&[(2, 4e7)]), [0; 0]);
        assert_eq!(found(&[(2, 4e7), (4, 4e7)]), [0; 0]);
        assert_eq!(found(&[(2, 4e7), (4, 4e8)]), [4]);
    }

    /// Four ranks on hosts of three: rank 3 has network on both sides of the ring, ranks 0 and 2
    /// only in small trees.
    #[test]
    fn a_gpu_in_a_ring_is_not_compared_with_those_in_small_trees() {
        let tree = |worker| GpuStall { shown: 1 << 20, ..stall("c", worker, 1e4) };
        let job = |rings: &[(usize, f64)]| Job {
            workers: (0..5).map(|rank| Worker::new(rank, "")).collect(),
            stalls: rings
                .iter()
                .map(|&(worker, ns)| stall("c", worker, ns))
                .chain([0, 2].map(tree))
                .collect(),
            ..Job::default()
        };
        let found = |rings: &[(usize, f64)]| found(&job(rings), (20, 1e9));
        assert_eq!(found(&[(3, 4e7)]), [0; 0]);
        assert_eq!(found(&[(3, 4e7), (4, 4e8)]), [4]);
        assert_eq!(unjudged(&job(&[(3, 4e7), (4, 4e7)]), &Limits::default()), 3);
    }

    #[test]
    fn a_few_steps_of_a_short_run_show_no_slow_gpu() {
        let stall = |worker, ns| stall("c", worker, ns);
        let job = Job {
            workers: (0..2).map(|rank| Worker::new(rank, "")).collect(),
            stalls: vec![stall(0, 8.4e6), stall(1, 41.4e6)],
            ..Job::default()
        };
        let found = |steps, span| found(&job, (steps, span));
        // The figures of a healthy job on a busy machine.
        assert_eq!(found(1, 832e6), [0; 0]);
        assert_eq!(found(10, 832e6), [1]);
        let job = Job { stalls: vec![stall(0, 84e6), stall(1, 414e6)], ..job };
        let all = find(&job, (1, 11e9), &Limits::default());
        assert_eq!(all.len(), 1, "without steps, a long run tells");
    }
}
