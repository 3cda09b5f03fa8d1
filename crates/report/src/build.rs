// SPDX-License-Identifier: Apache-2.0
//! Puts the report together, process by process. Of each the operations are added up as they end.

use crate::losses::Losses;
use crate::parallel::in_order;
use crate::rows::{OperationRows, PeerRows, ProcessRows, age_ns};
use crate::schema::{Clock, EventCounts, Fact, OpenOperation, ProcessRow, RankRow, Report, SCHEMA};
use crate::unknowable::{Limits, ProcessLimits};
use crate::waiting::waits_for;
use crate::windows::{Window, windows};
use ncclscope_operations::counts::Counts;
use ncclscope_operations::joiner::{Consumer, Joined, join};
use ncclscope_operations::operation::{Completion, Operation};
use ncclscope_operations::threads::roles;
use ncclscope_operations::timeline::comm_name;
use ncclscope_operations::{Event, EventId, GpuClock, Timeline};
use ncclscope_trace::identity::{is_number, nccl_version};
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::{EventKind, Recording};
use std::collections::BTreeMap;

/// Collects the recordings of a run into a [`Report`].
#[derive(Debug, Default)]
pub struct ReportBuilder {
    ranks: Vec<RankRow>,
    processes: Vec<ProcessRow>,
    operations: OperationRows,
    open: Vec<OpenOperation>,
    peers: PeerRows,
    losses: Losses,
    windows: Vec<Window>,
    problems: Vec<String>,
    notes: Vec<String>,
    limits: Limits,
}

/// What a recording's records say, each of which is decoded once.
#[derive(Debug)]
struct Process<'a> {
    joined: Joined<'a>,
    seen: Seen,
}

/// What comes of a recording's operations, as they end.
#[derive(Debug, Default)]
struct Seen {
    operations: ProcessRows,
    open: Vec<OpenOperation>,
    limits: ProcessLimits,
}

impl Process<'_> {
    fn read(recording: &Recording) -> Process<'_> {
        let mut seen = Seen::default();
        let joined = join(recording, &mut seen);
        Process { joined, seen }
    }
}

impl Consumer for Seen {
    fn operation(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
        self.operations.add(timeline, operation);
        self.limits.add_operation(timeline, operation);
        if operation.completion == Completion::Open {
            let event = timeline.event(operation.event);
            let mut open = open_row(timeline, event, timeline.string(operation.func));
            open.bytes = operation.bytes;
            open.seq = operation.seq;
            open.peer = operation.peer;
            open.waits_for = waits_for(timeline, operation);
            self.open.push(open);
        }
    }

    fn event(&mut self, timeline: &Timeline<'_>, id: EventId, event: &Event) {
        self.limits.add_event(timeline, id, event);
        if event.kind() == EventKind::GroupApi && event.stop.is_none() {
            let mut open = open_row(timeline, event, EventKind::GroupApi.name());
            open.waits_for = vec!["a thread is inside this NCCL call".into()];
            self.open.push(open);
        }
    }
}

impl ReportBuilder {
    /// Adds a process.
    pub fn add(&mut self, recording: &Recording) {
        self.add_process(Process::read(recording));
    }

    /// Adds the processes of a run, which are read on all cores; `added` is called with the number
    /// of each that is done.
    pub fn add_all(&mut self, recordings: &[Recording], mut added: impl FnMut(usize)) {
        in_order(recordings, Process::read, |at, process| {
            self.add_process(process);
            added(at);
        });
    }

    fn add_process(&mut self, process: Process<'_>) {
        let Process { joined: Joined { timeline, clocks, cut_short }, seen } = process;
        let recording = timeline.recording();
        let errors: Vec<Option<u64>> =
            clocks.iter().flatten().map(|clock| clock.error_ns()).collect();
        self.add_ranks(&timeline, &clocks);
        self.operations.add(&timeline, seen.operations);
        self.peers.add(&timeline);
        self.open.extend(seen.open);
        self.losses.add(recording, || timeline.records());
        self.losses.add_stray(timeline.stray_kernels());
        self.windows.extend(windows(recording));
        self.add_problems(&timeline);
        self.limits.add(&timeline, &seen.limits, &errors, cut_short);
    }

