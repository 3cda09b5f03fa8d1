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
    pub(super) rank: u32,
    pub(super) host: String,
    pub(super) pid: u32,
    /// Facts about the recording and its process.
    pub(super) facts: ProcessFacts,
    /// Number of blocks that the recording had when it was read.
    pub(super) blocks: u64,
    pub(super) damage: Vec<String>,
    /// (Bytes of events read, all bytes of events); `None` if all were read.
    pub(super) part: Option<(u64, u64)>,
    /// The latest recorded time, by the host's clock, ns.
    pub(super) end_ns: u64,
    /// When the process last compared its clocks, by the host's clock, and the longest time between
    /// two such comparisons (0 if there is one), ns.
    pub(super) sync: Option<(u64, u64)>,
    /// The end of that longest time, ns.
    pub(super) sync_resumed_ns: u64,
    /// When the application last called NCCL, or an event last completed, ns.
    pub(super) change_ns: u64,
    /// The longest time between two such changes before, ns; `None` if there were too few to say
    /// what is usual.
    pub(super) usual_ns: Option<u64>,
    /// When the application last called NCCL, ns.
    pub(super) last_call_ns: u64,
    pub(super) is_closed: bool,
    pub(super) is_copy: bool,
    pub(super) comms: Vec<Member>,
    /// Its proxy threads worked for other processes (PXN).
    pub(super) has_foreign: bool,
    pub(super) entered: Option<Pending>,
    /// See [`crate::job::Process::setup`].
    pub(super) setup: Option<SetupCall>,
    /// Events are missing between recorded ones.
    pub(super) lacks_events: bool,
    /// When recording was stopped, if it was not started again, ns.
    pub(super) off_since_ns: Option<u64>,
    /// Only a sample of the operations is recorded.
    pub(super) is_sampled: bool,
    /// NCCL reports no calls on some communicator.
    pub(super) hides_calls: bool,
    pub(super) threads: Vec<ThreadState>,
    pub(super) reports: Vec<String>,
    /// When the latest of these reports that is of a hang was made, ns; 0 if there is none.
    pub(super) reported_ns: u64,
    /// The process itself, looked up after all recordings were read; `None` if it is on another
    /// machine, or was not looked up.
    pub(super) sight: Option<Sight>,
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
pub(super) struct Sight {
    pub(super) seen: Seen,
    /// Its control group is frozen; looked up only for a process that has recorded nothing.
    pub(super) is_frozen: bool,
    /// When it was seen, ns since 1970.
    pub(super) at_ns: u64,
}

impl Snapshot {
    /// True if the process may be over: it closed its recording, or does not exist here.
    pub(super) fn may_be_over(&self) -> bool {
        let is_seen = self.sight.is_some_and(|sight| sight.seen != Seen::Gone);
        self.is_closed || !self.is_copy && !is_seen
    }

