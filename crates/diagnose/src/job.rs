// SPDX-License-Identifier: Apache-2.0
/*!
The state of a job at one moment: how far each process has come in each communicator.

What an input does not contain is `None` or empty here, never zero. This module depends on no input
format and on no rule.
*/

use crate::ending::Ending;
use ncclscope_findings::Doubt;
pub use ncclscope_findings::Stop;
use ncclscope_findings::rank::{Pending, Thread, Transfer};
use ncclscope_operations::stats::to_f64;
use ncclscope_operations::threads::Role;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Value of [`Job::source`] for recordings.
pub(crate) const RECORDINGS: &str = "recordings";

/// A job in the form that all kinds of input are converted to: what each rank called and did.
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
    /// The ages in a dump are known, and nothing shows that it was written because of a hang: only
    /// what is old enough counts as stuck.
    pub has_ages: bool,
    /// Age from which an operation counts as stuck, ns, if the input requires a lower one than
    /// requested.
    pub min_age_ns: Option<u64>,
    /// Set if all processes were killed and none ended in order: waits for less than this, ns, do
    /// not show the cause, because ranks also wait from the death of one to the kill of the rest.
    pub killed_ns: Option<u64>,
    /// The ranks of such a job whose records end clearly before the others': they probably died
    /// first.
    pub ended_first: Vec<u32>,
    /// How long others may have waited for them, ns: their death explains no longer wait.
    pub ended_first_ns: u64,
    /// How the job ended; `None` if a process may still run.
    pub ending: Option<Ending>,
    /// The latest recorded time, up to which ages are counted, ns since 1970, if known.
    pub end_ns: Option<u64>,
    /// Sentences about what the input does not show.
    pub notes: Vec<String>,
    /// One line for each damaged recording, up to a limit; also contained in the notes.
    pub damaged: Vec<String>,
    /// Lines about recordings and runs that are left out because of others; also contained in the
    /// notes.
    pub left_out: Vec<String>,
}

/// Whether a process still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessStatus {
    /// It runs, or ran at the end of the recorded time.
    #[default]
    Running,
    /// Its records stop earlier than those of the others.
    Dead,
    /// It exited, not by a signal, while others were still at work.
    Ended,
    /// It exists but is stopped.
    Stopped(Stop),
    /// There is no input from it, or only a damaged one that ends early.
    Silent,
}

/// How the system shows that a process is stopped.
pub(crate) const fn how_stopped(by: Stop) -> &'static str {
    match by {
        Stop::Signal => "exists and is stopped (state T)",
        Stop::Freezer => "exists and is frozen, with its control group",
        Stop::Unanswering => "does not answer NCCL's RAS",
        Stop::Before => {
            "recorded nothing for several seconds, not even its heartbeat, until shortly \
                 before it ended"
        }
    }
}

/// The line of Python from which a process called a collective, a send or a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonLine {
    /// `FILE:LINE in FUNCTION`, of the user's script.
    pub text: String,
    /// The operation is in flight; else it is the latest one.
    pub is_open: bool,
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
    /// Local rank: its number among the processes of the job on its host.
    pub local_rank: Option<u64>,
    /// Its CUDA device number in the process.
    pub device: Option<u64>,
    /// Whether it still runs.
    pub status: ProcessStatus,
    /// The line of its script from which it called last, or waits.
    pub python: Option<PythonLine>,
    /// It may be in a send or receive whose peer the input does not show.
    pub hides_p2p: bool,
    /// Some of its events were lost, left out, or not recorded while recording was stopped, so that
    /// its progress inside operations is unknown.
    pub lacks_events: bool,
    /// How long recording had been off at the end of the recorded time, ns.
    pub off_ns: Option<u64>,
    /// Only a sample of its operations is recorded.
    pub is_sampled: bool,
    /// The input does not contain calls that have not led to an operation (NCCL before 2.28).
    pub hides_calls: bool,
    /// Why operations without kernel events and network show no end.
    pub no_end: NoEnd,
    /// Its counters advanced within the age limit: it is slow, not stuck, unless others have waited
    /// for it for very long.
    pub is_moving: bool,
    /// The status with which it exited, if it did so in order and its recording says so.
    pub exit_status: Option<u32>,
    /// The API call of the application that has not returned.
    pub entered: Option<Pending>,
    /// The function in which it creates or ends a communicator, if a look at its threads found one
    /// after its last call.
    pub setup: Option<SetupCall>,
    /// Time since the application last called NCCL, ns.
    pub idle_ns: Option<u64>,
    /// Time since it last called NCCL or an event of it last completed, ns; `None` if it ended in
    /// order, or if what it runs may not be seen.
    pub still_ns: Option<u64>,
    /// The longest such time before, ns; `None` if there were too few.
    pub usual_ns: Option<u64>,
    /// When its last record was written, ns since 1970, if known.
    pub heard_ns: Option<u64>,
    /// What may make NCCL decide otherwise than on other ranks: its variables, the versions of NCCL
    /// and the CUDA driver, and the models of processor and GPU, with their values.
    pub environment: Arc<BTreeMap<String, String>>,
    /// Its threads; recorded only when something looked stuck.
    pub threads: Vec<ThreadState>,
    /// The reports of its own watchdog, one line each.
    pub reports: Vec<String>,
    /// Why its input may be wrong: findings that cite it inherit these.
    pub doubts: Vec<Doubt>,
}

