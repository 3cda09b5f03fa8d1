// SPDX-License-Identifier: Apache-2.0
//! The progress of one process by its heartbeats ([`crate::progress`]), in the form of a table.

use super::{
    OpenTransfer, ProcessFacts, SetupFacts, Table, ThreadFacts, Vector, job_number, origin_number,
    vector_flags,
};
use crate::progress::{OpProgress, Progress, Setup, Thread, progress_flags};
use crate::{Comm, Definition, Heartbeat, Identity, StrId};
use std::collections::{BTreeMap, VecDeque};

/// A transfer is told if it has not changed for this time, ms.
const STILL_MS: u32 = 1_000;
/// Maximum number of transfers told of a communicator; half of them are for each direction, as far
/// as it has as many.
const MOST_TRANSFERS: usize = 64;
/// Maximum number of threads of a process.
const MOST_THREADS: usize = 64;
/// A heartbeat tells a call up to this time after it was made, ms.
const LATE_MS: u32 = 1_000;

/// The progress of one process.
#[derive(Debug, Default)]
pub struct Reach {
    comms: BTreeMap<u16, Comm>,
    latest: BTreeMap<u16, Latest>,
    /// Operations in flight at the latest progress record of their communicator.
    ops: BTreeMap<u16, Vec<OpProgress>>,
    threads: BTreeMap<u32, VecDeque<Thread>>,
    /// The latest look, and when the call that it saw was first seen, in ticks.
    setup: Option<(Setup, u64)>,
    strings: BTreeMap<StrId, String>,
    identity: Identity,
}

/// The latest progress record of a communicator, and when its counts last changed, in ticks; 0 if
/// that was never seen.
#[derive(Debug, Default)]
struct Latest {
    progress: Progress,
    changed: u64,
    done: u64,
    p2p_done: u64,
}

impl Latest {
    fn note(&mut self, new: &Progress) {
        let counts = |p: &Progress| {
            [p.api, p.enqueued, p.started, p.done, p.p2p_api, p.p2p_enqueued, p.p2p_done, p.beat]
        };
        let old = std::mem::replace(&mut self.progress, *new);
        if counts(&old) != counts(new) {
            self.changed = new.ticks;
        }
        if old.ticks != 0 && old.done != new.done {
            self.done = new.ticks;
        }
        if old.ticks != 0 && old.p2p_done != new.p2p_done {
            self.p2p_done = new.ticks;
        }
    }

    /// When the operation before the one that the process is in completed, if that was seen. An
    /// operation that was enqueued ahead waits for nothing before that.
    fn turn(&self) -> u64 {
        if self.progress.done < self.progress.enqueued { self.done } else { self.p2p_done }
    }
}

/// What heartbeats do not tell of a process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessPlace<'a> {
    /// Host name.
    pub host: &'a str,
    /// Process id on its host.
    pub pid: u32,
    /// When it last recorded anything, ns since 1970.
    pub heard_ns: u64,
    /// Kinds of events that its threads started.
    pub kinds: u32,
}

/// A time in ticks, and their number per second.
#[derive(Clone, Copy, Debug)]
struct Now {
    ticks: u64,
    hz: u64,
}

impl Now {
    fn ms_since(self, ticks: u64) -> u32 {
        let ticks = u128::from(self.ticks.saturating_sub(ticks)) * 1_000;
        let ms = ticks.checked_div(u128::from(self.hz)).unwrap_or(0);
        u32::try_from(ms).unwrap_or(u32::MAX)
    }
}

impl Reach {
    /// Notes the identity of the process.
    pub fn identify(&mut self, identity: &Identity) {
        if self.identity != *identity {
            self.identity = identity.clone();
        }
    }

    /// Notes a definition of its recording.
    pub fn define(&mut self, definition: &Definition) {
        match definition {
            Definition::Comm(comm) => {
                self.comms.insert(comm.index, comm.clone());
            }
            Definition::CommEnd { index, .. } => {
                self.comms.remove(index);
                self.latest.remove(index);
                self.ops.remove(index);
            }
            Definition::String { id, text } => {
                self.strings.insert(*id, text.clone());
            }
            _ => {}
        }
    }

