// SPDX-License-Identifier: Apache-2.0
/*!
The classes of findings: what can be wrong with a job, each with its name, its code, and advice.

One table (`table.rs`) is used by all: the watchdog in a rank, `ncclscope diagnose`, `ncclscope
stragglers`, the simulator's truth, the evaluation, and docs/findings.md, which is generated from
it. The rules that need the state of one rank only ([`rules`], over a [`RankState`]) are here too,
so that the watchdog and `ncclscope diagnose` report the same for the same rank. This crate does
**not** compare ranks and does no I/O: callers fill in the state. The plugin links it.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

mod help;
mod page;
pub mod rank;
pub mod rules;
mod serial;
mod table;

pub use help::{CommId, Cost, Evidence, Help, Place};
pub use page::page;
pub use rank::RankState;
pub use rules::{RankFinding, apply_rules};
pub use serial::describe;

use std::fmt;
use std::str::FromStr;

/// What is wrong with a job or a part of it.
///
/// The order is that of verdicts of equal confidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the table explains each")]
pub enum FindingClass {
    HostStuck,
    ProcessGone,
    CallNotEnqueued,
    CallMismatch,
    P2pMismatch,
    KernelNotStarted,
    KernelPartlyStarted,
    GpuDead,
    KernelNotEnding,
    GpuNotProducing,
    ReceiverNotReady,
    NetworkStalled,
    FlushStalled,
    GpuNotConsuming,
    ProxyStalled,
    Deadlock,
    SlowRank,
    TransfersSlowed,
    SlowLink,
    SlowNic,
    SlowNodePath,
    AlgorithmChanged,
    SlowLaunch,
    /// A process is short of processor time, or was paused.
    ShortOfCpu,
}

/// How sure a finding is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Confidence {
    /// Measurements or the counts of the ranks prove it.
    Confirmed,
    /// It would explain the observations, but part of the evidence is missing, or something else
    /// would explain them as well.
    #[default]
    Suspect,
}

/// A part of ncclscope that reports findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// The watchdog in each rank: the evidence of one rank is enough.
    Watchdog,
    /// `ncclscope diagnose`: compares all ranks.
    Diagnose,
    /// `ncclscope stragglers`: compares all ranks of a slow job.
    Stragglers,
}

/// The row of a class in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) class: FindingClass,
    pub(crate) code: &'static str,
    pub(crate) name: &'static str,
    /// What is wrong, as the end of a sentence about the ranks.
    pub(crate) title: &'static str,
    pub(crate) explanation: &'static str,
    pub(crate) advice: &'static str,
    /// What tells more about recordings, without `ncclscope` and the run.
    pub(crate) verb: &'static str,
    pub(crate) tools: &'static [Tool],
}

impl FindingClass {
    /// All classes, in their order.
    pub const ALL: [FindingClass; table::ROWS.len()] = {
        let mut all = [FindingClass::HostStuck; table::ROWS.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = table::ROWS[at].class;
            // The discriminant is the row's index: `row` relies on it.
            assert!(all[at] as usize == at, "the table has the order of the enum");
            at += 1;
        }
        all
    };

    const fn row(self) -> &'static Row {
        &table::ROWS[self as usize]
    }

    /// The readable name, such as `kernel-not-started`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The short code, such as `H3a`: an alias of the name.
    #[must_use]
    pub const fn code(self) -> &'static str {
        self.row().code
    }

    /// What is wrong, as the end of a sentence about the ranks.
    #[must_use]
    pub const fn title(self) -> &'static str {
        self.row().title
    }

    /// What is observed, and what that means.
    #[must_use]
    pub const fn explanation(self) -> &'static str {
        self.row().explanation
    }

    /// What to do next.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        self.row().advice
    }

    /// The verb that tells more about recordings, with its options: `ncclscope VERB RUN`.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        self.row().verb
    }

    /// Whether a part of ncclscope reports this class.
    #[must_use]
    pub fn is_reported_by(self, tool: Tool) -> bool {
        self.row().tools.contains(&tool)
    }

    /// The page and anchor that explain it, from the repository's root.
    #[must_use]
    pub fn documentation(self) -> String {
        format!("{PAGE}#{}", page::anchor(self))
    }
}

/// The page of all classes, from the repository's root.
pub const PAGE: &str = "docs/findings.md";

/// Code and name: `H3a kernel-not-started`.
impl fmt::Display for FindingClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code(), self.name())
    }
}

/// A text that is neither the name nor the code of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownClass(pub String);

impl fmt::Display for UnknownClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no class of findings is called {:?}", self.0)
    }
}

impl std::error::Error for UnknownClass {}

impl FromStr for FindingClass {
    type Err = UnknownClass;

    fn from_str(text: &str) -> Result<FindingClass, UnknownClass> {
        let is_it = |class: &FindingClass| class.name() == text || class.code() == text;
        FindingClass::ALL.into_iter().find(is_it).ok_or_else(|| UnknownClass(text.to_owned()))
    }
}
