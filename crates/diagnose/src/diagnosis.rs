// SPDX-License-Identifier: Apache-2.0
//! The result of a diagnosis, and its JSON form `ncclscope.diagnosis/2`.

use crate::ending::Ending;
use crate::job::{Call, NoEnd};
use crate::standstill::Standstill;
use ncclscope_findings::{Finding, FindingClass, Op};
use serde::Serialize;

/// True if the only evidence is that all members are in an operation, of which not even the kernels
/// are seen to run, or that ranks made their calls in different orders.
pub(crate) fn is_vague(finding: &Finding) -> bool {
    finding.is_suspect()
        && match finding.class {
            FindingClass::KernelNotEnding => finding.root_ranks.is_empty(),
            FindingClass::Deadlock => true,
            _ => false,
        }
}

/// The operation of a finding.
pub(crate) fn op(number: Option<u64>, call: Call) -> Op {
    Op { number, func: call.func, datatype: call.datatype, bytes: call.bytes }
}

/// The result of a diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// The schema, `ncclscope.diagnosis/2`.
    pub schema: &'static str,
    /// The kind of input.
    pub source: String,
    /// Number of ranks with input.
    pub ranks: usize,
    /// Number of ranks of the job, with or without input, as far as known.
    pub job_ranks: usize,
    /// The causes, confirmed ones first.
    pub findings: Vec<Finding>,
    /// Ranks without input.
    pub silent_ranks: Vec<u32>,
    /// Number of ranks that wait for others.
    pub waiting_ranks: usize,
    /// Further remarks, one sentence each.
    pub notes: Vec<String>,
    /// Why ranks may wait although the input does not show it; also the last of the notes.
    #[serde(skip)]
    pub hidden: Option<Hidden>,
    /// For how long nothing has moved, if that is as long as the limit or longer than ever before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standstill: Option<Standstill>,
    /// How the job ended; `None` if a process may still run.
    #[serde(skip)]
    pub ending: Option<Ending>,
}

impl Diagnosis {
    /// Number of ranks without input.
    #[must_use]
    pub const fn missing_ranks(&self) -> usize {
        self.job_ranks.saturating_sub(self.ranks)
    }
}

/// Why ranks may wait although no recorded operation shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Hidden {
    /// The kind of reason.
    pub why: HiddenWhy,
    /// The reason, a sentence without its full stop.
    pub text: String,
    /// How long before the end of the recorded time the last operation may have been seen, ns.
    pub ns: u64,
}

/// The kind of reason why ranks may wait although no recorded operation shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenWhy {
    /// Recording was off.
    Off,
    /// Only a sample of the operations was recorded.
    Sampled,
    /// The last operation that was enqueued shows no end.
    NoEnd(NoEnd),
}
