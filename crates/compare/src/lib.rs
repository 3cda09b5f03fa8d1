// SPDX-License-Identifier: Apache-2.0
/*!
What became slower or faster between two sets of runs, and how sure that is.

[`input`] reads a [`Run`] from recordings, a saved report, or files of other tools: series of
times by what was measured, and the [`configuration`]. [`compare`] tests each series of one side
against that of the other: a rank test for the p value, the Hodges-Lehmann estimate for the effect
([`ncclscope_statistics`]), and the procedure of Benjamini and Hochberg, because it tests many.
[`Comparison`] is the JSON schema `ncclscope.compare/2`; docs/compare.md explains the rules.

The unit of observation is a block of training steps, or the run if there are several runs on each
side. It is never a rank, and seldom an operation: the times of one collective's ranks, or of
operations within seconds, are so strongly correlated that they are nearly one observation.

This crate does **not** open recordings, print, or say why something became slower.
*/
#![forbid(unsafe_code)]

mod answer;
pub mod configuration;
mod estimate;
mod groups;
pub mod input;
mod limits;
mod means;
mod ranks;
mod rows;
pub mod run;
pub mod schema;

pub use answer::name;
pub use limits::Limits;
pub use rows::compare;
pub use run::Run;
pub use schema::Comparison;
