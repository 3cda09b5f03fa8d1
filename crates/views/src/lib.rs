// SPDX-License-Identifier: Apache-2.0
/*!
Recordings to traces that other tools show: Perfetto's pftrace and Chrome's JSON.

All traces show one process for each rank, with the same tracks ([`tracks`]): API calls, groups,
operations with their real end, one track for each channel's kernel, and one for each peer,
direction and channel of the proxy; with curves ([`counters`]) and arrows ([`flows`]), also between
ranks ([`matching`]). [`chrome`] and [`pftrace`] only serialise; they stream, with one process's
events in memory at a time. [`archive`] holds a pftrace for each process.

This crate does **not** read files, decide what an operation's end is (that is `operations`), or
print.
*/
#![forbid(unsafe_code)]

pub mod archive;
pub mod args;
pub mod chrome;
pub mod counters;
pub mod flows;
mod ident;
pub mod matching;
mod pack;
mod packets;
mod parallel;
pub mod pftrace;
pub mod scene;
pub mod tracks;

pub use scene::{Scene, View};
