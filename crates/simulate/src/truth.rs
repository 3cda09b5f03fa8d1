// SPDX-License-Identifier: Apache-2.0
//! What is wrong with a simulated job, for the evaluation of verdicts: `truth.json`.

use ncclscope_findings::FindingClass;
use serde::{Deserialize, Serialize};

/// The schema's name.
pub const SCHEMA: &str = "ncclscope.truth/1";

/// What is wrong with a simulated job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// [`SCHEMA`].
    pub schema: String,
    /// Names of what was planted, joined by `+`.
    pub fault: String,
    /// The scenario's seed.
    pub seed: u64,
    /// When the first of it took place, by a right clock: ns since 1970.
    pub injected_ns: u64,
    /// When the job's recordings end, likewise.
    pub ended_ns: u64,
    /// How much of it there is, s.
    pub seconds: f64,
    /// Verdicts on a job that hangs or does wrong; none for a control.
    pub verdicts: Vec<Verdict>,
    /// Verdicts on a job that is slow; none for a control.
    pub slow: Vec<Slow>,
    /// Names of what was planted and never came to bear: something else stopped the rank before.
    pub hidden: Vec<String>,
    /// Whether the job came to its end.
    pub ended: bool,
    /// Its sizes.
    pub job: Sizes,
}

/// A right verdict on a hang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The class.
    pub class: FindingClass,
    /// Ranks of the job that are the cause: all between which events cannot tell.
    pub root_ranks: Vec<u32>,
    /// The path from one rank to another, where one is the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<[u32; 2]>,
}

/// A right verdict on slowness.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slow {
    /// The class.
    pub class: FindingClass,
    /// Ranks of the job that are the cause; none where it is everywhere.
    pub root_ranks: Vec<u32>,
    /// The path from one rank to another, where one is the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<[u32; 2]>,
    /// How much slower it is.
    pub factor: f64,
}

/// Sizes of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as in the scenario")]
pub struct Sizes {
    pub ranks: u32,
    pub per_host: u32,
    pub tp: u32,
    pub pp: u32,
    pub dp: u32,
    pub ep: u32,
}
