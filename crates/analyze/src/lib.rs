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
#[cfg(feature = "report")]
mod build;
pub mod counts;
mod doubts;
mod ends;
pub mod human;
pub mod kernels;
#[cfg(feature = "report")]
pub mod losses;
pub mod metrics;
pub mod operation;
pub mod peers;
pub mod progress;
pub mod ptimer;
#[cfg(feature = "report")]
pub mod report;
#[cfg(feature = "report")]
mod rows;
#[cfg(feature = "simulate")]
pub mod simulate;
mod stamps;
pub mod stats;
pub mod steps;
pub mod threads;
pub mod timeline;
pub mod tracks;
pub mod unknowable;
pub mod waiting;
#[cfg(feature = "report")]
pub mod windows;

#[cfg(feature = "report")]
pub use build::ReportBuilder;
pub use operation::{Completion, Operation, Timing, operations};
pub use ptimer::GpuClock;
#[cfg(feature = "report")]
pub use report::Report;
pub use timeline::{Event, EventId, Parent, Timeline};
