// SPDX-License-Identifier: Apache-2.0
/*!
The state of a job at one moment: how far each process has come in each communicator.

What an input does not contain is `None` or empty here, never zero. This module depends on no input
format and on no rule.
*/

use ncclscope_findings::rank::{Pending, Thread, Transfer};
use ncclscope_operations::threads::Role;
use std::collections::BTreeMap;

/// [`Job::source`] of recordings.
pub(crate) const RECORDINGS: &str = "recordings";

/// A job as any kind of input shows it: what each rank had called and done.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// The kind of input, as text.
    pub source: String,
    /// The processes; vectors refer to them by position.
    pub processes: Vec<Process>,
    /// The communicators, and the pairs of ranks that send and receive.
    pub comms: Vec<Communicator>,
    /// The input was written because of a hang (a dump at a timeout): everything in flight counts
    /// as stuck, whatever its age.
    pub is_dump: bool,
    /// An age from which an operation counts as stuck, if lower than the requested one.
    pub min_age_ns: Option<u64>,
    /// The latest recorded time, to which ages count, ns since 1970, where the input has it.
    pub end_ns: Option<u64>,
    /// Sentences about what the input does not show.
    pub notes: Vec<String>,
    /// One line for each damaged recording, up to a few; they are among the notes as well.
    pub damaged: Vec<String>,
}

/// Whether a process still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessStatus {
    /// It runs, or ran at the end of the recorded time.
    #[default]
    Running,
    /// Its records stop earlier than those of the others.
    Dead,
    /// It exited normally while others were still at work.
    Ended,
    /// It exists, and does not run.
    Stopped(Stop),
    /// There is no input from it.
    Silent,
}

/// What stops a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal, or a debugger.
    Signal,
    /// The freezer of its control group, as of a container that is paused.
    Freezer,
}

impl Stop {
    /// What the system shows of it.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Stop::Signal => "is stopped (state T)",
            Stop::Freezer => "is frozen, with its control group",
        }
    }

    /// The same as a verdict's title says it.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Stop::Signal => {
                "stopped, by a signal (SIGSTOP) or a debugger: it exists and does not run"
            }
            Stop::Freezer => {
                "frozen, by its control group (a paused container): it exists and does not run"
            }
        }
    }
}

/// A process of the job.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its rank in the job; `None` where only its rank in a communicator is known.
    pub rank: Option<u32>,
    /// Host name.
    pub host: Option<String>,
    /// Process id.
    pub pid: Option<u32>,
    /// Its number among the processes of the job on its host.
    pub local_rank: Option<u64>,
    /// Its CUDA device, as it counts them.
    pub device: Option<u64>,
    /// Whether it still runs.
    pub status: ProcessStatus,
    /// It may be in a send or receive of which the input does not show the peer.
    pub hides_p2p: bool,
    /// Events of it were lost, left out, or not recorded while recording was stopped: what it does
    /// within an operation is not known.
    pub lacks_events: bool,
    /// Calls that have not led to an operation are not in the input: NCCL before 2.28.
    pub hides_calls: bool,
    /// Its counters advanced within the age limit: it is slow, not stuck.
    pub is_moving: bool,
    /// The application's call that has not returned.
    pub entered: Option<Pending>,
    /// Time since the application last called NCCL, ns.
    pub idle_ns: Option<u64>,
    /// Its threads; recorded only when something looked stuck.
    pub threads: Vec<ThreadState>,
    /// The reports of its own watchdog, one line each.
    pub reports: Vec<String>,
    /// Why its input may say something wrong, one sentence each: a verdict that rests on it is
    /// suspect at most.
    pub doubts: Vec<String>,
}

/// A thread of a process, and its role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadState {
    /// The kernel's accounting of it.
    pub thread: Thread,
    /// What it does for NCCL.
    pub role: Role,
}

/// What the numbers of a communicator's operations mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommKind {
    /// Collectives: the n-th is the same operation on all members.
    #[default]
    Collectives,
    /// Sends from the first member to the second: the n-th send belongs to the n-th receive.
    Pair,
    /// Sends and receives of a group of two in call order: the n-th usually, not always, belong
    /// together.
    Sequence,
    /// A call of the first member that sends or receives, and in which NCCL has launched nothing:
    /// it connects to some of the other members, and the input does not say to which.
    Call,
}

/// A communicator, or a pair of ranks of one.
#[derive(Clone, Debug, Default)]
pub struct Communicator {
    /// What reports call it: its hash, or the pair of ranks.
    pub name: String,
    /// The name that the application gave it.
    pub comm_name: Option<String>,
    /// What the application uses it for, such as `tp`.
    pub role: Option<String>,
    /// How its operations are numbered.
    pub kind: CommKind,
    /// Of the sends and receives of a pair of ranks: the position of their communicator.
    pub parent: Option<u32>,
    /// Its number of ranks, with or without a vector; 0: unknown.
    pub nranks: u32,
    /// The progress of its members, by rank.
    pub vectors: Vec<Vector>,
    /// The processes of members without a vector.
    pub silent: Vec<u32>,
    /// The operation that a member is in; the key is its position in `vectors`.
    pub flights: BTreeMap<u32, InFlightOp>,
    /// Rolling hashes: (position in `vectors`, number of operations, hash).
    pub hashes: Vec<(u32, u64, u64)>,
    /// The latest calls of members, by position in `vectors` and then by number.
    pub calls: BTreeMap<u32, BTreeMap<u64, Call>>,
    /// (number, bytes) of the latest sends or receives of a pair, by position in `vectors`.
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
    /// Operations up to the latest whose kernel started, where kernels are recorded.
    pub started: Option<u64>,
    /// Operations before the first that is not complete.
    pub done: u64,
    /// Time since the operation that it is in last advanced, ns.
    pub age_ns: Option<u64>,
    /// Time since that operation was issued, ns.
    pub born_ns: Option<u64>,
    /// Completion is not recorded: `done` says nothing.
    pub is_blind: bool,
    /// It has destroyed or aborted the communicator.
    pub has_left: bool,
    /// It has called the operation after the last enqueued one, and NCCL, which connects to the
    /// other members there, has launched nothing.
    pub connects: bool,
    /// The send or receive that it is in: its number among all on its communicator, where known.
    /// Those of a pair or a call are numbered apart from each other.
    pub p2p_number: Option<u64>,
}

