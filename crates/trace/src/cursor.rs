// SPDX-License-Identifier: Apache-2.0
/*!
Reads a ring of blocks while it is written: each block once, by its number.

The writer does not always use the segments in the order of their places ([`crate::ring`]). If the
header says that it did not, the next block is searched in all segments.
*/

use crate::bytes::{u32_at, u64_at};
use crate::codec::{self, BlockHeader, HEADER};
use crate::error::Error;
use crate::files::read_up_to;
use crate::layout::SEGMENT;
use std::fs::File;

/// The expected place of the next block.
#[derive(Clone, Copy, Debug, Default)]
struct NextBlock {
    segment: u32,
    offset: u64,
    number: u64,
}

/// A ring, and the position up to which it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    base: u64,
    segments: u32,
    place: NextBlock,
    missed: u64,
}

impl Cursor {
    /// A cursor at the beginning of a ring of `segments` segments that begins at offset `base`.
    pub(crate) fn new(base: u64, segments: u32) -> Cursor {
        Cursor { base, segments, place: NextBlock::default(), missed: 0 }
    }

    /// Number of blocks that were overwritten or damaged before they were read.
    pub(crate) fn missed(&self) -> u64 {
        self.missed
    }

    /// The number of the block that is read next.
    pub(crate) fn number(&self) -> u64 {
        self.place.number
    }

    /// As [`Cursor::next`], but returns only blocks with a number below `end`.
    pub(crate) fn next_before(
        &mut self,
        end: u64,
        file: &File,
        is_irregular: bool,
    ) -> Result<Option<(BlockHeader, Vec<u8>)>, Error> {
        if self.place.number >= end {
            return Ok(None);
        }
        let before = *self;
        let next = self.next(file, is_irregular)?;
        if next.as_ref().is_none_or(|(header, _)| header.seq < end) {
            return Ok(next);
        }
        // All blocks before `end` were overwritten.
        let place = NextBlock { number: end, ..before.place };
        *self = Cursor { place, ..before };
        Ok(None)
    }

    /// The next block's header and bytes; `None` if it is not written yet.
    pub(crate) fn next(
        &mut self,
        file: &File,
        is_irregular: bool,
    ) -> Result<Option<(BlockHeader, Vec<u8>)>, Error> {
        if self.segments == 0 {
            return Ok(None);
        }
        let mut looked_again = false;
        loop {
            let NextBlock { segment, offset, number } = self.place;
            if let Some((header, bytes)) = self.block_at(file, segment, offset)?
                && header.seq == number
            {
                self.place.offset += bytes.len() as u64;
                self.place.number = number.saturating_add(1);
                return Ok(Some((header, bytes)));
            }
            let firsts = self.firsts(file, is_irregular)?;
            let latest = firsts.iter().map(|&(_, first)| first).max().unwrap_or(0);
            let own = firsts.iter().find(|(of, _)| *of == segment).map_or(0, |&(_, first)| first);
            let next = firsts.iter().find(|&&(of, first)| {
                first == number && number != 0 && (of, 0) != (segment, offset)
            });
            if let Some(&(segment, _)) = next {
                self.place = NextBlock { segment, offset: 0, number };
            } else if latest <= number {
                return Ok(None);
            } else if own <= number && !looked_again {
                // The block may have been written after it was looked for, and the next segment
                // begun since. So look once more.
                looked_again = true;
            } else if !self.catch_up(file)? {
                return Ok(None);
            }
        }
    }

    /// Segments with the number of their first block: the current segment, and those that may be
    /// next.
    fn firsts(&self, file: &File, is_irregular: bool) -> Result<Vec<(u32, u64)>, Error> {
        let own = self.place.segment;
        let mut firsts = Vec::new();
        if is_irregular {
            for segment in 0..self.segments {
                let head = read_up_to(file, self.at(segment, 0), HEADER)?;
                if head.starts_with(&codec::MAGIC.to_le_bytes()) {
                    firsts.extend(u64_at(&head, 16).map(|first| (segment, first)));
                }
            }
        } else {
            for segment in [(own + 1) % self.segments, own] {
                let block = self.block_at(file, segment, 0)?;
                firsts.extend(block.map(|(header, _)| (segment, header.seq)));
            }
        }
        Ok(firsts)
    }

    /// Moves to the oldest block that begins a segment and is new; false if there is none.
    fn catch_up(&mut self, file: &File) -> Result<bool, Error> {
        let mut oldest: Option<NextBlock> = None;
        for segment in 0..self.segments {
            let Some((header, _)) = self.block_at(file, segment, 0)? else { continue };
            let number = header.seq;
            if number > self.place.number && oldest.is_none_or(|o| number < o.number) {
                oldest = Some(NextBlock { segment, offset: 0, number });
            }
        }
        let Some(place) = oldest else { return Ok(false) };
        self.missed = self.missed.saturating_add(place.number - self.place.number);
        self.place = place;
        Ok(true)
    }

    /// The block at a place; `None` if there is none, or it is not whole.
    fn block_at(
        &self,
        file: &File,
        segment: u32,
        offset: u64,
    ) -> Result<Option<(BlockHeader, Vec<u8>)>, Error> {
        let at = self.at(segment, offset);
        let head = read_up_to(file, at, HEADER)?;
        let len = u32_at(&head, 8).unwrap_or(0);
        let room = SEGMENT.saturating_sub(offset);
        if !head.starts_with(&codec::MAGIC.to_le_bytes()) || u64::from(len) > room {
            return Ok(None);
        }
        let bytes = read_up_to(file, at, usize::try_from(len).unwrap_or(0))?;
        Ok(codec::parse(&bytes).ok().map(|(header, ..)| header).map(|header| (header, bytes)))
    }

    fn at(&self, segment: u32, offset: u64) -> u64 {
        self.base + u64::from(segment) * SEGMENT + offset
    }
}
