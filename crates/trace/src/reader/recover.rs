// SPDX-License-Identifier: Apache-2.0
//! What the lanes of a process hold that is in no block of its recording.

use super::{Lane, Recording, Ring, Scratch};
use crate::bytes::u64_at;
use crate::error::Error;
use crate::files::read_up_to;
use crate::handle::LANES;
use crate::layout::{RING_BYTES, SLAB_BYTES, SLABS, SLOT_BYTES};
use crate::record::Record;
use crate::scratch::{latest_start, ring_records, slot_steps};
use std::sync::OnceLock;

/// A process writes a record of its own at least once a second. Lanes that are newer by more than
/// this are of another time, ns.
const NEWER_NS: f64 = 2e9;

impl Recording {
    pub(super) fn recover(
        &mut self,
        scratch: Option<&Scratch>,
        rings: &[Ring],
    ) -> Result<(), Error> {
        let (mut torn, mut hidden, mut freed) = (0_u64, 0_u64, 0_u64);
        // After a freeze, newer blocks of a lane may be overwritten while older ones remain.
        let goes_in_order = self.header.freezes == 0;
        let is_whole = self.block_numbers.contains(&0);
        for (index, ring) in rings {
            let lane = &mut self.lanes[*index];
            let in_blocks = lane.blocks.iter().map(|b| b.header.next_pos).max();
            if goes_in_order && (is_whole || in_blocks.is_some()) {
                freed =
                    lane.header.tail.saturating_sub(in_blocks.unwrap_or(0)).saturating_add(freed);
            }
            let from = in_blocks.unwrap_or(0).max(lane.header.tail);
            if lane.header.hides(from) {
                hidden = lane.header.head.saturating_sub(from).saturating_add(hidden);
                continue;
            }
            let (records, torn_words) = ring_records(ring, from, lane.header.head, &self.schema);
            torn = torn_words.saturating_add(torn);
            lane.recovered = records;
        }
        if freed != 0 {
            self.leave_out_newer();
        }
        if let Some(scratch) = scratch.filter(|_| !self.is_older) {
            self.read_slots(scratch)?;
        }
        if !self.header.closed {
            let text = self.how_it_ended(scratch.is_some(), torn, (hidden, freed));
            self.problems.insert(0, text);
        }
        Ok(())
    }

    /// Leaves out what the lanes hold if it is much newer than the recording, and what came in
    /// between is missing: counts up to one end and up to the other do not belong together.
    fn leave_out_newer(&mut self) {
        let first = self.lanes.iter().filter_map(|lane| lane.recovered.first().map(Record::ticks));
        let apart = first.min().unwrap_or(0).saturating_sub(self.last_own);
        self.is_older = self.last_own != 0 && self.tick_map().duration_ns(apart) > NEWER_NS;
        if self.is_older {
            self.lanes.iter_mut().for_each(|lane| lane.recovered.clear());
        }
    }

    /// Whether the recording is a copy that was made while its process ran: by `dump`, or by other
    /// means some time before the process ended, as what is left of the lanes shows. A recording
    /// whose disk took no more before the process ended looks alike.
    #[must_use]
    pub fn is_copy(&self) -> bool {
        self.header.copy || self.is_older
    }

    fn how_it_ended(&self, has_scratch: bool, torn: u64, (hidden, freed): (u64, u64)) -> String {
        let mut text = format!(
            "not closed: process {} was killed, still runs, or could not write; ",
            self.header.pid
        );
        if self.is_older {
            text += "it was copied before that, or its disk took no more: what its lanes hold is \
                     seconds newer, and left out, and what came in between is missing";
        } else if has_scratch {
            let records: usize = self.lanes.iter().map(Lane::recovered).sum();
            let steps: usize = self.lanes.iter().map(|l| l.in_flight.len()).sum();
            text +=
                &format!("{records} records taken from its lanes, {steps} network steps in flight");
            if torn != 0 {
                text += &format!(", torn tail of {torn} words left out");
            }
            if hidden != 0 {
                text += &format!(", {hidden} words in private memory lost");
            }
            if freed != 0 {
                text += &format!(", {freed} words that were not written in time lost");
            }
        } else if let Some(file) = &self.header.lanes_file {
            text += &format!(
                "its lanes, {} on {}, are not here, so up to the last 250 ms are missing",
                file.display(),
                self.header.host
            );
            text += &self.what_else_is_unknown();
        } else {
            text += "its lanes were in no file, so the last 10 to 80 ms are missing";
            text += &self.what_else_is_unknown();
        }
        text
    }

    /// A disk that takes no more takes no count of it either.
    fn what_else_is_unknown(&self) -> String {
        let age = self.last_own.saturating_sub(self.syncs.first().map_or(0, |sync| sync.ticks));
        let age = self.tick_map().duration_ns(age) / 1e9;
        format!(
            ", if its disk took all; its last block is of {age:.1} s after its start, and what \
             came later is unknown"
        )
    }

    fn read_slots(&mut self, scratch: &Scratch) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let slabs = scratch.rings + (LANES * RING_BYTES) as u64;
        for slab in 0..SLABS {
            let slab = read_up_to(&scratch.file, slabs + (slab * SLAB_BYTES) as u64, SLAB_BYTES)?;
            if slab.is_empty() {
                break;
            }
            bytes.extend(slab);
        }
        let last =
            bytes.chunks(SLOT_BYTES).fold(self.latest(), |last, slot| latest_start(slot, last));
        self.last_ticks = OnceLock::from(last);
        for slot in bytes.chunks(SLOT_BYTES) {
            let steps = slot_steps(slot, last);
            let handle = crate::Handle(u64_at(slot, 0).unwrap_or(0));
            self.lanes[handle.lane()].in_flight.extend(steps);
        }
        Ok(())
    }
}
