// SPDX-License-Identifier: Apache-2.0
//! Builds the report, process by process, as operations end.

use crate::groups::{By, ChannelSums, Sums};
use crate::in_nccl::{ProcessTimes, Times, recorded_ns};
use crate::job_ranks::JobRanks;
use crate::late::late_ranks;
use crate::losses::Losses;
use crate::numbers::{Numbers, OperationPosition};
use crate::processes::{clock_steps, dropped, empty_row, file_name, fill_counts, process_row};
use crate::rows::{OperationRows, PeerRows, ProcessRows, age_ns};
use crate::schema::{
    MaskChange, OpenOperation, OperationRow, PeerRow, ProcessRow, RankRow, Report, SCHEMA, Window,
};
use crate::summary::{Summary, comm_names};
use crate::unknowable::{Limits, ProcessLimits};
use crate::waiting::waits_for;
use crate::windows::{mask_changes, mask_sentences, windows};
use ncclscope_operations::joiner::{Consumer, Joined, join};
use ncclscope_operations::operation::{Completion, Operation, valid_ptimers};
use ncclscope_operations::parallel::in_order;
use ncclscope_operations::pxn::{Pxn, Work};
use ncclscope_operations::stats::to_f64;
use ncclscope_operations::timeline::comm_name;
use ncclscope_operations::{Event, EventId, GpuClock, GpuClocks, Selection, Timeline, human};
use ncclscope_trace::{Detail, EventKind, MarkKind, Recording};
use std::collections::BTreeMap;

/// Collects the recordings of a run into a [`Report`].
#[derive(Debug, Default)]
pub struct ReportBuilder {
    /// The rows of ranks, each with the index of its process.
    pub(crate) ranks: Vec<(usize, RankRow)>,
    /// The rank that the launcher gave each process; `None` if unknown.
    pub(crate) told: Vec<Option<u32>>,
    pub(crate) processes: Vec<ProcessRow>,
    pub(crate) operations: OperationRows,
    times: Times,
    /// Sum of the recorded times of all ranks, ns.
    recorded_ns: u64,
    open: Vec<OpenOperation>,
    peers: PeerRows,
    losses: Losses,
    windows: Vec<Window>,
    mask_changes: Vec<MaskChange>,
    problems: Vec<String>,
    notes: Vec<String>,
    limits: Limits,
}

/// The contribution of one process to a report.
#[derive(Debug)]
pub struct ProcessPart<'a> {
    joined: Joined<'a>,
    seen: ProcessReader,
}

/// Collects the operations and events of a recording as they end.
#[derive(Debug, Default)]
pub struct ProcessReader {
    wanted: Wanted,
    steps: Steps,
    channels: BTreeMap<u8, ChannelSums>,
    operations: ProcessRows,
    times: ProcessTimes,
    numbers: Numbers,
    open: Vec<(OpenOperation, Option<OperationPosition>)>,
    limits: ProcessLimits,
}

impl<'a> ProcessPart<'a> {
    /// Reads a recording, in memory that does not grow with its length. `work` has the ProxyOps
    /// that other processes ran for this one (PXN).
    #[must_use]
    pub fn read(recording: &'a Recording, work: Option<&Work>) -> ProcessPart<'a> {
        ProcessPart::read_wanted(recording, work, Wanted::default())
    }

    /// As [`ProcessPart::read`], with only the wanted operations.
    #[must_use]
    pub fn read_wanted(
        recording: &'a Recording,
        work: Option<&Work>,
        wanted: Wanted,
    ) -> ProcessPart<'a> {
        let mut reader = ProcessReader::new(wanted, recording);
        let joined = join(recording, work, &mut reader);
        reader.finish(joined)
    }

    /// Number of its ProxyOps for other processes (PXN).
    #[must_use]
    pub fn foreign(&self) -> u64 {
        self.seen.limits.foreign
    }
}

impl Consumer for ProcessReader {
    fn operation(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
        // Operations that are not selected also count for the numbers.
        let place = self.numbers.note(timeline, operation);
        if !self.wanted.selection.has_operation(timeline, operation) {
            return;
        }
        let step = self.steps.at(timeline.event(operation.event).start.ticks);
        self.operations.add(timeline, operation, step);
        self.times.add(timeline, operation);
        self.limits.add_operation(timeline, operation);
        if operation.completion == Completion::Open {
            let event = timeline.event(operation.event);
            let mut open = open_row(timeline, event, timeline.string(operation.func));
            open.bytes = operation.bytes;
            open.nccl_seq = operation.seq;
            open.comm_peer = operation.peer;
            open.waits_for = waits_for(timeline, operation);
            self.open.push((open, place));
        }
    }

