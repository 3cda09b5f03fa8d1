// SPDX-License-Identifier: Apache-2.0
/*!
The event model of ncclscope and the format of its recordings.

This crate defines everything that a rank's plugin writes and a tool reads: the kinds of events
([`kind`]), the bits of a handle ([`handle`]), the words of a record ([`record`]), the packing of
records into blocks ([`codec`]), the parts of a file ([`layout`]), and the conversion of ticks to
nanoseconds ([`clock`]). [`Writer`] appends, [`Recording`] reads, [`Follower`] reads while a
recording is written.

`docs/trace-format.md` describes the byte layout.

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
pub mod descriptors;
pub mod dump;
mod error;
mod fields;
mod files;
mod first_page;
pub mod follow;
pub mod handle;
pub mod identity;
pub mod kind;
pub mod lanes_file;
pub mod layout;
pub mod local_ranks;
pub mod mark;
pub mod names;
pub mod pairs;
pub mod progress;
pub mod reader;
pub mod record;
mod ring;
pub mod runs;
pub mod schema;
pub mod scratch;
mod segment_blocks;
mod segments;
mod source;
mod start;
mod step;
mod step_code;
mod string;
pub mod vectors;
mod vendor;
pub mod version;
mod words;
pub mod writer;

pub use alignment::Alignment;
pub use clock::{ClockSource, ClockSync, TickMap};
pub use define::{Comm, CommDevice, Definition, HANG_REPORT, StrId};
pub use error::Error;
pub use files::{Files, create_directories, open_to_read};
pub use first_page::read_header;
pub use follow::{End, Follower, News};
pub use handle::Handle;
pub use identity::Identity;
pub use kind::{EventKind, State};
pub use mark::{Mark, MarkKind};
pub use pairs::PairCount;
pub use progress::Heartbeat;
pub use reader::{LaneRecords, Recording, Visitor};
pub use record::{Detail, Record, Start, Step};
pub use vendor::Vendor;
pub use writer::Writer;
