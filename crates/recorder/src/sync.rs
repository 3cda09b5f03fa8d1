// SPDX-License-Identifier: Apache-2.0
//! The only place in this crate that names atomics, so that a model checker can replace them.

/// A counter that no model orders, because an old value only delays its reader's work.
pub(crate) use core::sync::atomic::AtomicU32 as Hint;
pub(crate) use core::sync::atomic::{AtomicPtr, Ordering};
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(not(loom))]
pub(crate) use std::thread_local as per_thread;

#[cfg(loom)]
use core::sync::atomic as real;
#[cfg(loom)]
pub(crate) use model::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, per_thread};
#[cfg(loom)]
pub mod model;
