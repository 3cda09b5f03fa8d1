// SPDX-License-Identifier: Apache-2.0
//! The result of a check.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Name of the rule.
    pub rule: &'static str,
    /// The violation, as text.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

/// Events that did not stop, for a known reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Open {
    /// Kind of event.
    pub kind: &'static str,
    /// Why they are open.
    pub reason: &'static str,
    /// Number of these events.
    pub count: u64,
}

/// Counts of events of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KindCount {
    /// Number of events started.
    pub started: u64,
    /// Number of events stopped.
    pub stopped: u64,
    /// Number of events whose parent had stopped before they started.
    pub late: u64,
    /// Number of events stopped again; NCCL does that to some kinds.
    pub stopped_again: u64,
    /// Roles of the threads that started them, as `ncclscope report` names them.
    pub threads: BTreeSet<&'static str>,
}

/// The result of a check of one recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The recording's file.
    pub file: String,
    /// Profiler API version; 0 without a communicator.
    pub api_version: u32,
    /// NCCL's version code, such as 22809; 0 unknown.
    pub nccl_version: u32,
    /// Number of communicators of the process; each is counted once per rank.
    pub comms: usize,
    /// The events by kind; kinds without any are left out.
    pub kinds: BTreeMap<&'static str, KindCount>,
    /// For each role of a thread, in which order the kinds first started (`+`) and first stopped
    /// (`-`).
    pub order: BTreeMap<&'static str, Vec<String>>,
    /// Stops and states of handles that were no live event of the process.
    pub stale: u64,
    /// ProxyOps of other processes (PXN).
    pub foreign: u64,
    /// Events that are open for a known reason.
    pub open: Vec<Open>,
    /// The violations.
    pub violations: Vec<Violation>,
}

impl Verdict {
    pub(crate) fn violate(&mut self, rule: &'static str, what: impl Into<String>) {
        self.violations.push(Violation { rule, what: what.into() });
    }

    pub(crate) fn add_open(&mut self, kind: &'static str, reason: &'static str) {
        match self.open.iter_mut().find(|open| open.kind == kind && open.reason == reason) {
            Some(open) => open.count += 1,
            None => self.open.push(Open { kind, reason, count: 1 }),
        }
    }
}
