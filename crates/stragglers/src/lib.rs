// SPDX-License-Identifier: Apache-2.0
/*!
Who is slow, in a job that gets on: from the times of its communication to the ranks, links and
settings that hold it up.

[`input`] makes a [`Job`] of recordings, of PyTorch's traces, or of a table of operations.
[`analyze`] puts the workers on one clock ([`clock`]), says who waited for whom ([`waits`]), hands
the blame to workers that waited for no other ([`blame`]), and looks for slow links ([`edges`]), for
GPUs that are slow inside collectives ([`stalls`]), and for what became slower ([`drift`]).
[`Report`] is the JSON schema `ncclscope.stragglers/1`; the rules and their limits are in
`docs/stragglers.md`.

This crate does **not** judge hangs, print, or know what a rank computes: work that no operation
shows counts as the rank's own.
*/
#![forbid(unsafe_code)]

pub mod blame;
pub mod clock;
pub mod drift;
pub mod edges;
pub mod input;
pub mod model;
pub mod report;
mod robust;
mod slow;
pub mod stalls;
pub mod steps;
pub mod waits;

pub use model::Job;
pub use report::{Limits, Report, analyze};
