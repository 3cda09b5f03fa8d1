// SPDX-License-Identifier: Apache-2.0
/*!
Recordings to traces that other tools show, Perfetto's pftrace and Chrome's JSON, and metrics to
what collectors read ([`metrics`]).

Both traces show one process for each rank, with the same tracks ([`tracks`]): API calls, groups,
operations with their real end, one track for each channel's kernel, and one for each peer,
direction and channel of the proxy. [`chrome`] and [`pftrace`] only serialise; they stream, with one
process's events in memory at a time.

This crate does **not** read files, decide what an operation's end is (that is `analyze`), or print.
*/
#![forbid(unsafe_code)]

#[cfg(feature = "traces")]
pub mod args;
#[cfg(feature = "traces")]
pub mod chrome;
#[cfg(feature = "traces")]
pub mod flows;
#[cfg(feature = "traces")]
mod ident;
pub mod metrics;
#[cfg(feature = "traces")]
mod pack;
#[cfg(feature = "traces")]
pub mod pftrace;
pub mod proto;
#[cfg(feature = "traces")]
pub mod scene;
#[cfg(feature = "traces")]
pub mod tracks;

#[cfg(feature = "traces")]
pub use flows::FlowIndex;
#[cfg(feature = "traces")]
pub use scene::{Scene, View};
