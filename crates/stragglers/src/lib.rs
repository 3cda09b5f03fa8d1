// SPDX-License-Identifier: Apache-2.0
/*!
Which ranks, links and settings slow down a job that makes progress, from the times of its
communication.

[`input`] reads a [`Job`] from recordings, traces of PyTorch or Nsight Systems, NCCL Inspector's
files, or a table of operations. [`analyze`] aligns the clocks of the workers ([`clock`]), makes the
job's moments (`replay`), and looks for ranks that work longer than their peers and whose excess the
job would miss (`work`), for the links and interfaces that explain which links are slow (`network`,
from the times in `wire`), for GPUs that are slow inside collectives ([`stalls`]), for processes
that are short of processor time (`shortage`), for transfers that became slower (`slowed`) or are
slower within a node (`node_paths`), and for algorithms that changed (`reconfigured`). What one of
these explains of another one is in `explains`. [`SlowReport`] is the JSON
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
mod explains;
pub mod finding;
pub mod input;
mod looked;
pub mod model;
mod network;
mod node_paths;
mod onset;
mod pace;
mod reconfigured;
mod replay;
pub mod report;
mod rules;
mod shared_gpu;
mod shortage;
mod slow_links;
mod slowed;
pub mod stalls;
pub mod steps;
pub mod time_blocks;
mod transfers;
mod unjudged;
pub mod waits;
mod wire;
mod work;

pub use choice::Shown;
pub use details::Details;
pub use model::{Job, Pace};
pub use ncclscope_statistics::Limits;
pub use report::{SlowReport, analyze, analyze_in_detail};
pub use rules::{Judging, Rule};
pub use unjudged::{BusyLink, Unjudged};
