// SPDX-License-Identifier: Apache-2.0
/*!
The processes of this node, and their common totals.

An exited process keeps its figures for [`LINGER`], so that a scrape finds its last window. Then its
counts are added to the sum of its place, so that no counter of the node falls. Series of
communicators that no process has any more end, as the series of an exited process do.
*/

#[cfg(test)]
mod tests;

use super::listing::{Changes, Listing};
use super::passed::{Entry, Passed, Reason};
use super::place;
use super::process::{Counted, Process, SILENT_AFTER};
use super::pxn;
use crate::failure::warn;
use ncclscope_metrics::encode::{Place, compat};
use ncclscope_metrics::{CommKey, Metrics, Name};
use ncclscope_trace::Error;
use ncclscope_trace::vectors::Table;
use rustix::process::{Resource, getrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a process is exported after its end: longer than any scrape interval.
pub(super) const LINGER: Duration = Duration::from_secs(300);
/// Places whose processes are gone, and whose sums are kept.
const MOST_PLACES: usize = 256;

/// Open files that are left for everything but recordings: connections, directories, a collector.
const SPARE_FILES: u64 = 128;

/// The version of Inspector's format that is given, behind that of the profiler API.
const FORMAT: u32 = 1;

/// Figures by the place of their process.
pub(crate) type Places = BTreeMap<Place, Metrics>;

/// The processes of a node.
#[derive(Debug, Default)]
pub(crate) struct Node {
    listing: Listing,
    /// Our own host's name.
    host: String,
    /// Only recordings of this host.
    is_local: bool,
    /// Each rank has a place of its own.
    per_rank: bool,
    processes: BTreeMap<PathBuf, Process>,
    /// Processes that may be followed: each has a file open.
    most: usize,
    passed: Passed,
    /// Sums of processes that are gone, the oldest place first.
    retired: Vec<(Place, Metrics)>,
    retired_lost: u64,
    missed_blocks: u64,
    windows: u64,
    /// There is one window, with all communicators that ever were.
    once: bool,
}

/// What an agent says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Processes that are followed.
    pub(super) alive: u64,
    /// Recordings that cannot be read.
    pub(super) unreadable: u64,
    /// Events that are missing, stale handles left out: NCCL itself stops some events twice.
    pub(super) lost: u64,
    /// Blocks that were overwritten before they were read, of all that ever were.
    pub(super) missed_blocks: u64,
    /// Windows that ended.
    pub(super) windows: u64,
}

impl Node {
    /// Follows recordings in `directories`, seen from `host`.
    pub(crate) fn new(directories: Vec<PathBuf>, host: &str) -> Node {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = limit.saturating_sub(SPARE_FILES.min(limit / 2));
        Node {
            listing: Listing::new(directories),
            host: host.to_owned(),
            most: usize::try_from(most).unwrap_or(usize::MAX),
            ..Node::default()
        }
    }

    pub(super) fn only_own_host(self, is_local: bool) -> Node {
        Node { is_local, ..self }
    }

    /// Each rank has figures of its own.
    pub(super) fn per_rank(self, per_rank: bool) -> Node {
        Node { per_rank, ..self }
    }

    /// For one window, with all communicators that ever were, of all recordings there are.
    pub(super) fn once(self) -> Node {
        Node { once: true, ..self }
    }

    /// Finds what there is when the agent begins. What has ended is history, and there may be a
    /// year of it; of what goes on, only what happens from now on counts.
    pub(crate) fn begin(&mut self) {
        self.find(Instant::now(), true);
        let is_over = |(_, process): &(&PathBuf, &Process)| process.is_closed();
        let over: Vec<PathBuf> =
            self.processes.iter().filter(is_over).map(|(path, _)| path.clone()).collect();
        for path in over {
            self.processes.remove(&path);
            self.passed.add(path, Reason::Over, true, None);
        }
    }

    /// Looks for new recordings, and reads what is new in all of them.
    pub(crate) fn poll(&mut self) {
        self.poll_at(Instant::now());
    }

    fn poll_at(&mut self, now: Instant) {
        self.find(now, false);
        for (path, process) in &mut self.processes {
            if let Err(error) = process.poll() {
                warn(format_args!("cannot read {}: {error}", path.display()));
            }
        }
        pxn::join(&mut self.processes);
    }

    /// Ends the window of every process: what settled in it. `last`: all that is over.
    pub(crate) fn close(&mut self, now: Instant, last: bool) -> Places {
        let mut windows = Places::new();
        self.windows += 1;
        for process in self.processes.values_mut() {
            process.close(now, last);
            let place = place::of(process.identity(), &self.host, self.per_rank);
            windows.entry(place).or_default().join(process.window());
        }
        self.retire(now);
        windows
    }

    /// What the node did since we began.
    pub(super) fn total(&self) -> Places {
        let mut total: Places = self.retired.iter().cloned().collect();
        for process in self.processes.values() {
            total.entry(self.place(process)).or_default().join(process.total());
        }
        total
    }

    fn place(&self, process: &Process) -> Place {
        place::of(process.identity(), &self.host, self.per_rank)
    }

