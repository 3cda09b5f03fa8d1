// SPDX-License-Identifier: Apache-2.0
//! When thread 0 of a block is through with its own part of a batch.
//!
//! Thread 0 writes the profiler's stop, and waits for no other thread before the kernel's last one
//! (`ncclKernelMain` in NCCL's `src/device/common.h`). What it does of a batch:
//!
//! | operation | thread 0 | the stop is |
//! | --- | --- | --- |
//! | RING | everything | the end |
//! | TREE, root | everything | the end |
//! | TREE, others | reduces towards the root; other threads pass the sums down | early |
//! | sends and receives | the send of the first work, or else its receive | early |
//! | NVLS, NVLS_TREE, COLLNET_CHAIN, PAT | scatters or reduces; not played | early |

use std::sync::Once;

/// Writes the end of a batch once, as soon as thread 0 is through.
pub(crate) struct Lead<'a> {
    write: &'a (dyn Fn() + Sync),
    may_lead: bool,
    written: Once,
}

impl<'a> Lead<'a> {
    /// `write` says that the batch has ended; without `may_lead` after all threads are through.
    pub(crate) fn new(write: &'a (dyn Fn() + Sync), may_lead: bool) -> Self {
        Self { write, may_lead, written: Once::new() }
    }

    /// Thread 0 is through with all that it does of the batch.
    pub(crate) fn through(&self) {
        if self.may_lead {
            self.end();
        }
    }

    /// All threads are through.
    pub(crate) fn end(&self) {
        self.written.call_once(self.write);
    }
}
