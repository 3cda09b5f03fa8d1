// SPDX-License-Identifier: Apache-2.0
/*!
The first lines of a report: whether a job crashed, hangs, is slow or is fine, which ranks cause
it, why, what it costs, and which command says more.

[`Answer::of`] chooses from the results of the analyses: a crash comes before a hang that it
explains, a hang before anything slow, and a job in which nothing was found is fine only if
something slow would have been found.

This crate does **not** find anything itself: verdicts are those of `diagnose` and `stragglers`,
figures those of `report`. It does not print.
*/
#![forbid(unsafe_code)]

mod answer;
mod cause;
mod extent;
mod locations;
mod sentences;
mod time;

pub use answer::{Answer, Ended};
pub use cause::{Found, State};
pub use ncclscope_findings::{Cost, RankLocation};
pub use time::Moment;
