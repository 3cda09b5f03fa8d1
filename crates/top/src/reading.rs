// SPDX-License-Identifier: Apache-2.0
//! The state of the ranks at one moment, and what they did in the span before it, as read from a
//! source.

use crate::work::{Comm, Work};
use ncclscope_findings::Finding;

/// All ranks that a source sees.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The source, as the user names it.
    pub source: String,
    /// The time of the reading, as text.
    pub at: String,
    /// Length of the span to which [`Rank::work`] refers, s.
    pub span_s: f64,
    /// Length of the part of it that the reading before did not have, to which [`Rank::fresh`]
    /// refers, s; 0 if it is the same span.
    pub fresh_s: f64,
    /// The ranks.
    pub ranks: Vec<Rank>,
    /// Why ranks wait, according to the counters of all ranks: the job's id, and what is wrong.
    pub findings: Vec<(String, Finding)>,
    /// What to do if there are no ranks, and what the reading does not show.
    pub notes: Vec<String>,
}

/// A process of a job.
#[derive(Clone, Debug, Default)]
pub struct Rank {
    /// The job's id; empty without one.
    pub job: String,
    /// The rank in the job.
    pub rank: Option<u32>,
    /// The host's name.
    pub host: String,
    /// CUDA device number in the process; `None` if unknown.
    pub device: Option<u32>,
    /// The process id.
    pub pid: Option<u32>,
    /// Whether the process runs.
    pub life: Life,
    /// The operations in flight: the oldest of each communicator.
    pub flights: Vec<Flight>,
    /// What the rank did in the span.
    pub work: Work,
    /// What it did in the part of the span that is new.
    pub fresh: Work,
    /// The rank's own watchdog reports a hang.
    pub says_hung: bool,
    /// Why its last operation shows no end, so that it may wait in it; `None` if it shows it.
    pub no_end: Option<String>,
    /// Further facts for the detail pane: names and values.
    pub facts: Vec<(String, String)>,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    #[default]
    Running,
    /// A signal or a debugger stopped it, or its control group is frozen.
    Stopped,
    /// It has written nothing for a while.
    Silent,
    /// It was killed, or crashed.
    Killed,
    /// It exited in order.
    Ended,
}

/// An operation in flight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flight {
    /// NCCL's function; empty if unknown.
    pub func: String,
    /// The communicator.
    pub comm: Comm,
    /// Size in bytes; `None` if unknown.
    pub bytes: Option<u64>,
    /// Rank of the peer, for a send or receive.
    pub peer: Option<i32>,
    /// Time since it was enqueued or, if it was enqueued behind others, since the one before it
    /// ended, s.
    pub age_s: f64,
    /// Number of operations in flight on the communicator.
    pub count: u64,
}

impl Rank {
    /// The oldest operation in flight.
    #[must_use]
    pub fn oldest(&self) -> Option<&Flight> {
        self.flights.iter().max_by(|a, b| a.age_s.total_cmp(&b.age_s))
    }
}
