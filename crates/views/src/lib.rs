// SPDX-License-Identifier: Apache-2.0
/*!
Converts recordings to traces for other tools: Perfetto's pftrace and Chrome's JSON.

[`scene`] decides which slices there are, on which tracks ([`tracks`]), with which names ([`names`])
and arguments ([`args`]). The formats [`chrome`] and [`pftrace`], and the tracks in PyTorch's
profiles (`ncclscope-kineto`), only serialise that. [`chrome`] and [`pftrace`] add counters
([`counters`]) and arrows ([`flows`]), also between ranks (`step_index`). They write as a stream;
`timelines` bounds the number of processes whose events are in memory. [`archive`] writes a pftrace
for each process.

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
mod matching;
pub mod names;
mod pack;
mod packets;
mod parallel;
pub mod pftrace;
pub mod scene;
pub mod size;
mod step_index;
mod timelines;
pub mod tracks;
pub mod view;

pub use scene::{Axis, Scene};
pub use timelines::Shown;
pub use view::View;
