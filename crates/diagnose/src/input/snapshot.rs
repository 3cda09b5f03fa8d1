// SPDX-License-Identifier: Apache-2.0
//! What the recording of one process shows of its progress.

use crate::job::{Call, InFlightOp, NoEnd, Settings, SetupCall, ThreadState};
use ncclscope_findings::rank::Pending;
use ncclscope_trace::runs::ProcessFacts;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The progress of one process.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Rank in the job; set once the run is known.
    pub(crate) rank: u32,
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// Facts about the recording and its process.
    pub(crate) facts: ProcessFacts,
    /// Number of blocks that the recording had when it was read.
    pub(crate) blocks: u64,
    pub(crate) damage: Vec<String>,
    /// (Bytes of events read, all bytes of events); `None` if all were read.
    pub(crate) part: Option<(u64, u64)>,
    /// The latest recorded time, by the host's clock, ns.
    pub(crate) end_ns: u64,
    /// When the process last compared its clocks, by the host's clock, and the longest time between
    /// two such comparisons (0 if there is one), ns.
    pub(crate) sync: Option<(u64, u64)>,
    /// The end of that longest time, ns.
    pub(crate) sync_resumed_ns: u64,
    /// When the application last called NCCL, or an event last completed, ns.
    pub(crate) change_ns: u64,
    /// The longest time between two such changes before, ns; `None` if there were too few to say
    /// what is usual.
    pub(crate) usual_ns: Option<u64>,
    /// When the application last called NCCL, ns.
    pub(crate) last_call_ns: u64,
    pub(crate) is_closed: bool,
    pub(crate) is_copy: bool,
    pub(crate) comms: Vec<Member>,
    /// Its proxy threads worked for other processes (PXN).
    pub(crate) has_foreign: bool,
    pub(crate) entered: Option<Pending>,
    /// See [`crate::job::Process::setup`].
    pub(crate) setup: Option<SetupCall>,
    /// Events are missing between recorded ones.
    pub(crate) lacks_events: bool,
    /// When recording was stopped, if it was not started again, ns.
    pub(crate) off_since_ns: Option<u64>,
    /// Only a sample of the operations is recorded.
    pub(crate) is_sampled: bool,
    /// NCCL reports no calls on some communicator.
    pub(crate) hides_calls: bool,
    pub(crate) threads: Vec<ThreadState>,
    pub(crate) reports: Vec<String>,
    /// When the latest of these reports that is of a hang was made, ns; 0 if there is none.
    pub(crate) reported_ns: u64,
    /// The process itself, looked up after all recordings were read; `None` if it is on another
    /// machine, or was not looked up.
    pub(crate) sight: Option<Sight>,
}

/// How the kernel shows a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It exists and is not in state T; its control group may be frozen.
    Runs,
    /// A signal or a debugger stopped it.
    Stopped,
    /// It is over, or its id is another process's now.
    Gone,
}

/// How the kernel of this machine shows the process of a recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    pub(crate) seen: Seen,
    /// Its control group is frozen; looked up only for a process that has recorded nothing.
    pub(crate) is_frozen: bool,
    /// When it was seen, ns since 1970.
    pub(crate) at_ns: u64,
}

impl Snapshot {
    /// True if the process may be over: it closed its recording, or does not exist here.
    pub(crate) fn may_be_over(&self) -> bool {
        let is_seen = self.sight.is_some_and(|sight| sight.seen != Seen::Gone);
        self.is_closed || !self.is_copy && !is_seen
    }

