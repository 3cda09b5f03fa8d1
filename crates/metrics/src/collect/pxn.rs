// SPDX-License-Identifier: Apache-2.0
/*!
Work of proxy threads for other processes of their node (PXN).

NCCL sends the data of one rank through the NIC of another local rank, whose proxy thread runs the
ProxyOp. A program that has the collectors of both processes, such as the agent, takes the records
([`Foreign`]) from one and passes them to the other, which counts them as its own. In a rank they
stay with the process that runs the ProxyOp.
*/

use super::network::LinkChannel;
use ncclscope_operations::hash::Map;
use ncclscope_trace::{EventKind, Handle, Record, Start};
use std::sync::Arc;

/// Most ProxyOps in progress that are kept; beyond that all are forgotten. Their later steps are
/// then counted by link, but not with their operations.
const MOST: usize = 1 << 16;

/// A record of a ProxyOp that belongs to another process.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// The ProxyOp's start. Its parent is a handle of the process that it belongs to, and so is the
    /// index of its communicator.
    pub start: Arc<Start>,
    /// The record: its start, a step, a state or its stop.
    pub record: Record,
}

/// A ProxyOp of this process that another process runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adopted {
    /// Its handle in this collector, with process bits 0, so that it equals no handle of a process.
    pub(super) handle: Handle,
    /// The indices under which its steps are counted.
    pub(super) place: Option<LinkChannel>,
}

/// The ProxyOps of this process that other processes run.
#[derive(Debug, Default)]
pub(super) struct Pxn {
    adopted: Map<(u64, Handle), Adopted>,
    next: u64,
}

impl Pxn {
    /// Finds or adds a ProxyOp that the process `source` runs; `place` returns the indices for its
    /// steps.
    pub(super) fn add(
        &mut self,
        source: u64,
        handle: Handle,
        place: impl FnOnce() -> Option<LinkChannel>,
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

    /// Removes a ProxyOp that stopped.
    pub(super) fn remove(&mut self, source: u64, handle: Handle) {
        self.adopted.remove(&(source, handle));
    }

    /// Forgets all ProxyOps, because their indices may be reused for other links.
    pub(super) fn forget_places(&mut self) {
        self.adopted.clear();
    }
}
