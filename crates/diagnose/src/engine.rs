// SPDX-License-Identifier: Apache-2.0
//! The stages of a diagnosis in order: mismatched calls, the wait graph, then the classes.

use crate::classify::Classifier;
use crate::job::{Job, ProcessStatus};
use crate::verdict::{Diagnosis, Verdict};
use crate::wait_graph::{self, SearchParams};
use crate::{desync, words};
use std::collections::HashSet;
use std::time::Duration;

/// Thresholds of a diagnosis.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// An operation in flight for less than this is not stuck, unless the input was written because
    /// of a hang.
    pub hang: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { hang: Duration::from_secs(30) }
    }
}

impl Options {
    /// The age from which an operation of this job counts as stuck, ns.
    pub(crate) fn hang_ns(&self, job: &Job) -> u64 {
        let asked = u64::try_from(self.hang.as_nanos()).unwrap_or(u64::MAX);
        job.min_age_ns.map_or(asked, |least| least.min(asked))
    }
}

/// Finds out why the job hangs. A job that does not hang gets no verdict.
#[must_use]
pub fn diagnose(job: &Job, options: &Options) -> Diagnosis {
    let mut params = SearchParams { hang_ns: options.hang_ns(job), ..SearchParams::default() };
    let desyncs = desync::find(job, params.hang_ns);
    for desync in &desyncs {
        let comm = &job.comms[desync.comm as usize];
        let processes = desync.accused.iter().map(|&at| comm.vectors[at as usize].process);
        params.accused.extend(processes.map(|process| (desync.comm, process)));
    }
    let wait_roots = wait_graph::find(job, &params);
    let mut verdicts = Classifier::new(job, &wait_roots).verdicts(&desyncs);
    // A vague verdict ("all members are in the operation") counts only if there is no better one.
    if !verdicts.iter().all(Verdict::is_vague) {
        verdicts.retain(|verdict| !verdict.is_vague());
    }
    verdicts.sort_by_key(|v| (v.confidence, v.class, v.root_ranks.first().copied()));
    let waiting: HashSet<u32> = wait_roots.waits.iter().map(|wait| wait.process).collect();
    let mut silent: Vec<u32> = job
        .processes
        .iter()
        .zip(0u32..)
        .filter(|(process, _)| process.status == ProcessStatus::Silent)
        .filter_map(|(_, at)| job.known_rank(at))
        .collect();
    silent.sort_unstable();
    let mut notes = job.notes.clone();
    if !wait_roots.moving.is_empty() {
        let mut moving: Vec<u32> = wait_roots.moving.iter().map(|&p| job.rank(p)).collect();
        moving.sort_unstable();
        notes.push(format!(
            "other ranks wait for rank {}, whose counters still advance: slow, not stuck",
            words::ranks(&moving)
        ));
    }
    if verdicts.is_empty() && waiting.is_empty() {
        notes.push(quiet(job));
    }
    Diagnosis {
        schema: "ncclscope.diagnosis/1",
        source: job.source.clone(),
        ranks: job.processes.iter().filter(|one| one.status != ProcessStatus::Silent).count(),
        verdicts,
        silent_ranks: silent,
        waiting: waiting.len(),
        notes,
    }
}

/// The note for a job in which no rank waits in NCCL.
fn quiet(job: &Job) -> String {
    let is_idle = |idle: &u64| *idle >= 30_000_000_000;
    let idle = job.processes.iter().filter_map(|process| process.idle_ns);
    match idle.min().filter(is_idle) {
        Some(least) => format!(
            "OUTSIDE_NCCL: no rank is in an NCCL operation, and none has called NCCL for {}",
            words::duration(least)
        ),
        None => "no rank waits in an NCCL operation".into(),
    }
}
