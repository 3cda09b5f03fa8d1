// SPDX-License-Identifier: Apache-2.0
/*!
The contents of the view: rows with rates and flags, one for each rank. Its JSON is the schema
`ncclscope.top/2`.

An unknown value is `null`, never zero.
*/

use ncclscope_operations::stats::to_u64;
use serde::{Serialize, Serializer};

/// What is shown for one reading.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Picture {
    /// `ncclscope.top/2`.
    pub schema: &'static str,
    /// The source of the readings, as the user names it.
    pub source: String,
    /// When it was read, UTC.
    pub at: String,
    /// Length of the span to which rates refer, s; in JSON ns.
    #[serde(rename = "span_ns", serialize_with = "ns")]
    pub span_s: f64,
    /// The time in flight from which an operation counts as stalled, s; in JSON ns.
    #[serde(rename = "stall_ns", serialize_with = "ns")]
    pub stall_s: f64,
    /// The ranks.
    pub ranks: Vec<Row>,
    /// Rates by function, over all ranks.
    pub functions: Vec<FunctionRate>,
    /// Why ranks wait, a sentence each.
    pub findings: Vec<String>,
    /// What the user can do, and what is not shown.
    pub notes: Vec<String>,
}

/// A rank, or several combined into one row.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Id of the job; empty if unknown, in JSON `null`.
    #[serde(serialize_with = "some")]
    pub job: String,
    /// The rank in the job.
    pub rank: Option<u32>,
    /// The host.
    pub host: String,
    /// CUDA device number in the rank's process.
    pub device: Option<u32>,
    /// The process id.
    pub pid: Option<u32>,
    /// What is wrong with it, the worst first.
    pub flags: Vec<Flag>,
    /// The reason in one sentence; empty if nothing is wrong.
    pub why: String,
    /// The oldest operation in flight.
    pub operation: Option<Operation>,
    /// The operations in flight: the oldest of each communicator.
    #[serde(skip)]
    pub in_flight: Vec<Operation>,
    /// Operations that ended, per second.
    pub operations_per_s: f64,
    /// Mean bus bandwidth of collectives including the wait for other ranks, GB/s.
    pub busbw_gbs: Option<f64>,
    /// Data sent over the network, GB/s.
    pub sent_gbs: Option<f64>,
    /// Share of time in which the rank waited for other ranks in collectives, 0 to 1.
    #[serde(rename = "waiting_share")]
    pub waiting: Option<f64>,
    /// Rates by function.
    pub functions: Vec<FunctionRate>,
    /// Rates by link.
    pub links: Vec<LinkRate>,
    /// Further facts: names and values.
    #[serde(skip)]
    pub facts: Vec<(String, String)>,
    /// Number of ranks in this row.
    #[serde(skip)]
    pub members: usize,
}

/// An operation in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Operation {
    /// NCCL's function; empty if unknown, in JSON `null`.
    #[serde(serialize_with = "some")]
    pub func: String,
    /// The communicator's hash.
    pub comm: Option<String>,
    /// Role of the communicator, else its name, else the beginning of its hash.
    pub role: String,
    /// Size in bytes; `None` if unknown.
    pub bytes: Option<u64>,
    /// Rank of the peer in the communicator, for a send or receive.
    #[serde(rename = "comm_peer")]
    pub peer: Option<i32>,
    /// How long it has been in flight, s; in JSON ns.
    #[serde(rename = "age_ns", serialize_with = "ns")]
    pub age_s: f64,
    /// Number of operations in flight on the communicator.
    pub in_flight: u64,
}

/// How often and how fast a function of a communicator runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FunctionRate {
    /// Id of the job; empty if unknown, in JSON `null`.
    #[serde(serialize_with = "some")]
    pub job: String,
    /// The communicator's hash; unknown for several ranks, whose communicators differ.
    pub comm: Option<String>,
    /// Role of the communicator, else its name, else the beginning of its hash.
    pub role: String,
    /// NCCL's function.
    pub func: String,
    /// Operations per second; for several ranks, of the rank with the highest rate.
    pub per_s: f64,
    /// Bytes per second of these operations, GB/s; for several ranks, of the rank with the highest
    /// rate.
    pub io_gbs: f64,
    /// Mean bus bandwidth, GB/s; for several ranks the highest, of the rank that waits least.
    pub busbw_gbs: Option<f64>,
    /// Mean duration, s; for several ranks the shortest. In JSON ns.
    #[serde(rename = "duration_ns", serialize_with = "known_ns")]
    pub duration_s: Option<f64>,
}

/// Network traffic between a rank and another one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinkRate {
    /// The communicator's hash.
    pub comm: Option<String>,
    /// Role of the communicator, else its name, else the beginning of its hash.
    pub role: String,
    /// Rank of the peer in the communicator.
    #[serde(rename = "comm_peer")]
    pub peer: i32,
    /// `send` or `recv`.
    pub direction: &'static str,
    /// Data moved, GB/s.
    pub gbs: f64,
    /// Bytes of a transfer divided by its time on the network, GB/s. On the receive side that time
    /// includes the wait for the sender.
    pub transfer_gbs: Option<f64>,
    /// Transfers per second.
    pub per_s: f64,
}

