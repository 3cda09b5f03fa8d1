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
}
