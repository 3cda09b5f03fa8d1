// SPDX-License-Identifier: Apache-2.0
/*!
Readings from recordings that are being written.

The recordings are followed as by the agent, and each reading ends a window of the agent's metrics.
Rates are those of the last windows, which together last [`SPAN`]: a single window has only a few
operations of a slow job.
*/

use super::hang;
use super::watch::Source;
use crate::run_input::input::{allow_open_files, host_name};
use ncclscope_answer::Moment;
use ncclscope_console::failure::Failure;
use ncclscope_diagnose::NoEnd;
use ncclscope_diagnose::input::here::{Seen, see};
use ncclscope_metrics::{CommKey, Metrics, Name};
use ncclscope_node::judged::Judge;
use ncclscope_node::node::Node;
use ncclscope_node::process::Process;
use ncclscope_node::unrecorded::Unrecorded;
use ncclscope_operations::Timing;
use ncclscope_operations::stats::to_f64;
use ncclscope_top::{
    Comm, Flight, Function, FunctionKey, Life, Link, LinkKey, Rank, Reading, Work,
};
use ncclscope_trace::vectors::Vector;
use ncclscope_trace::{End, Identity};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The span to which rates refer.
const SPAN: Duration = Duration::from_secs(3);
/// A process without clock comparison for this time counts as silent; a running one compares once a
/// second.
const SILENT_AFTER: Duration = Duration::from_secs(4);
/// How long a process is shown after it ended in order.
const SHOWN_AFTER_END: Duration = Duration::from_secs(10);

/// Maximum number of unreadable directories that are named.
const UNREADABLE: usize = 3;

/// The key of a process: host, process id and start.
type Key = (String, u32, Option<u64>);

/// Follows recordings.
pub(super) struct Live {
    node: Node,
    directories: Vec<PathBuf>,
    readings: usize,
    read_at: Instant,
    /// Lengths of the windows in the span.
    lengths: VecDeque<Duration>,
    /// Number of windows in a span.
    windows: usize,
    works: BTreeMap<Key, VecDeque<Work>>,
    judge: Judge,
}

impl Live {
    pub(super) fn new(directories: Vec<PathBuf>, interval: f64) -> Result<Live, Failure> {
        allow_open_files()?;
        let interval = Duration::from_secs_f64(interval);
        let mut windows = 1;
        while interval * windows < SPAN {
            windows += 1;
        }
        Ok(Live {
            node: Node::new(directories.clone(), &host_name()),
            directories,
            readings: 0,
            read_at: Instant::now(),
            lengths: VecDeque::new(),
            windows: windows as usize,
            works: BTreeMap::new(),
            judge: Judge::default(),
        })
    }

    /// Ends the window of each process, and keeps its work.
    fn close(&mut self) {
        let now = Instant::now();
        self.node.close(now, false);
        self.lengths.push_back(now.duration_since(std::mem::replace(&mut self.read_at, now)));
        let mut alive = BTreeSet::new();
        for process in self.node.processes() {
            let key = key_of(process);
            let works = self.works.entry(key.clone()).or_default();
            works.push_back(work_of(process.window(), process.roles()));
            while works.len() > self.windows {
                works.pop_front();
            }
            alive.insert(key);
        }
        self.works.retain(|key, _| alive.contains(key));
        while self.lengths.len() > self.windows {
            self.lengths.pop_front();
        }
    }

    fn rank(&self, process: &Process) -> Option<Rank> {
        let identity = process.identity();
        let life = self.life(process)?;
        let mut work = Work::default();
        let works = self.works.get(&key_of(process));
        works.into_iter().flatten().for_each(|window| work.add(window));
        let rank = identity.rank.or_else(|| only_rank(process));
        let is_over = matches!(life, Life::Ended | Life::Killed);
        let says_hung = process.vectors().iter().any(Vector::is_stuck);
        Some(Rank {
            job: identity.job_id().unwrap_or_default().to_owned(),
            rank,
            host: process.host().to_owned(),
            device: identity.device,
            pid: Some(process.pid()),
            life,
            flights: if is_over { Vec::new() } else { flights(process) },
            work,
            fresh: works.and_then(|works| works.back()).cloned().unwrap_or_default(),
            says_hung: says_hung && !is_over,
            no_end: no_end(process).filter(|_| !is_over),
            facts: facts(identity),
        })
    }

