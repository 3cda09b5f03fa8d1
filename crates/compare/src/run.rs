// SPDX-License-Identifier: Apache-2.0
//! What was measured in one run: series of times, and the configuration.

use crate::configuration::Configuration;
use ncclscope_stragglers::steps::StepSource;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of blocks of the shortest run: enough for batch means, and few enough that blocks
/// are long and differ from their neighbours.
pub const BLOCKS: usize = 32;

/// What a series measures.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Measure {
    /// The duration of a training step.
    Step,
    /// The transfer of collectives, or of sends and receives.
    Transfer(Operation),
    /// How long a rank waits for later ranks in collectives of a function, per step.
    Waiting {
        /// The role of the communicators.
        role: String,
        /// The function.
        func: String,
        /// The ranks of the job that take part: those of one communicator, or of several.
        ranks: Vec<u32>,
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
    /// The ranks of the job that take part in one of them; empty if unknown.
    pub ranks: Vec<u32>,
}

/// How NCCL does an operation, by its names; empty if unknown.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Shape {
    /// Algorithm.
    pub algo: String,
    /// Protocol.
    pub proto: String,
    /// Number of channels.
    pub channels: String,
}

/// The values of one measure in one run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Series {
    /// Values with the numbers of their training steps or, without steps, of their slices of time,
    /// in time order.
    pub values: Vec<(u32, f64)>,
    /// More values, which are only lower bounds, because the ends are unknown.
    pub least: Vec<(u32, f64)>,
    /// How often it is executed; `None` if unknown.
    pub frequency: Option<Frequency>,
}

impl Series {
    /// Adds a value; one that is not whole is a lower bound.
    pub(crate) fn add(&mut self, value: (u32, f64), is_whole: bool) {
        if is_whole { self.values.push(value) } else { self.least.push(value) }
    }

    /// Number of all values.
    pub(crate) fn count(&self) -> usize {
        self.values.len() + self.least.len()
    }
}

/// How often something is executed, and by what.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Frequency {
    /// How many times in a step, by all sources together.
    pub in_step: f64,
    /// The numbers, within the run, of the communicators or ranks that execute it. Two series may
    /// have the same ones.
    pub sources: BTreeSet<usize>,
}

impl Frequency {
    /// The frequency of what each rank has this often in a step.
    #[must_use]
    pub fn of_each(in_step: f64) -> Frequency {
        Frequency { in_step, sources: [0].into() }
    }
}

/// One run of a side, with everything that was measured in it.
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
    /// How many training steps have one number in the series, at most: more than 1 if the input
    /// combines steps.
    pub combined: usize,
    /// How the steps were found; `None` if there are none.
    pub steps_from: Option<StepSource>,
    /// Its ranks wait in NCCL and do not advance, so that the run lacks what they would have done.
    pub hangs: bool,
    /// How many GPUs the job has: one for each rank, also for those that were not recorded.
    pub gpus: usize,
    /// How many of its ranks have no readable recording.
    pub unrecorded: usize,
    /// The times of its transfers are rounded down to multiples of this, ns; 0 if they are exact.
    pub resolution_ns: f64,
    /// Each size is a row, however many there are: a benchmark runs them one by one.
    pub has_exact_sizes: bool,
    /// How the run was configured.
    pub configuration: Configuration,
    /// The filter of a saved report, which then covers only a part of the run.
    pub filter: Option<String>,
    /// What the input cannot tell, one sentence each.
    pub notes: Vec<String>,
}
