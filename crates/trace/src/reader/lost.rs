// SPDX-License-Identifier: Apache-2.0
//! What a recording lacks, for analyses that depend on complete data.
//!
//! Four kinds of data may be missing. Each has its own query, because they affect different
//! conclusions: lost events ([`Recording::lost`]), events that were not to be recorded
//! ([`Recording::has_pauses`], and since the first communicator [`Recording::is_windowed`]), events
//! overwritten by later ones ([`crate::layout::Header::overwritten`]), and damage
//! ([`Recording::has_hole`]).

use super::{BlockRef, Lane, Recording};
use crate::kind::EventKind;
use crate::mark::{Mark, MarkKind};

impl Recording {
    /// Number of events of a kind that NCCL reported and that were not recorded, because no lane or
    /// slot was free, the lane was full, or they were not written in time.
    #[must_use]
    pub fn lost(&self, kind: EventKind) -> u64 {
        let (kind, header) = (kind.index(), &self.header);
        let causes = [header.without_lane[kind], header.without_slot[kind], header.unwritten[kind]];
        let in_lanes = self.lanes.iter().map(|lane| lane.header.lost[kind]);
        causes.into_iter().chain(in_lanes).fold(0, u64::saturating_add)
    }

    /// Whether events of a kind that NCCL reported are missing: lost, or overwritten by later ones.
    #[must_use]
    pub fn lacks(&self, kind: EventKind) -> bool {
        self.lost(kind) != 0 || self.header.overwritten[kind.index()] != 0
    }

    /// Whether events were left out between others: recording was stopped for a time, or operations
    /// were sampled.
    #[must_use]
    pub fn has_pauses(&self) -> bool {
        let leaves_out = |mark: &Mark| match mark.what {
            MarkKind::Stop => true,
            MarkKind::Start => mark.value > 1,
            _ => false,
        };
        self.header.left_out != 0 || self.marks.iter().any(leaves_out)
    }

    /// When recording was stopped, if it was not started again, in ticks.
    #[must_use]
    pub fn off_since(&self) -> Option<u64> {
        let switch = |mark: &&Mark| matches!(mark.what, MarkKind::Start | MarkKind::Stop);
        let last = self.marks.iter().filter(switch).max_by_key(|mark| mark.ticks)?;
        (last.what == MarkKind::Stop).then_some(last.ticks)
    }

    /// Whether events since the first communicator were left out: there are pauses, or recording
    /// started later. The window that opens with the run does not count.
    #[must_use]
    pub fn is_windowed(&self) -> bool {
        let first = self.comms.iter().map(|comm| comm.ticks).min();
        let is_late = |mark: &Mark| first.is_some_and(|first| first < mark.ticks);
        let mut starts = self.marks.iter().filter(|mark| mark.what == MarkKind::Start);
        self.has_pauses() || starts.any(is_late)
    }

    /// What to say of lanes that have blocks, but are not in the lane table. A process writes the
    /// table before it writes to the header how many blocks there are or that the recording is
    /// closed, and [`crate::lanes_file::adopt`] copies it. Before 2.4 it has no checksum.
    pub(super) fn untold_lanes(&self) -> Option<String> {
        let header = &self.header;
        let is_last = header.closed || header.lanes_shared;
        let is_written = |block: &BlockRef| is_last || block.header.seq < header.next_block;
        let untold = |lane: &&Lane| !lane.header.used && lane.blocks.iter().any(is_written);
        let untold = self.lanes.iter().filter(untold).count();
        let is_partial = header.copy && !header.lanes_shared;
        (untold != 0 && !is_partial).then(|| {
            format!("the lane table is missing or damaged: losses of {untold} lanes are not known")
        })
    }
}
