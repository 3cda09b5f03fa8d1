// SPDX-License-Identifier: Apache-2.0
/*!
Simulates training jobs and writes ordinary recordings of their ranks, with the true causes.

A [`Scenario`] defines the size of the job, its hardware, and the planted faults. [`run`] computes
when each operation starts and ends, and writes one recording per rank and `truth.json`, with which
verdicts can be scored. The same scenario gives the same bytes.

This crate does **not** diagnose: it knows the names of the classes, not the tools that find them.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

mod error;
mod fault;
mod func;
mod identity;
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
pub use fault::{Fault, FaultGroup};
pub use func::Func;
pub use job::{Summary, keep_truth, run};
pub use scenario::{JobShape, Machine, Planted, Scenario};
pub use truth::{JobSizes, SCHEMA, SlowVerdict, Truth, Verdict};
