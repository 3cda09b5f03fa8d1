// SPDX-License-Identifier: Apache-2.0
/*!
The processes of this node, and their common totals.

An exited process keeps its figures for `LINGER`, so that a scrape finds its last window. Then its
counts are added to the sum of its place, so that no counter of the node falls. Series of
communicators that no process has any more end, like the series of an exited process.
*/

#[cfg(test)]
mod tests;

use crate::listing::{Changes, Listing};
use crate::living::{self, lives};
use crate::passed::{Entry, Passed, Reason};
use crate::place;
use crate::process::{Counted, Process, SILENT_AFTER};
use crate::pxn;
use ncclscope_console::failure::warn;
use ncclscope_metrics::encode::{ProcessAttributes, compat};
use ncclscope_metrics::{CommKey, FindingKey, Metrics, Name};
use ncclscope_trace::vectors::Table;
use ncclscope_trace::{Error, Identity};
use rustix::process::{Resource, getrlimit};
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a process is exported after its end: longer than any scrape interval.
pub(crate) const LINGER: Duration = Duration::from_secs(300);
/// Maximum number of attribute sets for which the totals of ended processes are kept.
const MOST_PLACES: usize = 256;

/// Number of open files reserved for other uses than recordings: connections, directories, a
/// collector.
const SPARE_FILES: u64 = 128;

/// Version of Inspector's format, reported after that of the profiler API.
const FORMAT: u32 = 1;

/// Metrics by the attributes of their process.
pub type ByProcess = BTreeMap<ProcessAttributes, Metrics>;

/// The processes of a node.
#[derive(Debug, Default)]
pub struct Node {
    listing: Listing,
    /// Name of this host.
    host: String,
    /// Only recordings of this host are followed.
    is_local: bool,
    /// Each rank has attributes of its own.
    per_rank: bool,
    processes: BTreeMap<PathBuf, Process>,
    /// Maximum number of processes that are followed; each has an open file.
    most: usize,
    passed: Passed,
    /// Totals of ended processes, the oldest first.
    retired: Vec<(ProcessAttributes, Metrics)>,
    retired_lost: u64,
    missed_blocks: u64,
    windows: u64,
    /// Why jobs hang.
    findings: BTreeMap<ProcessAttributes, BTreeMap<FindingKey, u64>>,
    /// There is only one window, which includes destroyed communicators.
    once: bool,
}

/// The agent's metrics about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of processes that are followed.
    pub alive: u64,
    /// Number of recordings that cannot be read.
    pub unreadable: u64,
    /// Number of missing events, without stale handles, because NCCL itself stops some events
    /// twice.
    pub lost: u64,
    /// Number of blocks, since the start, that were overwritten before they were read.
    pub missed_blocks: u64,
    /// Number of windows that have ended.
    pub windows: u64,
}

impl Node {
    /// Follows recordings in `directories`, seen from `host`.
    pub fn new(directories: Vec<PathBuf>, host: &str) -> Node {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = limit.saturating_sub(SPARE_FILES.min(limit / 2));
        Node {
            listing: Listing::new(directories),
            host: host.to_owned(),
            most: usize::try_from(most).unwrap_or(usize::MAX),
            ..Node::default()
        }
    }

    /// Whether only the recordings of this host are followed.
    pub fn only_own_host(self, is_local: bool) -> Node {
        Node { is_local, ..self }
    }

    /// Whether each rank has metrics of its own.
    pub fn per_rank(self, per_rank: bool) -> Node {
        Node { per_rank, ..self }
    }

    /// Prepares for a single window over all recordings, including destroyed communicators.
    pub fn once(self) -> Node {
        Node { once: true, ..self }
    }

    /// Finds the existing recordings when the agent starts. Ended ones are ignored, because there
    /// may be a year of them; of running processes only what happens from now on is counted.
    pub fn begin(&mut self) {
        self.find(Instant::now(), true);
        let is_over = |(_, process): &(&PathBuf, &Process)| process.is_closed();
        let over: Vec<PathBuf> =
            self.processes.iter().filter(is_over).map(|(path, _)| path.clone()).collect();
        for path in over {
            self.processes.remove(&path);
            self.passed.add(path, Reason::Over, true, None);
        }
    }