    /// [`crate::job::Process::environment`].
    pub(crate) fn environment(&self) -> Arc<BTreeMap<String, String>> {
        let decides = |key: &str| {
            key.starts_with("NCCL_") || matches!(key, "nccl" | "cuda" | "cpu" | "device_name")
        };
        let entries = self.facts.identity.entries().into_iter();
        let kept = entries.filter(|(key, _)| decides(key));
        Arc::new(kept.map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// [`crate::job::Process::exit_status`]. A copy was made before.
    pub(crate) fn exit_status(&self) -> Option<u32> {
        self.facts.identity.exit_status.filter(|_| self.is_closed)
    }

    /// The GPU of the process's communicators, else that of the process; `None` if unknown.
    pub(crate) fn device(&self) -> Option<u32> {
        let known = self.comms.iter().find_map(|member| member.device);
        known.or(self.facts.identity.device)
    }

    /// How long nothing of the process has moved at `now`, ns. The replays of a CUDA graph may show
    /// nothing, so that a process with captured operations may move unseen.
    pub(crate) fn still_ns(&self, now: u64) -> Option<u64> {
        let may_move_unseen = self.off_since_ns.is_some()
            || self.is_sampled
            || self.comms.iter().any(|member| member.is_captured);
        let is_known = self.change_ns != 0 && !self.is_closed && !may_move_unseen;
        is_known.then(|| now.saturating_sub(self.change_ns))
    }

    /// How long recording had been off at the time `now`, ns. A process that ended in order waited
    /// for nothing at its end.
    pub(crate) fn off_ns(&self, now: u64) -> Option<u64> {
        let since = self.off_since_ns.filter(|_| !self.is_closed);
        since.map(|since| now.saturating_sub(since))
    }

    /// Why operations of the process show no end, if they show none.
    pub(crate) fn no_end(&self) -> NoEnd {
        NoEnd::of(self.facts.identity.cuda_events.as_deref(), self.hides_calls)
    }

    pub(crate) const fn has_foreign(&self) -> bool {
        self.has_foreign
    }
}

/// A process in a communicator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Member {
    pub(crate) hash: u64,
    pub(crate) name: String,
    /// The name that the application gave it.
    pub(crate) comm_name: Option<String>,
    pub(crate) role: Option<String>,
    pub(crate) nranks: u32,
    pub(crate) rank: u32,
    /// The GPU, if the plugin knew it.
    pub(crate) device: Option<u32>,
    /// When the application last called NCCL on the communicator, or an event of it last completed,
    /// ns; 0 never.
    pub(crate) change_ns: u64,
    /// When the application last called NCCL on the communicator, ns; 0 never.
    pub(crate) last_call_ns: u64,
    /// The process's own watchdog reports a hang of the communicator.
    pub(crate) is_reported: bool,
    pub(crate) api: u64,
    pub(crate) enqueued: u64,
    pub(crate) started: Option<u64>,
    pub(crate) done: u64,
    /// When the operation that the process is in last advanced, ns.
    pub(crate) since_ns: Option<u64>,
    /// When that operation was issued, ns.
    pub(crate) born_ns: Option<u64>,
    pub(crate) is_blind: bool,
    /// See [`crate::job::Vector::is_captured`].
    pub(crate) is_captured: bool,
    /// The process has destroyed or aborted the communicator.
    pub(crate) has_left: bool,
    /// See [`crate::job::Vector::connects`]. If no earlier operation is in flight, `since_ns` and
    /// `born_ns` are the times of that call.
    pub(crate) connects: bool,
    /// The sends and receives of a call in which NCCL has launched nothing.
    pub(crate) connects_p2p: Option<P2pCall>,
    /// Kernels of the communicator are recorded.
    pub(crate) sees_kernels: bool,
    /// When a collective of the communicator last completed here, ns; 0 never, or unknown.
    pub(crate) completed_ns: u64,
    pub(crate) flight: Option<InFlightOp>,
    pub(crate) hashes: Vec<(u64, u64)>,
    pub(crate) calls: Arc<BTreeMap<u64, Arc<Call>>>,
    pub(crate) settings: Arc<BTreeMap<u64, Settings>>,
    /// Number of the latest send or receive on the communicator, if known.
    pub(crate) p2p_enqueued: Option<u64>,
    /// Sends and receives, by (is a send, rank of the other side).
    pub(crate) pairs: BTreeMap<(bool, u32), PairSide>,
    /// All sends and receives are known, so that they can be counted.
    pub(crate) counts_pairs: bool,
}

/// Sends and receives that the application called in one group.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct P2pCall {
    pub(crate) has_sends: bool,
    pub(crate) has_receives: bool,
    /// When the application ended the group.
    pub(crate) since_ns: u64,
}

impl Member {
    /// True if the process is in a collective.
    pub(crate) fn is_inside(&self) -> bool {
        self.done < self.enqueued && !self.is_blind || self.connects
    }

    /// Number of the latest collective that the process called, if NCCL has enqueued it or connects
    /// for it.
    pub(crate) fn entered(&self) -> u64 {
        self.enqueued + u64::from(self.connects)
    }
}

/// A member of a communicator: its process, its progress, and the time up to which its ages count.
pub(crate) type PlacedMember<'a> = (u32, &'a Member, u64);

/// Maximum number of changes of size that are kept of each side: an all-to-all has n² pairs.
const MAX_SIZES: usize = 8;

/// One side of the sends from a rank to another.
#[derive(Debug, Default, Clone)]
pub(crate) struct PairSide {
    pub(crate) issued: u64,
    pub(crate) done: u64,
    pub(crate) open: u64,
    /// No record shows the end of the latest one, so that it is unknown whether all are done.
    pub(crate) is_unseen: bool,
    /// Number of the first open one among all sends and receives on the communicator, if known.
    pub(crate) number: Option<u64>,
    pub(crate) since_ns: Option<u64>,
    pub(crate) born_ns: Option<u64>,
    pub(crate) flight: InFlightOp,
    /// The sizes of the latest ones, as in
    /// [`Communicator::sizes`](crate::job::Communicator::sizes).
    pub(crate) sizes: VecDeque<(u64, Option<u64>)>,
}

impl PairSide {
    /// Notes the size of the latest one.
    pub(crate) fn note_size(&mut self, bytes: Option<u64>) {
        if self.sizes.back().is_some_and(|(_, last)| *last == bytes) {
            return;
        }
        self.sizes.push_back((self.issued, bytes));
        if self.sizes.len() > MAX_SIZES {
            self.sizes.pop_front();
        }
    }
}
