// SPDX-License-Identifier: Apache-2.0
//! Appends to a recording. Used by one thread: the drain thread, or a simulator.

use crate::codec::{BlockHeader, Encoder, KindCounts, MAX_BLOCK_WORDS};
use crate::define::Definition;
use crate::dump::Checkpoint;
use crate::kind::KINDS;
use crate::layout::{BLOCKS, DEFINITIONS, Header, LANE_STRIDE, LANE_TABLE, SEGMENT};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The least and the most that a block ring may hold, in bytes.
pub const RING_LIMITS: std::ops::RangeInclusive<u64> = 4 * SEGMENT..=1 << 40;

/// A recording that is being written.
///
/// Writing never fails as a whole: what could not be written is counted in the header, and the
/// error is returned so that it can be told once.
#[derive(Debug)]
pub struct Writer {
    pub(crate) file: File,
    pub(crate) header: Header,
    encoder: Encoder,
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    pub(crate) epoch: u32,
    held: Vec<KindCounts>,
    scratch: Vec<u8>,
}

impl Writer {
    /// Creates the recording `path`, which must not exist, with a block ring of `ring_bytes`
    /// (rounded down to segments, kept within [`RING_LIMITS`]). `header` says who records.
    ///
    /// # Errors
    /// The system's, if the file cannot be created or its first page not be written.
    pub fn create(path: &Path, mut header: Header, ring_bytes: u64) -> io::Result<Writer> {
        let bytes = ring_bytes.clamp(*RING_LIMITS.start(), *RING_LIMITS.end());
        header.segments = u32::try_from(bytes / SEGMENT).unwrap_or(u32::MAX);
        // Others may read it where the directory and the umask let them, and never write to it.
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(path)?;
        let writer = Writer {
            file,
            encoder: Encoder::default(),
            segment: 0,
            offset: 0,
            epoch: 0,
            held: vec![[0; KINDS]; usize::try_from(header.segments).unwrap_or(0)],
            scratch: Vec::new(),
            header,
        };
        // The empty lane table, so that a reader of a fresh file finds all of the fixed parts.
        let begun = writer.file.set_len(DEFINITIONS);
        let begun = begun.and_then(|()| writer.file.write_all_at(&writer.header.encode(), 0));
        if let Err(error) = begun {
            // Half a header would only puzzle a reader.
            let _ = std::fs::remove_file(path);
            return Err(error);
        }
        Ok(writer)
    }

    /// The file, for mapping its scratch.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// True if the file's name was removed: what is written is lost when the process ends.
    ///
    /// # Errors
    /// The system's.
    pub fn is_unlinked(&self) -> io::Result<bool> {
        Ok(std::os::unix::fs::MetadataExt::nlink(&self.file.metadata()?) == 0)
    }

    /// Goes on in `file`, which must lead to the same; returns the one before.
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

    /// Appends a definition.
    ///
    /// # Errors
    /// The system's; the definition is then lost and counted, as when the area is full (which is
    /// no error).
    pub fn define(&mut self, definition: &Definition) -> io::Result<()> {
        self.scratch.clear();
        definition.encode(&mut self.scratch);
        let at = DEFINITIONS + self.header.definitions;
        if at + self.scratch.len() as u64 > BLOCKS {
            self.header.definitions_lost += 1;
            return Ok(());
        }
        match self.file.write_all_at(&self.scratch, at) {
            Ok(()) => {
                self.header.definitions += self.scratch.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.header.definitions_lost += 1;
                Err(error)
            }
        }
    }

