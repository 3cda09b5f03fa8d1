// SPDX-License-Identifier: Apache-2.0
//! What the page of a run shows.

use ncclscope_answer::Answer;
use ncclscope_diagnose::{Diagnosis, Waiting};
use ncclscope_report::Report;
use ncclscope_stragglers::{Details, SlowReport};

/// What the page shows.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// The run, as a command names it.
    pub input: &'a str,
    /// The answer.
    pub answer: &'a Answer,
    /// The figures.
    pub report: &'a Report,
    /// What slows the job down.
    pub slow: &'a SlowReport,
    /// How long the others waited for each rank.
    pub details: &'a Details,
    /// Why the job hangs.
    pub hang: &'a Diagnosis,
    /// Which ranks wait for which.
    pub waiting: &'a [Waiting],
    /// Another run, whose bandwidth is drawn beside this one's.
    pub beside: Option<Beside<'a>>,
}

/// A run that another is drawn beside.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its figures.
    pub report: &'a Report,
}
