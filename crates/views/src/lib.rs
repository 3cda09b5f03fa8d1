// SPDX-License-Identifier: Apache-2.0
/*!
Recordings to traces that other tools show: Perfetto's pftrace and Chrome's JSON.

[`scene`] makes the picture: which slices there are, on which tracks ([`tracks`]), with which names
([`names`]) and arguments ([`args`]). All formats show it: [`chrome`] and [`pftrace`] only
serialise, and so do the tracks in PyTorch's profiles (`ncclscope-kineto`). Both add curves
([`counters`]) and arrows ([`flows`]), also between ranks (`step_index`). They stream; `timelines`
bounds how many processes' events are in memory. [`archive`] holds a pftrace for each process.

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
