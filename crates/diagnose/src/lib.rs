// SPDX-License-Identifier: Apache-2.0
/*!
Why a job hangs: which ranks, which cause, and the evidence for it.

[`input`] reads recordings, PyTorch's Flight Recorder dumps or a table of vectors. `recorded`
concludes from snapshots of recordings which processes run. [`open()`] makes a [`Job`] of both: how
far each rank has come in each communicator. [`diagnose`] then works in four stages. The rules
are those of `docs/diagnose.md`.

1. `desync` compares the calls of the ranks: ranks that called something different are at fault.
   `settings` compares how NCCL runs them.
2. `wait_graph` follows the waits between ranks to the ranks and operations that wait for nothing.
3. `stuck_operation` explains, by kernels and transfers, an operation that all members are in and
   that does not end.
4. `classify` turns the causes into findings with evidence, and `doubts` adds what may be wrong.

This crate does **not** look for slow ranks (it ignores a job whose counters advance), does not
decide what a rank records, and prints nothing.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

mod choice;
mod classify;
mod desync;
mod diagnosis;
mod doubts;
mod edges;
mod ended_first;
mod ending;
mod engine;
pub mod fr_out;
mod gone;
mod graph;
mod help;
pub mod input;
pub mod job;
pub mod live;
mod merge_causes;
mod missing;
mod open;
mod python_lines;
mod rank_layout;
mod recorded;
mod rules;
mod settings;
mod setup;
mod standstill;
mod state;
mod stuck_operation;
pub mod text;
mod unseen;
mod wait_graph;
mod waiting;
mod why_not;
mod words;

pub use choice::Shown;
pub use diagnosis::{Diagnosis, Hidden, HiddenWhy};
pub use ending::{CommandEnd, Ending, Ends, FirstEnd, Others, RankExit, exits_text};
pub use engine::{Options, diagnose, diagnose_in_detail};
pub use job::{Job, NoEnd, Stop};
pub use open::{Input, assemble, open, recorded_job};
pub use rules::Rule;
pub use standstill::Standstill;
pub use waiting::Waiting;
pub use why_not::why_not;
