// SPDX-License-Identifier: Apache-2.0
/*!
What proxy threads do for other processes of their node (PXN).

NCCL sends the data of one rank through the NIC of another local rank, whose proxy thread runs the
ProxyOp. Where the collectors of both are at hand, as in the agent, one hands the records over
([`Foreign`]) and the other counts them as its own. In a rank alone they stay where they are.
*/

use super::network::Place;
use ncclscope_operations::hash::Map;
use ncclscope_trace::{EventKind, Handle, Record, Start};
use std::sync::Arc;

/// ProxyOps under way that are kept: at more, all are forgotten. Their later steps are counted by
/// link, and not with their operations.
const MOST: usize = 1 << 16;

/// A record of a ProxyOp that belongs to another process.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// The ProxyOp's start. Its parent is a handle of the process that it belongs to, and so is the
    /// index of its communicator.
    pub start: Arc<Start>,
    /// What happened: its start, a step of it, a state or its stop.
    pub record: Record,
}

/// A ProxyOp of this process that another one runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adopted {
    /// Its handle here: of no process, so that it is like no other.
    pub(super) handle: Handle,
    /// Where its steps are counted.
    pub(super) place: Option<Place>,
}

/// The ProxyOps of this process that others run.
#[derive(Debug, Default)]
pub(super) struct Pxn {
    adopted: Map<(u64, Handle), Adopted>,
    next: u64,
}

impl Pxn {
    /// A ProxyOp of the process `source` whose steps are counted at `place`.
    pub(super) fn add(
        &mut self,
        source: u64,
        handle: Handle,
        place: impl FnOnce() -> Option<Place>,
    ) -> Adopted {
        if self.adopted.len() >= MOST {
            self.adopted.clear();
        }
        *self.adopted.entry((source, handle)).or_insert_with(|| {
            self.next += 1;
            let handle = Handle::value(0, EventKind::ProxyOp, 0, self.next);
            Adopted { handle, place: place() }
        })
    }

    /// It stopped.
    pub(super) fn remove(&mut self, source: u64, handle: Handle) {
        self.adopted.remove(&(source, handle));
    }

    /// Places are given to others: forgets where steps are counted.
    pub(super) fn forget_places(&mut self) {
        self.adopted.clear();
    }
}
