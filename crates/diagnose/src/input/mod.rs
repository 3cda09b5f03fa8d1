// SPDX-License-Identifier: Apache-2.0
/*!
The readers. The kind of a file is detected by its content.

Of recordings, what they show is handed on, and `recorded` concludes from it.

| content | input |
| --- | --- |
| `NCCLSCOP` | a recording of ncclscope ([`recording`]) |
| `NCCLVECT` | a table of vectors ([`vectors`]) |
| a pickle, or JSON with `entries` | a dump of PyTorch's Flight Recorder ([`flight`]) |
| JSON with `communicators`, or text from `NCCL version` on | what [`ras`] printed |
| lines `[TIME] PEER_…`, or JSON with `timestamp`, `group` and `event` | events of [`ras`] |
| tar, gzip or zip | an archive of dumps and outputs of RAS (`archive.rs`) |

A JSON file counts if its first 64 KiB have a key of these; only then is it read whole, and a dump
of more than 256 MiB is not. Beside recordings or tables, dumps are not read, and a warning names
them. In a directory, other files are ignored.
*/

mod activity;
pub(crate) mod archive;
pub(crate) mod dumps;
pub(crate) mod file;
pub(crate) mod files;
pub mod flight;
mod frames;
pub mod here;
mod json;
mod losses;
mod older;
pub(crate) mod older_calls;
pub(crate) mod options;
pub mod pickle;
pub mod ras;
mod reader;
pub mod recording;
pub(crate) mod snapshot;
mod vector_checks;
mod vector_jobs;
mod vector_pairs;
mod vector_transfers;
pub mod vectors;

pub use options::{InputOptions, InputProgress};
