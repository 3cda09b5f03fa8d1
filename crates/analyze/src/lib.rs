// SPDX-License-Identifier: Apache-2.0
/*!
From records to operations: what the recordings of a run say about it.

[`Timeline`] joins the records of one process into events with parents and children.
[`operation`] finds each operation's end, which is the stop of its last child, and where its
duration is known from. [`GpuClock`] places GPU time stamps on the host's clock. [`report`] merges
the processes of a run into what `ncclscope report` prints; its structures are the JSON schema
`ncclscope.report/1`.

This crate does **not** read files (that is `trace`), write traces (that is `export`), print, or
give verdicts about why something is slow.
*/
#![forbid(unsafe_code)]

pub mod bandwidth;
mod build;
pub mod counts;
pub mod human;
pub mod losses;
pub mod operation;
pub mod peers;
pub mod ptimer;
pub mod report;
mod rows;
#[cfg(feature = "simulate")]
pub mod simulate;
pub mod stats;
pub mod steps;
pub mod threads;
pub mod timeline;
pub mod unknowable;
pub mod waiting;

pub use build::ReportBuilder;
pub use operation::{Completion, Operation, Timing, operations};
pub use ptimer::GpuClock;
pub use report::Report;
pub use timeline::{Event, EventId, Parent, Timeline};