/// What is wrong with a rank, sorted from worst to least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Flag {
    /// The process was killed, or crashed.
    Killed,
    /// The process is stopped.
    Stopped,
    /// For longer than the limit of a hang, others wait for it, or it hangs by itself.
    Hung,
    /// For longer than usual, others wait for it, or it waits for no known rank.
    Stalled,
    /// Its process has written nothing for a while.
    Silent,
    /// A straggler: other ranks wait for it, and chance does not explain it.
    Slow,
    /// It waits in an operation for a rank that is stalled.
    Waits,
    /// It calls nothing, and whether it waits in its last operation is not visible.
    Hidden,
    /// The process exited in order.
    Ended,
}

/// How a flag is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Shown in red: something is wrong here.
    Bad,
    /// Shown in yellow: something is wrong elsewhere, or slow.
    Warning,
    /// The process is over.
    Over,
}

impl Flag {
    /// The word for the flag in the table.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Flag::Hung => "HUNG",
            Flag::Killed => "KILLED",
            Flag::Stopped => "STOPPED",
            Flag::Stalled => "STALLED",
            Flag::Silent => "SILENT",
            Flag::Slow => "SLOW",
            Flag::Waits => "waits",
            Flag::Hidden => "hidden",
            Flag::Ended => "ended",
        }
    }

    /// The severity with which the flag is shown.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Flag::Hung | Flag::Killed | Flag::Stopped | Flag::Stalled | Flag::Silent => {
                Severity::Bad
            }
            Flag::Slow | Flag::Waits | Flag::Hidden => Severity::Warning,
            Flag::Ended => Severity::Over,
        }
    }
}

/// Seconds as whole nanoseconds.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn ns<S: Serializer>(seconds: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(to_u64(seconds * 1e9))
}

/// Seconds as whole nanoseconds, or `null` if unknown.
#[expect(clippy::ref_option, reason = "serde passes references")]
fn known_ns<S: Serializer>(seconds: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    seconds.map(|seconds| to_u64(seconds * 1e9)).serialize(to)
}

/// A text, or `null` if it is empty.
fn some<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    Some(text).filter(|text| !text.is_empty()).serialize(to)
}

impl Picture {
    /// The picture with each text passed through `of`, because texts of processes may contain
    /// anything.
    #[must_use]
    pub fn printable(mut self, of: impl Fn(&str) -> String) -> Picture {
        let each = |texts: &mut Vec<String>| texts.iter_mut().for_each(|text| *text = of(text));
        self.source = of(&self.source);
        each(&mut self.findings);
        each(&mut self.notes);
        let rows = self.ranks.iter_mut().flat_map(|row| &mut row.functions);
        for function in self.functions.iter_mut().chain(rows) {
            function.job = of(&function.job);
            (function.role, function.func) = (of(&function.role), of(&function.func));
        }
        for row in &mut self.ranks {
            (row.job, row.host) = (of(&row.job), of(&row.host));
            row.why = of(&row.why);
            row.links.iter_mut().for_each(|link| link.role = of(&link.role));
            for operation in row.in_flight.iter_mut().chain(&mut row.operation) {
                (operation.role, operation.func) = (of(&operation.role), of(&operation.func));
            }
            row.facts.iter_mut().for_each(|(_, value)| *value = of(value));
        }
        self
    }
}

impl Row {
    /// The worst flag.
    #[must_use]
    pub fn flag(&self) -> Option<Flag> {
        self.flags.first().copied()
    }

    /// True if something is wrong with this rank itself.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        self.flag().is_some_and(|flag| flag.severity() == Severity::Bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_process_is_left_as_it_is() {
        let bad = || "\u{1b}".to_owned();
        let operation = Operation { func: bad(), role: bad(), ..Operation::default() };
        let function =
            FunctionRate { job: bad(), func: bad(), role: bad(), ..FunctionRate::default() };
        let row = Row {
            job: bad(),
            host: bad(),
            why: bad(),
            operation: Some(operation.clone()),
            in_flight: vec![operation],
            functions: vec![function.clone()],
            links: vec![LinkRate { role: bad(), ..LinkRate::default() }],
            facts: vec![("command".into(), bad())],
            ..Row::default()
        };
        let picture = Picture {
            source: bad(),
            ranks: vec![row],
            functions: vec![function],
            findings: vec![bad()],
            notes: vec![bad()],
            ..Picture::default()
        };
        let is_shown = |picture: &Picture| format!("{picture:?}").contains("u{1b}");
        assert!(is_shown(&picture));
        assert!(!is_shown(&picture.printable(|text| text.replace('\u{1b}', "?"))));
    }
}
