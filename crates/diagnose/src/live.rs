// SPDX-License-Identifier: Apache-2.0
//! The jobs that write recordings now, each with the state that `diagnose` judges.

use crate::input::options::InputOptions;
use crate::input::recording::{self, Snapshot};
use crate::job::Job;
use crate::open::assemble;
use ncclscope_limits::clocks;
use ncclscope_trace::Identity;
use ncclscope_trace::runs::{ProcessFacts, Run, Runs};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A job that goes on.
#[derive(Debug)]
pub struct LiveJob {
    /// The identity of one of its processes.
    pub identity: Identity,
    /// Its state.
    pub job: Job,
}

/// The jobs of the recordings that are written now (`living`). Of `others`, those are read that
/// were written to after the first of these processes began: a process of the job may be gone.
/// Recordings that cannot be read are left out: a process that begins has one for a moment.
#[must_use]
pub fn jobs(
    living: &BTreeSet<PathBuf>,
    others: &[PathBuf],
    settings: &InputOptions,
) -> Vec<LiveJob> {
    let mut paths: Vec<PathBuf> = living.iter().cloned().collect();
    let read = |paths: &[PathBuf]| recording::snapshots(paths, settings, &mut Vec::new());
    let mut all = read(&paths);
    let begin_ns = all.iter().map(|one| one.facts.begin_ns).filter(|&ns| ns > 0).min();
    let begin = UNIX_EPOCH + Duration::from_nanos(begin_ns.unwrap_or(0))
        - Duration::from_nanos(clocks::FILES_NS);
    let gone = others.iter().filter(|path| !living.contains(*path) && written_since(path, begin));
    let gone: Vec<PathBuf> = gone.cloned().collect();
    all.extend(read(&gone));
    paths.extend(gone);
    let all = recording::with_pxn(all, &paths);
    let facts: Vec<ProcessFacts> = all.iter().map(|one| one.facts.clone()).collect();
    let mut all: Vec<Option<Snapshot>> = all.into_iter().map(Some).collect();
    let runs = Runs::split(&facts).runs.into_iter();
    let goes_on = |run: &Run| run.members.iter().any(|&at| living.contains(&facts[at].path));
    let jobs = runs.filter(goes_on).filter_map(|run| {
        let identity = facts[*run.members.first()?].identity.clone();
        let members = run.members.iter().filter_map(|&at| all.get_mut(at)?.take()).collect();
        let job = assemble(members, settings).ok()?;
        Some(LiveJob { identity, job })
    });
    jobs.collect()
}

fn written_since(path: &Path, begin: SystemTime) -> bool {
    let written = std::fs::metadata(path).and_then(|file| file.modified());
    written.is_ok_and(|written| written >= begin)
}
