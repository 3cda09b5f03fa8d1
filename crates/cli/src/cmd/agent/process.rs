// SPDX-License-Identifier: Apache-2.0
//! A process that the agent follows: its recording, and the metrics measured in it.

use super::origin::Origin;
use super::vectors::Reach;
use ncclscope_metrics::{Collector, CommKey, Foreign, Metrics, Name, OldestInFlight, Rank};
use ncclscope_operations::stats::to_f64;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::vectors::Vector;
use ncclscope_trace::{
    ClockSource, Definition, End, Error, Follower, Heartbeat, Identity, News, TickMap,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

/// A living process compares its clocks once a second. One that does not is stopped, or was killed
/// without a lanes file that we can see.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(30);

/// How often a process writes how far it has come.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// How long a communicator is exported after it is gone, and the maximum per process.
const COMM_LINGER: Duration = Duration::from_secs(120);
const COMMS_LINGER: usize = 64;

/// Libraries beside NCCL that are reported for a process.
const MOST_LIBRARIES: usize = 16;

/// Why events are missing from the metrics. Events overwritten in the block ring are not: the
/// agent has read them before.
const CAUSES: [&str; 7] =
    ["lane_full", "lost_end", "no_lane", "no_slot", "unwritten", "stale", "unknown"];

/// Up to where a process was counted that went out of sight, in case that it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// Process id and bits of the handles.
    process: (u32, u32),
    /// The number of the block of events that was to come next.
    next_block: u64,
    /// What was lost, by cause and kind: as a rule nothing.
    lost: Box<[(&'static str, &'static str, u64)]>,
}

#[derive(Debug)]
pub(crate) struct Process {
    follower: Follower,
    collector: Collector,
    reach: Reach,
    origin: Origin,
    api_version: Option<u32>,
    /// What settled in the last window.
    window: Metrics,
    /// Its totals since it started, without communicators that were destroyed.
    total: Metrics,
    /// Communicators that are gone, and since when.
    gone: VecDeque<(CommKey, Instant)>,
    keeps_all: bool,
    /// Blocks that were overwritten before we began.
    missed_before: u64,
    /// Roles of communicators, by hash.
    roles: BTreeMap<u64, Name>,
    last_news: Instant,
    last_ticks: u64,
    /// When its last window was closed.
    over: Option<Instant>,
}

impl Process {
    /// Opens a recording; its whole contents are new.
    pub(super) fn open(path: &Path) -> Result<Process, Error> {
        let follower = Follower::open(path)?;
        let mut collector = Collector::default();
        collector.clock(&TickMap::new(Vec::new(), follower.header().hz));
        collector.hand_over();
        let origin = Origin::of(follower.header().pid, path);
        Ok(Process {
            follower,
            collector,
            reach: Reach::default(),
            origin,
            api_version: None,
            window: Metrics::default(),
            total: Metrics::default(),
            gone: VecDeque::new(),
            keeps_all: false,
            missed_before: 0,
            roles: BTreeMap::new(),
            last_news: Instant::now(),
            last_ticks: 0,
            over: None,
        })
    }

    /// Reads what there is, and counts only what happens from now on: the rest was before we began,
    /// and an agent before us has reported it.
    pub(super) fn count_from_now(&mut self) -> Result<(), Error> {
        self.poll()?;
        self.count_lost();
        self.begin();
        Ok(())
    }

    /// Up to where it is counted. `None` if its recording has ended: the rest is reported already.
    pub(super) fn counted(&self) -> Option<Counted> {
        let header = self.follower.header();
        self.follower.end().is_none().then(|| Counted {
            process: (header.pid, header.process),
            next_block: self.follower.next_block(),
            lost: self.collector.lost_totals().collect(),
        })
    }

    /// Reads what there is, and counts what was not counted before.
    pub(super) fn count_from(&mut self, counted: &Counted) -> Result<(), Error> {
        let header = self.follower.header();
        if counted.process != (header.pid, header.process) {
            return self.count_from_now();
        }
        self.read(Some(counted.next_block))?;
        for &(cause, kind, total) in &counted.lost {
            self.collector.lost(cause, kind, total);
        }
        self.begin();
        self.poll()
    }

    /// What was read until now does not count.
    fn begin(&mut self) {
        self.collector.begin(self.follower.last_ticks(), &self.follower.tick_map());
        self.missed_before = self.follower.missed_blocks();
    }

    /// Keeps all communicators: nothing is read of it after its first window.
    pub(super) fn keep_all(&mut self) {
        self.keeps_all = true;
        self.collector.tell_all();
    }

    /// A copy of a recording (`ncclscope dump`).
    pub(super) fn is_copy(&self) -> bool {
        self.follower.header().copy
    }

    pub(super) fn poll(&mut self) -> Result<(), Error> {
        self.read(None)
    }

