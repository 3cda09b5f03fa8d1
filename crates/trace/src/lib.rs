// SPDX-License-Identifier: Apache-2.0
/*!
The event model of ncclscope and the recording it is kept in.

Everything that a rank's plugin writes and a tool reads is defined here, once: what events there
are ([`kind`]), what a handle's bits mean ([`handle`]), the words of a record ([`record`]), how
records are packed into blocks ([`codec`]), where the parts of a file lie ([`layout`]), and how
ticks become nanoseconds ([`clock`]). [`Writer`] appends, [`Recording`] reads, [`Follower`] reads
while it is written.

The byte layout for people is `docs/trace-format.md`.

This crate does **not** know NCCL's C structs (that is `abi`), take time stamps or touch shared
memory (that is `recorder`), start threads, or interpret events (that is `operations`).
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

mod alignment;
mod bytes;
pub mod clock;
pub mod codec;
pub mod counters;
mod cursor;
pub mod define;
pub mod dump;
mod error;
mod fields;
mod files;
pub mod follow;
pub mod handle;
pub mod identity;
pub mod kind;
pub mod lanes_file;
pub mod layout;
pub mod mark;
pub mod progress;
pub mod reader;
pub mod record;
mod ring;
pub mod schema;
pub mod scratch;
mod start;
mod step;
mod step_code;
pub mod vectors;
pub mod version;
pub mod writer;

pub use alignment::Alignment;
pub use clock::{ClockSource, ClockSync, TickMap};
pub use define::{Comm, CommDevice, Definition, StrId};
pub use error::Error;
pub use files::{Files, create_directories};
pub use follow::{End, Follower, News};
pub use handle::Handle;
pub use identity::Identity;
pub use kind::{EventKind, State};
pub use mark::{Mark, MarkKind};
pub use progress::Heartbeat;
pub use reader::{LaneRecords, Recording, Visitor};
pub use record::{Detail, Record, Start, Step};
pub use writer::Writer;
