// SPDX-License-Identifier: Apache-2.0
/*!
The report of a run from its recordings, as `ncclscope report` prints it.

A [`ProcessPart`] is the contribution of one process, which a [`ProcessReader`] collects while its
recording is read. [`ReportBuilder`] merges them in the order in which they are added, and joins
collectives over the ranks for the time of their transfer (`transfer.rs`). The structures of
[`schema`] are the JSON schema `ncclscope.report/3`. [`losses`] lists what is missing and the
variable that prevents it, [`windows`] the times of recording, [`unknowable`] what the run cannot
show.

[`inspector`] makes the report of NCCL Inspector's files.

This crate does **not** read files (that is `trace` and `inspector`), find an operation's end (that
is `operations`), print, or give verdicts about why something is slow. A rank does not link it.
*/
#![forbid(unsafe_code)]

mod buckets;
mod build;
mod distribution;
mod groups;
mod in_nccl;
pub mod inspector;
mod job_ranks;
mod key;
mod late;
mod latency;
pub mod losses;
mod numbers;
mod processes;
mod rows;
pub mod schema;
mod summary;
mod transfer;
pub mod unknowable;
pub mod waiting;
pub mod windows;

pub use build::{ProcessPart, ProcessReader, ReportBuilder, Wanted};
pub use groups::By;
pub use schema::Report;
pub use summary::{CommRole, comm_roles};
