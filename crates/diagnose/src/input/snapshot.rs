// SPDX-License-Identifier: Apache-2.0
//! What the recording of one process shows of its progress.

use crate::job::{Call, InFlightOp, ThreadState};
use ncclscope_findings::rank::Pending;
use ncclscope_trace::runs::ProcessFacts;
use std::collections::{BTreeMap, VecDeque};

/// The progress of one process.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// In the job; known once the run is.
    pub(super) rank: u32,
    pub(super) host: String,
    pub(super) pid: u32,
    /// The recording and its process.
    pub(super) facts: ProcessFacts,
    /// Blocks that the recording had when it was read.
    pub(super) blocks: u64,
    pub(super) damage: Vec<String>,
    /// How many bytes of its events were read, and of how many, if not all.
    pub(super) part: Option<(u64, u64)>,
    /// The latest recorded time, by the host's clock, ns.
    pub(super) end_ns: u64,
    /// When the application last called NCCL, or an event last completed.
    pub(super) change_ns: u64,
    /// When the application last called NCCL.
    pub(super) last_call_ns: u64,
    pub(super) is_closed: bool,
    pub(super) is_copy: bool,
    pub(super) comms: Vec<Member>,
    /// Its proxy threads worked for other processes (PXN).
    pub(super) has_foreign: bool,
    pub(super) entered: Option<Pending>,
    /// Events are missing between those that there are.
    pub(super) lacks_events: bool,
    /// NCCL reports no calls on some communicator.
    pub(super) hides_calls: bool,
    pub(super) threads: Vec<ThreadState>,
    pub(super) reports: Vec<String>,
    /// When the latest of them was made, ns; 0: there is none.
    pub(super) reported_ns: u64,
}

impl Snapshot {
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
    pub(super) api: u64,
    pub(super) enqueued: u64,
    pub(super) started: Option<u64>,
    pub(super) done: u64,
    /// When the operation that it is in last advanced, ns.
    pub(super) since_ns: Option<u64>,
    /// When that operation was issued, ns.
    pub(super) born_ns: Option<u64>,
    pub(super) is_blind: bool,
    /// It has destroyed or aborted the communicator.
    pub(super) has_left: bool,
    /// [`crate::job::Vector::connects`]; `since_ns` and `born_ns` are the call's, where no earlier
    /// operation is in flight.
    pub(super) connects: bool,
    /// The sends and receives of a call in which NCCL has launched nothing.
    pub(super) connects_p2p: Option<P2pCall>,
    /// Kernels of the communicator are recorded.
    pub(super) sees_kernels: bool,
    pub(super) flight: Option<InFlightOp>,
    pub(super) hashes: Vec<(u64, u64)>,
    pub(super) calls: BTreeMap<u64, Call>,
    /// The number of its latest send or receive on the communicator, where known.
    pub(super) p2p_enqueued: Option<u64>,
    /// Sends and receives, by (is a send, rank of the other side).
    pub(super) pairs: BTreeMap<(bool, u32), PairSide>,
    /// All sends and receives are in the recording, so that they can be counted.
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
    /// It is in a collective.
    pub(super) fn is_inside(&self) -> bool {
        self.done < self.enqueued && !self.is_blind || self.connects
    }

    /// The latest collective that it called, if NCCL has taken it or connects for it.
    pub(super) fn entered(&self) -> u64 {
        self.enqueued + u64::from(self.connects)
    }
}

/// A member of a communicator: its process, its progress, and the time up to which its ages count.
pub(super) type PlacedMember<'a> = (u32, &'a Member, u64);

/// One side of the sends from a rank to another.
#[derive(Debug, Default, Clone)]
pub(super) struct PairSide {
    pub(super) issued: u64,
    pub(super) done: u64,
    pub(super) open: u64,
    /// The number of the first that is open, among all on the communicator, where known.
    pub(super) number: Option<u64>,
    pub(super) since_ns: Option<u64>,
    pub(super) born_ns: Option<u64>,
    pub(super) flight: InFlightOp,
    /// (number, bytes) of the latest.
    pub(super) sizes: VecDeque<(u64, u64)>,
}
