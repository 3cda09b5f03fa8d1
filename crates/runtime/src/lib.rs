// SPDX-License-Identifier: Apache-2.0
/*!
The part of the plugin that runs beside the callbacks: configuration, the drain thread and its sinks
(the recording, the watchdog, metrics), control, and the life cycle from the first communicator to
the end of the process.

Any failure here turns the recording off, with one line in the log; the job continues. Callbacks
call nothing in this crate, except the recorder that [`Runtime::recorder`] lends, and [`caller`].

This crate does **not** know NCCL's C structs (the plugin translates them). No thread of the host
waits in it for anything but memory (docs/rfcs/0006-threads.md).
*/
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

mod beside;
pub mod caller;
pub mod config;
pub mod context;
mod directory;
mod drain;
mod handover;
mod identity;
mod lanes;
mod library;
mod log;
mod memory;
mod meter;
mod orders;
mod outside;
mod own;
pub mod probe;
mod recording;
mod reply;
mod runtime;
mod shared;
mod socket;
mod state;
pub mod sys;
mod watchdog;
mod window;

pub use config::Config;
pub use log::{Logger, Severity};
pub use runtime::{Refusal, Runtime};
pub use state::CommInfo;
pub use sys::mask::ActivationMask;
pub use watchdog::act::{OnHang, listen as on_hang};