impl Process {
    /// Whether it runs and its counters advance.
    pub(crate) fn goes_on(&self) -> bool {
        self.is_moving && self.status == ProcessStatus::Running
    }
}

/// A call that creates or ends a communicator, and has not returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetupCall {
    /// Time since a look at the threads first saw it, ns. The call may have begun earlier: after
    /// the look before that one, or after the last call of NCCL.
    pub age_ns: u64,
    /// NCCL's function.
    pub function: String,
    /// To whom the process connects without an answer, `ADDRESS:PORT, …`.
    pub connects: String,
    /// Its addresses at which it waits for others, `ADDRESS, …`.
    pub listens: String,
}

impl SetupCall {
    pub(crate) fn older_by(self, ns: u64) -> SetupCall {
        SetupCall { age_ns: self.age_ns + ns, ..self }
    }
}

/// Why an operation shows no end: NCCL reports neither a part of it that runs nor that it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoEnd {
    /// The input does not tell: it was recorded before CUDA events were automatic, or is a table of
    /// vectors.
    #[default]
    Unknown,
    /// CUDA events are off.
    EventsOff,
    /// NCCL before 2.28 does not report launches, so that CUDA events cannot be recorded.
    OldNccl,
    /// It is a replay of a CUDA graph, for which no CUDA events are recorded.
    Captured,
    /// The stop of its kernel is not its end, and CUDA events are off for its communicator.
    EarlyStop,
    /// CUDA events are on, and none was recorded: there is no usable CUDA driver.
    Unmeasured,
    /// The input counts launches (NCCL's RAS).
    Launches,
}

impl NoEnd {
    /// The reason by a process's setting ([`ncclscope_trace::Identity::cuda_events`]), if the
    /// operation does not tell another one; `is_old`: its NCCL is older than 2.28.
    #[must_use]
    pub fn of(cuda_events: Option<&str>, is_old: bool) -> NoEnd {
        match cuda_events {
            _ if is_old => NoEnd::OldNccl,
            Some("off") => NoEnd::EventsOff,
            Some(_) => NoEnd::Unmeasured,
            None => NoEnd::Unknown,
        }
    }

    /// The reason and the remedy.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            NoEnd::Unknown => {
                "no kernel events, no network, no CUDA events (set NCCLSCOPE_CUDA_EVENTS=on)"
            }
            NoEnd::EventsOff => "CUDA events are off (set NCCLSCOPE_CUDA_EVENTS=on)",
            NoEnd::OldNccl => "NCCL before 2.28 reports no launches (set NCCLSCOPE_KERNEL=on)",
            NoEnd::Captured => {
                "CUDA events do not show replays of graphs (set NCCLSCOPE_KERNEL=on)"
            }
            NoEnd::EarlyStop => {
                "the stop of its kernel is not its end (set NCCLSCOPE_CUDA_EVENTS=on)"
            }
            NoEnd::Unmeasured => {
                "no CUDA event was recorded (see the plugin's line about its driver)"
            }
            NoEnd::Launches => "RAS counts launches, not ends (record the job, or dump its ranks)",
        }
    }
}

