// SPDX-License-Identifier: Apache-2.0
//! Reads the part of a recording before its end ([`Recording::open_end`]) without keeping it.

use super::{DECODED, Recording};
use crate::bytes::u64_at;
use crate::codec::{BlockHeader, Decoder, HEADER};
use crate::error::Error;
use crate::files::read_up_to;
use crate::layout::{BLOCKS, SEGMENT};
use crate::pairs::PairCount;
use crate::record::Record;
use crate::segment_blocks::{Found, SegmentBlocks};
use crate::segments::{
    MissingBlocks, RingSegments, in_short, missing_blocks, segments_to_read, torn,
};
use std::sync::atomic::Ordering::Relaxed;

/// The outcome of [`Recording::visit_older`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OlderPart {
    /// All records were read, from the recording's first on.
    pub is_complete: bool,
    /// The damage, in a few lines.
    pub problems: Vec<String>,
}

impl Recording {
    /// False if [`Recording::open_end`] left out older segments of the block ring.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.part.is_none()
    }
    /// Bytes of the block ring that were read, and all its bytes; `None` if no segment was left
    /// out. Of segments that are left out only the first blocks' headers are checked.
    #[must_use]
    pub fn part(&self) -> Option<(u64, u64)> {
        self.part
    }

    /// Counts of the sends and receives before the first block that was read, including overwritten
    /// ones. `None` if the recording does not have them, or if blocks are missing between those
    /// that were read.
    #[must_use]
    pub fn pairs_before(&self) -> Option<&[PairCount]> {
        let (&first, &last) = (self.block_numbers.first()?, self.block_numbers.last()?);
        if !self.block_numbers.iter().copied().eq(first..=last) {
            return None;
        }
        if first == 0 {
            return Some(&[]);
        }
        let (number, pairs) = self.pairs.as_ref()?;
        (*number == first).then_some(pairs)
    }

    /// Keeps the counts of the lowest-numbered block that has some, if all of its records can be
    /// read.
    pub(super) fn keep_pairs(&mut self, number: u64, pairs: Vec<PairCount>, left: u32) {
        let is_first = self.pairs.as_ref().is_none_or(|(first, _)| number < *first);
        if is_first && left == 0 && !pairs.is_empty() {
            self.pairs = Some((number, pairs));
        }
    }

    /// Passes the records that [`Recording::open_end`] left out to `each`, in no order; only those
    /// of lanes that started events of `kinds`. Each block is read once, and blocks of other lanes
    /// are not decoded.
    ///
    /// # Errors
    /// [`Error`], if the file cannot be read.
    pub fn visit_older(
        &self,
        kinds: u32,
        mut each: impl FnMut(&Record),
    ) -> Result<OlderPart, Error> {
        let mut part = OlderPart::default();
        if self.is_whole() {
            part.is_complete = self.block_numbers.first().is_none_or(|&first| first == 0);
            return Ok(part);
        }
        let Some(&end) = self.block_numbers.first() else { return Ok(part) };
        let file = self.file.get()?;
        let RingSegments { places, .. } =
            segments_to_read(&file, BLOCKS, self.header.segments, usize::MAX)?;
        let (mut numbers, mut unreadable) = (Vec::new(), 0);
        for segment in places {
            let at = BLOCKS + segment * SEGMENT;
            let head = read_up_to(&file, at, HEADER)?;
            if u64_at(&head, 16).is_some_and(|first| first >= end) {
                continue;
            }
            let bytes = read_up_to(&file, at, usize::try_from(SEGMENT).unwrap_or(0))?;
            for found in SegmentBlocks::new(&bytes) {
                match found {
                    Found::Block(_, _, header, payload) if header.seq < end => {
                        numbers.push(header.seq);
                        unreadable += self.decode_older(&header, payload, kinds, &mut each);
                    }
                    Found::Block(..) => {}
                    Found::Torn(byte, lost) => {
                        let text = torn(segment, at + byte as u64, lost);
                        // The part that was read at opening may begin in this segment, so its
                        // damage may be known.
                        part.problems.extend((!self.problems.contains(&text)).then_some(text));
                    }
                }
            }
        }
        numbers.push(end);
        let newest = self.epochs.map_or(0, |(_, newest)| newest);
        let missing = missing_blocks(&mut numbers, newest, &self.header, true);
        part.problems.extend(MissingBlocks { last: 0, ..missing }.lines());
        part.problems = in_short(&part.problems, unreadable);
        part.is_complete = part.problems.is_empty() && numbers.into_iter().eq(0..=end);
        Ok(part)
    }

    /// Decodes a block's records. Returns how many of them cannot be read.
    fn decode_older(
        &self,
        header: &BlockHeader,
        payload: &[u8],
        kinds: u32,
        each: &mut impl FnMut(&Record),
    ) -> u64 {
        let lane = self.lanes.get(usize::from(header.lane));
        if lane.is_none_or(|lane| lane.header.kinds & kinds == 0) {
            return 0;
        }
        DECODED.fetch_add(1, Relaxed);
        let mut records = Decoder::new(header, payload, &self.schema);
        records.by_ref().for_each(|record| each(&record));
        records.left().into()
    }
}
