// SPDX-License-Identifier: Apache-2.0
//! The clock of a recording.

use super::Recording;
use crate::clock::TickMap;

impl Recording {
    /// The map from ticks to time.
    #[must_use]
    pub fn tick_map(&self) -> TickMap {
        TickMap::new(self.syncs.clone(), self.header.hz)
    }

    /// Whether times since 1970 are known. If the file was cut off, no comparison of its clock may
    /// be left.
    #[must_use]
    pub fn has_clock(&self) -> bool {
        !self.syncs.is_empty()
    }

    /// The latest comparison of the clocks, and the two with the longest time between them, in
    /// ticks: a process compares them about once a second as long as it lives. `None` if none is
    /// left; of one, all three are the same.
    #[must_use]
    pub fn last_sync(&self) -> Option<(u64, [u64; 2])> {
        let mut ticks: Vec<u64> = self.syncs.iter().map(|sync| sync.ticks).collect();
        ticks.sort_unstable();
        let last = *ticks.last()?;
        let pairs = ticks.windows(2).map(|pair| [pair[0], pair[1]]);
        let longest = pairs.max_by_key(|[from, to]| to - from);
        Some((last, longest.unwrap_or([last; 2])))
    }
}