    /// Whether the process runs; `None` if it ended too long ago to be shown.
    fn life(&self, process: &Process) -> Option<Life> {
        let pid = process.pid();
        match (process.end(), process.over()) {
            (Some(End::Closed), over) => {
                let is_shown = over.is_none_or(|over| over.elapsed() < SHOWN_AFTER_END);
                return is_shown.then_some(Life::Ended);
            }
            (Some(End::Killed), _) => return Some(Life::Killed),
            (None, _) => {}
        }
        Some(match see(process.host(), pid, process.identity()) {
            Some(Seen::Stopped) => Life::Stopped,
            // The process may be about to close its recording.
            Some(Seen::Gone) if process.silence() > SILENT_AFTER => Life::Killed,
            _ if process.stop().is_some() => Life::Stopped,
            _ if process.silence() > SILENT_AFTER => Life::Silent,
            _ => Life::Running,
        })
    }

    /// What the user can do if there are no ranks.
    fn advice(&self) -> Vec<String> {
        match self.node.beginning() {
            0 => {}
            1 => return vec!["1 process began to record a moment ago".into()],
            n => return vec![format!("{n} processes began to record a moment ago")],
        }
        if let Some(lines) = Unrecorded::find(&self.directories).lines() {
            return lines;
        }
        let places: Vec<String> =
            self.directories.iter().map(|path| path.display().to_string()).collect();
        let example = places.first().map_or(".", |place| place.as_str());
        vec![format!(
            "no running rank records into {}: start the job with `ncclscope run -o {example} -- \
             CMD`, or name the directory of its recordings (NCCLSCOPE_DIR)",
            places.join(", ")
        )]
    }
}

impl Source for Live {
    fn read(&mut self, limit: Duration) -> Result<Reading, Failure> {
        match self.readings {
            0 => self.node.begin(),
            _ => self.node.poll(),
        }
        self.readings += 1;
        self.close();
        let jobs = self.judge.look(&self.node, limit);
        let findings = hang::verdicts(jobs);
        let doubts: Vec<String> =
            jobs.iter().filter_map(|job| job.doubt().map(str::to_owned)).collect();
        let ranks: Vec<Rank> =
            self.node.processes().filter_map(|process| self.rank(process)).collect();
        let mut notes = if ranks.is_empty() { self.advice() } else { Vec::new() };
        let unreadable: Vec<String> = self.node.unreadable().collect();
        notes.extend(doubts);
        notes.extend(unreadable.iter().take(UNREADABLE).cloned());
        if let more @ 1.. = unreadable.len().saturating_sub(UNREADABLE) {
            notes.push(format!("{more} more cannot be read"));
        }
        let source: Vec<String> =
            self.directories.iter().map(|path| path.display().to_string()).collect();
        // What the first reading reads was done before it.
        let fresh = self.lengths.back().filter(|_| self.readings > 1);
        Ok(Reading {
            source: source.join(", "),
            at: Moment::now().rfc3339(),
            span_s: self.lengths.iter().sum::<Duration>().as_secs_f64(),
            fresh_s: fresh.map_or(0.0, Duration::as_secs_f64),
            ranks,
            findings,
            notes,
        })
    }

    fn is_beginning(&self) -> bool {
        self.node.beginning() > 0
    }

    /// True once all windows of the span have passed.
    fn has_rates(&self) -> bool {
        self.readings > self.windows
    }
}

fn key_of(process: &Process) -> Key {
    (process.host().to_owned(), process.pid(), process.identity().start_ticks)
}

/// The rank of a process whose launcher did not set one: that in the largest communicator, as in
/// tables of vectors.
fn only_rank(process: &Process) -> Option<u32> {
    process.vectors().first().map(|vector| vector.process)
}

