// SPDX-License-Identifier: Apache-2.0
//! When thread 0 of a block has finished its own part of a batch.
//!
//! Thread 0 writes the profiler's stop, and waits for no other thread before the kernel's last one
//! (`ncclKernelMain` in NCCL's `src/device/common.h`). Its part of a batch:
//!
//! | operation | thread 0 | the stop is |
//! | --- | --- | --- |
//! | RING | everything | the end |
//! | TREE, root | everything | the end |
//! | TREE, others | reduces towards the root; other threads pass the sums down | early |
//! | sends and receives | the send of the first work, or else its receive | early |
//! | NVLS, NVLS_TREE, COLLNET_CHAIN, PAT | scatters or reduces; not played | early |

use std::sync::Once;

/// Writes the end of a batch once, as soon as thread 0 has finished.
pub(crate) struct Lead<'a> {
    write: &'a (dyn Fn() + Sync),
    may_lead: bool,
    written: Once,
}

impl<'a> Lead<'a> {
    /// `write` reports the end of the batch; without `may_lead` only after all threads have
    /// finished.
    pub(crate) fn new(write: &'a (dyn Fn() + Sync), may_lead: bool) -> Self {
        Self { write, may_lead, written: Once::new() }
    }

    /// Thread 0 has finished its part of the batch.
    pub(crate) fn through(&self) {
        if self.may_lead {
            self.end();
        }
    }

    /// All threads have finished.
    pub(crate) fn end(&self) {
        self.written.call_once(self.write);
    }
}
