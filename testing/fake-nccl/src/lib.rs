// SPDX-License-Identifier: Apache-2.0
/*!
Plays NCCL's callbacks to a profiler plugin, without NCCL: with the order, threads and faults of the
real library.

A plugin is loaded as NCCL loads it (`RTLD_NOW | RTLD_LOCAL`) at one version of the API. Descriptors
are built byte by byte from [`offsets`], a separate table, in memory that is first filled with
garbage, as NCCL's shims leave it; handle slots hold a poison value before each start.

This crate does **not** check the plugin. Tests compare the plugin's output with the [`log`] of what
was played, and check that this process survives.
*/

pub mod allocator;
pub mod build;
pub mod control;
pub mod descr;
pub mod end;
mod fenced;
pub mod log;
pub mod logger;
pub mod mask;
mod names;
pub mod namespaces;
pub mod offsets;
pub mod play;
pub mod plugin;
pub mod replay;
pub mod script;

use std::ops::RangeInclusive;

/// The versions of the API.
pub const VERSIONS: RangeInclusive<usize> = 1..=COUNT;
/// The number of versions.
pub const COUNT: usize = *ncclscope_abi::VERSIONS.end() as usize;

pub use control::Control;
pub use log::Log;
pub use ncclscope_abi::EventType;
pub use play::Player;
pub use plugin::{Plugin, Profiler};
pub use script::setup::ScriptSetup;