impl Vector {
    /// The operation that the member is in, or the last one that it issued.
    #[must_use]
    pub fn front(&self) -> u64 {
        let entered = self.enqueued + u64::from(self.connects);
        if self.is_connecting() { entered } else { entered.min(self.done + 1) }
    }

    /// Operations that the application called and NCCL has not enqueued.
    pub(crate) fn not_enqueued(&self) -> u64 {
        self.api.saturating_sub(self.enqueued)
    }

    /// It has issued something that is not complete.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.done < self.enqueued && !self.is_blind || self.connects
    }

    /// The operation that it is in is not launched: NCCL connects to the other members.
    #[must_use]
    pub fn is_connecting(&self) -> bool {
        self.connects && (self.is_blind || self.done >= self.enqueued)
    }

    /// The kernel of the operation that it is in has started.
    #[must_use]
    pub fn has_started(&self) -> Option<bool> {
        self.started.filter(|_| !self.is_connecting()).map(|started| started > self.done)
    }
}

/// An operation in flight.
#[derive(Clone, Debug, Default)]
pub struct InFlightOp {
    /// The call that issued it.
    pub call: Call,
    /// Channels of its kernel: (all, started, stopped), where kernels are recorded.
    pub kernel: Option<(u32, u32, u32)>,
    /// Its network transfers.
    pub transfers: Vec<Transfer>,
}

impl InFlightOp {
    /// Its kernel has stopped on all channels, which is not the end for its algorithm: it may be
    /// over, and what the application runs after it may keep the next operation from starting.
    #[must_use]
    pub fn may_be_over(&self) -> bool {
        let has_stopped =
            |(all, started, stopped)| started > 0 && started >= all && stopped == started;
        self.kernel.is_some_and(has_stopped) && !self.transfers.iter().any(Transfer::is_open)
    }
}

/// The arguments of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// NCCL's function name.
    pub func: String,
    /// Datatype.
    pub datatype: String,
    /// Elements, where all ranks must pass the same number.
    pub count: Option<u64>,
    /// Root rank, where the function has one.
    pub root: Option<i32>,
    /// The size as the input gives it, as text.
    pub size: String,
    /// The size, as `report` has it, where the input shows it.
    pub bytes: Option<u64>,
    /// When it was called, ns since 1970, where the input shows it.
    pub called_ns: Option<u64>,
}

impl Communicator {
    /// [`Vector::done`] of each member whose operations are seen to end.
    pub(crate) fn finished(&self) -> impl Iterator<Item = u64> {
        self.vectors.iter().filter(|vector| !vector.is_blind).map(|vector| vector.done)
    }

    /// The number of the operation that a member is in, as the watchdog and `report` count: on the
    /// communicator, sends and receives apart from collectives. `None` if the input does not show
    /// it.
    #[must_use]
    pub fn number(&self, vector: &Vector) -> Option<u64> {
        match self.kind {
            CommKind::Collectives => Some(vector.front()),
            CommKind::Pair | CommKind::Sequence | CommKind::Call => vector.p2p_number,
        }
    }

    /// How many calls of collectives each member has made of which NCCL reports no more, as of a
    /// Broadcast from 2.29 on: the members make the same calls.
    pub(crate) fn unseen_calls(&self) -> u64 {
        let calls = self.vectors.iter().map(Vector::not_enqueued).min();
        let has_others = self.kind == CommKind::Collectives && self.vectors.len() > 1;
        calls.filter(|_| has_others).unwrap_or(0)
    }

    /// It has sends and receives of two ranks.
    pub(crate) const fn is_pair(&self) -> bool {
        matches!(self.kind, CommKind::Pair | CommKind::Sequence)
    }
}

impl Job {
    /// The rank of a process: in its job where known, else its position.
    #[must_use]
    pub fn rank(&self, process: u32) -> u32 {
        self.processes.get(process as usize).and_then(|p| p.rank).unwrap_or(process)
    }

    /// The rank of a process, if known: that of a process without input may not be.
    #[must_use]
    pub fn known_rank(&self, process: u32) -> Option<u32> {
        let one = self.processes.get(process as usize)?;
        one.rank.or_else(|| (one.status != ProcessStatus::Silent).then_some(process))
    }

    /// The process has exited, is dead, or is stopped: it completes nothing more.
    pub(crate) fn is_gone(&self, vector: &Vector) -> bool {
        let process = self.processes.get(vector.process as usize);
        process.is_some_and(|process| {
            use ProcessStatus::{Dead, Ended, Stopped};
            matches!(process.status, Dead | Ended | Stopped(_))
        })
    }

    /// NCCL has enqueued the member's latest operation, and the input shows no part of it, neither
    /// one that runs nor its end.
    pub(crate) fn shows_no_part(&self, vector: &Vector) -> bool {
        vector.is_blind && !vector.is_inside() && !self.is_gone(vector)
    }

    /// The operation that a member is in, or the last one that it issued. An operation that was in
    /// flight when its process died or was stopped counts as not issued.
    pub(crate) fn front(&self, vector: &Vector) -> u64 {
        if self.is_gone(vector) { vector.done } else { vector.front() }
    }
}
