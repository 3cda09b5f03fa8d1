// SPDX-License-Identifier: Apache-2.0
//! Orders from host threads to the drain thread. Host threads never wait for the drain thread here.

use crate::handover::Handover;
use crate::reply::Answer;
use crate::sys::cuda::Device;
use ncclscope_trace::dump::{Checkpoint, Rest};
use ncclscope_trace::{Comm, MarkKind};
use std::io;
use std::time::Duration;

/// Maximum total size of the waiting orders, bytes.
const ORDER_BYTES: usize = 8 << 20;

/// An order of a host thread to the drain thread.
#[derive(Debug)]
pub(crate) enum Order {
    /// A communicator was initialised.
    Comm(Comm),
    /// The device that a communicator is on.
    Device { index: u16, device: Device },
    /// What operations of API v1 to v3 report about their communicator.
    Learned { index: u16, hash: u64, rank: i32 },
    /// A communicator was finalized.
    CommEnd { index: u16, ticks: u64 },
    /// A mark between the records.
    Mark { ticks: u64, what: MarkKind, text: Option<String>, value: u64 },
    /// The role of a communicator.
    Role { hash: u64, text: String },
    /// A note for the reader of the recording.
    Note(String),
    /// A simulated hang of this length begins.
    Drill(Duration),
    /// Everything recorded must be written to the file.
    Flush(Answer<()>),
    /// A copy of the recording is requested.
    Dump(Answer<Dumped>),
}

/// The content of a dump: a copy of the file, and the steps in flight.
pub(crate) type Dumped = io::Result<(Checkpoint, Vec<Rest>)>;

pub(crate) type Orders = Handover<Order>;

pub(crate) const fn no_orders() -> Orders {
    Handover::new(ORDER_BYTES)
}
