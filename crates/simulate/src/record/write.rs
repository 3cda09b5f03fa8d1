// SPDX-License-Identifier: Apache-2.0
//! Writes a rank's recording, from its definitions to its last record.

use super::buffer::RecordBuffer;
use super::clock::Clocks;
use super::events::{OpLifetime, RankRecorder};
use super::heartbeats;
use super::job::Job;
use crate::error::Error;
use crate::identity::{API, NCCL, identity};
use crate::layout::Role;
use crate::time::{SECOND, Time, before};
use ncclscope_trace::identity::Identity;
use ncclscope_trace::kind::DEFAULT_EVENTS;
use ncclscope_trace::layout::Header;
use ncclscope_trace::vectors::{ProcessPlace, Reach, Table, vector_flags};
use ncclscope_trace::{ClockSource, Comm, Definition, Mark, MarkKind, StrId, Vendor, Writer};
use std::io;
use std::path::{Path, PathBuf};

/// A process that records nothing for this time is silent to an agent.
const SILENCE: Time = 3 * SECOND;

/// Writes the recording of a rank into `dir`.
pub(crate) fn write_rank(job: &Job<'_>, rank: u32, dir: &Path) -> Result<PathBuf, Error> {
    let path = dir.join(names(job, rank).2);
    let (mut recorder, lifetimes, header) = recorded(job, rank);
    write(&mut recorder, &lifetimes, &path, header).map_err(|error| Error::write(&path, error))?;
    Ok(path)
}

/// Adds to a table what an agent would tell of a rank at the end of the recordings: nothing of a
/// process that ended in order.
pub(crate) fn tell_rank(job: &Job<'_>, rank: u32, table: &mut Table) {
    let (recorder, lifetimes, header) = recorded(job, rank);
    if header.closed {
        return;
    }
    let buffer = &recorder.buffer;
    let mut reach = Reach::default();
    let (host, pid) = (Some(header.host.clone()), Some(header.pid));
    reach.identify(&Identity { host, pid, ..identity(job.scenario.seed, job.layout, rank) });
    definitions(&recorder, &lifetimes).iter().for_each(|definition| reach.define(definition));
    buffer.heartbeats().for_each(|heartbeat| reach.note(&heartbeat));
    let is_silent = buffer.end.saturating_add(SILENCE) < job.end;
    let last = buffer.clocks.sync(buffer.end);
    let place = ProcessPlace {
        host: &header.host,
        pid: header.pid,
        heard_ns: last.realtime_ns,
        kinds: buffer.all_kinds(),
    };
    let state = if is_silent { vector_flags::SILENT } else { 0 };
    // A tick is 1 ns.
    reach.add_to(table, state, (last.ticks, SECOND), place);
}

/// The records of a rank, the lifetimes of its operations, and the header of its recording.
fn recorded<'a>(job: &'a Job<'a>, rank: u32) -> (RankRecorder<'a>, Vec<OpLifetime<'a>>, Header) {
    let (host, pid, _) = names(job, rank);
    let stops = job.conditions.of(rank);
    let is_first_host = job.layout.host(rank) == 0;
    let early = u64::from(if is_first_host { job.scenario.job.early_s } else { 0 }) * SECOND;
    let closed = job.closed && early == 0 || stops.in_order;
    let header = Header {
        pid,
        process: pid % 1023 + 1,
        host,
        clock: ClockSource::Tsc,
        mask: DEFAULT_EVENTS,
        closed,
        ..Header::default()
    };
    let clocks = Clocks::new(job.scenario, job.layout.host(rank), rank);
    // Nothing happens at `NEVER`, and nothing at the end itself. A process that has exited or is
    // stopped records nothing more.
    let copied = job.end.saturating_sub(early);
    let end = copied.min(stops.process).min(stops.drain).saturating_sub(1);
    let buffer = RecordBuffer::new(header.process, clocks, end);
    let numbers = vec![[0; 4]; job.layout.of_rank[rank as usize].len()];
    let mut recorder = RankRecorder { job, rank, pid, buffer, numbers };
    let lifetimes = operations(&mut recorder);
    heartbeats::record(&mut recorder, &lifetimes, closed);
    (recorder, lifetimes, header)
}

/// The names of a rank's host, process and recording.
fn names(job: &Job<'_>, rank: u32) -> (String, u32, String) {
    let (host, pid) = match job.scenario.job.in_containers {
        true => ("localhost".to_owned(), 1),
        false => (format!("node-{:04}", job.layout.host(rank)), 10_000 + 64 * rank),
    };
    let mut name = format!("{host}-{pid}.nscope");
    if job.scenario.job.in_containers && rank > 0 {
        name = format!("{name}.{rank}");
    }
    (host, pid, name)
}

