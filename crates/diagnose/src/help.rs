// SPDX-License-Identifier: Apache-2.0
//! Helpful facts about a finding: where its ranks run, since when they hang, and what that costs.

use crate::job::Job;
use jiff::Timestamp;
use ncclscope_findings::{Cost, Doubt, Finding, Help, RankLocation, known_faults};
use ncclscope_operations::stats::to_f64;
use std::collections::HashMap;

/// Number of ranks of the job, as far as known. A process without input and with an unknown rank
/// may be one that another communicator names.
pub(crate) fn gpus(job: &Job) -> u64 {
    let known = (0u32..).zip(&job.processes).filter(|&(at, _)| job.known_rank(at).is_some());
    let largest = job.comms.iter().map(|comm| u64::from(comm.nranks)).max().unwrap_or(0);
    largest.max(known.count() as u64)
}

/// Names the known faults of a job's NCCL that look like a finding, as doubts about it.
fn name_known_faults(job: &Job, finding: &mut Finding) {
    let Some(about) = job.processes.iter().map(|one| &one.environment).find(|it| !it.is_empty())
    else {
        return;
    };
    let Some(release) = about.get("nccl").filter(|text| !text.starts_with("RCCL")) else { return };
    // On Arm, a processor is named by its implementer.
    let is_arm = about.get("cpu").is_some_and(|cpu| cpu.starts_with("0x"));
    let number = release.split(['+', '-']).next().unwrap_or_default();
    let parts: Vec<u32> = number.split('.').filter_map(|part| part.parse().ok()).collect();
    let [major, minor, patch] = parts[..] else { return };
    let faults = known_faults(major * 10_000 + minor * 100 + patch, is_arm);
    let alike = faults.filter(|fault| fault.classes.contains(&finding.class));
    let known = alike.map(|fault| Doubt::KnownFault(fault, number.to_owned()));
    finding.doubts.extend(known);
}

/// Adds these facts to each finding.
pub(crate) fn add(job: &Job, waiting_ranks: usize, findings: &mut [Finding]) {
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
    for finding in findings {
        name_known_faults(job, finding);
        finding.help = Help {
            places: finding.root_ranks.iter().take(Help::MOST).map(place).collect(),
            since: since(job, finding.age_ns).or_else(|| finding.called_ns.and_then(time)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Options, diagnose};
    use crate::job::{Communicator, Process, Vector};
    use std::sync::Arc;

    /// What else rank 1 of two, which does not come, may suffer from, with these facts.
    fn alternatives(facts: &[(&str, &str)]) -> Vec<String> {
        let facts = facts.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        let environment = Arc::new(facts.collect());
        let process = |rank| Process {
            rank: Some(rank),
            environment: Arc::clone(&environment),
            ..Process::default()
        };
        let vector = |rank: u32| {
            let enqueued = u64::from(rank == 0);
            Vector { process: rank, rank, api: enqueued, enqueued, ..Vector::default() }
        };
        let vectors = vec![vector(0), vector(1)];
        let comm = Communicator { nranks: 2, vectors, ..Communicator::default() };
        let job = Job {
            processes: vec![process(0), process(1)],
            comms: vec![comm],
            is_dump: true,
            ..Job::default()
        };
        let mut found = diagnose(&job, &Options::default()).findings;
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0).alternatives()
    }

    #[test]
    fn a_known_fault_of_the_jobs_nccl_is_another_possible_cause() {
        let arm = ("cpu", "0x41 0xd4f");
        let names = |facts: &[_]| {
            let all = alternatives(facts);
            all.iter().any(|one| one.contains("marin-community/marin#7344"))
        };
        assert!(names(&[("nccl", "2.28.9+cuda12.9"), arm]));
        assert!(!names(&[("nccl", "2.29.3+cuda12.9"), arm]), "it is mended there");
        assert!(!names(&[("nccl", "2.28.9"), ("cpu", "AuthenticAMD 25/17")]));
        assert!(!names(&[("nccl", "RCCL 2.28.9"), arm]) && !names(&[]));
    }
}
