// SPDX-License-Identifier: Apache-2.0
//! The time that the blocks of a recording cover.

use super::Recording;

impl Recording {
    /// Time stamp of the first record in its blocks, in ticks; 0 if there is none.
    #[must_use]
    pub fn first_ticks(&self) -> u64 {
        let blocks = self.lanes.iter().filter_map(|lane| lane.blocks.first());
        blocks.map(|block| block.header.first_ticks).min().unwrap_or(0)
    }

    /// Time at which the last `bytes` of its blocks begin, in ticks; `None` if it has no more.
    #[must_use]
    pub fn start_of_last(&self, bytes: u64) -> Option<u64> {
        let blocks = self.lanes.iter().flat_map(|lane| &lane.blocks);
        let mut blocks: Vec<(u64, u64)> =
            blocks.map(|block| (block.header.first_ticks, block.len as u64)).collect();
        blocks.sort_unstable();
        let mut last: u64 = 0;
        let before = blocks.iter().rposition(|(_, len)| {
            last = last.saturating_add(*len);
            last > bytes
        })?;
        // Of one block that is larger, all of it.
        blocks.get(before + 1).or_else(|| blocks.get(before)).map(|(ticks, _)| *ticks)
    }
}
