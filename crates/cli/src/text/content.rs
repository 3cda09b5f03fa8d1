// SPDX-License-Identifier: Apache-2.0
//! What a report prints.

use ncclscope_answer::Answer;
use ncclscope_report::Report;
use serde_json::Value;

/// The report of a run, with its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    pub(crate) answer: &'a Answer,
    /// The filter of the figures as text.
    pub(crate) filter: Option<&'a str>,
    pub(crate) report: &'a Report,
    /// The content of `run.json`.
    pub(crate) run: Option<&'a Value>,
}
