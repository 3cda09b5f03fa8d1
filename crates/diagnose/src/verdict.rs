// SPDX-License-Identifier: Apache-2.0
//! What a diagnosis says, and its JSON form `ncclscope.diagnosis/1`.

use ncclscope_findings::{Confidence, FindingClass};
use serde::Serialize;

/// One line of evidence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Evidence {
    /// The rule that used it, by class.
    pub rule: &'static str,
    /// The rank that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The rank at the other side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<u32>,
    /// The channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<u8>,
    /// The line, with its numbers.
    pub text: String,
}

impl Evidence {
    /// A line about a rank.
    pub(crate) fn of(rule: FindingClass, rank: u32, text: String) -> Evidence {
        Evidence { rule: rule.code(), rank: Some(rank), peer: None, channel: None, text }
    }
}

/// The operation that a verdict is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Op {
    /// Its number in the communicator, from 1.
    pub index: u64,
    /// NCCL's function name, where known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub func: String,
    /// Datatype.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub datatype: String,
    /// Size, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub size: String,
}

/// One cause, with the ranks that it is found in.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The cause: in JSON `class`, its code, and `name`.
    #[serde(flatten, serialize_with = "ncclscope_findings::code_and_name")]
    pub class: FindingClass,
    /// In one sentence.
    pub title: String,
    /// How sure.
    pub confidence: Confidence,
    /// The ranks (of the job, where the input tells them), ascending.
    pub root_ranks: Vec<u32>,
    /// From which rank to which, for a network path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<[u32; 2]>,
    /// The communicator in which others wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// The operation in which they wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<Op>,
    /// How long the oldest operation that waits for them has been in flight, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_s: Option<f64>,
    /// Ranks that wait because of them, through others too.
    pub victims: usize,
    /// What the verdict rests on.
    pub evidence: Vec<Evidence>,
    /// What else would look the same.
    pub alternatives: Vec<String>,
}

impl Verdict {
    /// It rests on nothing but that all members are in an operation, or that calls were made in
    /// different orders.
    pub(crate) fn is_vague(&self) -> bool {
        self.confidence == Confidence::Suspect
            && matches!(self.class, FindingClass::KernelNotEnding | FindingClass::Deadlock)
    }
}

/// All that is found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// `ncclscope.diagnosis/1`.
    pub schema: &'static str,
    /// What it was made from.
    pub source: String,
    /// Ranks seen.
    pub ranks: usize,
    /// The causes: confirmed ones first.
    pub verdicts: Vec<Verdict>,
    /// Ranks of which there is no input.
    pub silent_ranks: Vec<u32>,
    /// Ranks that wait for others.
    pub waiting: usize,
    /// What the reader should know besides.
    pub notes: Vec<String>,
}
