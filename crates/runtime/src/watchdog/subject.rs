// SPDX-License-Identifier: Apache-2.0
//! The subject of a report: the operation or call that stands still, and for how long.

use ncclscope_operations::progress::{Call, ForeignWork, Launch, OpView};
use ncclscope_recorder::NO_COMM;
use ncclscope_trace::Handle;

/// What stands still.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// An operation that NCCL has enqueued.
    Op(OpView),
    /// An API call of the application that has not returned.
    Call(Call),
    /// Transfers for a communicator of another process (PXN).
    Foreign(ForeignWork),
}

impl Subject {
    pub(super) fn handle(&self) -> Handle {
        match self {
            Subject::Op(op) => op.handle,
            Subject::Call(call) => call.handle,
            Subject::Foreign(work) => work.ops.first().map_or(Handle::NULL, |op| op.handle),
        }
    }

    /// The communicator of this process; [`NO_COMM`] if it is another's.
    pub(super) fn comm(&self) -> u16 {
        match self {
            Subject::Op(op) => op.comm,
            Subject::Call(call) => call.comm,
            Subject::Foreign(_) => NO_COMM,
        }
    }

    /// When it began, in ticks.
    pub(super) fn start(&self) -> u64 {
        match self {
            Subject::Op(op) => op.start,
            Subject::Call(call) => call.start,
            Subject::Foreign(work) => work.ops.first().map_or(0, |op| op.start),
        }
    }

    /// When it last changed, in ticks.
    pub(super) fn since(&self) -> u64 {
        match self {
            Subject::Op(op) => op.since,
            Subject::Call(call) => call.start,
            Subject::Foreign(work) => work.since,
        }
    }

    pub(super) fn launch(&self) -> Option<Launch> {
        match self {
            Subject::Op(op) => op.launch,
            Subject::Call(call) => call.launch,
            Subject::Foreign(_) => None,
        }
    }
}

/// Something that stands still, perhaps for too long.
#[derive(Clone, Debug)]
pub(super) struct Suspect {
    pub(super) subject: Subject,
    /// For how long it has stood still, ns; `limit_ns` is how long it may until it counts as stuck.
    pub(super) still_ns: u64,
    pub(super) limit_ns: u64,
}

impl Suspect {
    pub(super) const fn is_stuck(&self) -> bool {
        self.still_ns >= self.limit_ns
    }

    /// How much longer it may stand still, ns.
    pub(super) const fn left_ns(&self) -> u64 {
        self.limit_ns.saturating_sub(self.still_ns)
    }
}