/// A thread of a process, and its role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadState {
    /// The kernel's accounting for the thread.
    pub thread: Thread,
    /// Its role in NCCL.
    pub role: Role,
}

/// The meaning of the numbers of a communicator's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommKind {
    /// Collectives: number n is the same operation on all members.
    #[default]
    Collectives,
    /// Sends from the first member to the second: send n matches receive n.
    Pair,
    /// Sends and receives of a group of two in call order: operations with equal numbers usually,
    /// but not always, match.
    Sequence,
    /// A call of the first member with sends or receives in which NCCL has launched nothing,
    /// because it connects to some of the other members; the input does not show to which.
    Call,
}

/// A communicator, or a pair of ranks of one.
#[derive(Clone, Debug, Default)]
pub struct Communicator {
    /// Its name in reports: the hash, or the pair of ranks.
    pub name: String,
    /// The name that the application gave it.
    pub comm_name: Option<String>,
    /// What the application uses it for, such as `tp`.
    pub role: Option<String>,
    /// How its operations are numbered.
    pub kind: CommKind,
    /// For a pair of ranks: position of the pair's communicator.
    pub parent: Option<u32>,
    /// Number of ranks, with or without a vector; 0 if unknown.
    pub nranks: u32,
    /// The progress of its members, by rank.
    pub vectors: Vec<Vector>,
    /// The processes of members without a vector.
    pub silent: Vec<u32>,
    /// The operation in flight of members, by position in `vectors`.
    pub flights: BTreeMap<u32, InFlightOp>,
    /// Rolling hashes: (position in `vectors`, number of operations, hash).
    pub hashes: Vec<(u32, u64, u64)>,
    /// The latest calls of members, by position in `vectors` and then by number. Thousands of
    /// members have many, so that they are not copied.
    pub calls: BTreeMap<u32, Arc<BTreeMap<u64, Arc<Call>>>>,
    /// How NCCL runs the latest collectives of members, by position in `vectors`, then by number.
    pub settings: BTreeMap<u32, Arc<BTreeMap<u64, Settings>>>,
    /// The sizes of the latest sends or receives of a pair, by position in `vectors`: (number,
    /// bytes) of each one whose size is not that of the one before.
    pub sizes: BTreeMap<u32, Vec<(u64, Option<u64>)>>,
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
    /// Operations up to the latest one whose kernel has started; `None` if kernels are not
    /// recorded.
    pub started: Option<u64>,
    /// Number of operations before the first one that is not complete.
    pub done: u64,
    /// Time since the operation that it is in last advanced, ns; `None` if unknown or in no
    /// operation.
    pub age_ns: Option<u64>,
    /// Time since that operation was issued, ns.
    pub born_ns: Option<u64>,
    /// When the process last called NCCL on the communicator, or an event of it last completed, ns
    /// since 1970, if known.
    pub changed_ns: Option<u64>,
    /// Completions are not recorded, so that `done` has no meaning.
    pub is_blind: bool,
    /// Only launches are counted: `done` follows from those of the other members.
    pub is_of_launches: bool,
    /// Its calls were captured into CUDA graphs: they are numbered as the operations that NCCL
    /// enqueued, of which a graph's replay enqueues more, and `api` is the number of these.
    pub is_captured: bool,
    /// The process has destroyed or aborted the communicator.
    pub has_left: bool,
    /// It has called the operation after the last enqueued one, in which NCCL has launched nothing
    /// yet because it connects to the other members.
    pub connects: bool,
    /// Number, among all sends and receives on its communicator, of the one that it is in, if
    /// known. (Those of a pair or a call are numbered separately.)
    pub p2p_number: Option<u64>,
}

impl Vector {
    /// Number of the operation that the member is in, else of the last one that it issued.
    #[must_use]
    pub fn front(&self) -> u64 {
        let entered = self.enqueued + u64::from(self.connects);
        if self.is_connecting() { entered } else { entered.min(self.done + 1) }
    }

