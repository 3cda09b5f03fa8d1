// SPDX-License-Identifier: Apache-2.0
/*!
`libnccl-profiler-ncclscope.so`: the function tables that NCCL looks for, `ncclProfiler_v1` and so
on, one for each version of `abi`, over one implementation.

The rules of this boundary: `init` never fails; `*eHandle` is always written; the plugin
dereferences nothing that NCCL hands back; no panic leaves it; a callback neither allocates nor
blocks nor makes a system call.

This crate translates and guards. It does **not** decide what is recorded (`runtime`) or how
(`recorder`).
*/
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

mod api;
mod callbacks;
mod chain;
mod entry;
mod external;
mod guard;
mod init;
mod probe;
mod translate;
mod untagged;
mod vtables;

pub use api::*;
pub use vtables::*;
