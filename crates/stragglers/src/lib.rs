// SPDX-License-Identifier: Apache-2.0
/*!
Which ranks, links and settings slow down a job that makes progress, from the times of its
communication.

[`input`] reads a [`Job`] from recordings, traces of PyTorch or Nsight Systems, NCCL Inspector's
files, or a table of operations. [`analyze`] aligns the clocks of the workers ([`clock`]), makes the
job's moments (`replay`), and looks for ranks that work longer than their peers and whose excess the
job would miss (`work`), for the links and interfaces that explain which links are slow (`network`),
for GPUs that are slow inside collectives ([`stalls`]), for processes that are short of processor
time (`shortage`), and for operations that became slower ([`drift`]). [`SlowReport`] is the JSON
schema `ncclscope.stragglers/3`; the rules and their limits are in `docs/stragglers.md`.

This crate does **not** diagnose hangs, print, or know what a rank computes: time without an
operation counts as the rank's own work.
*/
#![forbid(unsafe_code)]

pub mod causes;
mod choice;
pub mod clock;
mod costs;
pub mod coverage;
pub mod details;
pub mod drift;
pub mod finding;
pub mod input;
mod limits;
pub mod model;
mod network;
mod onset;
mod pace;
mod replay;
pub mod report;
mod shared_gpu;
mod shortage;
mod slow_links;
pub mod stalls;
pub mod steps;
pub mod time_blocks;
mod unjudged;
pub mod waits;
mod wire;
mod work;

pub use choice::Shown;
pub use details::Details;
pub use limits::Limits;
pub use model::{Job, Pace};
pub use report::{SlowReport, analyze, analyze_in_detail};
pub use unjudged::{BusyLink, Unjudged};
