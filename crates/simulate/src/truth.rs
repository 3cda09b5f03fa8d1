// SPDX-License-Identifier: Apache-2.0
//! The true causes of a simulated job, for the evaluation of verdicts: `truth.json`.

use ncclscope_findings::FindingClass;
use serde::{Deserialize, Serialize};

/// The schema's name.
pub const SCHEMA: &str = "ncclscope.truth/1";

/// The true causes of a simulated job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// [`SCHEMA`].
    pub schema: String,
    /// Names of the planted faults, joined by `+`.
    pub fault: String,
    /// The scenario's seed.
    pub seed: u64,
    /// When the first fault took effect, by an ideal clock: ns since 1970.
    pub injected_ns: u64,
    /// When the job's recordings end, by the same clock.
    pub ended_ns: u64,
    /// Recorded time, s.
    pub seconds: f64,
    /// Expected verdicts on a job that hangs or computes wrong results; none for a control.
    pub verdicts: Vec<Verdict>,
    /// Expected verdicts on a slow job; none for a control.
    pub slow: Vec<SlowVerdict>,
    /// Names of planted faults that never took effect: another one stopped the rank before.
    pub hidden: Vec<String>,
    /// Whether the job completed.
    pub ended: bool,
    /// Its sizes.
    pub job: JobSizes,
}

/// An expected verdict on a hang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Its class.
    pub class: FindingClass,
    /// Ranks of the job at fault; all candidates where events cannot distinguish them.
    pub root_ranks: Vec<u32>,
    /// The path from one rank to another, if a path is at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<[u32; 2]>,
}

/// An expected verdict on a slow job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowVerdict {
    /// Its class.
    pub class: FindingClass,
    /// Ranks of the job at fault; none if all are.
    pub root_ranks: Vec<u32>,
    /// The path from one rank to another, if a path is at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<[u32; 2]>,
    /// The slowdown factor.
    pub factor: f64,
}

/// Sizes of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as in the scenario")]
pub struct JobSizes {
    pub ranks: u32,
    pub per_host: u32,
    pub tp: u32,
    pub pp: u32,
    pub dp: u32,
    pub ep: u32,
}
