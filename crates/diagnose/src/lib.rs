// SPDX-License-Identifier: Apache-2.0
/*!
Why a job hangs: which ranks, which cause, and the evidence for it.

[`input`] turns what is there (recordings, PyTorch's Flight Recorder, a table of vectors) into a
[`Job`]: how far each rank has come in each communicator. [`diagnose`] follows who waits for whom to
those that do not wait, and says of each why. The rules are those of `docs/diagnose.md`.

This crate does **not** look for what is slow (a job whose counters move is not judged here), does
not decide what a rank records, and prints nothing.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

mod alone;
mod classify;
mod desync;
mod engine;
pub mod fr_out;
mod graph;
mod hang;
pub mod input;
pub mod job;
mod state;
pub mod text;
mod triage;
pub mod verdict;
mod words;

pub use alone::alone;
pub use engine::{Options, diagnose};
pub use job::Job;
pub use verdict::{Diagnosis, Verdict};