fn flights(process: &Process) -> Vec<Flight> {
    let vectors = process.vectors();
    let flight = |(open, age_s): (ncclscope_metrics::OldestInFlight, f64)| Flight {
        func: open.func.to_string(),
        comm: comm_of(&open.comm, process.roles()),
        bytes: open.bytes,
        peer: open.peer,
        // The rank's watchdog knows when the operations before it ended.
        age_s: vectors.iter().filter(|vector| vector.comm == open.comm.hash).fold(
            age_s,
            |age_s, vector| match vector.age_ms {
                0 => age_s,
                ms => age_s.min(f64::from(ms) / 1e3),
            },
        ),
        count: open.count,
    };
    let mut found: Vec<Flight> = process.oldest_in_flight().into_iter().map(flight).collect();
    // What began before the reading did is known to the rank's watchdog alone.
    let seen: BTreeSet<u64> = found.iter().map(|flight| flight.comm.hash).collect();
    let unread = vectors.iter().filter(|vector| !seen.contains(&vector.comm));
    found.extend(unread.filter_map(|vector| {
        let name = process.roles().get(&vector.comm).map_or("", |name| name);
        hang::flight(vector, Comm::new(vector.comm, name))
    }));
    found
}

/// Why operations of the process show no end, if those of a communicator do not.
fn no_end(process: &Process) -> Option<String> {
    if let Some(mask) = process.others_mask() {
        return Some(format!(
            "NCCL's activation mask was changed from outside to {mask:#x} (RAS: CONTROL \
             PROFILER_MASK)"
        ));
    }
    let hides = process.vectors().iter().any(hang::hides_ends);
    let setting = process.identity().cuda_events.as_deref();
    let is_old = process.identity().profiler_api.is_some_and(|api| api < 5);
    hides.then(|| NoEnd::of(setting, is_old).text().to_owned())
}

/// Further facts for the detail pane.
fn facts(identity: &Identity) -> Vec<(String, String)> {
    let world = identity.world_size.map(|size| size.to_string());
    let local = identity.local_rank.map(|rank| rank.to_string());
    let known = [
        ("job", identity.job.clone()),
        ("job name", identity.job_name.clone()),
        ("ranks in the job", world),
        ("local rank", local),
        ("GPU", identity.device_uuid.clone()),
        ("PCI address", identity.device_pci.clone()),
        ("NCCL", identity.nccl.clone()),
        ("network plugin", identity.net_plugin.clone()),
        ("communicates without NCCL", identity.beside.clone()),
        ("command", identity.command.clone()),
    ];
    let known = known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    known.filter(|(_, value)| !value.is_empty()).collect()
}

fn comm_of(key: &CommKey, roles: &BTreeMap<u64, Name>) -> Comm {
    let role = roles.get(&key.hash).filter(|role| !role.is_empty());
    Comm::new(key.hash, role.unwrap_or(&key.name))
}

/// The work that became final in a window.
fn work_of(window: &Metrics, roles: &BTreeMap<u64, Name>) -> Work {
    let mut work = Work::default();
    for (key, of) in &window.operations {
        let comm = comm_of(&key.comm, roles);
        let key_of = FunctionKey { comm, func: key.func.to_string(), is_p2p: key.is_p2p };
        let is_timed = key.timing != Timing::Enqueue;
        let count = to_f64(of.count);
        let timed = if is_timed { count } else { 0.0 };
        let measured = to_f64(of.bus_bandwidth.buckets().iter().sum());
        work.functions.entry(key_of).or_default().merge(&Function {
            count,
            bytes: to_f64(of.bytes),
            timed,
            seconds: timed * of.duration.mean().unwrap_or(0.0),
            measured,
            bandwidths: measured * of.bus_bandwidth.mean().unwrap_or(0.0),
        });
    }
    for (key, of) in &window.links {
        let comm = comm_of(&key.comm, roles);
        let key = LinkKey { comm, rank: key.rank, peer: key.peer, is_send: key.is_send };
        let transfers = to_f64(of.transfers);
        work.links.entry(key).or_default().merge(&Link {
            transfers,
            bytes: to_f64(of.bytes),
            seconds: transfers * of.seconds.mean().unwrap_or(0.0),
        });
    }
    work
}
