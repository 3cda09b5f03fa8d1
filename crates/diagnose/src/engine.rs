// SPDX-License-Identifier: Apache-2.0
//! The rules in their order: what was called, who waits for whom, and then why.

use crate::classify::Classifier;
use crate::hang::{self, Given};
use crate::job::{Job, Life};
use crate::verdict::{Diagnosis, Verdict};
use crate::{desync, words};
use std::collections::HashSet;
use std::time::Duration;

/// Limits.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// An operation younger than this is not held for stuck, unless the input was made because of a
    /// hang.
    pub hang: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { hang: Duration::from_secs(30) }
    }
}

impl Options {
    /// The age from which on an operation of this job counts as stuck, ns.
    pub(crate) fn hang_ns(&self, job: &Job) -> u64 {
        let asked = u64::try_from(self.hang.as_nanos()).unwrap_or(u64::MAX);
        job.min_age_ns.map_or(asked, |least| least.min(asked))
    }
}

/// Says why the job hangs; no verdict if it does not.
#[must_use]
pub fn diagnose(job: &Job, options: &Options) -> Diagnosis {
    let mut given = Given { hang_ns: options.hang_ns(job), ..Given::default() };
    let desyncs = desync::find(job, given.hang_ns);
    for desync in &desyncs {
        let comm = &job.comms[desync.comm as usize];
        let processes = desync.accused.iter().map(|&at| comm.vectors[at as usize].process);
        given.accused.extend(processes.map(|process| (desync.comm, process)));
    }
    let findings = hang::find(job, &given);
    let mut verdicts = Classifier::new(job, &findings).verdicts(&desyncs);
    // What rests on nothing better than "everybody is in it" is said only if nothing else is.
    if !verdicts.iter().all(Verdict::is_vague) {
        verdicts.retain(|verdict| !verdict.is_vague());
    }
    verdicts.sort_by_key(|v| (v.confidence, v.class, v.root_ranks.first().copied()));
    let waiting: HashSet<u32> = findings.waits.iter().map(|wait| wait.process).collect();
    let mut silent: Vec<u32> = job
        .processes
        .iter()
        .zip(0u32..)
        .filter(|(process, _)| process.life == Life::Silent)
        .filter_map(|(_, at)| job.known_rank(at))
        .collect();
    silent.sort_unstable();
    let mut notes = job.notes.clone();
    if !findings.moving.is_empty() {
        let mut moving: Vec<u32> = findings.moving.iter().map(|&p| job.rank(p)).collect();
        moving.sort_unstable();
        notes.push(format!(
            "others wait for rank {}, whose counters still move: that is slow, not stuck",
            words::ranks(&moving)
        ));
    }
    if verdicts.is_empty() && waiting.is_empty() {
        notes.push(quiet(job));
    }
    Diagnosis {
        schema: "ncclscope.diagnosis/1",
        source: job.source.clone(),
        ranks: job.processes.iter().filter(|one| one.life != Life::Silent).count(),
        verdicts,
        silent_ranks: silent,
        waiting: waiting.len(),
        notes,
    }
}

/// No rank waits in NCCL.
fn quiet(job: &Job) -> String {
    let is_idle = |idle: &u64| *idle >= 30_000_000_000;
    let idle = job.processes.iter().filter_map(|process| process.idle_ns);
    match idle.min().filter(is_idle) {
        Some(least) => format!(
            "OUTSIDE_NCCL: no rank is in an operation of NCCL, and none has called one for {}",
            words::duration(least)
        ),
        None => "no rank waits in an operation of NCCL".into(),
    }
}