    fn event(&mut self, timeline: &Timeline<'_>, id: EventId, event: &Event) {
        self.limits.add_event(timeline, id, event);
        let is_open = event.kind() == EventKind::GroupApi && event.stop.is_none();
        if is_open && self.wanted.selection.has_event(timeline, event) {
            let mut open = open_row(timeline, event, EventKind::GroupApi.name());
            open.waits_for = vec!["a thread is inside this NCCL call".into()];
            self.open.push((open, None));
        }
        if self.wanted.by.contains(&By::Channel) {
            self.add_channel(timeline, event);
        }
    }
}

impl ProcessReader {
    /// A reader of a recording, for a report of what is wanted.
    #[must_use]
    pub fn new(wanted: Wanted, recording: &Recording) -> ProcessReader {
        let steps = match wanted.by.contains(&By::Step) {
            true => Steps::of(recording),
            false => Steps::default(),
        };
        ProcessReader { wanted, steps, ..ProcessReader::default() }
    }

    /// The process's part, after all of its records.
    #[must_use]
    pub fn finish(mut self, joined: Joined<'_>) -> ProcessPart<'_> {
        for (open, place) in &mut self.open {
            open.number = place.and_then(|place| self.numbers.of(&joined.timeline, place));
        }
        ProcessPart { joined, seen: self }
    }

    /// Adds a kernel channel, or the bytes that a ProxyOp sent over a channel.
    fn add_channel(&mut self, timeline: &Timeline<'_>, event: &Event) {
        let selection = &self.wanted.selection;
        if !selection.has_event(timeline, event)
            || !selection.has_time(timeline.ns(event.start.ticks))
        {
            return;
        }
        match event.start.detail {
            Detail::KernelCh(kernel) => {
                let stop = event.ptimer_stop.map(|(stop, _)| stop);
                let times = valid_ptimers((kernel.ptimer, stop));
                let sums = self.channels.entry(kernel.channel).or_default();
                sums.count += 1;
                sums.timed += u64::from(times.is_some());
                sums.ns += times.map_or(0.0, |(start, stop)| to_f64(stop - start));
            }
            Detail::ProxyOp(op) if op.is_send => {
                let bytes = event.steps.as_ref().map_or(0, |steps| steps.bytes);
                let sums = self.channels.entry(op.channel).or_default();
                sums.bytes = sums.bytes.saturating_add(bytes);
            }
            _ => {}
        }
    }
}

/// What a report is to contain.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The selected operations.
    pub selection: Selection,
    /// Properties by which they are grouped, in addition to the rows of every report.
    pub by: Vec<By>,
}

/// The training steps of a process as (ticks, number), sorted; empty unless they are wanted.
#[derive(Debug, Default)]
struct Steps(Vec<(u64, u64)>);

impl Steps {
    fn of(recording: &Recording) -> Steps {
        let marks = recording.marks().iter().filter(|mark| mark.what == MarkKind::Step);
        let mut steps: Vec<(u64, u64)> = marks.map(|mark| (mark.ticks, mark.value)).collect();
        steps.sort_unstable();
        Steps(steps)
    }

    /// The training step at `ticks`; `None` before the first.
    fn at(&self, ticks: u64) -> Option<u64> {
        let next = self.0.partition_point(|(start, _)| *start <= ticks);
        next.checked_sub(1).map(|at| self.0[at].1)
    }
}

impl ReportBuilder {
    /// A builder of a report that also groups operations by these properties.
    #[must_use]
    pub fn grouped(by: Vec<By>) -> ReportBuilder {
        let mut builder = ReportBuilder::default();
        builder.operations.groups = Sums::new(by);
        builder
    }

    /// Adds a process.
    pub fn add(&mut self, recording: &Recording) {
        self.add_part(ProcessPart::read(recording, None), 0);
    }

    /// Builds the report of a run, reading its recordings on all cores. Work for other processes
    /// (PXN) counts for the process that it belongs to; if there is any, all recordings are read a
    /// second time.
    #[must_use]
    pub fn build_all(recordings: &[Recording]) -> Report {
        let (alone, foreign) = ReportBuilder::read_all(recordings, &Pxn::default());
        if foreign == 0 {
            return alone.finish();
        }
        let pxn = Pxn::read(&recordings.iter().collect::<Vec<_>>());
        ReportBuilder::read_all(recordings, &pxn).0.finish()
    }

