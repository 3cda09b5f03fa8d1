// SPDX-License-Identifier: Apache-2.0
//! What was measured in one run: series of times, and the configuration.

use crate::configuration::Configuration;
use std::collections::BTreeMap;

/// The most blocks of a run: as many as batch means need, and so few that a block is long and
/// neighbours differ.
pub const BLOCKS: usize = 32;

/// What a series is of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Measure {
    /// The duration of a training step.
    Step,
    /// The transfer of collectives, or of sends and receives.
    Transfer(Operation),
    /// How long a rank waits for later ranks in collectives of a function, in a step.
    Waiting {
        /// The role of the communicators.
        role: String,
        /// The function.
        func: String,
    },
    /// The wire time per byte from one rank of the job to another.
    Link {
        /// The role of the communicators.
        role: String,
        /// The sender.
        from: u32,
        /// The receiver.
        to: u32,
    },
}

/// Operations that are comparable.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Operation {
    /// The role of their communicators.
    pub role: String,
    /// The function.
    pub func: String,
    /// The size; `None` if unknown.
    pub bytes: Option<u64>,
    /// How NCCL did them.
    pub shape: Shape,
}

/// How NCCL does an operation, by its names; empty if unknown.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Shape {
    /// Algorithm.
    pub algo: String,
    /// Protocol.
    pub proto: String,
    /// Number of channels.
    pub channels: String,
}

/// Values of one run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Series {
    /// Values with the numbers of their blocks, which are in the order of time.
    pub values: Vec<(u32, f64)>,
    /// How many times a rank does it in a step; `None` if unknown.
    pub per_step: Option<f64>,
    /// The values are the least that it took: the ends are not known.
    pub is_least: bool,
}

/// One run of a side: all that was measured in it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Run {
    /// Its name, for people.
    pub name: String,
    /// All that was measured.
    pub series: BTreeMap<Measure, Series>,
    /// The median duration of a step, ns; `None` if unknown.
    pub step_ns: Option<f64>,
    /// How many steps there are; 0 if unknown.
    pub steps: usize,
    /// Its ranks wait in NCCL and do not advance: what they would have done is not in it.
    pub hangs: bool,
    /// How many processes were recorded.
    pub ranks: usize,
    /// How the run was configured.
    pub configuration: Configuration,
    /// What the input cannot tell, one sentence each.
    pub notes: Vec<String>,
}
