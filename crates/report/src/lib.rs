// SPDX-License-Identifier: Apache-2.0
/*!
What the recordings of a run say, as `ncclscope report` prints it.

[`ReportBuilder`] reads the processes of a run on all cores ([`parallel`]) and merges them in their
order; the structures of [`schema`] are the JSON schema `ncclscope.report/1`. [`losses`] says what
is missing and what to set, [`windows`] when recording was on, [`unknowable`] what cannot be known.

This crate does **not** read files (that is `trace`), find an operation's end (that is
`operations`), print, or give verdicts about why something is slow. A rank links none of it.
*/
#![forbid(unsafe_code)]

mod build;
mod distribution;
pub mod losses;
pub mod parallel;
mod rows;
pub mod schema;
pub mod unknowable;
pub mod waiting;
pub mod windows;

pub use build::ReportBuilder;
pub use schema::Report;