    /// Notes a heartbeat.
    pub fn note(&mut self, heartbeat: &Heartbeat) {
        match heartbeat {
            Heartbeat::Progress(progress) => {
                self.latest.entry(progress.comm).or_default().note(progress);
            }
            Heartbeat::Op(op) => {
                let ops = self.ops.entry(op.comm).or_default();
                ops.retain(|other| other.ticks == op.ticks);
                ops.push(*op);
                keep_oldest(ops);
            }
            Heartbeat::Thread(thread) => {
                if self.threads.len() < MOST_THREADS || self.threads.contains_key(&thread.tid) {
                    let looks = self.threads.entry(thread.tid).or_default();
                    looks.push_back(*thread);
                    looks.drain(..looks.len().saturating_sub(Thread::LOOKS));
                }
            }
            Heartbeat::Setup(setup) => {
                let same = self.setup.filter(|(before, _)| setup.continues(before));
                self.setup = Some((*setup, same.map_or(setup.ticks, |(_, since)| since)));
            }
            Heartbeat::Checkpoints(_) | Heartbeat::Shortage(_) => {}
        }
    }

    /// The vectors of its communicators at `now` ticks (`hz` per second). `state` has the flags of
    /// the process, such as [`vector_flags::SILENT`]. Unchanged progress is recorded less often, so
    /// that ages grow by the time since the record.
    #[must_use]
    pub fn vectors(&self, state: u32, now: u64, hz: u64) -> Vec<Vector> {
        let now = Now { ticks: now, hz };
        let is_busy = |progress: &Progress| {
            progress.done < progress.enqueued || progress.p2p_done < progress.p2p_enqueued
        };
        let busy = self.known().filter(|(latest, _)| is_busy(&latest.progress)).count();
        let process = self.process();
        let (job, origin) = (job_number(&self.identity), origin_number(&self.identity));
        let vector = |(latest, comm): (&Latest, &Comm)| {
            let progress = &latest.progress;
            let elsewhere = busy > usize::from(is_busy(progress));
            let born_ms = match progress.age_ms {
                0 => 0,
                age => age.saturating_add(now.ms_since(progress.ticks)),
            };
            Vector {
                comm: comm.hash,
                process,
                rank: comm.rank.cast_unsigned(),
                nranks: comm.ranks,
                api: clip(progress.api),
                enqueued: clip(progress.enqueued),
                started: clip(progress.started),
                done: clip(progress.done),
                // 0 says that nothing is in flight.
                age_ms: born_ms.min(now.ms_since(latest.turn()).max(1)),
                born_ms,
                changed_ms: now.ms_since(latest.changed),
                hash: progress.hash,
                hash_at: clip(progress.api),
                flags: u32::from(progress.flags)
                    | state
                    | if elsewhere { vector_flags::BUSY_ELSEWHERE } else { 0 }
                    | if is_in_p2p_call(progress) { vector_flags::IN_P2P_CALL } else { 0 },
                job,
                origin,
                p2p_enqueued: clip(progress.p2p_enqueued),
                p2p_done: clip(progress.p2p_done),
            }
        };
        self.known().map(vector).collect()
    }

    /// Adds its vectors, open transfers and facts to a table.
    pub fn add_to(
        &self,
        table: &mut Table,
        state: u32,
        (now, hz): (u64, u64),
        place: ProcessPlace<'_>,
    ) {
        let first = u32::try_from(table.vectors.len()).unwrap_or(u32::MAX);
        table.vectors.extend(self.vectors(state, now, hz));
        let now = Now { ticks: now, hz };
        for ((latest, _), vector) in self.known().zip(first..) {
            let ops = self.ops.get(&latest.progress.comm).into_iter().flatten();
            let ops = ops.filter(|op| op.ticks == latest.progress.ticks && op.done < op.steps);
            let all = ops.map(|op| self.transfer(op, vector, now));
            table.transfers.extend(all.filter(|transfer| transfer.still_ms >= STILL_MS));
        }
        table.processes.push(self.facts(now, place));
    }

