// SPDX-License-Identifier: Apache-2.0
//! A process that is followed: its recording, and the metrics measured in it.

use crate::origin::Origin;
use ncclscope_diagnose::Stop;
use ncclscope_diagnose::input::here::{Seen, has_frozen_group, see};
use ncclscope_metrics::{Collector, CommKey, Foreign, Metrics, Name, OldestInFlight, Rank};
use ncclscope_operations::stats::to_f64;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::vectors::{ProcessPlace, Reach, Table, Vector, vector_flags};
use ncclscope_trace::{
    ClockSource, Definition, End, Error, Follower, Heartbeat, Identity, News, TickMap,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// A process without clock comparison for this time counts as silent. A live process compares its
/// clocks once a second; a silent one is stopped, or was killed without a lanes file that the agent
/// can see.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(30);

/// How often a process records its progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// A process that runs records its progress within this time.
const SILENCE: Duration = Duration::from_secs(3);

/// How long a communicator is exported after it is gone; `COMMS_LINGER` is the maximum number of
/// such communicators per process.
const COMM_LINGER: Duration = Duration::from_secs(120);
const COMMS_LINGER: usize = 64;

/// Maximum number of libraries beside NCCL that are reported for a process.
const MOST_LIBRARIES: usize = 16;

/// Reasons for which events are missing from the metrics. Events that are overwritten in the block
/// ring do not count, because the agent has read them before.
const CAUSES: [&str; 7] =
    ["lane_full", "lost_end", "no_lane", "no_slot", "unwritten", "stale", "unknown"];

/// Up to where a process was counted when it went out of sight, in case that it continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Process id, and process bits of the handles.
    process: (u32, u32),
    /// Number of the next block of events to be read.
    next_block: u64,
    /// Numbers of lost events by (cause, kind); usually empty.
    lost: Box<[(&'static str, &'static str, u64)]>,
}

/// A process that is followed.
#[derive(Debug)]
pub struct Process {
    follower: Follower,
    collector: Collector,
    reach: Reach,
    origin: Origin,
    api_version: Option<u32>,
    /// The metrics that became final in the last window.
    window: Metrics,
    /// The totals since the start, without destroyed communicators.
    total: Metrics,
    /// Communicators that are gone, with the time.
    gone: VecDeque<(CommKey, Instant)>,
    keeps_all: bool,
    /// Number of blocks that were overwritten before the agent started.
    missed_before: u64,
    /// Roles of communicators, by hash.
    roles: BTreeMap<u64, Name>,
    is_readable: bool,
    last_news: Instant,
    last_ticks: u64,
    /// When its last window was closed; `None` while it lives.
    over: Option<Instant>,
}