    /// The report.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.ranks.sort_by(|a, b| {
            let key = |row: &RankRow| (row.comm.is_none(), row.comm.clone(), row.rank, row.pid);
            key(a).cmp(&key(b)).then_with(|| a.host.cmp(&b.host))
        });
        self.processes.sort_by(|a, b| a.file.cmp(&b.file));
        self.open.sort_by(|a, b| b.age_ns.cmp(&a.age_ns).then(a.rank.cmp(&b.rank)));
        self.notes.sort();
        self.notes.dedup();
        Report {
            schema: SCHEMA,
            ranks: self.ranks,
            processes: self.processes,
            operations: self.operations.finish(),
            open_operations: self.open,
            peers: self.peers.finish(),
            windows: self.windows,
            lost: self.losses.finish(),
            problems: self.problems,
            notes: self.notes,
            unknowable: self.limits.sentences(),
        }
    }

    fn add_ranks(&mut self, timeline: &Timeline<'_>, clocks: &[Option<GpuClock>]) {
        let recording = timeline.recording();
        self.processes.push(process_row(recording));
        let mut dropped = dropped(recording);
        for (at, comm) in recording.comms().iter().enumerate() {
            let known = |number: u32| (number != 0).then_some(number);
            let mut row = empty_row(recording);
            row.rank = timeline.rank(at);
            row.nranks = known(comm.ranks);
            row.nodes = known(comm.nodes);
            row.device = recording.comm_device(comm.index).map(|device| device.index);
            row.comm = Some(comm_name(comm));
            row.comm_name = comm.name.clone();
            row.role = recording.role(comm).map(str::to_owned);
            row.nccl_version = nccl_version(comm.nccl_version);
            row.api_version = known(comm.api_version);
            row.start_ns = Some(timeline.ns(comm.ticks));
            row.clock.gpu_error_ns = clocks[at].and_then(|clock| clock.error_ns());
            // Losses are counted by process: they stand in the first row only.
            fill_counts(&mut row, timeline.counts(at), &std::mem::take(&mut dropped));
            self.ranks.push(row);
        }
        let rest = timeline.unattributed();
        if !rest.is_empty()
            || dropped.iter().any(|&count| count != 0)
            || recording.comms().is_empty()
        {
            let mut row = empty_row(recording);
            fill_counts(&mut row, rest, &dropped);
            self.ranks.push(row);
        }
    }

    fn add_problems(&mut self, timeline: &Timeline<'_>) {
        let recording = timeline.recording();
        let file = file_name(recording);
        let mut add = |text: String| self.problems.push(format!("{file}: {text}"));
        recording.problems().iter().cloned().for_each(&mut add);
        let unmatched: u64 = timeline.unmatched_ends().iter().sum();
        let has_overwritten = recording.header().overwritten.iter().any(|&count| count != 0);
        // What a bounded recording let go leaves ends without starts behind: no news then.
        if unmatched != 0 && !has_overwritten {
            add(format!("{unmatched} stops and states belong to events without a start"));
        }
        if timeline.orphan_steps() != 0 && !has_overwritten {
            let steps = timeline.orphan_steps();
            add(format!("{steps} network steps belong to operations without a start"));
        }
        let header = recording.header();
        if header.panics != 0 {
            add(format!("{} callbacks failed inside the plugin: please report it", header.panics));
        }
        if header.garbage_words != 0 {
            add(format!("{} words were no records: please report it", header.garbage_words));
        }
        if header.unknown_events != 0 {
            let count = header.unknown_events;
            add(format!("{count} events are of kinds newer than the plugin; they are not shown"));
        }
        for (name, count) in timeline.unknown_records() {
            add(format!("{count} records `{name}` are of a later version; they are not shown"));
        }
        for (name, count) in recording.losses_of_later_kinds() {
            add(format!(
                "{count} events, stops and states of `{name}`, of a later version, are lost"
            ));
        }
        for (name, count) in recording.counters_of_later_versions() {
            add(format!("{count} {name}, as a later version counts"));
        }
        self.notes.extend(recording.notes().iter().cloned());
    }
}

fn empty_row(recording: &Recording) -> RankRow {
    let header = recording.header();
    RankRow {
        rank: None,
        nranks: None,
        nodes: None,
        device: None,
        host: header.host.clone(),
        pid: header.pid,
        comm: None,
        comm_name: None,
        role: None,
        nccl_version: None,
        api_version: None,
        events: BTreeMap::new(),
        states: BTreeMap::new(),
        threads: roles(recording),
        clock: Clock {
            source: header.clock.name(),
            error_ns: recording.tick_map().error_ns(),
            gpu_error_ns: None,
        },
        start_ns: None,
        end_ns: Some(recording.tick_map().realtime_ns(recording.last_ticks())),
        file: file_name(recording),
    }
}

fn process_row(recording: &Recording) -> ProcessRow {
    let facts = recording.identity().entries().into_iter().map(|(key, text)| {
        let number = || text.parse().ok().filter(|_| is_number(key));
        (key.to_owned(), number().map_or_else(|| Fact::Text(text.clone()), Fact::Number))
    });
    ProcessRow { file: file_name(recording), identity: facts.collect() }
}

fn fill_counts(row: &mut RankRow, counts: &Counts, dropped: &[u64; KINDS]) {
    for kind in EventKind::ALL {
        let count = counts.kind(kind);
        let events = EventCounts {
            started: count.started,
            stopped: count.stopped,
            open: count.started - count.stopped,
            dropped: dropped[kind.index()],
            stale: count.stale,
            unknown_parent: count.unknown_parent,
        };
        if events != EventCounts::default() {
            row.events.insert(kind.name(), events);
        }
    }
    row.states = counts.states().map(|(state, count)| (state.to_string(), count)).collect();
}

fn open_row(timeline: &Timeline<'_>, event: &Event, func: &str) -> OpenOperation {
    let header = timeline.recording().header();
    let comm = timeline.comm_of(event);
    OpenOperation {
        rank: comm.and_then(|comm| timeline.rank(comm)),
        host: header.host.clone(),
        pid: header.pid,
        comm: comm.map(|comm| comm_name(timeline.comm(comm))),
        func: func.into(),
        bytes: None,
        seq: None,
        peer: None,
        age_ns: age_ns(timeline, event.start.ticks),
        waits_for: Vec::new(),
    }
}

fn dropped(recording: &Recording) -> [u64; KINDS] {
    let mut dropped = recording.header().without_memory();
    for lane in recording.lanes() {
        for (sum, lost) in dropped.iter_mut().zip(lane.header.lost) {
            *sum += lost;
        }
    }
    dropped
}

pub(crate) fn file_name(recording: &Recording) -> String {
    let name = recording.path().file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
