// SPDX-License-Identifier: Apache-2.0
//! What the page of a run shows.

use ncclscope_answer::Answer;
use ncclscope_diagnose::{Diagnosis, Waiting};
use ncclscope_report::Report;
use ncclscope_stragglers::{Details, SlowReport};

/// What the page shows.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// The run, as the user's commands name it.
    pub input: &'a str,
    /// The answer.
    pub answer: &'a Answer,
    /// The figures.
    pub report: &'a Report,
    /// What slows the job down, as found by `stragglers`.
    pub slow: &'a SlowReport,
    /// How long the other ranks waited for each rank, by step.
    pub details: &'a Details,
    /// Why the job hangs, as found by `diagnose`.
    pub hang: &'a Diagnosis,
    /// Which ranks wait for which.
    pub waiting: &'a [Waiting],
    /// Another run whose bandwidths are drawn beside those of this one.
    pub beside: Option<Beside<'a>>,
}

/// The other run.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its report.
    pub report: &'a Report,
}
