// SPDX-License-Identifier: Apache-2.0
//! Helpful facts about a verdict: where its ranks run, since when they hang, and what that costs.

use crate::job::Job;
use crate::verdict::Verdict;
use jiff::Timestamp;
use ncclscope_findings::{Cost, Help, RankLocation};
use ncclscope_operations::stats::to_f64;
use std::collections::HashMap;

/// Number of ranks of the job, as far as known. A process without input and with an unknown rank
/// may be one that another communicator names.
pub(crate) fn gpus(job: &Job) -> u64 {
    let known = (0u32..).zip(&job.processes).filter(|&(at, _)| job.known_rank(at).is_some());
    let largest = job.comms.iter().map(|comm| u64::from(comm.nranks)).max().unwrap_or(0);
    largest.max(known.count() as u64)
}

/// Adds these facts to each verdict.
pub(crate) fn add(job: &Job, waiting_ranks: usize, verdicts: &mut [Verdict]) {
    let numbered = job.processes.iter().zip(0u32..);
    let processes: HashMap<u32, _> =
        numbered.filter_map(|(one, at)| Some((job.known_rank(at)?, one))).collect();
    let place = |&rank: &u32| {
        let known = processes.get(&rank);
        RankLocation {
            rank,
            host: known.and_then(|one| one.host.clone()),
            pid: known.and_then(|one| one.pid),
            local_rank: known.and_then(|one| one.local_rank),
            device: known.and_then(|one| one.device),
        }
    };
    // A hung job loses all of its time. Ranks that made different calls need not hang.
    let gpus = to_f64(gpus(job));
    let cost = Some(gpus).filter(|_| waiting_ranks != 0).and_then(|gpus| Cost::of(1.0, gpus));
    for verdict in verdicts {
        verdict.help = Help {
            places: verdict.root_ranks.iter().take(Help::MOST).map(place).collect(),
            since: since(job, verdict.age_ns).or_else(|| verdict.called_ns.and_then(time)),
            cost,
        };
    }
}

/// The time `age_ns` before the last recorded one, in whole seconds of UTC.
fn since(job: &Job, age_ns: Option<u64>) -> Option<String> {
    time(job.end_ns?.saturating_sub(age_ns?))
}

/// A time in ns since 1970, in whole seconds of UTC.
fn time(ns: u64) -> Option<String> {
    let time = Timestamp::from_nanosecond(i128::from(ns)).ok()?;
    Some(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}
