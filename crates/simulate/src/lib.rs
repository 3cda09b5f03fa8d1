// SPDX-License-Identifier: Apache-2.0
/*!
Simulates training jobs and writes what their ranks would record: ordinary recordings, and what is
wrong with the job.

A [`Scenario`] says how large the job is, what its machine is like, and which faults are planted.
[`run`] works out when everything takes place and writes one recording a rank, and `truth.json`, by
which verdicts can be judged. The same scenario gives the same bytes.

It does **not** judge: it knows nothing of verdicts but the names of their classes, and nothing of
the tools that find them.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

mod error;
mod fault;
mod inject;
mod job;
mod layout;
mod model;
mod record;
mod scenario;
mod time;
mod truth;
mod vectors;

pub use error::Error;
pub use fault::{Fault, Group};
pub use job::{Summary, run};
pub use scenario::{JobShape, Machine, Planted, Scenario};
pub use truth::{SCHEMA, Sizes, Slow, Truth, Verdict};
