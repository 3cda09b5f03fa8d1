// SPDX-License-Identifier: Apache-2.0
//! A finding: what is wrong, with which ranks, since when, at what cost, by which evidence, and
//! what else may explain it.

use crate::class::{Confidence, FindingClass};
use crate::doubt::{self, Doubt};
use crate::help::{CommId, Evidence, Help};

/// What a finding says of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Ranks wait, and do not advance.
    #[default]
    Hangs,
    /// The job advances more slowly than it could.
    Slow,
}

/// What is known of the ranks at fault, beyond the class. It chooses the words of the title.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum How {
    /// No more than the class says.
    #[default]
    OfClass,
    /// They call NCCL, but not the operation that other ranks wait in.
    Elsewhere,
    /// They have ended the communicator in which other ranks wait.
    Left,
    /// Their processes exited.
    Exited,
    /// Their recordings break off.
    BrokenOff,
    /// Their processes are stopped.
    Stopped(Stop),
    /// Their processes ended before all others.
    EndedFirst {
        /// Their recordings are not closed.
        is_broken_off: bool,
        /// All exited with an error.
        is_error: bool,
        /// The others exited with status 0.
        is_alone: bool,
    },
    /// They are in this function, which creates or ends a communicator.
    Inside(String),
    /// They take no part in such a function.
    TakesNoPart,
    /// They use two communicators in another order than these ranks.
    OtherOrder(Vec<u32>),
    /// What this whole sentence says.
    Said(String),
}

/// What has stopped a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal or a debugger.
    Signal,
    /// The freezer of its control group, as used to pause a container.
    Freezer,
    /// Something that let it go on shortly before it ended, as Slurm does before SIGTERM.
    Before,
    /// It does not answer NCCL's RAS, whatever stops it.
    Unanswering,
}

/// The operation that a finding is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Op {
    /// Its number on the communicator, from 1, counted as by the watchdog and `report`: sends and
    /// receives separately from collectives. `None` if unknown.
    pub number: Option<u64>,
    /// NCCL's function name; empty if unknown.
    pub func: String,
    /// Datatype.
    pub datatype: String,
    /// The size as in `report`, bytes; `None` if unknown.
    pub bytes: Option<u64>,
}

/// The slow part of a job: a worker, a stage or a data-parallel rank, as the input names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlowPart {
    /// Rank in the job.
    pub rank: Option<u32>,
    /// Data-parallel rank.
    pub dp_rank: Option<u32>,
    /// Pipeline stage.
    pub stage: Option<u32>,
}

/// What is wrong, and the ranks at fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The class: in JSON `class`, its code, `name`, `verb` and `page`.
    pub class: FindingClass,
    /// Whether the job hangs or is slow.
    pub state: State,
    /// What to do next: that of the class, unless the input shows more.
    pub advice: &'static str,
    /// What is at fault, if that is not only the root ranks: `the link from rank 3 to rank 4`.
    pub subject: Option<String>,
    /// What is known of the ranks at fault, beyond the class.
    pub how: How,
    /// What else the title says of them: a fact of the input.
    pub detail: Option<String>,
    /// The ranks at fault, ascending: ranks in the job where the input has them.
    pub root_ranks: Vec<u32>,
    /// Number of processes at fault with an unknown rank.
    pub unknown_roots: usize,
    /// Where the root ranks run, since when, and the cost: `where`, `since` and `cost`.
    pub help: Help,
    /// Sending and receiving rank, for a network path.
    pub edge: Option<[u32; 2]>,
    /// The communicator in which others wait: `comm` and `comm_name`.
    pub comm: Option<CommId>,
    /// What the application uses that communicator for, such as `tp`.
    pub role: Option<String>,
    /// The communicators concerned, in words; for sends and receives also the pair of ranks.
    pub comm_texts: Vec<String>,
    /// The operation in which they wait.
    pub op: Option<Op>,
    /// Age of the oldest operation that waits for the root ranks, ns.
    pub age_ns: Option<u64>,
    /// When the call at fault was made, ns since 1970, if no rank waits in it.
    pub called_ns: Option<u64>,
    /// Number of ranks that wait for the root ranks, directly or through other ranks.
    pub victims: usize,
    /// The slow part of the job, for S1, S7, S8 and N5.
    pub root: Option<SlowPart>,
    /// The share of all waiting that it causes; `None` if that is unknown.
    pub share: Option<f64>,
    /// S1, N5: excess own time as a share of the steps; S8: as a share of the run. `None` if
    /// unknown.
    pub lost_share: Option<f64>,
    /// S1: the number of steps that exceed the limits.
    pub steps: Option<usize>,
    /// S2 to S5: the slowdown factor.
    pub factor: Option<f64>,
    /// The communicators that are slow.
    pub comms: Vec<CommId>,
    /// It was first seen in the first recorded step, so that it may have begun before.
    pub is_from_first_step: bool,
    /// The evidence for the finding.
    pub evidence: Vec<Evidence>,
    /// Why it may be wrong.
    pub doubts: Vec<Doubt>,
}

impl Finding {
    /// A finding about a job that hangs, with its class's advice, and nothing that not every
    /// finding has.
    #[must_use]
    pub const fn new(class: FindingClass, root_ranks: Vec<u32>) -> Finding {
        Finding {
            class,
            state: State::Hangs,
            advice: class.advice(),
            subject: None,
            how: How::OfClass,
            detail: None,
            root_ranks,
            unknown_roots: 0,
            help: Help { places: Vec::new(), since: None, cost: None },
            edge: None,
            comm: None,
            role: None,
            comm_texts: Vec::new(),
            op: None,
            age_ns: None,
            called_ns: None,
            victims: 0,
            root: None,
            share: None,
            lost_share: None,
            steps: None,
            factor: None,
            comms: Vec::new(),
            is_from_first_step: false,
            evidence: Vec::new(),
            doubts: Vec::new(),
        }
    }

    /// How certain it is: confirmed, unless a doubt lowers it.
    #[must_use]
    pub fn confidence(&self) -> Confidence {
        doubt::confidence(&self.doubts)
    }

    /// True if a doubt lowers it.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.confidence() == Confidence::Suspect
    }

    /// The ranks that are known to be at fault: not if it only says that other ranks wait for
    /// them.
    #[must_use]
    pub fn blamed(&self) -> &[u32] {
        match self.class {
            FindingClass::NotRecorded => &[],
            _ => &self.root_ranks,
        }
    }
}

impl SlowPart {
    /// The part as text.
    #[must_use]
    pub fn name(&self) -> String {
        let words = [("rank", self.rank), ("DP rank", self.dp_rank), ("stage", self.stage)];
        let words = words.iter().filter_map(|(word, n)| n.map(|n| format!("{word} {n}")));
        words.collect::<Vec<_>>().join(", ")
    }
}
