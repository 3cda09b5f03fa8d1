// SPDX-License-Identifier: Apache-2.0
/*!
Recordings to traces that other tools show: Perfetto's pftrace and Chrome's JSON.

Both show one process for each rank, with the same tracks ([`tracks`]): API calls, groups,
operations with their real end, one track for each channel's kernel, and one for each peer,
direction and channel of the proxy. [`chrome`] and [`pftrace`] only serialise; they stream, with one
process's events in memory at a time.

This crate does **not** read files, decide what an operation's end is (that is `analyze`), or print.
*/
#![forbid(unsafe_code)]

pub mod args;
pub mod chrome;
pub mod flows;
mod ident;
mod pack;
pub mod pftrace;
pub mod proto;
pub mod scene;
pub mod tracks;

pub use flows::FlowIndex;
pub use scene::{Scene, View};