    /// Reads what is new, of the blocks of events only those before the one of the number `end`.
    fn read(&mut self, end: Option<u64>) -> Result<(), Error> {
        let Process { follower, collector, reach, api_version, roles, .. } = self;
        let take = |news| match news {
            News::Record(lane, record) => collector.record(lane, &record),
            News::Heartbeat(heartbeat) => {
                if let Heartbeat::Progress(progress) = &heartbeat {
                    collector.progress(progress);
                }
                reach.note(&heartbeat);
            }
            News::Definition(definition) => {
                reach.define(&definition);
                match definition {
                    Definition::String { id, text } => collector.string(id, &text),
                    Definition::Comm(comm) => {
                        *api_version = Some(comm.api_version);
                        collector.comm(&comm);
                    }
                    Definition::CommDevice(device) => collector.device(&device),
                    Definition::CommEnd { index, ticks } => collector.comm_end(index, ticks),
                    Definition::Role { hash, text } => drop(roles.insert(hash, text.into())),
                    _ => {}
                }
            }
        };
        match end {
            Some(end) => follower.poll_before(end, take)?,
            None => follower.poll(take)?,
        }
        self.reach.identify(self.follower.identity());
        let beside = self.follower.identity().beside.as_deref().unwrap_or_default();
        // A recording may say anything: each name is a series.
        self.collector.beside(beside.split(',').take(MOST_LIBRARIES));
        if self.follower.last_ticks() != self.last_ticks {
            self.last_ticks = self.follower.last_ticks();
            self.last_news = Instant::now();
            // It was silent, and taken for dead.
            self.over = None;
        }
        Ok(())
    }

    /// What it did for other processes since the last time (PXN).
    pub(super) fn take_foreign(&mut self) -> Vec<Foreign> {
        self.collector.take_foreign()
    }

    /// Counts what belongs to no process that is followed.
    pub(super) fn keep(&mut self, foreign: &Foreign) {
        self.collector.keep(foreign);
    }

    /// Counts what another process did for this one; `source` is a number of that one.
    pub(super) fn adopt(&mut self, source: u64, foreign: &Foreign) {
        self.collector.adopt(source, foreign);
    }

    /// The machine, the clock and the process id by which another process of the machine names it.
    pub(super) fn place(&self) -> (&str, ClockSource, u32) {
        let header = self.follower.header();
        (self.identity().machine(), header.clock, header.pid)
    }

    /// The bits of its handles.
    pub(super) fn process_bits(&self) -> u64 {
        u64::from(self.follower.header().process)
    }

    /// Ends the window. `last`: this is the last call, so that what is over settles at once, as
    /// with a process that is over; that one leaves nothing in flight.
    pub(super) fn close(&mut self, now: Instant, last: bool) {
        if self.over.is_some() {
            self.window = Metrics::default();
            return;
        }
        self.count_lost();
        let (clock, ticks) = (self.follower.tick_map(), self.follower.last_ticks());
        let has_ended = self.has_ended();
        let mut window = if has_ended || last {
            self.collector.finish(ticks, &clock)
        } else {
            self.collector.close(ticks, &clock)
        };
        // Each cause is exported even if nothing was lost: a missing series says nothing.
        for cause in CAUSES {
            window.lost.entry((cause, "")).or_default();
        }
        if has_ended {
            self.over = Some(now);
            window.ranks.values_mut().for_each(nothing_in_flight);
            self.total.ranks.values_mut().for_each(nothing_in_flight);
            window.beside.clear();
            self.total.beside.clear();
        }
        self.total.add_window(&window);
        self.window = window;
        self.gone.extend(self.collector.take_gone().into_iter().map(|comm| (comm, now)));
        let is_over = |since: &Instant| now.saturating_duration_since(*since) > COMM_LINGER;
        let is_full = |gone: &VecDeque<_>| !self.keeps_all && gone.len() > COMMS_LINGER;
        while is_full(&self.gone) || self.gone.front().is_some_and(|(_, at)| is_over(at)) {
            self.gone.pop_front();
        }
    }

    /// Communicators that are exported: those that live, and those that went away a while ago; all
    /// of them once it is over itself.
    pub(super) fn comms(&self) -> BTreeSet<&CommKey> {
        if self.over.is_none() {
            return self.collector.living().chain(self.gone.iter().map(|(comm, _)| comm)).collect();
        }
        let Metrics { operations, links, channels, ranks, .. } = &self.total;
        let parts = links.keys().map(|key| &key.comm).chain(channels.keys().map(|key| &key.comm));
        let whole = operations.keys().map(|key| &key.comm).chain(ranks.keys().map(|key| &key.comm));
        parts.chain(whole).collect()
    }

    /// Forgets what it did in other communicators than those that `are_kept`.
    pub(super) fn retain_comms(&mut self, are_kept: impl Fn(&CommKey) -> bool) {
        self.total.retain_comms(are_kept);
    }

