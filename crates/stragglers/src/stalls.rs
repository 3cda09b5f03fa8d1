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
use crate::looked::{Because, Log, Seen};
use crate::model::{GpuStall, Job};
use crate::rules::Rule;
use crate::time_blocks::{TimeBlocks, shares};
use ncclscope_findings::{Evidence, FindingClass, SlowPart};
use ncclscope_limits::slow;
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;
use ncclscope_statistics::Limits;
use ncclscope_statistics::{Against, Blocks, compare_units, median_of_others};
use std::collections::BTreeMap;

/// Finds GPUs that held up a job of `span` ns by more than others, in the one test
/// ([`ncclscope_statistics`]). A single pause of a process on a busy machine is no such thing.
pub(crate) fn find(job: &Job, span: f64, limits: &Limits, log: &mut Log) -> Vec<Finding> {
    let groups: Vec<Vec<&GpuStall>> = comparable(job).collect();
    let all: Vec<&TimeBlocks> = groups.iter().flatten().map(|stall| &stall.blocks).collect();
    let mut blocks = Blocks::new(job.workers.len());
    for row in shares(&all, span) {
        let mut excess = vec![f64::NAN; job.workers.len()];
        let mut shares = row.into_iter();
        for stalls in &groups {
            let of: Vec<f64> = shares.by_ref().take(stalls.len()).collect();
            let mut sorted = of.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            for (stall, share) in stalls.iter().zip(of) {
                let known = Some(excess[stall.worker]).filter(|known| !known.is_nan());
                let more = share - median_of_others(&sorted, share);
                excess[stall.worker] = known.unwrap_or_default() + more;
            }
        }
        blocks.push(excess);
    }
    let answers = compare_units(&blocks, Against::Usual, limits);
    for (answer, (at, worker)) in answers.iter().zip(job.workers.iter().enumerate()) {
        log.saw(Rule::SlowGpu, || {
            let (subject, ranks) = (SlowPart::from(worker).name(), vec![worker.rank]);
            if groups.iter().flatten().any(|stall| stall.worker == at) {
                return Seen::of((subject, ranks), (answer, "block"), limits);
            }
            let saw = "its part in collectives is not known".into();
            let why = "no other GPU to compare with: its events show the network on one side, or \
                       too few transfers";
            Seen { subject, ranks, saw, because: Because::CannotTell(why.into()), nearness: 0.0 }
        });
    }
    let slow = answers.into_iter().enumerate().filter(|(_, answer)| answer.is_slow());
    slow.map(|(worker, answer)| finding(job, worker, &groups, answer.effect().mean)).collect()
}

/// The stalls of each communicator in which those of several GPUs are known equally well.
fn comparable(job: &Job) -> impl Iterator<Item = Vec<&GpuStall>> {
    let is_enough = |stall: &&GpuStall| stall.shown > 0 && stall.transfers >= slow::SAMPLES;
    let mut comms: BTreeMap<&str, Vec<&GpuStall>> = BTreeMap::new();
    for stall in job.stalls.iter().filter(is_enough) {
        comms.entry(&stall.comm).or_default().push(stall);
    }
    let alike = comms.into_values().map(|mut stalls| {
        let most = stalls.iter().map(|stall| stall.shown).max().unwrap_or_default();
        stalls.retain(|stall| to_f64(stall.shown) >= slow::SHOWN * to_f64(most));
        stalls
    });
    alike.filter(|stalls| stalls.len() > 1)
}

/// Number of workers whose GPUs cannot be judged: their part in transfers is not known, or there is
/// no other GPU to compare with.
pub(crate) fn unjudged(job: &Job) -> usize {
    let mut known: BTreeMap<usize, f64> = BTreeMap::new();
    for stall in comparable(job).flatten() {
        *known.entry(stall.worker).or_default() += to_f64(stall.bytes);
    }
    let mut all: BTreeMap<usize, f64> = BTreeMap::new();
    for stall in &job.stalls {
        *all.entry(stall.worker).or_default() += to_f64(stall.bytes);
    }
    let is_judged = |(worker, bytes): &(&usize, &f64)| {
        **bytes >= slow::KNOWN * all.get(worker).copied().unwrap_or_default()
    };
    job.workers.len().saturating_sub(known.iter().filter(is_judged).count())
}

/// The finding about the GPU of a worker, with the communicators in which it holds up more than
/// others.
fn finding<'j>(job: &Job, worker: usize, groups: &[Vec<&'j GpuStall>], lost: f64) -> Finding {
    let own = |stalls: &Vec<&'j GpuStall>| {
        let own = *stalls.iter().find(|stall| stall.worker == worker)?;
        let mut all: Vec<f64> = stalls.iter().map(|stall| stall.ns).collect();
        all.sort_unstable_by(f64::total_cmp);
        Some((own, median_of_others(&all, own.ns)))
    };
    let of: Vec<(&GpuStall, f64)> =
        groups.iter().filter_map(own).filter(|(stall, usual)| stall.ns > *usual).collect();
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

    /// A GPU that holds up transfers for `ns` in all, at so many times of a second.
    fn at_times(comm: &str, worker: usize, ns: f64, times: u32) -> GpuStall {
        let (bytes, mut blocks) = (118 << 20, TimeBlocks::default());
        for at in 0..u64::from(times) {
            blocks.add(1, ns / f64::from(times), (2 * at + 1) * 500_000_000 / u64::from(times));
        }
        GpuStall { comm: comm.into(), worker, transfers: 118, bytes, ns, blocks, shown: bytes }
    }

    fn stall(comm: &str, worker: usize, ns: f64) -> GpuStall {
        at_times(comm, worker, ns, 50)
    }

    /// The ranks of the findings in a run of a second.
    fn found(job: &Job) -> Vec<u32> {
        let all = find(job, 1e9, &Limits::default(), &mut Log::new(None));
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
        assert_eq!(unjudged(&job), 4);
        // Rank 1 sends much more in a ring in which nothing shows its part.
        let ring = GpuStall { bytes: 118 << 30, shown: 0, ..stall("e", 1, 0.0) };
        let job = Job { stalls: [job.stalls, vec![ring]].concat(), ..job };
        assert_eq!(unjudged(&job), 5);
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
        let found = |both: &[(usize, f64)]| found(&job(both));
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
        let found = |rings: &[(usize, f64)]| found(&job(rings));
        assert_eq!(found(&[(3, 4e7)]), [0; 0]);
        assert_eq!(found(&[(3, 4e7), (4, 4e8)]), [4]);
        assert_eq!(unjudged(&job(&[(3, 4e7), (4, 4e7)])), 3);
    }

    /// The figures of a healthy job on a busy machine: one pause.
    #[test]
    fn a_pause_is_no_slow_gpu() {
        let found = |ns, times| {
            let job = Job {
                workers: (0..2).map(|rank| Worker::new(rank, "")).collect(),
                stalls: vec![at_times("c", 0, 8.4e6, 1), at_times("c", 1, ns, times)],
                ..Job::default()
            };
            found(&job)
        };
        assert_eq!(found(41.4e6, 1), [0; 0]);
        assert_eq!(found(82.8e6, 50), [1]);
    }
}
