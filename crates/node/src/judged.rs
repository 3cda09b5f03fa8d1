// SPDX-License-Identifier: Apache-2.0
//! Why jobs that record now hang, for `top`, the agent and `dump --why`: what `diagnose` says of
//! their recordings at this moment.

use crate::node::Node;
use crate::process::Process;
use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Diagnosis, Options, diagnose, live};
use ncclscope_findings::{Finding, Help};
use ncclscope_metrics::FindingKey;
use ncclscope_trace::Identity;
use ncclscope_trace::vectors::Vector;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// After a verdict, the next one comes after this many times the time that it took, so that a
/// directory with very many recordings takes a tenth of a processor.
const PAUSE: u32 = 9;

/// A job, and why it hangs.
#[derive(Debug)]
pub struct Judged {
    /// The identity of one of its processes.
    pub identity: Identity,
    /// What `diagnose` says of it.
    pub found: Diagnosis,
}

/// The jobs of `living` recordings; `others` may be of processes of them that are gone. An
/// operation that is in flight without progress for `limit` counts as stuck.
pub fn judged(living: &BTreeSet<PathBuf>, others: &[PathBuf], limit: Duration) -> Vec<Judged> {
    let settings = InputOptions { hang: limit, ..InputOptions::default() };
    let jobs = live::jobs(living, others, &settings).into_iter();
    let judge = |live::LiveJob { identity, job }| {
        let found = diagnose(&job, &Options::of(limit));
        Judged { identity, found }
    };
    jobs.map(judge).collect()
}

impl Judged {
    /// The verdicts, a line each; if there are none although nothing moves, or ranks may wait
    /// unseen, the reason.
    pub fn lines(&self) -> Vec<String> {
        let line = |finding: &Finding| {
            let suspect = if finding.is_suspect() { ", suspect" } else { "" };
            format!("{} ({}{suspect}): {}", finding.title(), finding.class, finding.advice)
        };
        match self.found.findings.as_slice() {
            [] => self.doubt().into_iter().map(str::to_owned).collect(),
            all => all.iter().map(line).collect(),
        }
    }

    /// Each cause and rank at fault, at most [`Help::MOST`] ranks of a cause, with the identity of
    /// one of the job's processes.
    pub fn blamed(&self) -> impl Iterator<Item = (&Identity, FindingKey)> {
        self.causes().map(|key| (&self.identity, key))
    }

    fn causes(&self) -> impl Iterator<Item = FindingKey> {
        self.found.findings.iter().flat_map(|finding| {
            let confidence = finding.confidence().name();
            let key = move |rank| FindingKey { class: finding.class.name(), confidence, rank };
            let ranks = finding.blamed();
            let none = ranks.is_empty().then(|| key(None));
            ranks.iter().take(Help::MOST).map(move |&rank| key(Some(rank))).chain(none)
        })
    }

    /// Why a job without verdicts may still hang; `None` if nothing shows that.
    pub fn doubt(&self) -> Option<&str> {
        let Diagnosis { findings, hidden, standstill, waiting_ranks, notes, .. } = &self.found;
        let may_hang = hidden.is_some() || standstill.is_some() || *waiting_ranks > 0;
        notes.last().map(String::as_str).filter(|_| findings.is_empty() && may_hang)
    }
}

/// Judges the jobs of followed recordings while something stands, and keeps the verdicts until
/// then.
#[derive(Debug, Default)]
pub struct Judge {
    jobs: Vec<Judged>,
    /// When the next verdict is due.
    next: Option<Instant>,
}

impl Judge {
    /// The jobs, if one of them may hang: an operation that is in flight without progress for
    /// `limit` counts as stuck.
    pub fn look(&mut self, node: &Node, limit: Duration) -> &[Judged] {
        if !may_hang(node, limit) {
            self.jobs.clear();
        } else if self.next.is_none_or(|next| next <= Instant::now()) {
            let begun = Instant::now();
            let others: Vec<PathBuf> = node.recordings().map(Path::to_owned).collect();
            self.jobs = judged(&node.living(), &others, limit);
            self.next = Some(Instant::now() + begun.elapsed() * PAUSE);
        }
        &self.jobs
    }
}

/// True if a process is not seen to complete operations in the last window, or has one in flight
/// for `limit`.
fn may_hang(node: &Node, limit: Duration) -> bool {
    let is_old =
        |vector: &Vector| vector.is_stuck() || Duration::from_millis(vector.age_ms.into()) >= limit;
    let stands = |process: &Process| {
        let mut operations = process.window().operations.values();
        !operations.any(|of| of.count > 0) || process.vectors().iter().any(is_old)
    };
    node.processes().any(|process| !process.is_closed() && stands(process))
}