    /// How far it has come; nothing of one that ended in order.
    pub(crate) fn vectors(&self) -> Vec<Vector> {
        let is_silent = self.follower.end() == Some(End::Killed)
            || self.last_news.elapsed() > 3 * PROGRESS_EVERY && self.has_ended();
        if self.follower.end() == Some(End::Closed) {
            return Vec::new();
        }
        self.reach.vectors(is_silent, self.last_ticks, self.follower.header().hz)
    }

    pub(crate) fn window(&self) -> &Metrics {
        &self.window
    }

    /// What it did since it began.
    pub(super) fn total(&self) -> &Metrics {
        &self.total
    }

    /// The oldest operation in flight of each communicator as of the last window's end, and the
    /// age of each, s.
    pub(crate) fn oldest_in_flight(&self) -> Vec<(OldestInFlight, f64)> {
        let ns_per_tick = self.follower.tick_map().ns_per_tick();
        let age = |open: &OldestInFlight| {
            to_f64(self.last_ticks.saturating_sub(open.started)) * ns_per_tick / 1e9
        };
        let all = self.collector.oldest_in_flight().into_iter();
        all.map(|open| (age(&open), open)).map(|(age, open)| (open, age)).collect()
    }

    /// For how long nothing has come of it.
    pub(crate) fn silence(&self) -> Duration {
        self.last_news.elapsed()
    }

    pub(crate) fn end(&self) -> Option<End> {
        self.follower.end()
    }

    /// The process id that its host knows.
    pub(crate) fn pid(&self) -> u32 {
        self.follower.header().pid
    }

    pub(crate) fn over(&self) -> Option<Instant> {
        self.over
    }

    /// Blocks that were overwritten before they were read.
    pub(super) fn missed_blocks(&self) -> u64 {
        self.follower.missed_blocks().saturating_sub(self.missed_before)
    }

    pub(crate) fn identity(&self) -> &Identity {
        self.follower.identity()
    }

    /// Roles of its communicators, by hash.
    pub(crate) fn roles(&self) -> &BTreeMap<u64, Name> {
        &self.roles
    }

    pub(crate) fn host(&self) -> &str {
        &self.follower.header().host
    }

    /// What its environment shows about it.
    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The version of the profiler API that NCCL uses in it, once there is a communicator.
    pub(super) fn api_version(&self) -> Option<u32> {
        self.api_version
    }

    /// Nothing more will come from this file, as far as can be known.
    pub(crate) fn has_ended(&self) -> bool {
        let is_silent = || {
            let may_be_dead = self.follower.owner_is_gone() != Some(false);
            may_be_dead && self.last_news.elapsed() > SILENT_AFTER
        };
        self.follower.end().is_some() || !self.follower.is_current() || is_silent()
    }

    /// Its header says that it is over.
    pub(super) fn is_closed(&self) -> bool {
        let header = self.follower.header();
        header.closed || header.lanes_shared
    }

    /// It began a moment ago: how long a tick is comes with its first header but one.
    pub(super) fn is_young(&self) -> bool {
        let header = self.follower.header();
        header.hz == 0 && !header.closed
    }

    /// It has been silent for so long.
    #[cfg(test)]
    pub(super) fn fall_silent(&mut self, since: Duration) {
        self.last_news -= since;
    }

    /// The path leads to this process's recording still.
    pub(super) fn is_current(&self) -> bool {
        self.follower.is_current()
    }

    fn count_lost(&mut self) {
        let (header, collector) = (self.follower.header(), &mut self.collector);
        let mut lane_full = [0; KINDS];
        let mut ends = [0; KINDS];
        let add = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
        let mut later_kinds = 0;
        header.later_kinds.values().for_each(|&lost| add(&mut later_kinds, lost));
        for lane in self.follower.lanes() {
            lane_full.iter_mut().zip(lane.lost).for_each(|(sum, lost)| add(sum, lost));
            ends.iter_mut().zip(lane.lost_ends).for_each(|(sum, lost)| add(sum, lost));
            lane.later_kinds.values().for_each(|&lost| add(&mut later_kinds, lost));
        }
        collector.lost_by_kind("lane_full", &lane_full);
        collector.lost_by_kind("lost_end", &ends);
        collector.lost("lane_full", "", later_kinds);
        if self.follower.missed_blocks() > 0 {
            collector.lost_blocks();
        }
        collector.lost_by_kind("no_lane", &header.without_lane);
        collector.lost_by_kind("no_slot", &header.without_slot);
        collector.lost_by_kind("unwritten", &header.unwritten);
        collector.lost("stale", "", header.stale);
        collector.lost("unknown", "", header.unknown_events);
    }
}

fn nothing_in_flight(rank: &mut Rank) {
    (rank.in_flight, rank.oldest) = (0, 0.0);
}
