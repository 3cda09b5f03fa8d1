// SPDX-License-Identifier: Apache-2.0
/*!
What every recording must satisfy: the model check.

A recording that the reader accepts may still be wrong: an event that never stops, a network step of
an operation that was not open, a channel too many. Each rule here is something that NCCL's source
promises or that the recorder promises, and is checked on the records alone; [`table`] holds what
each profiler API version is documented to emit.

[`check`] checks one recording; the program `check` checks files and run directories.

This crate does **not** share the tool's reconstruction of operations (`operations`): an error there
must not hide itself here. It only uses that crate's names of threads.
*/
#![forbid(unsafe_code)]

mod model;
mod rules;
pub mod table;
mod verdict;

pub use model::{Event, Model};
pub use rules::check;
pub use verdict::{KindCount, Open, Verdict, Violation};

/// What the caller knows about the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// Lost, overwritten and unwritten records are no violation.
    pub lost_ok: bool,
    /// The process was killed, or still runs: open events are no violation.
    pub killed_ok: bool,
    /// Operations were aborted: what belongs to one that did not end may be open or missing, unless
    /// a later operation of its communicator ended.
    pub aborted_ok: bool,
    /// The GPU's clock or the kernels' counters were made to go wrong: a pTimer that goes back is
    /// no violation.
    pub ptimer_ok: bool,
    /// Ranks of each communicator, if the API version does not report them (v1 to v3).
    pub ranks: Option<u32>,
    /// Nodes of each communicator, if the API version does not report them.
    pub nodes: Option<u32>,
}