    /// Number of operations that the application called and NCCL has not enqueued.
    pub(crate) fn not_enqueued(&self) -> u64 {
        self.api.saturating_sub(self.enqueued)
    }

    /// Its progress, as counts of operations.
    pub(crate) fn counts(&self) -> Vec<(&'static str, f64)> {
        if self.is_of_launches {
            return vec![("enqueued", to_f64(self.enqueued))];
        }
        let mut counts = vec![("called", self.api), ("enqueued", self.enqueued)];
        counts.extend(self.started.map(|started| ("kernel_started", started)));
        counts.push(("complete", self.done));
        counts.into_iter().map(|(name, count)| (name, to_f64(count))).collect()
    }

    /// True if it has issued an operation that is not complete.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.done < self.enqueued && !self.is_blind || self.connects
    }

    /// True if NCCL has enqueued its last operation, of which the input shows neither a part that
    /// runs nor the end.
    pub(crate) fn shows_no_end(&self) -> bool {
        self.is_blind && self.enqueued > 0 && !self.is_inside() && !self.has_left
    }

    /// True if the operation that it is in is not launched because NCCL connects to the other
    /// members.
    #[must_use]
    pub fn is_connecting(&self) -> bool {
        self.connects && (self.is_blind || self.done >= self.enqueued)
    }

    /// True if the kernel of the operation that it is in has started; `None` if kernels are not
    /// recorded.
    #[must_use]
    pub fn has_started(&self) -> Option<bool> {
        self.started.filter(|_| !self.is_connecting()).map(|started| started > self.done)
    }
}

/// How NCCL runs a collective. It decides that on each rank alone, from facts that must be the same
/// on all ranks; the ranks of an operation must agree, or their data does not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Settings {
    /// NCCL's name of the algorithm.
    pub algorithm: String,
    /// NCCL's name of the protocol.
    pub protocol: String,
    /// Number of channels, if known.
    pub channels: Option<u16>,
}

/// An operation in flight.
#[derive(Clone, Debug, Default)]
pub struct InFlightOp {
    /// The call that issued it.
    pub call: Call,
    /// Channels of its kernel: (all, started, stopped); `None` if kernels are not recorded.
    pub kernel: Option<(u32, u32, u32)>,
    /// Its network transfers.
    pub transfers: Vec<Transfer>,
    /// The call that issued it has not given it to all that run it: NCCL has not ended its event.
    pub is_enqueuing: bool,
}

impl InFlightOp {
    /// True if NCCL's proxy thread has not got it: its call has not come that far, and no transfer
    /// has begun.
    pub(crate) fn is_not_given(&self) -> bool {
        self.is_enqueuing && self.transfers.is_empty()
    }

    /// True if its kernel has stopped on all channels, which does not prove its end for its
    /// algorithm: it may be over, and other work of the application may keep the next operation
    /// from starting.
    #[must_use]
    pub fn may_be_over(&self) -> bool {
        self.has_stopped() && !self.transfers.iter().any(Transfer::is_open)
    }

    /// True if the input shows its transfers and not its call.
    pub(crate) fn hides_call(&self) -> bool {
        self.call.func.is_empty() && self.kernel.is_none()
    }

    /// True if its kernel has stopped on all channels, and the network has not moved all its data.
    pub(crate) fn is_in_network(&self) -> bool {
        self.has_stopped() && self.transfers.iter().any(Transfer::is_open)
    }

    fn has_stopped(&self) -> bool {
        let is_stopped =
            |(all, started, stopped)| started > 0 && started >= all && stopped == started;
        self.kernel.is_some_and(is_stopped)
    }
}

/// The arguments of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Call {
    /// NCCL's function name.
    pub func: String,
    /// Datatype.
    pub datatype: String,
    /// Number of elements, if all ranks must pass the same number.
    pub count: Option<u64>,
    /// The same of the further operations of a coalesced call, 0 where ranks may differ.
    pub more_counts: Vec<u64>,
    /// Root rank, if the function has one.
    pub root: Option<i32>,
    /// The size as the input gives it, as text.
    pub size: String,
    /// The size as in `report`, bytes, if known.
    pub bytes: Option<u64>,
    /// When it was called, ns since 1970, if known.
    pub called_ns: Option<u64>,
}

