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

mod class;
mod conditions;
mod doubt;
mod faults;
mod finding;
mod help;
mod looked;
mod lookup;
mod page;
pub mod patience;
pub mod rank;
mod ranks;
pub mod rules;
mod serial;
mod table;
pub mod words;

pub use class::{Confidence, FindingClass, Tool};
pub use doubt::{Doubt, confidence};
pub use faults::{FAULTS, Grade, KnownFault, known_faults};
pub use finding::{Finding, How, Op, SlowPart, State, Stop};
pub use help::{CommId, Cost, Evidence, Help, RankLocation};
pub use looked::{AboutRule, Looked, Outcome};
pub use lookup::{PAGE, UnknownClass};
pub use page::page;
pub use rank::RankState;
pub use rules::{RankFinding, apply_foreign_rules, apply_rules};