impl Process {
    /// Opens a recording; all of its content counts as new.
    pub(crate) fn open(path: &Path) -> Result<Process, Error> {
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
            is_readable: true,
            last_news: Instant::now(),
            last_ticks: 0,
            over: None,
        })
    }

    /// Reads the existing content without counting it: it is from before the agent started, and an
    /// earlier agent has reported it.
    pub(crate) fn count_from_now(&mut self) -> Result<(), Error> {
        self.poll()?;
        self.count_lost();
        self.begin();
        Ok(())
    }

    /// Up to where it is counted. `None` if its recording has ended, because the rest is reported
    /// already.
    pub(crate) fn counted(&self) -> Option<Counted> {
        let header = self.follower.header();
        self.follower.end().is_none().then(|| Counted {
            process: (header.pid, header.process),
            next_block: self.follower.next_block(),
            lost: self.collector.lost_totals().collect(),
        })
    }

    /// Reads the existing content and counts what was not counted before.
    pub(crate) fn count_from(&mut self, counted: &Counted) -> Result<(), Error> {
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

    /// Discards the counts of everything read so far.
    fn begin(&mut self) {
        self.collector.begin(self.follower.last_ticks(), &self.follower.tick_map());
        self.missed_before = self.follower.missed_blocks();
    }

    /// Keeps destroyed communicators, because there will be only one window.
    pub(crate) fn keep_all(&mut self) {
        self.keeps_all = true;
        self.collector.tell_all();
    }

    /// True for a copy of a recording (`ncclscope dump`).
    pub(crate) fn is_copy(&self) -> bool {
        self.follower.header().copy
    }

    /// Host, process id and process bits of the handles, which a copy shares with its original.
    pub(crate) fn key(&self) -> (&str, u32, u32) {
        let header = self.follower.header();
        (&header.host, header.pid, header.process)
    }

    pub(crate) fn poll(&mut self) -> Result<(), Error> {
        let result = self.read(None);
        self.is_readable = result.is_ok();
        result
    }

    /// False if its recording could not be read at the last poll.
    pub(crate) fn is_readable(&self) -> bool {
        self.is_readable
    }

    /// Reads what is new; blocks of events only up to the block number `end`.
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
        // Each name becomes a series, and a recording may contain any number of names.
        self.collector.beside(beside.split(',').take(MOST_LIBRARIES));
        if self.follower.last_ticks() != self.last_ticks {
            self.last_ticks = self.follower.last_ticks();
            self.last_news = Instant::now();
            // The process was silent and considered dead, but continues.
            self.over = None;
        }
        Ok(())
    }

    /// NCCL's activation mask, if others than the plugin changed it.
    pub fn others_mask(&self) -> Option<u32> {
        self.collector.others_mask()
    }

    /// What it did for other processes (PXN) since the last call.
    pub(crate) fn take_foreign(&mut self) -> Vec<Foreign> {
        self.collector.take_foreign()
    }

    /// Counts work for a process that is not followed.
    pub(crate) fn keep(&mut self, foreign: &Foreign) {
        self.collector.keep(foreign);
    }

    /// Counts what another process did for this one; `source` is a number of the other process.
    pub(crate) fn adopt(&mut self, source: u64, foreign: &Foreign) {
        self.collector.adopt(source, foreign);
    }

    /// Machine, clock and process id by which another process on the machine refers to it.
    pub(crate) fn place(&self) -> (&str, ClockSource, u32) {
        let header = self.follower.header();
        (self.identity().machine(), header.clock, header.pid)
    }

    /// The process bits of its handles.
    pub(crate) fn process_bits(&self) -> u64 {
        u64::from(self.follower.header().process)
    }

    /// Ends the window. With `last`, or if the process is over, everything becomes final at once. A
    /// process that is over leaves nothing in flight.
    pub(crate) fn close(&mut self, now: Instant, last: bool) {
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
        // Each cause is exported even if nothing was lost, because a missing series has no meaning.
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

    /// The communicators that are exported: live ones and those that ended recently; all of them
    /// once the process is over.
    pub(crate) fn comms(&self) -> BTreeSet<&CommKey> {
        if self.over.is_none() {
            return self.collector.living().chain(self.gone.iter().map(|(comm, _)| comm)).collect();
        }
        let Metrics { operations, links, channels, ranks, .. } = &self.total;
        let parts = links.keys().map(|key| &key.comm).chain(channels.keys().map(|key| &key.comm));
        let whole = operations.keys().map(|key| &key.comm).chain(ranks.keys().map(|key| &key.comm));
        parts.chain(whole).collect()
    }

    /// Forgets communicators for which `are_kept` is false.
    pub(crate) fn retain_comms(&mut self, are_kept: impl Fn(&CommKey) -> bool) {
        self.total.retain_comms(are_kept);
    }

    /// The vectors of its communicators; none if the process ended in order.
    pub fn vectors(&self) -> Vec<Vector> {
        if self.follower.end() == Some(End::Closed) {
            return Vec::new();
        }
        self.reach.vectors(self.state(), self.last_ticks, self.follower.header().hz)
    }

    /// Adds its vectors, and what else a table tells of it; nothing if it ended in order.
    pub(crate) fn add_to(&self, table: &mut Table) {
        if self.follower.end() == Some(End::Closed) {
            return;
        }
        let place = ProcessPlace {
            host: self.host(),
            pid: self.pid(),
            heard_ns: self.follower.tick_map().realtime_ns(self.last_ticks),
            kinds: self.follower.lanes().iter().fold(0, |kinds, lane| kinds | lane.kinds),
        };
        let now = (self.last_ticks, self.follower.header().hz);
        self.reach.add_to(table, self.state(), now, place);
    }

    /// The flags for the state of the process; 0 while it records.
    fn state(&self) -> u32 {
        let is_silent = self.silence() > SILENCE;
        if self.follower.end() == Some(End::Killed) || is_silent && !self.is_current() {
            return vector_flags::SILENT;
        }
        match self.stop() {
            Some(Stop::Signal) => vector_flags::STOPPED,
            Some(Stop::Freezer) => vector_flags::FROZEN,
            None if is_silent && self.has_ended() => vector_flags::SILENT,
            Some(Stop::Before | Stop::Unanswering) | None => 0,
        }
    }

    /// What stops the process, if it is on this host and records nothing. To see whether its
    /// control group is frozen, several files are read, so that is done only after a while.
    pub fn stop(&self) -> Option<Stop> {
        if self.silence() <= PROGRESS_EVERY {
            return None;
        }
        match see(self.host(), self.pid(), self.identity()) {
            Some(Seen::Stopped) => Some(Stop::Signal),
            Some(Seen::Runs) if self.silence() > SILENCE => {
                has_frozen_group(self.pid()).then_some(Stop::Freezer)
            }
            _ => None,
        }
    }

    /// The metrics of the last window.
    pub fn window(&self) -> &Metrics {
        &self.window
    }

    /// The totals since it started.
    pub(crate) fn total(&self) -> &Metrics {
        &self.total
    }

    /// The oldest operation in flight of each communicator at the end of the last window, with its
    /// age in s.
    pub fn oldest_in_flight(&self) -> Vec<(OldestInFlight, f64)> {
        let ns_per_tick = self.follower.tick_map().ns_per_tick();
        let age = |open: &OldestInFlight| {
            to_f64(self.last_ticks.saturating_sub(open.started)) * ns_per_tick / 1e9
        };
        let all = self.collector.oldest_in_flight().into_iter();
        all.map(|open| (age(&open), open)).map(|(age, open)| (open, age)).collect()
    }

    /// How long the process has recorded nothing.
    pub fn silence(&self) -> Duration {
        self.last_news.elapsed()
    }

    /// How its recording has ended; `None` while it is written.
    pub fn end(&self) -> Option<End> {
        self.follower.end()
    }

    /// The process id on its host.
    pub fn pid(&self) -> u32 {
        self.follower.header().pid
    }

    /// When its last window was closed; `None` while it lives.
    pub fn over(&self) -> Option<Instant> {
        self.over
    }

    /// Number of blocks that were overwritten before they were read.
    pub(crate) fn missed_blocks(&self) -> u64 {
        self.follower.missed_blocks().saturating_sub(self.missed_before)
    }

    /// What is known of the process.
    pub fn identity(&self) -> &Identity {
        self.follower.identity()
    }

    /// Roles of its communicators, by hash.
    pub fn roles(&self) -> &BTreeMap<u64, Name> {
        &self.roles
    }

    /// The name of its host.
    pub fn host(&self) -> &str {
        &self.follower.header().host
    }

    /// Facts from its environment.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Version of the profiler API that NCCL uses in the process; `None` before its first
    /// communicator.
    pub(crate) fn api_version(&self) -> Option<u32> {
        self.api_version
    }

    /// True if, as far as known, nothing more will come from this recording.
    pub fn has_ended(&self) -> bool {
        let is_silent = || {
            let may_be_dead = self.follower.owner_is_gone() != Some(false);
            may_be_dead && self.last_news.elapsed() > SILENT_AFTER
        };
        self.follower.end().is_some() || !self.follower.is_current() || is_silent()
    }

    /// True if its header says that the recording is closed.
    pub fn is_closed(&self) -> bool {
        let header = self.follower.header();
        header.closed || header.lanes_shared
    }

    /// True if nothing more will be written to the recording: it is closed, or no living process
    /// is known to hold it, and its latest time is long ago.
    pub(crate) fn is_complete(&self) -> bool {
        let is_old = || {
            let latest = self.follower.tick_map().realtime_ns(self.follower.last_ticks());
            let latest = UNIX_EPOCH + Duration::from_nanos(latest);
            latest.elapsed().is_ok_and(|age| age > SILENT_AFTER)
        };
        self.is_closed() || self.follower.owner_is_gone() != Some(false) && is_old()
    }

    /// True if the process has just started: the length of a tick is known from its second header
    /// on.
    pub(crate) fn is_young(&self) -> bool {
        let header = self.follower.header();
        header.hz == 0 && !header.closed
    }

    /// Considers the process silent since then.
    #[cfg(test)]
    pub(crate) fn fall_silent(&mut self, since: Duration) {
        self.last_news -= since;
    }

    /// True if the path still leads to this process's recording.
    pub(crate) fn is_current(&self) -> bool {
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
