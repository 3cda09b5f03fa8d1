// SPDX-License-Identifier: Apache-2.0
/*!
Reads the JSON lines that NVIDIA's profiler plugin Inspector writes, versions v4.0 to v4.3 of its
format (NCCL, `plugins/profiler/inspector/inspector_json.cc` and `README.md`).

A process writes one file, with a line for each operation that ended, in the order of its dumps:

| version | what is new |
| --- | --- |
| v4.0 | header (communicator, rank), metadata (host, process), and one operation in each line |
| v4.1 | a line `dump_stats` for each dump of a communicator: what its full ring overwrote |
| v4.2 | algorithm, protocol and the communicator's name |
| v4.3 | header and metadata are only in the line `dump_stats`, for as many lines as it counts |

[`find`] looks for such files, [`read`] passes the operations of one on as it reads, line by line,
so that memory does not grow with the file, and [`Files`] says what all of them together lack.

The time of an operation is that of its longest kernel channel in whole microseconds, with the wait
for ranks that come later (`calculateMaxKernelExecTimeUsecs` of `inspector.cc`). When an operation
began is only known if `NCCL_INSPECTOR_DUMP_VERBOSE=1` was set. Sizes are what one rank passed to
NCCL; [`Collective::bytes`] is as nccl-tests defines it.

This crate does **not** judge, print, or know any other input.
*/
#![forbid(unsafe_code)]

mod files;
mod find;
mod line;
mod lines;
mod read;

pub use files::{Files, Missing};
pub use find::{Found, find, is_start, starts_as};
pub use lines::next_line;
pub use read::{Collective, FileFacts, Member, MemberFacts, RESOLUTION_NS, VERBOSE, read};