    /// Reads all recordings, and counts the ProxyOps for other processes.
    fn read_all(recordings: &[Recording], pxn: &Pxn) -> (ReportBuilder, u64) {
        let (mut builder, mut foreign) = (ReportBuilder::default(), 0);
        let numbered: Vec<(usize, &Recording)> = recordings.iter().enumerate().collect();
        let read = |&(at, recording): &(usize, _)| ProcessPart::read(recording, pxn.work(at));
        in_order(&numbered, read, |at, part| {
            foreign += part.foreign();
            builder.add_part(part, pxn.given(at));
        });
        (builder, foreign)
    }

    /// Adds the part of a process; `given` of its ProxyOps were assigned to other processes.
    pub fn add_part(&mut self, mut part: ProcessPart<'_>, given: u64) {
        part.seen.limits.foreign = part.seen.limits.foreign.saturating_sub(given);
        let ProcessPart { joined: Joined { timeline, clocks, cut_short }, seen } = part;
        let recording = timeline.recording();
        self.add_ranks(&timeline, &clocks);
        self.operations.add(&timeline, &clocks, seen.operations);
        let selection = &seen.wanted.selection;
        self.times.add(&timeline, &clocks, seen.times, selection.window());
        self.recorded_ns = self.recorded_ns.saturating_add(recorded_ns(recording, selection));
        self.operations.groups.add_channels(seen.channels);
        match selection.is_partial() {
            true => self.limits.leave_out_links(),
            false => self.peers.add(&timeline, selection),
        }
        self.open.extend(seen.open.into_iter().map(|(open, _)| open));
        self.losses.add(recording, || timeline.records());
        self.losses.add_stray(timeline.stray_kernels());
        self.windows.extend(windows(recording));
        self.mask_changes.extend(mask_changes(recording));
        self.add_problems(&timeline);
        self.limits.add(&timeline, &seen.limits, &clocks, cut_short);
    }

    /// Finishes the report.
    #[must_use]
    pub fn finish(mut self) -> Report {
        let job_ranks = JobRanks::of(&self.ranks, &self.told);
        let mut ranks: Vec<RankRow> = self.ranks.into_iter().map(|(_, row)| row).collect();
        ranks.sort_by(|a, b| {
            let key =
                |row: &RankRow| (row.comm.is_none(), row.comm.clone(), row.comm_rank, row.pid);
            key(a).cmp(&key(b)).then_with(|| a.host.cmp(&b.host))
        });
        self.processes.sort_by(|a, b| a.file.cmp(&b.file));
        self.open.sort_by(|a, b| b.age_ns.cmp(&a.age_ns).then(a.comm_rank.cmp(&b.comm_rank)));
        self.notes.sort();
        self.notes.dedup();
        let ((mut operations, facts, groups), mut peers) =
            (self.operations.finish(), self.peers.finish());
        job_ranks.fill(&mut ranks, &mut self.open, &mut operations, &mut peers);
        name_comms(&ranks, &mut operations, &mut peers);
        let summary = Summary::of(&ranks, &operations, (&self.times, self.recorded_ns));
        let late_ranks = late_ranks(&operations, &ranks, &summary.roles);
        let groups = groups.finish(&facts, &job_ranks, &ranks);
        let begun = ranks.iter().filter_map(|rank| rank.start_ns).min();
        let mut unknowable = mask_sentences(&self.mask_changes, begun);
        unknowable.extend(self.limits.sentences());
        Report {
            schema: SCHEMA,
            ranks,
            processes: self.processes,
            total_recorded_ns: self.recorded_ns,
            roles: summary.roles,
            sizes: summary.sizes,
            latencies: summary.latencies,
            operations,
            late_ranks,
            open_operations: self.open,
            peers,
            windows: self.windows,
            mask_changes: self.mask_changes,
            groups,
            lost: self.losses.finish(),
            problems: self.problems,
            notes: self.notes,
            unknowable,
        }
    }

