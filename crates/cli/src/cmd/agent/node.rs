// SPDX-License-Identifier: Apache-2.0
/*!
The processes of this node, and what they did together.

A process that is over keeps its figures for [`LINGER`], so that a scrape finds its last
window; then its counts go into a sum, so that no counter of the node ever falls. What belongs to
communicators that no process has any more is forgotten: the series ends, as one does whose process
ends.
*/

#[cfg(test)]
mod tests;

use super::process::{Process, SILENT_AFTER};
use crate::failure::warn;
use crate::input::recordings_in;
use ncclscope_metrics::encode::compat;
use ncclscope_metrics::{CommKey, Metrics};
use ncclscope_trace::vectors::{self, Vector};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a process is exported after its end: longer than any scrape interval.
pub(super) const LINGER: Duration = Duration::from_secs(300);
/// Directories below a given one that are looked into: a run directory for each job.
const DEPTH: usize = 2;

/// The version of Inspector's format that is given, behind that of the profiler API.
const FORMAT: u32 = 1;

/// The processes of a node.
#[derive(Debug, Default)]
pub(super) struct Node {
    directories: Vec<PathBuf>,
    /// Only recordings of this host.
    host: Option<String>,
    processes: BTreeMap<PathBuf, Process>,
    /// Not read: they had ended before we began, or belong to other hosts, or are damaged.
    passed: BTreeSet<PathBuf>,
    retired: Metrics,
    missed_blocks: u64,
    /// There is one window, with all communicators that ever were.
    once: bool,
}

/// How many processes there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Followed.
    pub(super) alive: u64,
    /// Blocks that were overwritten before they were read, of all that ever were.
    pub(super) missed_blocks: u64,
}

impl Node {
    /// Follows recordings in `directories`, of `host` only if there is one.
    pub(super) fn new(directories: Vec<PathBuf>, host: Option<String>) -> Node {
        Node { directories, host, ..Node::default() }
    }

    /// For one window, with all communicators that ever were.
    pub(super) fn once(directories: Vec<PathBuf>) -> Node {
        Node { directories, once: true, ..Node::default() }
    }

    /// Passes over what has ended already: it is history, not the present.
    /// There may be a year of it, so that it is not even read.
    pub(super) fn pass_over_ended(&mut self) {
        self.find();
        let passed = &mut self.passed;
        self.processes.retain(|path, process| {
            let is_over = process.is_closed() || is_old(path);
            if is_over {
                passed.insert(path.clone());
            }
            !is_over
        });
    }

    /// Looks for new recordings, and reads what is new in all of them.
    pub(super) fn poll(&mut self) {
        self.find();
        for (path, process) in &mut self.processes {
            if let Err(error) = process.poll() {
                warn(format_args!("cannot read {}: {error}", path.display()));
            }
        }
    }

    /// Ends the window of every process: what settled in it. `last`: all that is over.
    pub(super) fn close(&mut self, now: Instant, last: bool) -> Metrics {
        let mut window = Metrics::default();
        for process in self.processes.values_mut() {
            process.close(now, last);
            window.merge(process.window());
        }
        self.retire(now);
        window
    }

    /// What the node did since we began.
    pub(super) fn total(&self) -> Metrics {
        let mut total = self.retired.clone();
        self.processes.values().for_each(|process| total.merge(process.total()));
        total
    }

    /// What each process did in the last window, under the names of other projects.
    pub(super) fn windows(&self, host: &str) -> Vec<(compat::Process, &Metrics)> {
        let of = |process| (named(process, host), Process::window(process));
        self.processes.values().map(of).collect()
    }

    /// What each process did since it began, likewise.
    pub(super) fn totals(&self, host: &str) -> Vec<(compat::Process, &Metrics)> {
        let of = |process| (named(process, host), Process::total(process));
        self.processes.values().map(of).collect()
    }

    /// How far the processes have come, as a table.
    pub(super) fn vectors(&self) -> Vec<u8> {
        let vectors: Vec<Vector> = self.processes.values().flat_map(Process::vectors).collect();
        vectors::table(&vectors)
    }

