// SPDX-License-Identifier: Apache-2.0
//! The input of recordings: a solved job, up to the end of the recording.

use crate::layout::Layout;
use crate::model::conditions::Conditions;
use crate::model::program::Op;
use crate::model::solve::Solution;
use crate::scenario::Scenario;
use crate::time::Time;

/// A solved job.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) layout: &'a Layout,
    pub(crate) conditions: &'a Conditions,
    pub(crate) programs: &'a [Vec<Op>],
    pub(crate) solution: &'a Solution,
    /// The states of the two threads of each rank while it is stuck.
    pub(crate) thread_states: Vec<[ThreadState; 2]>,
    /// When recording ends.
    pub(crate) end: Time,
    /// The job completed: ranks close their recordings.
    pub(crate) closed: bool,
}

/// The state of a thread while its rank is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadState {
    /// State as in `/proc`.
    pub(crate) state: u8,
    /// The kernel function in which it waits; empty if it runs.
    pub(crate) place: &'static str,
    /// When it stopped using CPU time.
    pub(crate) since: Time,
}