    fn add_ranks(&mut self, timeline: &Timeline<'_>, clocks: &GpuClocks) {
        let recording = timeline.recording();
        self.processes.push(process_row(recording));
        let process = self.told.len();
        self.told.push(recording.identity().rank);
        let mut dropped = dropped(recording);
        for (at, comm) in recording.comms().iter().enumerate() {
            let known = |number: u32| (number != 0).then_some(number);
            let mut row = empty_row(recording);
            row.comm_rank = timeline.rank(at);
            row.nranks = known(comm.ranks);
            row.nodes = known(comm.nodes);
            row.device = recording.comm_device(comm.index).map(|device| device.index);
            row.comm = Some(comm_name(comm));
            row.comm_name = comm.name.clone();
            row.role = recording.role(comm).map(str::to_owned);
            row.nccl_version = comm.release();
            row.api_version = known(comm.api_version);
            row.start_ns = recording.has_clock().then(|| timeline.ns(comm.ticks));
            let gpu = clocks.of_comm(at);
            row.clock.gpu_error_ns = gpu.and_then(GpuClock::error_ns);
            row.clock.gpu_granularity_ns = gpu.and_then(GpuClock::granularity_ns);
            // Losses are counted per process, so only its first row has them.
            fill_counts(&mut row, timeline.counts(at), &std::mem::take(&mut dropped));
            self.ranks.push((process, row));
        }
        let rest = timeline.unattributed();
        if !rest.is_empty()
            || dropped.iter().any(|&count| count != 0)
            || recording.comms().is_empty()
        {
            let mut row = empty_row(recording);
            fill_counts(&mut row, rest, &dropped);
            self.ranks.push((process, row));
        }
    }

    fn add_problems(&mut self, timeline: &Timeline<'_>) {
        let recording = timeline.recording();
        let file = file_name(recording);
        let mut add = |text: String| self.problems.push(format!("{file}: {text}"));
        recording.problems().iter().cloned().for_each(&mut add);
        if recording.unreadable() != 0 {
            let records = human::count(recording.unreadable(), "record");
            add(format!("{records} in its blocks cannot be read"));
        }
        if !recording.has_clock() && timeline.records() != 0 {
            add("no comparison of its clock is left, so that its times are only relative".into());
        }
        let unmatched: u64 = timeline.unmatched_ends().iter().sum();
        let has_overwritten = recording.header().overwritten.iter().any(|&count| count != 0);
        // Overwritten starts in a bounded recording leave ends without starts, which is expected.
        if unmatched != 0 && !has_overwritten {
            let ends = human::if_one(unmatched, "stop or state belongs", "stops and states belong");
            add(format!("{unmatched} {ends} to events without a start"));
        }
        if timeline.orphan_steps() != 0 && !has_overwritten {
            let steps = human::are(timeline.orphan_steps(), "network step");
            add(format!("{steps} of operations without a start"));
        }
        let header = recording.header();
        if header.panics != 0 {
            let callbacks = human::count(header.panics, "callback");
            add(format!("{callbacks} failed inside the plugin: please report it"));
        }
        if header.garbage_words != 0 {
            let words = human::are(header.garbage_words, "word");
            add(format!("{words} not of a record: please report it"));
        }
        if header.unknown_events != 0 {
            let events = human::are(header.unknown_events, "event");
            add(format!("{events} of kinds newer than the plugin, which are not shown"));
        }
        for (name, count) in timeline.unknown_records() {
            let records = human::are(count, &format!("`{name}` record"));
            add(format!("{records} of a later version, and not shown"));
        }
        for (name, count) in recording.losses_of_later_kinds() {
            let are =
                human::if_one(count, "event, stop or state is", "events, stops and states are");
            add(format!("{count} {are} lost of `{name}`, which is of a later version"));
        }
        for (name, count) in recording.counters_of_later_versions() {
            add(format!("{count} {name}, as a later version counts"));
        }
        if let Some(text) = clock_steps(timeline.clock()) {
            add(text);
        }
        self.notes.extend(recording.notes().iter().cloned());
    }
}

/// Fills in the names that the application gave to communicators.
fn name_comms(ranks: &[RankRow], operations: &mut [OperationRow], peers: &mut [PeerRow]) {
    let names = comm_names(ranks);
    let name = |comm: &str| names.get(comm).map(|&name| name.to_owned());
    operations.iter_mut().for_each(|row| row.comm_name = name(&row.comm));
    peers.iter_mut().for_each(|row| row.comm_name = name(&row.comm));
}

fn open_row(timeline: &Timeline<'_>, event: &Event, func: &str) -> OpenOperation {
    let header = timeline.recording().header();
    let comm = timeline.comm_of(event);
    OpenOperation {
        rank: None,
        comm_rank: comm.and_then(|comm| timeline.rank(comm)),
        host: header.host.clone(),
        pid: header.pid,
        comm: comm.map(|comm| comm_name(timeline.comm(comm))),
        comm_name: comm.and_then(|comm| timeline.comm(comm).name.clone()),
        func: func.into(),
        bytes: None,
        number: None,
        nccl_seq: None,
        peer: None,
        comm_peer: None,
        age_ns: age_ns(timeline, event.start.ticks),
        waits_for: Vec::new(),
    }
}