    /// Looks for new recordings, and reads the new parts of all of them.
    pub fn poll(&mut self) {
        self.poll_at(Instant::now());
    }

    fn poll_at(&mut self, now: Instant) {
        self.find(now, false);
        self.pass_copies();
        for (path, process) in &mut self.processes {
            let was_readable = process.is_readable();
            if let Err(error) = process.poll()
                && was_readable
            {
                warn(format_args!("cannot read {}: {error}", path.display()));
            }
        }
        pxn::join(&mut self.processes);
    }

    /// Ends the window of every process and returns what was final in it; with `last`, everything.
    pub fn close(&mut self, now: Instant, last: bool) -> ByProcess {
        let mut windows = ByProcess::new();
        self.windows += 1;
        for process in self.processes.values_mut() {
            process.close(now, last);
            let place = place::of(process.identity(), &self.host, self.per_rank);
            windows.entry(place).or_default().join(process.window());
        }
        self.retire(now);
        windows
    }

    /// The node's totals since the agent started.
    pub fn total(&self) -> ByProcess {
        let mut total: ByProcess = self.retired.iter().cloned().collect();
        for process in self.processes.values() {
            total.entry(self.place(process)).or_default().join(process.total());
        }
        self.with_findings(total)
    }

    /// Notes why jobs hang, each given as one of its processes, until the next call.
    pub fn blame<'a>(&mut self, causes: impl Iterator<Item = (&'a Identity, FindingKey)>) {
        self.findings.clear();
        for (process, key) in causes {
            // A rank may be at fault that this node does not have.
            let place = place::of(process, &self.host, false);
            self.findings.entry(place).or_default().insert(key, 1);
        }
    }

    /// Adds the findings to metrics.
    pub fn with_findings(&self, mut all: ByProcess) -> ByProcess {
        for (place, findings) in &self.findings {
            all.entry(place.clone()).or_default().findings.clone_from(findings);
        }
        all
    }

    fn place(&self, process: &Process) -> ProcessAttributes {
        place::of(process.identity(), &self.host, self.per_rank)
    }

    /// Roles of communicators, by hash.
    pub fn roles(&self) -> BTreeMap<u64, Name> {
        self.processes.values().flat_map(|process| process.roles().clone()).collect()
    }

    /// The last window of each process, under the names that other projects use.
    pub fn windows(&self, host: &str) -> Vec<(compat::Process, &Metrics)> {
        let of = |process| (named(process, host), Process::window(process));
        self.processes.values().map(of).collect()
    }

    /// The totals of each process, under the names that other projects use.
    pub fn totals(&self, host: &str) -> Vec<(compat::Process, &Metrics)> {
        let of = |process| (named(process, host), Process::total(process));
        self.processes.values().map(of).collect()
    }

    /// The recordings to which nothing more will be written.
    pub fn complete(&self) -> impl Iterator<Item = &Path> {
        self.processes.iter().filter(|(_, process)| process.is_complete()).map(|(path, _)| &**path)
    }

    /// The processes, including those that ended recently.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// The recordings that processes still write, as far as known.
    pub fn living(&self) -> BTreeSet<PathBuf> {
        let living = self.processes.iter().filter(|(_, process)| !process.has_ended());
        living.map(|(path, _)| path.clone()).collect()
    }

    /// All recordings that were found, also those of processes that ended before this one looked.
    pub fn recordings(&self) -> impl Iterator<Item = &Path> {
        self.listing.recordings()
    }

    /// Number of processes that have just started and will soon be among [`Node::processes`].
    pub fn beginning(&self) -> usize {
        self.passed.beginning()
    }

    /// Directories that cannot be read, one line each.
    pub fn unreadable(&self) -> impl Iterator<Item = String> {
        self.listing.unreadable().values().cloned()
    }

    /// The progress of the processes as a table of vectors.
    pub fn vectors(&self) -> Table {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let made_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let mut table = Table { made_ns, ..Table::default() };
        self.processes.values().for_each(|process| process.add_to(&mut table));
        let named = |process: &Process| {
            let identity = process.identity();
            let job = ncclscope_trace::vectors::job_number(identity);
            Some((job, identity.job_id()?.to_owned()))
        };
        table.jobs = self.processes.values().filter_map(named).collect();
        table
    }

    /// The figures that the agent exports about itself.
    pub fn count(&self) -> Count {
        let processes = self.processes.values();
        let missed = processes.clone().map(Process::missed_blocks);
        let lost = processes.clone().map(|process| lost(process.total()));
        let failing = processes.clone().filter(|process| !process.is_readable()).count();
        Count {
            alive: processes.filter(|process| process.over().is_none()).count() as u64,
            // Below a given directory there may be private ones.
            unreadable: (self.passed.unreadable() + self.listing.unreadable_roots() + failing)
                as u64,
            lost: lost.fold(self.retired_lost, u64::saturating_add),
            missed_blocks: missed.fold(self.missed_blocks, u64::saturating_add),
            windows: self.windows,
        }
    }

    /// Looks for recordings. With `is_first`, existing recordings count as old.
    fn find(&mut self, now: Instant, is_first: bool) {
        let living: LazyCell<_> = LazyCell::new(living::names as fn() -> HashSet<OsString>);
        let before = self.listing.unreadable().clone();
        let Changes { new, gone } = self.listing.look();
        let unreadable = self.listing.unreadable().iter();
        unreadable.filter(|(path, _)| !before.contains_key(*path)).for_each(|(_, line)| warn(line));
        gone.iter().for_each(|path| self.passed.remove(path));
        let replaced = self.processes.iter().filter(|(_, process)| {
            // The previous process must first close its window.
            process.over().is_some() && !process.is_current()
        });
        let replaced: Vec<PathBuf> = replaced.map(|(path, _)| path.clone()).collect();
        for path in replaced.into_iter().filter(|path| path.exists()) {
            self.consider(path, false, None, &living);
        }
        for path in new {
            if !self.processes.contains_key(&path) {
                self.consider(path, is_first, None, &living);
            }
        }
        for (path, entry) in self.passed.due(now) {
            self.consider(path, entry.is_old, Some(&entry), &living);
        }
    }

    /// Passes over the copies whose original is read, too.
    fn pass_copies(&mut self) {
        let (copies, originals): (Vec<_>, Vec<_>) =
            self.processes.iter().partition(|(_, process)| process.is_copy());
        let originals: BTreeSet<_> = originals.into_iter().map(|(_, of)| of.key()).collect();
        let copies = copies.into_iter().filter(|(_, copy)| originals.contains(&copy.key()));
        let copies: Vec<PathBuf> = copies.map(|(path, _)| path.clone()).collect();
        for path in copies {
            self.processes.remove(&path);
            self.passed.add(path, Reason::Elsewhere, true, None);
        }
    }

    /// Follows the recording or passes it over. `is_old`: it existed when the agent started, or was
    /// followed before. `before`: it was already passed over. `living` has the names of recordings
    /// whose process may live although it writes nothing.
    fn consider(
        &mut self,
        path: PathBuf,
        is_old: bool,
        before: Option<&Entry>,
        living: &LazyCell<HashSet<OsString>>,
    ) {
        // A file that changed belongs to a running process, whatever the clock of its file system
        // says.
        let has_changed = before.is_some_and(Entry::was_over);
        let is_over = || is_silent(&path) && !lives(&path, living);
        if !self.once && !has_changed && is_over() {
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
            // The first page may not have been written yet.
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
        // The original of a copy contains the same data, and nothing is added to a copy. It is read
        // only as a whole, and only if its directory was given explicitly.
        let is_given = || self.once && path.parent().is_some_and(|at| self.listing.is_root(at));
        if is_foreign || process.is_copy() && !is_given() {
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
        // A communicator that is gone in one process may still exist in another, so that their sum
        // must not decrease.
        let kept: BTreeSet<CommKey> =
            self.processes.values().flat_map(Process::comms).cloned().collect();
        let is_kept = |comm: &CommKey| kept.contains(comm);
        self.processes.values_mut().for_each(|process| process.retain_comms(is_kept));
        self.retired.iter_mut().for_each(|(_, sum)| sum.retain_comms(is_kept));
    }

    /// Keeps the totals of a process that is gone.
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

/// Number of missing events.
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

/// True if the file was not written to recently; a live process writes every second.
fn is_silent(path: &Path) -> bool {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age > SILENT_AFTER)
}