    /// Appends the whole records in `words`, taken from `lane` at position `first_pos`, as blocks.
    ///
    /// # Errors
    /// The first error of the system; the records of the block are then counted as unwritten, and
    /// the rest is tried all the same.
    pub fn append(&mut self, lane: u16, mut first_pos: u64, mut words: &[u64]) -> io::Result<()> {
        let mut result = Ok(());
        while !words.is_empty() {
            let part = words.get(..MAX_BLOCK_WORDS).unwrap_or(words);
            let (used, garbage) = self.encode(lane, first_pos, part);
            if let Err(error) = self.write_block()
                && result.is_ok()
            {
                result = Err(error);
            }
            // A part that was cut in mid-record only shows up as unused words.
            let skip = if part.len() == words.len() { part.len() } else { used + garbage };
            self.header.garbage_words += garbage as u64;
            let Some(rest) = words.get(skip.max(1)..) else { break };
            words = rest;
            first_pos = first_pos.wrapping_add(skip.max(1) as u64);
        }
        result
    }

    /// Encodes for the current segment, or for the next one where it does not fit.
    fn encode(&mut self, lane: u16, first_pos: u64, words: &[u64]) -> (usize, usize) {
        let mut header = BlockHeader {
            epoch: self.epoch,
            seq: self.header.next_block,
            lane,
            first_pos,
            ..BlockHeader::default()
        };
        let sizes = self.encoder.encode(header, words);
        if self.offset + self.encoder.block().len() as u64 <= SEGMENT {
            return sizes;
        }
        self.next_segment();
        header.epoch = self.epoch;
        self.encoder.encode(header, words)
    }

    fn next_segment(&mut self) {
        self.segment = (self.segment + 1) % self.header.segments;
        self.offset = 0;
        self.epoch = self.epoch.wrapping_add(1);
        self.forget(self.segment);
    }

    /// Counts what a segment held as overwritten.
    pub(crate) fn forget(&mut self, segment: u32) {
        if let Some(held) = self.held.get_mut(segment as usize) {
            add(&mut self.header.overwritten, held);
            *held = [0; KINDS];
        }
    }

    /// The recording as it is now, to be copied while it goes on. Everything that belongs to it
    /// must have been appended, and the lane table written.
    ///
    /// # Errors
    /// The system's, if it has no file descriptor left.
    pub fn checkpoint(&self) -> io::Result<Checkpoint> {
        let at = Writer {
            file: self.file.try_clone()?,
            header: self.header.clone(),
            encoder: Encoder::default(),
            segment: self.segment,
            offset: self.offset,
            epoch: self.epoch,
            held: self.held.clone(),
            scratch: Vec::new(),
        };
        Ok(Checkpoint::new(self.file.try_clone()?, at))
    }

    fn write_block(&mut self) -> io::Result<()> {
        let block = self.encoder.block();
        let at = BLOCKS + u64::from(self.segment) * SEGMENT + self.offset;
        if let Err(error) = self.file.write_all_at(block, at) {
            add(&mut self.header.unwritten, self.encoder.counts());
            return Err(error);
        }
        self.offset += block.len() as u64;
        self.header.next_block += 1;
        if let Some(held) = self.held.get_mut(self.segment as usize) {
            add(held, self.encoder.counts());
        }
        Ok(())
    }

    /// Writes a lane header; for lanes that do not live in the file.
    ///
    /// # Errors
    /// The system's.
    pub fn write_lane(&mut self, lane: usize, bytes: &[u8; LANE_STRIDE]) -> io::Result<()> {
        self.file.write_all_at(bytes, LANE_TABLE + (lane * LANE_STRIDE) as u64)
    }

    /// Writes the header with its counters.
    ///
    /// # Errors
    /// The system's.
    pub fn sync_header(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.header.encode(), 0)
    }

    /// Where the blocks end: what is behind it is scratch, or room never used.
    #[must_use]
    pub fn blocks_end(&self) -> u64 {
        let wrapped = u64::from(self.epoch) >= u64::from(self.header.segments);
        let last = if wrapped { self.header.segments - 1 } else { self.segment };
        let within = if wrapped { SEGMENT } else { self.offset };
        BLOCKS + u64::from(last) * SEGMENT + within
    }
}

fn add(to: &mut KindCounts, from: &KindCounts) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}
