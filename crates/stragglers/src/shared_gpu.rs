// SPDX-License-Identifier: Apache-2.0
//! Ranks that share a GPU, which NCCL allows from 2.30 on, or if a job pretends that they are on
//! several hosts. Their kernels take turns: while one rank's kernel runs, the other's does not.

use crate::finding::Finding;
use crate::model::{Job, Worker};
use ncclscope_findings::{Doubt, FindingClass};
use std::collections::{BTreeMap, BTreeSet};

/// Doubts findings about slow ranks and GPUs if the rank shares its GPU, because the
/// time may be lost to another rank's kernels.
pub(crate) fn doubt(job: &Job, findings: &mut [Finding]) {
    let mut gpus: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for Worker { rank, gpu, .. } in job.workers.iter().filter(|worker| !worker.gpu.is_empty()) {
        gpus.entry(gpu).or_default().insert(*rank);
    }
    gpus.retain(|_, ranks| ranks.len() > 1);
    for finding in findings {
        let (
            FindingClass::SlowRank | FindingClass::SlowLaunch | FindingClass::GpuNotConsuming,
            [rank],
        ) = (finding.class, &finding.root_ranks[..])
        else {
            continue;
        };
        let Some((gpu, ranks)) = gpus.iter().find(|(_, ranks)| ranks.contains(rank)) else {
            continue;
        };
        let ranks = ranks.iter().copied().collect();
        finding.doubts.push(Doubt::SharedGpu(ranks, (*gpu).to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_gpu_are_suspected() {
        let worker = |(rank, gpu): (u32, &str)| Worker { gpu: gpu.into(), ..Worker::new(rank, "") };
        let workers = [(0, "GPU-a"), (1, "GPU-b"), (2, "GPU-a"), (3, ""), (4, "")].map(worker);
        let job = Job { workers: workers.into(), ..Job::default() };
        let finding =
            |rank| Finding { root_ranks: vec![rank], ..Finding::of(FindingClass::SlowRank) };
        let mut found: Vec<Finding> = (0..5).map(finding).collect();
        doubt(&job, &mut found);
        let suspected: Vec<bool> =
            found.iter().map(|one| one.doubts.iter().any(Doubt::lowers)).collect();
        assert_eq!(suspected, [true, false, true, false, false]);
        let text = "ranks 0, 2 share one GPU (GPU-a): their kernels take turns, which may be why";
        assert_eq!(found[2].doubts[0].text(), text);
    }
}
