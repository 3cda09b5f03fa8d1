// SPDX-License-Identifier: Apache-2.0
//! What a rule is, and what it saw: the answer to "why is this not reported?".

use crate::class::FindingClass;

/// A rule: what it compares, and what it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AboutRule {
    /// Its name in options.
    pub name: &'static str,
    /// The classes of its findings.
    pub classes: &'static [FindingClass],
    /// What it compares.
    pub compares: &'static str,
    /// What the input must contain.
    pub needs: &'static str,
}

/// What became of what a rule looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is a finding, or a part of one.
    Found,
    /// It cannot be told.
    CannotTell,
    /// It is none, or something else explains it.
    Not,
}

impl Outcome {
    /// `found`, `cannot-tell` or `not`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Found => "found",
            Outcome::CannotTell => "cannot-tell",
            Outcome::Not => "not",
        }
    }
}

/// What a rule saw of a part of the job.
#[derive(Clone, PartialEq, Debug)]
pub struct Looked {
    /// The rule's name, or `explains`.
    pub rule: &'static str,
    /// What it looked at, such as `rank 3`.
    pub subject: String,
    /// The ranks of that; empty if it is about all.
    pub ranks: Vec<u32>,
    /// What it saw.
    pub saw: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Which limit, lack of input or other finding decided that; empty if it was found.
    pub because: String,
    /// What it saw, as a part of the limit: 1 reaches it; 0 if there is no such measure.
    pub nearness: f64,
}
