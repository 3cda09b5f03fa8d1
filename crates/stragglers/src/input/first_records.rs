// SPDX-License-Identifier: Apache-2.0
//! Where the records of a process begin.

use ncclscope_trace::Record;
use ncclscope_trace::handle::LANES;

/// The first record of each lane, in ticks, found while reading.
#[derive(Debug)]
pub(super) struct LatestFirst([Option<u64>; LANES]);

impl Default for LatestFirst {
    fn default() -> LatestFirst {
        LatestFirst([None; LANES])
    }
}

impl LatestFirst {
    pub(super) fn add(&mut self, lane: usize, record: &Record) {
        if let Some(first @ None) = self.0.get_mut(lane) {
            *first = Some(record.ticks());
        }
    }

    /// The latest of them.
    pub(super) fn ticks(&self) -> Option<u64> {
        self.0.iter().copied().max().flatten()
    }
}
