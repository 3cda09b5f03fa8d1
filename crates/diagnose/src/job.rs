// SPDX-License-Identifier: Apache-2.0
/*!
The state of a job at one moment: how far each process has come in each communicator.

Whatever an input does not tell is absent here, never zero. This page knows no input and no rule.
*/

use ncclscope_findings::rank::{Pending, Thread, Transfer};
use std::collections::BTreeMap;

/// A job.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// What it was read from, in words.
    pub source: String,
    /// The processes; vectors refer to them by position.
    pub processes: Vec<Process>,
    /// The communicators, and the pairs of ranks that send and receive.
    pub comms: Vec<Communicator>,
    /// The input was made because of a hang (a dump at a time-out), so that whatever is in flight
    /// counts, however young it looks.
    pub is_dump: bool,
    /// An age from which on an operation counts as stuck, below the one that was asked for.
    pub min_age_ns: Option<u64>,
    /// Sentences about what the input cannot tell.
    pub notes: Vec<String>,
}

/// Whether a process is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    /// It runs, or did at the end of what is known of the job.
    #[default]
    Running,
    /// Its last sign of life is older than that of others.
    Dead,
    /// It ended in order while others were still at work.
    Ended,
    /// There is no input of it.
    Silent,
}

/// A process of the job.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its rank in the job; `None` where only its place in a communicator is known.
    pub rank: Option<u32>,
    /// Its host.
    pub host: Option<String>,
    /// Its process id.
    pub pid: Option<u32>,
    /// Whether it is there.
    pub life: Life,
    /// Counters of it moved within the age limit: it is slow at most.
    pub is_moving: bool,
    /// The application's call that has not come back.
    pub entered: Option<Pending>,
    /// Since when the application has not called NCCL, ns.
    pub idle_ns: Option<u64>,
    /// Its threads, if something looked stuck.
    pub threads: Vec<ThreadState>,
    /// What its own watchdog said, one line each.
    pub reports: Vec<String>,
}

/// A thread of a process, and what it does there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadState {
    /// How the system saw it.
    pub thread: Thread,
    /// It progresses network transfers.
    pub is_proxy: bool,
    /// It makes the application's calls.
    pub is_api: bool,
}

/// What the numbers of a communicator's operations mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Collectives: the n-th is the same on all members.
    #[default]
    Collectives,
    /// Sends of the first member to the second one, which receives: the n-th belong together.
    Pair,
    /// Sends and receives of a group of two in the order of their calls: as a rule, not always, the
    /// n-th belong together.
    Sequence,
}

/// A communicator, or a pair of ranks of one.
#[derive(Clone, Debug, Default)]
pub struct Communicator {
    /// What it is called in reports.
    pub name: String,
    /// What the application uses it for.
    pub role: Option<String>,
    /// What its numbers mean.
    pub kind: Kind,
    /// Ranks that it has, whether or not there is a vector of them; 0 unknown.
    pub nranks: u32,
    /// What is known of its members, by rank.
    pub vectors: Vec<Vector>,
    /// The processes of its members without a vector.
    pub silent: Vec<u32>,
    /// The operation that a member is in, by position in `vectors`.
    pub flights: BTreeMap<u32, Flight>,
    /// Rolling hashes: (position in `vectors`, number of operations, hash).
    pub hashes: Vec<(u32, u64, u64)>,
    /// The latest calls of members, by position in `vectors` and then by number.
    pub calls: BTreeMap<u32, BTreeMap<u64, Call>>,
    /// Number and bytes of the latest sends or receives of a pair, by position in `vectors`.
    pub sizes: BTreeMap<u32, Vec<(u64, u64)>>,
}

/// How far a process has come in a communicator. Counts are cumulative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vector {
    /// Position in [`Job::processes`].
    pub process: u32,
    /// Rank in the communicator.
    pub rank: u32,
    /// Operations that the application called.
    pub api: u64,
    /// Operations that NCCL enqueued.
    pub enqueued: u64,
    /// Operations up to the latest whose kernel started, if that is seen.
    pub started: Option<u64>,
    /// Operations before the first that is not complete.
    pub done: u64,
    /// How long nothing of the operation that it is in has moved, ns.
    pub age_ns: Option<u64>,
    /// How long ago that operation was issued, ns.
    pub born_ns: Option<u64>,
    /// The counts end with what was enqueued: completion is not seen.
    pub is_blind: bool,
}

impl Vector {
    /// The operation that the member is in, or the last one that it issued.
    #[must_use]
    pub fn front(&self) -> u64 {
        self.enqueued.min(self.done + 1)
    }

    /// It has issued something that is not complete.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.done < self.enqueued && !self.is_blind
    }

    /// The kernel of the operation that it is in has started.
    #[must_use]
    pub fn has_started(&self) -> Option<bool> {
        self.started.map(|started| started > self.done)
    }
}

/// An operation in flight.
#[derive(Clone, Debug, Default)]
pub struct Flight {
    /// What it is.
    pub call: Call,
    /// Channels of its kernel: (all, started, stopped), where kernels are seen.
    pub kernel: Option<(u32, u32, u32)>,
    /// Its network transfers.
    pub transfers: Vec<Transfer>,
}

/// What was called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// NCCL's function name.
    pub func: String,
    /// Datatype.
    pub datatype: String,
    /// Elements, where ranks must agree on them.
    pub count: Option<u64>,
    /// Root rank, where it has one.
    pub root: Option<i32>,
    /// The size as the input gives it, for people.
    pub size: String,
}

impl Job {
    /// The rank of a process for people and programs: in its job, else its position.
    #[must_use]
    pub fn rank(&self, process: u32) -> u32 {
        self.processes.get(process as usize).and_then(|p| p.rank).unwrap_or(process)
    }

    /// The rank of a process, if it can be told: of one without input it may be unknown.
    #[must_use]
    pub fn known_rank(&self, process: u32) -> Option<u32> {
        let one = self.processes.get(process as usize)?;
        one.rank.or_else(|| (one.life != Life::Silent).then_some(process))
    }

    /// The process finishes nothing any more.
    pub(crate) fn is_gone(&self, vector: &Vector) -> bool {
        let process = self.processes.get(vector.process as usize);
        process.is_some_and(|process| matches!(process.life, Life::Dead | Life::Ended))
    }

    /// The operation that a member is in, or the last one that it issued. What a process was in
    /// when it went counts as not issued.
    pub(crate) fn front(&self, vector: &Vector) -> u64 {
        if self.is_gone(vector) { vector.done } else { vector.front() }
    }
}
