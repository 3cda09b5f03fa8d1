// SPDX-License-Identifier: Apache-2.0
/*!
Steps through a plugin's callbacks, instruction by instruction, and checks them against the
contract: no system call, no lock, no allocation, and a bound on instructions, whatever state the
plugin is in.

A [`child`] process plays callbacks to the plugin. Its parent ([`mod@trace`]) stops it at each one's
first instruction and single-steps it (`ptrace`) to the return, while every other thread of the
child is stopped. The plugin is not instrumented: the binary under test is the one that ships. The
counts are the same on every run and on a busy machine, so that a change can be compared with its
parent.

This crate does **not** measure time or check what a callback recorded. x86-64 only.
*/

pub mod child;
pub mod contract;
pub mod instruction;
pub mod phase;
pub mod product;
mod sys;
pub mod trace;

pub use phase::{Phase, PhaseSet};
pub use trace::{Kind, Stepped, trace};
