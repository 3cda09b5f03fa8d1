// SPDX-License-Identifier: Apache-2.0
//! The only door to atomics in this crate, so that a model checker can stand in for them.

pub(crate) use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