    /// [`crate::job::Process::environment`].
    pub(super) fn environment(&self) -> Arc<BTreeMap<String, String>> {
        let decides = |key: &str| {
            key.starts_with("NCCL_") || matches!(key, "nccl" | "cuda" | "cpu" | "device_name")
        };
        let entries = self.facts.identity.entries().into_iter();
        let kept = entries.filter(|(key, _)| decides(key));
        Arc::new(kept.map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// [`crate::job::Process::exit_status`]. A copy was made before.
    pub(super) fn exit_status(&self) -> Option<u32> {
        self.facts.identity.exit_status.filter(|_| self.is_closed)
    }

    /// The GPU of the process's communicators, else that of the process; `None` if unknown.
    pub(super) fn device(&self) -> Option<u32> {
        let known = self.comms.iter().find_map(|member| member.device);
        known.or(self.facts.identity.device)
    }

    /// How long nothing of the process has moved at `now`, ns. The replays of a CUDA graph may show
    /// nothing, so that a process with captured operations may move unseen.
    pub(super) fn still_ns(&self, now: u64) -> Option<u64> {
        let may_move_unseen = self.off_since_ns.is_some()
            || self.is_sampled
            || self.comms.iter().any(|member| member.is_captured);
        let is_known = self.change_ns != 0 && !self.is_closed && !may_move_unseen;
        is_known.then(|| now.saturating_sub(self.change_ns))
    }

    /// How long recording had been off at the time `now`, ns. A process that ended in order waited
    /// for nothing at its end.
    pub(super) fn off_ns(&self, now: u64) -> Option<u64> {
        let since = self.off_since_ns.filter(|_| !self.is_closed);
        since.map(|since| now.saturating_sub(since))
    }

    /// Why operations of the process show no end, if they show none.
    pub(super) fn no_end(&self) -> NoEnd {
        NoEnd::of(self.facts.identity.cuda_events.as_deref(), self.hides_calls)
    }

    pub(super) const fn has_foreign(&self) -> bool {
        self.has_foreign
    }
}

/// A process in a communicator.
#[derive(Clone, Debug, Default)]
pub(super) struct Member {
    pub(super) hash: u64,
    pub(super) name: String,
    /// The name that the application gave it.
    pub(super) comm_name: Option<String>,
    pub(super) role: Option<String>,
    pub(super) nranks: u32,
    pub(super) rank: u32,
    /// The GPU, if the plugin knew it.
    pub(super) device: Option<u32>,
    /// When the application last called NCCL on the communicator, or an event of it last completed,
    /// ns; 0 never.
    pub(super) change_ns: u64,
    /// When the application last called NCCL on the communicator, ns; 0 never.
    pub(super) last_call_ns: u64,
    /// The process's own watchdog reports a hang of the communicator.
    pub(super) is_reported: bool,
    pub(super) api: u64,
    pub(super) enqueued: u64,
    pub(super) started: Option<u64>,
    pub(super) done: u64,
    /// When the operation that the process is in last advanced, ns.
    pub(super) since_ns: Option<u64>,
    /// When that operation was issued, ns.
    pub(super) born_ns: Option<u64>,
    pub(super) is_blind: bool,
    /// See [`crate::job::Vector::is_captured`].
    pub(super) is_captured: bool,
    /// The process has destroyed or aborted the communicator.
    pub(super) has_left: bool,
    /// See [`crate::job::Vector::connects`]. If no earlier operation is in flight, `since_ns` and
    /// `born_ns` are the times of that call.
    pub(super) connects: bool,
    /// The sends and receives of a call in which NCCL has launched nothing.
    pub(super) connects_p2p: Option<P2pCall>,
    /// Kernels of the communicator are recorded.
    pub(super) sees_kernels: bool,
    /// When a collective of the communicator last completed here, ns; 0 never, or unknown.
    pub(super) completed_ns: u64,
    pub(super) flight: Option<InFlightOp>,
    pub(super) hashes: Vec<(u64, u64)>,
    pub(super) calls: Arc<BTreeMap<u64, Arc<Call>>>,
    pub(super) settings: Arc<BTreeMap<u64, Settings>>,
    /// Number of the latest send or receive on the communicator, if known.
    pub(super) p2p_enqueued: Option<u64>,
    /// Sends and receives, by (is a send, rank of the other side).
    pub(super) pairs: BTreeMap<(bool, u32), PairSide>,
    /// All sends and receives are known, so that they can be counted.
    pub(super) counts_pairs: bool,
}

/// Sends and receives that the application called in one group.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct P2pCall {
    pub(super) has_sends: bool,
    pub(super) has_receives: bool,
    /// When the application ended the group.
    pub(super) since_ns: u64,
}

impl Member {
    /// True if the process is in a collective.
    pub(super) fn is_inside(&self) -> bool {
        self.done < self.enqueued && !self.is_blind || self.connects
    }

    /// Number of the latest collective that the process called, if NCCL has enqueued it or connects
    /// for it.
    pub(super) fn entered(&self) -> u64 {
        self.enqueued + u64::from(self.connects)
    }
}

/// A member of a communicator: its process, its progress, and the time up to which its ages count.
pub(super) type PlacedMember<'a> = (u32, &'a Member, u64);

/// Maximum number of changes of size that are kept of each side: an all-to-all has n² pairs.
const MAX_SIZES: usize = 8;

/// One side of the sends from a rank to another.
#[derive(Debug, Default, Clone)]
pub(super) struct PairSide {
    pub(super) issued: u64,
    pub(super) done: u64,
    pub(super) open: u64,
    /// No record shows the end of the latest one, so that it is unknown whether all are done.
    pub(super) is_unseen: bool,
    /// Number of the first open one among all sends and receives on the communicator, if known.
    pub(super) number: Option<u64>,
    pub(super) since_ns: Option<u64>,
    pub(super) born_ns: Option<u64>,
    pub(super) flight: InFlightOp,
    /// The sizes of the latest ones, as in
    /// [`Communicator::sizes`](crate::job::Communicator::sizes).
    pub(super) sizes: VecDeque<(u64, Option<u64>)>,
}

impl PairSide {
    /// Notes the size of the latest one.
    pub(super) fn note_size(&mut self, bytes: Option<u64>) {
        if self.sizes.back().is_some_and(|(_, last)| *last == bytes) {
            return;
        }
        self.sizes.push_back((self.issued, bytes));
        if self.sizes.len() > MAX_SIZES {
            self.sizes.pop_front();
        }
    }
}
