// SPDX-License-Identifier: Apache-2.0
//! What a diagnosis says, and its JSON form `ncclscope.diagnosis/1`.

use serde::Serialize;

/// The cause of a hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[expect(missing_docs, reason = "`Class::meaning` explains each")]
pub enum Class {
    H1a,
    H1b,
    H1d,
    H2,
    H2b,
    H3a,
    H3b,
    H3c,
    H3d,
    N1,
    N2,
    N3,
    N4,
    N5,
    P1,
    #[serde(rename = "DEADLOCK")]
    Deadlock,
}

impl Class {
    /// The short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Class::H1a => "H1a",
            Class::H1b => "H1b",
            Class::H1d => "H1d",
            Class::H2 => "H2",
            Class::H2b => "H2b",
            Class::H3a => "H3a",
            Class::H3b => "H3b",
            Class::H3c => "H3c",
            Class::H3d => "H3d",
            Class::N1 => "N1",
            Class::N2 => "N2",
            Class::N3 => "N3",
            Class::N4 => "N4",
            Class::N5 => "N5",
            Class::P1 => "P1",
            Class::Deadlock => "DEADLOCK",
        }
    }

    /// What it means, as the end of a sentence about the ranks.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Class::H1a => "did not call NCCL any more: the host is stuck outside NCCL",
            Class::H1b => {
                "gives no sign of life: dead, or stopped (SIGSTOP, a debugger, a paused container)"
            }
            Class::H1d => "called NCCL, and the operation was never handed to the GPU",
            Class::H2 => "called something else than the others",
            Class::H2b => "sends and receives do not match",
            Class::H3a => "the kernel did not start: the stream is blocked by other work",
            Class::H3b => "the kernel started on some channels only: no free SMs",
            Class::H3c => {
                "the GPU did not finish what its peers finished: the GPU or its context is dead"
            }
            Class::H3d => {
                "the kernel runs everywhere and does not end: NVLink, shared memory or a device"
            }
            Class::N1 => "the GPU produces nothing to send",
            Class::N2 => "is not ready to receive",
            Class::N3 => "data left and did not arrive: the wire, a NIC or a switch",
            Class::N4 => "received data is not flushed to the GPU: PCIe, IOMMU",
            Class::N5 => "the GPU does not take what arrived",
            Class::P1 => "the proxy thread makes no progress",
            Class::Deadlock => "wait for one another in a circle",
        }
    }
}

/// How sure a verdict is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// The counts of the ranks say so.
    Confirmed,
    /// It would explain what is seen, and part of the evidence is missing.
    Suspect,
}

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
    pub(crate) fn of(rule: Class, rank: u32, text: String) -> Evidence {
        Evidence { rule: rule.name(), rank: Some(rank), peer: None, channel: None, text }
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
    /// The cause.
    pub class: Class,
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
        self.confidence == Confidence::Suspect && matches!(self.class, Class::H3d | Class::Deadlock)
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
