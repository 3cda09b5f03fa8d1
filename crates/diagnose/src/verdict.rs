// SPDX-License-Identifier: Apache-2.0
//! The result of a diagnosis, and its JSON form `ncclscope.diagnosis/2`.

use crate::ending::Ending;
use crate::job::{Call, NoEnd};
use crate::standstill::Standstill;
pub use ncclscope_findings::Evidence;
use ncclscope_findings::{Confidence, FindingClass, Help};
use serde::Serialize;

/// The operation that a verdict is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Op {
    /// Its number on the communicator, from 1, counted as by the watchdog and `report`: sends and
    /// receives separately from collectives. `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// NCCL's function name; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub func: String,
    /// Datatype.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub datatype: String,
    /// The size as in `report`, bytes; `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl Op {
    pub(crate) fn of(number: Option<u64>, call: Call) -> Op {
        Op { number, func: call.func, datatype: call.datatype, bytes: call.bytes }
    }
}

/// The communicator of a verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerdictComm {
    /// Its hash, or another identifier if the input has no hash.
    pub comm: String,
    /// The name that the application gave it.
    #[serde(rename = "comm_name")]
    pub name: Option<String>,
    /// What the application uses it for, such as `tp`.
    pub role: Option<String>,
}

/// One cause and its ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The cause: in JSON `class`, its code, `name`, `verb` and `page`.
    #[serde(flatten, serialize_with = "ncclscope_findings::describe_class")]
    pub class: FindingClass,
    /// What to do next: that of the class, unless the input shows more.
    pub advice: &'static str,
    /// The verdict in one sentence.
    pub title: String,
    /// How certain the verdict is.
    pub confidence: Confidence,
    /// The ranks at fault, ascending: ranks in the job where the input has them.
    pub root_ranks: Vec<u32>,
    /// Where the root ranks run, since when they hang, and the cost: `where`, `since` and `cost`.
    #[serde(flatten)]
    pub help: Help,
    /// Sending and receiving rank, for a network path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<[u32; 2]>,
    /// The communicator in which others wait: `comm`, `comm_name` and `role`.
    #[serde(flatten)]
    pub comm: Option<VerdictComm>,
    /// The communicator in words; for sends and receives also the pair of ranks.
    #[serde(skip)]
    pub comm_text: String,
    /// The operation in which they wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<Op>,
    /// Age of the oldest operation that waits for the root ranks, ns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ns: Option<u64>,
    /// When the call at fault was made, ns since 1970, if no rank waits in it.
    #[serde(skip)]
    pub called_ns: Option<u64>,
    /// Number of ranks that wait for the root ranks, directly or through other ranks.
    pub victims: usize,
    /// The evidence for the cause.
    pub evidence: Vec<Evidence>,
    /// Other causes that would look the same.
    pub alternatives: Vec<String>,
}

impl Verdict {
    /// A verdict with its class's advice, and nothing that not every verdict has: no communicator,
    /// operation, victims, evidence or alternatives.
    #[must_use]
    pub fn new(
        class: FindingClass,
        title: String,
        confidence: Confidence,
        root_ranks: Vec<u32>,
    ) -> Verdict {
        Verdict {
            class,
            advice: class.advice(),
            title,
            confidence,
            root_ranks,
            help: Help::default(),
            edge: None,
            comm: None,
            comm_text: String::new(),
            op: None,
            age_ns: None,
            called_ns: None,
            victims: 0,
            evidence: Vec::new(),
            alternatives: Vec::new(),
        }
    }

    /// The title without the ranks.
    #[must_use]
    pub fn meaning(&self) -> &str {
        self.title.split_once(": ").map_or(&*self.title, |(_, meaning)| meaning)
    }
}

impl Verdict {
    /// True if the only evidence is that all members are in an operation, of which not even the
    /// kernels are seen to run, or that ranks made their calls in different orders.
    pub(crate) fn is_vague(&self) -> bool {
        self.confidence == Confidence::Suspect
            && match self.class {
                FindingClass::KernelNotEnding => self.root_ranks.is_empty(),
                FindingClass::Deadlock => true,
                _ => false,
            }
    }
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
    pub findings: Vec<Verdict>,
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