    /// How many processes there are.
    pub(super) fn count(&self) -> Count {
        let processes = self.processes.values();
        let missed: u64 = processes.clone().map(Process::missed_blocks).sum();
        Count {
            alive: processes.filter(|process| process.over().is_none()).count() as u64,
            missed_blocks: self.missed_blocks + missed,
        }
    }

    fn find(&mut self) {
        let mut found = BTreeSet::new();
        for directory in &self.directories {
            find_below(directory, DEPTH, &mut found);
        }
        self.passed.retain(|path| found.contains(path));
        for path in found {
            let known = self.processes.get(&path);
            if self.passed.contains(&path) || known.is_some_and(Process::is_current) {
                continue;
            }
            if known.is_some_and(|process| process.over().is_none()) {
                // Replaced: the one before has a window to close first.
                continue;
            }
            match Process::open(&path) {
                Ok(process) if self.host.as_deref().is_some_and(|host| host != process.host()) => {
                    self.passed.insert(path);
                }
                // Its original holds the same. It is read if its directory is named explicitly.
                Ok(process) if process.is_copy() && !self.names_directory_of(&path) => {
                    self.passed.insert(path);
                }
                Ok(process) if process.is_young() && !is_old(&path) => {}
                Ok(mut process) => {
                    if self.once {
                        process.keep_all();
                    }
                    if let Some(before) = self.processes.insert(path, process) {
                        self.keep_sum(&before);
                    }
                }
                // Its first page may be on its way.
                Err(
                    ncclscope_trace::Error::Empty | ncclscope_trace::Error::TruncatedHeader { .. },
                ) => {}
                Err(error) => {
                    warn(format_args!("cannot read {}: {error}", path.display()));
                    self.passed.insert(path);
                }
            }
        }
    }

    fn names_directory_of(&self, path: &Path) -> bool {
        self.directories.iter().any(|directory| path.parent() == Some(directory))
    }

    fn retire(&mut self, now: Instant) {
        let is_done = |process: &Process| {
            process.over().is_some_and(|over| now.saturating_duration_since(over) > LINGER)
        };
        let done: Vec<PathBuf> = self
            .processes
            .iter()
            .filter(|(_, process)| is_done(process))
            .map(|(path, _)| path.clone())
            .collect();
        for path in done {
            if let Some(process) = self.processes.remove(&path) {
                self.keep_sum(&process);
                self.passed.insert(path);
            }
        }
        // One that is gone in one process may live in another: their sum must not fall.
        let kept: BTreeSet<CommKey> =
            self.processes.values().flat_map(Process::comms).cloned().collect();
        let is_kept = |comm: &CommKey| kept.contains(comm);
        self.processes.values_mut().for_each(|process| process.retain_comms(is_kept));
        self.retired.retain_comms(is_kept);
    }

    fn keep_sum(&mut self, process: &Process) {
        self.retired.merge(process.total());
        self.missed_blocks += process.missed_blocks();
    }
}

fn named(process: &Process, agent_host: &str) -> compat::Process {
    let host = process.host();
    let node = if host.is_empty() { agent_host } else { host };
    let origin = process.origin().clone();
    compat::Process {
        version: process.api_version().map(|api| format!("v{api}.{FORMAT}")).unwrap_or_default(),
        slurm_job_id: origin.slurm_job_id,
        node: node.to_owned(),
        gpu: origin.gpu,
        gpu_uuid: origin.gpu_uuid,
        local_rank: origin.local_rank,
    }
}

/// A living process writes every second.
fn is_old(path: &Path) -> bool {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age > SILENT_AFTER)
}

/// Recordings in `directory` and below. What cannot be listed is as if it were not there: a
/// directory may come later.
fn find_below(directory: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) {
    found.extend(recordings_in(directory).unwrap_or_default());
    if depth == 0 {
        return;
    }
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        find_below(&entry.path(), depth - 1, found);
    }
}