    /// Its communicators that have progress.
    fn known(&self) -> impl Iterator<Item = (&Latest, &Comm)> {
        self.latest.iter().filter_map(|(index, latest)| Some((latest, self.comms.get(index)?)))
    }

    fn transfer(&self, op: &OpProgress, vector: u32, now: Now) -> OpenTransfer {
        let &OpProgress { peer, channel, is_send, reached, .. } = op;
        let &OpProgress { steps, posted, ready, transmitted, done, .. } = op;
        OpenTransfer {
            vector,
            peer,
            channel,
            is_send,
            // The protocol of the operation is unknown here.
            may_be_early: !is_send && self.identity.net_plugin.is_some(),
            reached,
            steps,
            posted,
            ready,
            transmitted,
            done,
            still_ms: now.ms_since(op.since),
        }
    }

    fn facts(&self, now: Now, place: ProcessPlace<'_>) -> ProcessFacts {
        let ProcessPlace { host, pid, heard_ns, kinds } = place;
        let call = self.latest.values().map(|latest| latest.progress.beat).max().unwrap_or(0);
        let idle_ms = now.ms_since(call).saturating_add(LATE_MS);
        let setup = self
            .setup
            .filter(|(look, _)| look.function != StrId::NONE && now.ms_since(look.ticks) < idle_ms);
        ProcessFacts {
            job: job_number(&self.identity),
            process: self.process(),
            origin: origin_number(&self.identity),
            pid,
            host: host.to_owned(),
            heard_ns,
            idle_ms: (call != 0).then_some(idle_ms),
            setup: setup.map(|(setup, since)| SetupFacts {
                age_ms: now.ms_since(since).min(idle_ms),
                function: self.text(setup.function),
                connects: self.text(setup.connects),
                listens: self.text(setup.listens),
            }),
            kinds,
            threads: self.threads.values().filter_map(|looks| self.thread(looks, now.hz)).collect(),
        }
    }

    fn thread(&self, looks: &VecDeque<Thread>, hz: u64) -> Option<ThreadFacts> {
        let (first, last) = looks.front().zip(looks.back())?;
        let span_ms = Now { ticks: last.ticks, hz }.ms_since(first.ticks);
        let (cpu_ns, delay_ns) = last.since(first);
        Some(ThreadFacts {
            tid: last.tid,
            state: last.state,
            kinds: last.kinds,
            place: self.text(last.place),
            // A shorter span shows nothing.
            span_ns: if span_ms < Thread::LEAST_MS { 0 } else { u64::from(span_ms) * 1_000_000 },
            cpu_ns,
            delay_ns,
        })
    }

    fn text(&self, id: StrId) -> String {
        self.strings.get(&id).cloned().unwrap_or_default()
    }

    /// The job rank; if no launcher set it, the rank in the largest communicator.
    fn process(&self) -> u32 {
        let largest = self.comms.values().max_by_key(|comm| (comm.ranks, u16::MAX - comm.index));
        self.identity
            .rank
            .unwrap_or_else(|| largest.map_or(0, |comm| comm.rank.max(0).cast_unsigned()))
    }
}

/// Removes the operation that changed last, of the direction with more of them, if there are more
/// than [`MOST_TRANSFERS`].
fn keep_oldest(ops: &mut Vec<OpProgress>) {
    if ops.len() > MOST_TRANSFERS {
        let sends = ops.iter().filter(|op| op.is_send).count();
        let is_send = 2 * sends > ops.len();
        let of_direction = ops.iter().enumerate().filter(|(_, op)| op.is_send == is_send);
        if let Some((at, _)) = of_direction.max_by_key(|(_, op)| op.since) {
            ops.remove(at);
        }
    }
}

/// True if the process has called sends and receives that NCCL has not enqueued.
fn is_in_p2p_call(progress: &Progress) -> bool {
    let says_nothing = progress_flags::NO_API | progress_flags::CAPTURED;
    progress.flags & says_nothing == 0 && progress.p2p_api > progress.p2p_enqueued
}

fn clip(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
