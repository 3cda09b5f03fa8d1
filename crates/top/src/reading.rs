// SPDX-License-Identifier: Apache-2.0
//! What a source saw of the ranks at one moment, and in the span before it.

use crate::work::{Comm, Work};

/// All ranks that a source sees.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Where this comes from, as the user names it.
    pub source: String,
    /// When, as text.
    pub at: String,
    /// The length of the span that [`Rank::work`] is of, s.
    pub span_s: f64,
    /// The ranks.
    pub ranks: Vec<Rank>,
    /// Why ranks wait, as far as the counters of all of them show.
    pub findings: Vec<Verdict>,
    /// What to do where there is no rank, and what the reading does not show.
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
    /// The GPU as the process counts it; empty where it is not known.
    pub device: Option<u32>,
    /// The process id.
    pub pid: Option<u32>,
    /// Whether it runs.
    pub life: Life,
    /// Operations in flight: the oldest of each communicator.
    pub flights: Vec<Flight>,
    /// What it did.
    pub work: Work,
    /// Its own watchdog says that it hangs.
    pub says_hung: bool,
    /// More about it, for the detail pane: a name and a value.
    pub facts: Vec<(String, String)>,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    #[default]
    Running,
    /// A signal or a debugger stopped it.
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
    /// NCCL's function; empty where it is not known.
    pub func: String,
    /// The communicator.
    pub comm: Comm,
    /// Its bytes.
    pub bytes: Option<u64>,
    /// The other rank of a send or receive.
    pub peer: Option<i32>,
    /// How long it has been in flight, s.
    pub age_s: f64,
    /// How many operations of the communicator are in flight.
    pub count: u64,
}

/// Why ranks of a job wait.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The job's id.
    pub job: String,
    /// The class's name.
    pub class: String,
    /// One sentence.
    pub title: String,
    /// The ranks at fault.
    pub ranks: Vec<u32>,
    /// For how long others have waited, s.
    pub age_s: Option<f64>,
}

impl Rank {
    /// The operation that has been in flight longest.
    #[must_use]
    pub fn oldest(&self) -> Option<&Flight> {
        self.flights.iter().max_by(|a, b| a.age_s.total_cmp(&b.age_s))
    }
}
