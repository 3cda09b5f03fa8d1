// SPDX-License-Identifier: Apache-2.0
/*!
From records to operations: what ranks and tools share.

[`Timeline`] joins the records of one process into events with parents and children.
[`operation`] finds each operation's end, which is the stop of its last child, and where its
duration is known from. [`GpuClock`] places GPU time stamps on the host's clock. [`progress`] keeps
track of what is in flight while records come.

This crate does **not** read files (that is `trace`), print, or give verdicts about why something
is slow.
*/
#![forbid(unsafe_code)]

pub mod bandwidth;
pub mod counts;
mod doubts;
pub mod ends;
pub mod facts;
pub mod hash;
pub mod histogram;
pub mod human;
pub mod kernels;
pub mod operation;
pub mod order;
pub mod peers;
pub mod progress;
pub mod ptimer;
pub mod stamps;
pub mod stats;
pub mod steps;
pub mod threads;
pub mod timeline;
pub mod tracks;
pub mod windows;

pub use facts::{Facts, Launched};
pub use histogram::Histogram;
pub use operation::{Completion, Operation, Timing, operations};
pub use order::KernelOrder;
pub use ptimer::GpuClock;
pub use timeline::{Event, EventId, Parent, Timeline};
