// SPDX-License-Identifier: Apache-2.0
/*!
The callback path: what happens between NCCL's call and its return.

A callback reads the clock, writes one record or updates one slot, and returns. It does not
allocate, lock, make a system call, wait, loop without bound, follow a pointer that NCCL handed
back, or unwind.

- Each thread writes to a [`lane`] of its own: a ring of words with one producer and one consumer.
- A ProxyOp and its steps in flight live in a slot ([`slots`]), to which their handles lead by
  arithmetic; a generation tells a live slot from an earlier use. Every other event has no state
  here: its handle is a number, and the reader of the records joins them.
- [`call_counters`] count the operations that each communicator was asked for, recorded or not.
- A ProxyOp that NCCL never stops gives its slot up ([`reclaim`]).
- What does not fit is dropped and counted by kind of event, in the lane's header.

Memory ([`region`]) is mapped before it is used, and stays mapped while the process lives. It may be
shared with the recording's file, so that a SIGKILL loses nothing that was stored.

This crate does **not** know NCCL's structs, start threads, or write files.
*/
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

pub mod call_counters;
pub mod clock;
mod fast_path;
pub mod gate;
pub mod interner;
pub mod lane;
pub mod missed;
pub mod reclaim;
pub mod recorder;
pub mod region;
pub mod registry;
mod slot;
pub mod slots;
mod sync;

/// Re-export of the record format, which callers of the recorder need.
pub use ncclscope_trace as trace;

pub use interner::Interner;
pub use lane::{Lane, LaneHeader};
pub use recorder::{NO_COMM, Recorder};
pub use region::Region;
#[cfg(loom)]
pub use sync::model;
