// SPDX-License-Identifier: Apache-2.0
//! Appends to a recording. One thread uses it: the writer thread, or a simulator.

use crate::clock::ClockSync;
use crate::codec::{Block, Encoder, KindCounts, META_LANE};
use crate::define::{Definition, LINK_BYTES, link};
use crate::files::{Files, read_around_holes};
use crate::handle::LANES;
use crate::layout::{
    BLOCKS, DEFINITIONS, EXTENT_HEAD, HEARTBEAT_SEGMENTS, HEARTBEATS, Header, LANE_STRIDE,
    LANE_TABLE, RING_LIMITS, SEGMENT, lanes_checksum,
};
use crate::pairs::AllPairs;
use crate::record::Record;
use crate::ring::{Held, Ring};
use crate::version::CURRENT;
use crate::{counters, schema};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// A recording that is being written.
///
/// After an error writing continues: records that could not be written are counted in the header,
/// and the error is returned so that the caller can report it once.
#[derive(Debug)]
pub struct Writer {
    pub(crate) file: File,
    pub(crate) files: Files,
    pub(crate) header: Header,
    encoder: Encoder,
    pub(crate) events: Ring,
    pub(crate) heartbeats: Ring,
    extent: Extent,
    /// Counts of the sends and receives of all blocks, including overwritten ones.
    pairs: AllPairs,
    /// The latest time stamp in the block ring.
    last_ticks: u64,
    /// Whether blocks were written since the last clock comparison.
    has_news: bool,
    scratch: Vec<u8>,
    /// Whether the records of this version are declared in the file.
    is_declared: bool,
}

/// The place of the next definition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// The segment; `None` for the part before the rings.
    segment: Option<u32>,
    at: u64,
    end: u64,
    /// A segment that is prepared for definitions, and to which no link was written yet.
    next: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Events,
    Heartbeats,
}

impl Writer {
    /// Creates the recording `path`, which must not exist, with a block ring of `ring_bytes`
    /// (rounded down to segments, kept within [`RING_LIMITS`]). `header` says which process
    /// records.
    ///
    /// # Errors
    /// An error of the system, if the file cannot be created or its first page cannot be written.
    pub fn create(path: &Path, header: Header, ring_bytes: u64) -> io::Result<Writer> {
        Writer::create_with(path, header, ring_bytes, Files::default())
    }

    /// As [`Writer::create`]; `files` opens the file and its copies.
    ///
    /// # Errors
    /// As [`Writer::create`].
    pub fn create_with(
        path: &Path,
        mut header: Header,
        ring_bytes: u64,
        files: Files,
    ) -> io::Result<Writer> {
        let bytes = ring_bytes.clamp(*RING_LIMITS.start(), *RING_LIMITS.end());
        header.segments = u32::try_from(bytes / SEGMENT).unwrap_or(u32::MAX);
        header.version = CURRENT;
        let file = files.create(path)?;
        let mut writer = Writer {
            file,
            files,
            encoder: Encoder::default(),
            events: Ring::new(BLOCKS, header.segments),
            heartbeats: Ring::new(HEARTBEATS, HEARTBEAT_SEGMENTS),
            extent: Extent { segment: None, at: DEFINITIONS, end: HEARTBEATS, next: None },
            pairs: AllPairs::default(),
            last_ticks: 0,
            has_news: true,
            scratch: Vec::new(),
            is_declared: false,
            header,
        };
        // The empty lane table, so that a reader of a fresh file finds all of the fixed parts.
        let begun = writer.file.set_len(DEFINITIONS);
        let begun = begun.and_then(|()| writer.file.write_all_at(&writer.header.encode(), 0));
        // A file with half a header is removed, because no reader could use it.
        begun.inspect_err(|_| drop(std::fs::remove_file(path)))?;
        // If the declarations do not fit on a full disk, they are written later.
        writer.is_declared = writer.declare().is_ok();
        Ok(writer)
    }

    /// Writes the declarations of the records and counters of this version.
    fn declare(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        schema::declarations().for_each(|it| Definition::Record(it.into()).encode(&mut bytes));
        counters::declarations().for_each(|it| Definition::Counter(it).encode(&mut bytes));
        self.file.write_all_at(&bytes, self.extent.at)?;
        self.count_definition(bytes.len() as u64);
        Ok(())
    }