impl Call {
    /// Its number of elements, or its size where that says more: of a call with several operations,
    /// or whose ranks may pass different numbers.
    #[must_use]
    pub fn size_text(&self) -> String {
        let count = self.count.filter(|_| self.more_counts.is_empty());
        count.map_or_else(|| self.size.clone(), |count| count.to_string())
    }
}

impl Job {
    /// Everything in flight counts as stuck, whatever its age.
    pub(crate) fn counts_any_age(&self) -> bool {
        self.is_dump && !self.has_ages
    }
}

impl Communicator {
    /// [`Vector::done`] of each member whose completions are recorded.
    pub(crate) fn finished(&self) -> impl Iterator<Item = u64> {
        self.vectors.iter().filter(|vector| !vector.is_blind).map(|vector| vector.done)
    }

    /// Number of the operation that a member is in, counted as by the watchdog and `report`: per
    /// communicator, sends and receives separately from collectives. `None` if unknown.
    #[must_use]
    pub fn number(&self, vector: &Vector) -> Option<u64> {
        match self.kind {
            CommKind::Collectives => Some(vector.front()),
            CommKind::Pair | CommKind::Sequence | CommKind::Call => vector.p2p_number,
        }
    }

    /// Number of collective calls that every member has made without NCCL reporting anything more
    /// about them, such as Broadcast from 2.29 on.
    pub(crate) fn unseen_calls(&self) -> u64 {
        // Captured calls are not counted, so that nothing can be said of them.
        let counted = self.vectors.iter().filter(|vector| !vector.is_captured);
        let calls = counted.map(Vector::not_enqueued).min();
        let has_others = self.kind == CommKind::Collectives && self.vectors.len() > 1;
        calls.filter(|_| has_others).unwrap_or(0)
    }

    /// The first member that is in an operation, and its position.
    pub(crate) fn first_waiter(&self) -> Option<(&Vector, u32)> {
        self.vectors.iter().zip(0u32..).find(|(vector, _)| vector.is_inside())
    }

    /// True if its operations are sends and receives of two ranks.
    pub(crate) const fn is_pair(&self) -> bool {
        matches!(self.kind, CommKind::Pair | CommKind::Sequence)
    }
}

impl Job {
    /// The rank of a process: its job rank if known, else its position.
    #[must_use]
    pub fn rank(&self, process: u32) -> u32 {
        self.processes.get(process as usize).and_then(|p| p.rank).unwrap_or(process)
    }

    /// The rank of a process, if known; that of a process without input may be unknown.
    #[must_use]
    pub fn known_rank(&self, process: u32) -> Option<u32> {
        let one = self.processes.get(process as usize)?;
        one.rank.or_else(|| (one.status != ProcessStatus::Silent).then_some(process))
    }

    /// True if all members of a communicator run on one host, where no event tells of their data.
    pub(crate) fn is_within_a_host(&self, comm: &Communicator) -> bool {
        let host = |v: &Vector| self.processes[v.process as usize].host.as_deref();
        let mut hosts = comm.vectors.iter().map(host);
        let first = hosts.next().flatten();
        first.is_some() && hosts.all(|host| host == first)
    }

    /// True if the process has exited, is dead or is stopped, so that it completes nothing more.
    pub(crate) fn is_gone(&self, vector: &Vector) -> bool {
        let process = self.processes.get(vector.process as usize);
        process.is_some_and(|process| {
            use ProcessStatus::{Dead, Ended, Stopped};
            matches!(process.status, Dead | Ended | Stopped(_))
        })
    }

    /// True if NCCL has enqueued the member's latest operation, but the input shows neither a
    /// running part of it nor its end.
    pub(crate) fn shows_no_part(&self, vector: &Vector) -> bool {
        vector.is_blind && !vector.is_inside() && !self.is_gone(vector)
    }

    /// Number of the operation that a member is in, else of the last one that it issued. An
    /// operation that was in flight when its process died or was stopped counts as not issued.
    pub(crate) fn front(&self, vector: &Vector) -> u64 {
        if self.is_gone(vector) { vector.done } else { vector.front() }
    }
}
