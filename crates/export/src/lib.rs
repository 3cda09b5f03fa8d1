// SPDX-License-Identifier: Apache-2.0
/*!
Recordings to traces that other tools show, Perfetto's pftrace and Chrome's JSON, and metrics to
what collectors read ([`metrics`]).

All traces show one process for each rank, with the same tracks ([`tracks`]): API calls, groups,
operations with their real end, one track for each channel's kernel, and one for each peer,
direction and channel of the proxy; with curves ([`counters`]) and arrows ([`flows`]), also between
ranks ([`matching`]). [`chrome`] and [`pftrace`] only serialise; they stream, with one process's
events in memory at a time. [`archive`] holds a pftrace for each process.

This crate does **not** read files, decide what an operation's end is (that is `operations`), or
print.
*/
#![forbid(unsafe_code)]

#[cfg(feature = "traces")]
pub mod archive;
#[cfg(feature = "traces")]
pub mod args;
#[cfg(feature = "traces")]
pub mod chrome;
#[cfg(feature = "traces")]
pub mod counters;
#[cfg(feature = "traces")]
pub mod flows;
#[cfg(feature = "traces")]
mod ident;
#[cfg(feature = "traces")]
pub mod matching;
pub mod metrics;
#[cfg(feature = "traces")]
mod pack;
#[cfg(feature = "traces")]
mod packets;
#[cfg(feature = "traces")]
mod parallel;
#[cfg(feature = "traces")]
pub mod pftrace;
pub mod proto;
#[cfg(feature = "traces")]
pub mod scene;
#[cfg(feature = "traces")]
pub mod tracks;

#[cfg(feature = "traces")]
pub use scene::{Scene, View};