fn operations<'a>(recorder: &mut RankRecorder<'a>) -> Vec<OpLifetime<'a>> {
    let job = recorder.job;
    let at = recorder.rank as usize;
    let mut lifetimes = Vec::new();
    let mut step = None;
    // The window with which a recording begins.
    mark(recorder, 0, MarkKind::Start, 1);
    for (op, done) in job.programs[at].iter().zip(&job.solution.ranks[at]) {
        if step.replace(op.step) != Some(op.step) {
            let time =
                before(done.issued, recorder.buffer.end.saturating_add(1)).saturating_sub(1_000);
            mark(recorder, time, MarkKind::Step, u64::from(op.step));
        }
        lifetimes.extend(recorder.operation(op, done));
    }
    lifetimes
}

fn mark(recorder: &mut RankRecorder<'_>, time: Time, what: MarkKind, value: u64) {
    if time <= recorder.buffer.end {
        let ticks = recorder.buffer.clocks.ticks(time);
        let mark = Mark { ticks, what, name: StrId::NONE, value };
        recorder.buffer.mark(time, &mark.words());
    }
}

fn write(
    recorder: &mut RankRecorder<'_>,
    lifetimes: &[OpLifetime<'_>],
    path: &Path,
    header: Header,
) -> io::Result<()> {
    let job = recorder.job;
    // A writer limits the size; the least is 1 MiB.
    let ring = u64::from(job.scenario.job.ring_mib.max(1)) << 20;
    let needed = if job.scenario.job.ring_mib == 0 { 64 << 20 } else { ring };
    let mut writer = Writer::create(path, header, needed)?;
    for fact in identity(job.scenario.seed, job.layout, recorder.rank).since(&Identity::default()) {
        writer.define(&fact)?;
    }
    for definition in definitions(recorder, lifetimes) {
        writer.define(&definition)?;
    }
    recorder.buffer.write(&mut writer, SECOND)?;
    writer.sync_header()
}

/// The communicators of a rank and the strings of its records.
fn definitions(recorder: &RankRecorder<'_>, lifetimes: &[OpLifetime<'_>]) -> Vec<Definition> {
    let job = recorder.job;
    let mut all = Vec::new();
    for (index, own) in job.layout.of_rank[recorder.rank as usize].iter().enumerate() {
        let group = &job.layout.groups[own.group];
        let index = u16::try_from(index).unwrap_or(u16::MAX);
        let is_old = job.layout.renewed.is_some_and(|count| own.group < count);
        let is_new = job.layout.renewed.is_some_and(|count| own.group >= count);
        let begins = first_call(lifetimes, index).filter(|_| is_new).unwrap_or(0);
        let comm = Comm {
            index,
            hash: group.hash,
            name: None,
            nodes: job.layout.nodes(own.group),
            ranks: u32::try_from(group.members.len()).unwrap_or(u32::MAX),
            rank: i32::try_from(own.rank).unwrap_or(-1),
            ticks: recorder.buffer.clocks.ticks(begins) + u64::from(index),
            api_version: API,
            nccl_version: NCCL,
            vendor: Vendor::Nvidia,
        };
        all.push(Definition::Comm(comm));
        let text = own.role.name().to_owned();
        all.push(Definition::Role { hash: group.hash, text });
        let ended = if is_old || own.role == Role::Setup {
            ended_after(lifetimes, index).filter(|&time| time <= recorder.buffer.end)
        } else {
            job.closed.then_some(recorder.buffer.end)
        };
        if let Some(time) = ended {
            let ticks = recorder.buffer.clocks.ticks(time);
            all.push(Definition::CommEnd { index, ticks });
        }
    }
    let strings = recorder.buffer.strings();
    all.extend(strings.map(|(id, text)| Definition::String { id, text: text.to_owned() }));
    all
}

/// When a communicator that is created in the middle of the run is first used.
fn first_call(lifetimes: &[OpLifetime<'_>], comm: u16) -> Option<Time> {
    let calls = lifetimes.iter().filter(|life| life.comm == comm).map(|life| life.called);
    calls.min().map(|first| first.saturating_sub(SECOND / 1_000))
}

/// A communicator that is not used until the end is destroyed after its last operation.
fn ended_after(lifetimes: &[OpLifetime<'_>], comm: u16) -> Option<Time> {
    let ends = lifetimes.iter().filter(|life| life.comm == comm).map(|life| life.done);
    ends.max().map(|last| last.saturating_add(SECOND / 2))
}