    /// The file, for mapping its scratch.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// True if the file's name was removed: what is written is lost when the process ends.
    ///
    /// # Errors
    /// An error of the system.
    pub fn is_unlinked(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() == 0)
    }

    /// Continues with the descriptor `file`, which must be of the same file; returns the previous
    /// one.
    pub fn go_on_in(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }

    /// The header as it will be written next.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The header, to update counters; [`Writer::sync_header`] writes it.
    pub fn header_mut(&mut self) -> &mut Header {
        &mut self.header
    }

    /// Appends a definition. If the definitions already have half of the ring, it is counted as
    /// lost instead.
    ///
    /// # Errors
    /// An error of the system. The definition is then neither in the recording nor counted, and can
    /// be tried again.
    pub fn define(&mut self, definition: &Definition) -> io::Result<()> {
        if !self.is_declared {
            self.declare()?;
            self.is_declared = true;
        }
        self.scratch.clear();
        definition.encode(&mut self.scratch);
        let bytes = self.scratch.len() as u64;
        if self.extent.at + bytes + LINK_BYTES > self.extent.end && !self.extend()? {
            self.header.definitions_lost += 1;
            return Ok(());
        }
        // After a partial write the checksum is wrong, and the next attempt begins at the same
        // place.
        self.file.write_all_at(&self.scratch, self.extent.at)?;
        self.count_definition(bytes);
        Ok(())
    }

    fn count_definition(&mut self, bytes: u64) {
        self.extent.at += bytes;
        match self.extent.segment {
            None => self.header.definitions += bytes,
            Some(_) => self.header.more_definitions += bytes,
        }
    }

    /// Continues the definitions in a segment of the ring. False if they already have half of it.
    fn extend(&mut self) -> io::Result<bool> {
        let segment = match self.extent.next {
            Some(segment) => segment,
            None => {
                let Some(segment) = self.events.spare() else { return Ok(false) };
                // The segment's blocks are invalidated before a link leads there.
                self.file.write_all_at(&EXTENT_HEAD, self.events.place(segment))?;
                let held = self.events.give_away(segment);
                self.overwrote(&held);
                self.extent.next = Some(segment);
                segment
            }
        };
        self.file.write_all_at(&link(segment), self.extent.at)?;
        self.count_definition(LINK_BYTES);
        let begin = self.events.place(segment);
        let (at, end) = (begin + EXTENT_HEAD.len() as u64, begin + SEGMENT);
        self.extent = Extent { segment: Some(segment), at, end, next: None };
        Ok(true)
    }

    /// The offset of the end of the definitions in a segment that has some.
    pub(crate) fn definitions_end(&self, segment: u32) -> u64 {
        match self.extent {
            Extent { segment: Some(current), at, .. } if current == segment => at,
            _ => self.events.place(segment) + SEGMENT,
        }
    }

    /// Appends the whole records in `words`, taken from `lane` at position `first_pos`, as blocks.
    ///
    /// # Errors
    /// The first error of the system. The records of that block are counted as unwritten, and the
    /// rest is still written.
    pub fn append(&mut self, lane: u16, first_pos: u64, words: &[u64]) -> io::Result<()> {
        self.has_news |= !words.is_empty();
        self.append_to(To::Events, lane, first_pos, words)
    }

    /// Appends blocks, with one write for all that fit into a segment, because a write costs more
    /// than copying the few KiB of a block. Returns the number of blocks written, and the error
    /// that ended it: the other blocks can be appended again, or counted ([`Writer::lose`]).
    pub fn append_blocks(&mut self, blocks: &mut [Block]) -> (usize, io::Result<()>) {
        self.has_news |= !blocks.is_empty();
        self.write_blocks(To::Events, blocks)
    }

    /// Counts the records of blocks that will not be written.
    pub fn lose(&mut self, blocks: &[Block]) {
        for block in blocks {
            self.header.garbage_words += block.garbage;
            add(&mut self.header.unwritten, &block.counts);
        }
    }

    /// Appends whole heartbeat records ([`crate::Heartbeat`]), as one block if they fit. They have
    /// a separate ring, so that they never overwrite events.
    ///
    /// # Errors
    /// The first error of the system.
    pub fn append_heartbeats(&mut self, words: &[u64]) -> io::Result<()> {
        self.append_to(To::Heartbeats, META_LANE, 0, words)
    }

    /// Appends a clock comparison to the heartbeats, and also to the events if there were any since
    /// the last comparison, so that it is kept as long as these events.
    ///
    /// # Errors
    /// The first error of the system.
    pub fn append_clock(&mut self, sync: &ClockSync) -> io::Result<()> {
        let packed = Record::clock_sync(sync);
        let result = self.append_heartbeats(packed.words());
        if !std::mem::take(&mut self.has_news) {
            return result;
        }
        self.append_to(To::Events, META_LANE, 0, packed.words()).and(result)
    }

    /// Freezes the block ring: its content is kept, except the oldest quarter, which later blocks
    /// use as a ring. Called when a hang is found; further calls have no effect.
    pub fn freeze_events(&mut self) {
        if self.events.freeze() {
            self.header.freezes += 1;
        }
    }

    /// Ends the freeze: the block ring overwrites its oldest blocks again.
    pub fn thaw_events(&mut self) {
        self.events.thaw();
    }

    fn append_to(
        &mut self,
        to: To,
        lane: u16,
        mut first_pos: u64,
        mut words: &[u64],
    ) -> io::Result<()> {
        let mut result = Ok(());
        while let Some(mut block) = self.encoder.encode(lane, &mut first_pos, &mut words) {
            let (count, written) = self.write_blocks(to, std::slice::from_mut(&mut block));
            if count == 0 {
                self.lose(std::slice::from_ref(&block));
            }
            result = result.and(written);
        }
        result
    }

    fn ring(&mut self, of: To) -> &mut Ring {
        match of {
            To::Events => &mut self.events,
            To::Heartbeats => &mut self.heartbeats,
        }
    }

    /// Counts the blocks and records of a segment as overwritten.
    pub(crate) fn overwrote(&mut self, (blocks, records): &Held) {
        self.header.overwritten_blocks += blocks;
        add(&mut self.header.overwritten, records);
    }

    /// Writes blocks to the current segment, and to the next one when it is full, up to an error.
    /// Returns the number of blocks written.
    fn write_blocks(&mut self, to: To, mut blocks: &mut [Block]) -> (usize, io::Result<()>) {
        let (mut done, mut result) = (0, Ok(()));
        while let Some(first) = blocks.first() {
            if !self.ring(to).has_room(first.len()) {
                let held = self.ring(to).advance();
                if to == To::Events {
                    self.overwrote(&held);
                }
            }
            if to == To::Events && self.events.is_at_start() {
                let begun = self.write_pairs();
                result = result.and(begun);
            }
            let mut bytes = 0;
            let fits = |block: &&Block| {
                bytes += block.len();
                self.ring(to).has_room(bytes)
            };
            let count = blocks.iter().take_while(fits).count().max(1);
            let (now, later) = blocks.split_at_mut(count);
            if let Err(error) = self.write_side_by_side(to, now) {
                return (done, result.and(Err(error)));
            }
            (done, blocks) = (done + count, later);
        }
        (done, result)
    }

    /// Begins a segment with the counts of the sends and receives before it, if there are any, for
    /// readers of the recording's end. If the write fails, a reader counts them itself if it can.
    fn write_pairs(&mut self) -> io::Result<()> {
        let words = self.pairs.words(self.last_ticks);
        let block = self.encoder.encode(META_LANE, &mut 0, &mut &words[..]);
        block.map_or(Ok(()), |mut block| {
            self.write_side_by_side(To::Events, std::slice::from_mut(&mut block))
        })
    }

    /// Writes blocks to the current segment, which has room for them.
    fn write_side_by_side(&mut self, to: To, blocks: &mut [Block]) -> io::Result<()> {
        let (at, (first, epoch)) = (self.ring(to).at(), self.ring(to).next_block());
        self.scratch.clear();
        for (number, block) in (first..).zip(&mut *blocks) {
            self.scratch.extend_from_slice(block.placed(number, epoch));
        }
        self.file.write_all_at(&self.scratch, at)?;
        for block in blocks {
            self.header.garbage_words += block.garbage;
            self.ring(to).wrote(block.len(), &block.counts);
            if to == To::Events {
                self.pairs.add(&block.pairs);
                self.last_ticks = self.last_ticks.max(block.last_ticks);
            }
        }
        (self.header.next_block, _) = self.events.next_block();
        Ok(())
    }

    /// A copy of the writer's state, which is then given another file.
    ///
    /// # Errors
    /// An error of the system, if it has no file descriptor left.
    pub(crate) fn twin(&self) -> io::Result<Writer> {
        Ok(Writer {
            file: (self.files.duplicate)(&self.file)?,
            files: self.files,
            header: self.header.clone(),
            encoder: Encoder::default(),
            events: self.events.clone(),
            heartbeats: self.heartbeats.clone(),
            extent: self.extent,
            pairs: self.pairs.clone(),
            last_ticks: self.last_ticks,
            has_news: false,
            scratch: Vec::new(),
            is_declared: self.is_declared,
        })
    }

    /// Writes a lane header; for lanes that are not in this file.
    ///
    /// # Errors
    /// An error of the system.
    pub fn write_lane(&mut self, lane: usize, bytes: &[u8; LANE_STRIDE]) -> io::Result<()> {
        self.file.write_all_at(bytes, LANE_TABLE + (lane * LANE_STRIDE) as u64)
    }

    /// Writes the header with its counters; of a recording that is closed or has its lanes also the
    /// checksum of the lane table, which must not change afterwards.
    ///
    /// # Errors
    /// An error of the system.
    pub fn sync_header(&mut self) -> io::Result<()> {
        if self.header.closed || self.header.lanes_shared {
            let table = read_around_holes(&self.file, LANE_TABLE, LANES * LANE_STRIDE);
            self.header.lanes_checksum = table.ok().map(|table| lanes_checksum(&table));
        }
        self.file.write_all_at(&self.header.encode(), 0)
    }

    /// The end of the blocks; after it there is only scratch, or unused space.
    #[must_use]
    pub fn blocks_end(&self) -> u64 {
        self.events.end()
    }
}

fn add(to: &mut KindCounts, from: &KindCounts) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}