    /// Roles of communicators, by hash.
    pub(super) fn roles(&self) -> BTreeMap<u64, Name> {
        self.processes.values().flat_map(|process| process.roles().clone()).collect()
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

    /// The processes, also those that ended a while ago.
    pub(crate) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// How many processes began a moment ago: they are among [`Node::processes`] soon.
    pub(crate) fn beginning(&self) -> usize {
        self.passed.beginning()
    }

    /// How far the processes have come, as a table.
    pub(crate) fn vectors(&self) -> Table {
        let vectors = self.processes.values().flat_map(Process::vectors).collect();
        let named = |process: &Process| {
            let identity = process.identity();
            let job = ncclscope_trace::vectors::job_number(identity);
            Some((job, identity.job.clone().or_else(|| identity.run.clone())?))
        };
        let jobs = self.processes.values().filter_map(named).collect();
        Table { vectors, jobs, ..Table::default() }
    }

    pub(super) fn count(&self) -> Count {
        let processes = self.processes.values();
        let missed = processes.clone().map(Process::missed_blocks);
        let lost = processes.clone().map(|process| lost(process.total()));
        Count {
            alive: processes.filter(|process| process.over().is_none()).count() as u64,
            unreadable: self.passed.unreadable() as u64,
            lost: lost.fold(self.retired_lost, u64::saturating_add),
            missed_blocks: missed.fold(self.missed_blocks, u64::saturating_add),
            windows: self.windows,
        }
    }

    /// Looks for recordings. `is_first`: what is there goes on from before.
    fn find(&mut self, now: Instant, is_first: bool) {
        let Changes { new, gone } = self.listing.look();
        gone.iter().for_each(|path| self.passed.remove(path));
        let replaced = self.processes.iter().filter(|(_, process)| {
            // The one before has a window to close first.
            process.over().is_some() && !process.is_current()
        });
        let replaced: Vec<PathBuf> = replaced.map(|(path, _)| path.clone()).collect();
        for path in replaced.into_iter().filter(|path| path.exists()) {
            self.consider(path, false, None);
        }
        for path in new {
            if !self.processes.contains_key(&path) {
                self.consider(path, is_first, None);
            }
        }
        for (path, entry) in self.passed.due(now) {
            self.consider(path, entry.is_old, Some(&entry));
        }
    }

    /// Follows the recording, or passes it over. `is_old`: it was there when we began, or was
    /// followed before; `before`: it was passed over already.
    fn consider(&mut self, path: PathBuf, is_old: bool, before: Option<&Entry>) {
        // One that changed goes on, whatever the clock of its file system says.
        let has_changed = before.is_some_and(Entry::was_over);
        if !self.once && !has_changed && is_silent(&path) {
            self.passed.add(path, Reason::Over, is_old, before);
            return;
        }
        match self.open(&path, is_old, before.and_then(|before| before.counted.as_ref())) {
            Ok(process) => {
                if let Some(before) = self.processes.insert(path, process) {
                    self.keep_sum(&before);
                }
            }
            Err(reason) => {
                let is_new = self.passed.add(path.clone(), reason.clone(), is_old, before);
                if let (true, Reason::Unreadable(why)) = (is_new, reason) {
                    warn(format_args!("cannot read {}: {why}", path.display()));
                }
            }
        }
    }

    fn open(
        &self,
        path: &Path,
        is_old: bool,
        counted: Option<&Counted>,
    ) -> Result<Process, Reason> {
        let unreadable = |error: Error| match error {
            // Its first page may be on its way.
            Error::Empty | Error::TruncatedHeader { .. } if !self.once => Reason::Begins,
            error => Reason::Unreadable(error.to_string()),
        };
        if self.processes.len() >= self.most {
            let why = format!("{} others are open: raise the limit of open files", self.most);
            return Err(Reason::Unreadable(why));
        }
        if std::fs::metadata(path).is_ok_and(|of| !of.is_file()) {
            return Err(Reason::Unreadable("it is not an ordinary file".into()));
        }
        let mut process = Process::open(path).map_err(unreadable)?;
        let is_foreign = self.is_local && self.host != process.host();
        // A copy's original holds the same. It is read if its directory is named explicitly.
        let is_copy =
            process.is_copy() && !path.parent().is_some_and(|at| self.listing.is_root(at));
        if is_foreign || is_copy {
            return Err(Reason::Elsewhere);
        }
        if process.is_young() && !is_silent(path) {
            return Err(Reason::Begins);
        }
        match counted {
            _ if self.once => process.keep_all(),
            Some(counted) => process.count_from(counted).map_err(unreadable)?,
            None if is_old => process.count_from_now().map_err(unreadable)?,
            None => {}
        }
        Ok(process)
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
                if path.exists() {
                    self.passed.retire(path, process.counted());
                }
            }
        }
        // One that is gone in one process may live in another: their sum must not fall.
        let kept: BTreeSet<CommKey> =
            self.processes.values().flat_map(Process::comms).cloned().collect();
        let is_kept = |comm: &CommKey| kept.contains(comm);
        self.processes.values_mut().for_each(|process| process.retain_comms(is_kept));
        self.retired.iter_mut().for_each(|(_, sum)| sum.retain_comms(is_kept));
    }

    /// Keeps what a process counted that is gone.
    fn keep_sum(&mut self, process: &Process) {
        let place = self.place(process);
        let known = self.retired.iter().position(|(known, _)| *known == place);
        let (_, mut sum) = known.map_or_else(Default::default, |at| self.retired.remove(at));
        sum.join(process.total());
        self.retired.push((place, sum));
        let most = self.retired.len().saturating_sub(MOST_PLACES);
        self.retired.drain(..most);
        self.retired_lost = self.retired_lost.saturating_add(lost(process.total()));
        self.missed_blocks = self.missed_blocks.saturating_add(process.missed_blocks());
    }
}

/// Events that are missing.
fn lost(metrics: &Metrics) -> u64 {
    let lost = metrics.lost.iter().filter(|((cause, _), _)| *cause != "stale");
    lost.fold(0, |sum, (_, count)| sum.saturating_add(*count))
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
fn is_silent(path: &Path) -> bool {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age > SILENT_AFTER)
}
