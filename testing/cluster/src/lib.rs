// SPDX-License-Identifier: Apache-2.0
/*!
A cluster in a box: real NCCL on the CPU stand-in, among hosts that are namespaces of this
machine.

Each [`host`] has network, UTS, mount and PID namespaces of its own, an interface on a common
bridge, and its own `/dev/shm`, `/tmp` and run directory: what one host records, another one does
not see. A [`scenario`] says which [`program`] each rank runs, which [`fault`]s strike and when, and
the truth that a report should tell. [`job`] runs it and takes what a user would: copies of the
recordings while the job stands ([`look`]), and the recordings after it was killed. [`judge`]
compares the first lines of the answer with the truth.

It needs root, `ip`, `nsenter` and `unshare`, and for some faults `tc`, or `mkfs.ext4` and
`fsfreeze`. It does **not** link the product: tools and plugin are files. These must not lie
in `/tmp`, which differs in each host.
*/
#![forbid(unsafe_code)]

pub mod command;
pub mod fault;
pub mod files;
pub mod host;
pub mod job;
pub mod judge;
pub mod look;
pub mod program;
pub mod scenario;
pub mod starve;
pub mod store;

/// What a rank prints, after its number, when its first operation is over.
pub const FIRST_DONE: &str = "has done its first operation";
