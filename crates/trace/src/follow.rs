// SPDX-License-Identifier: Apache-2.0
/*!
Reads a recording while it is written: each record once, soon after its block was written.

The number of a block shows whether it is new: the writer goes through the segments one after
another and counts its blocks. If it overtakes the reader, reading continues with the oldest
remaining block, and the blocks in between count as missed. The last records of a killed process
come from its lanes, as [`Recording`] finds them.

The follower writes nothing, and sends nothing to the process that it follows.
*/

use crate::clock::{ClockSync, TickMap};
use crate::codec::{BlockHeader, Decoder, HEADER, META_LANE};
use crate::cursor::Cursor;
use crate::define::{Definition, Definitions};
use crate::error::Error;
use crate::files::{open_to_read, read_up_to};
use crate::first_page::read_header;
use crate::handle::LANES;
use crate::identity::Identity;
use crate::lanes_file::{self, Owner};
use crate::layout::{
    BLOCKS, HEARTBEAT_SEGMENTS, HEARTBEATS, Header, LANE_STRIDE, LANE_TABLE, SEGMENT,
};
use crate::progress::Heartbeat;
use crate::reader::Recording;
use crate::record::Record;
use crate::schema::Schema;
use crate::scratch::LaneHeader;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Number of clock comparisons that are kept, for at least a quarter of an hour.
const SYNCS: usize = 1024;

#[derive(Clone, Copy)]
enum Ring {
    Events,
    Heartbeats,
}

/// A recording that is followed.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    file: File,
    header: Header,
    lanes: Vec<LaneHeader>,
    definitions: Definitions,
    identity: Identity,
    schema: Schema,
    blocks: Cursor,
    heartbeats: Cursor,
    syncs: Vec<ClockSync>,
    last_ticks: u64,
    end: Option<End>,
}

/// Something new in a recording.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A definition, except those of records, counters and the process's identity. It comes before
    /// the records that refer to it.
    Definition(Definition),
    /// The index of a lane and a record of it, in the lane's order.
    Record(usize, Record),
    /// How far the process has come.
    Heartbeat(Heartbeat),
}

/// How a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process closed it.
    Closed,
    /// The process was killed; the records in its lanes were read.
    Killed,
}

/// Blocks that were read and not decoded yet.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    blocks: Vec<(BlockHeader, Range<usize>)>,
}

impl Follower {
    /// Opens the recording `path`. The first [`Follower::poll`] reports what it already contains.
    ///
    /// # Errors
    /// [`Error`], if the file cannot be read or has no usable header.
    pub fn open(path: &Path) -> Result<Follower, Error> {
        let file = open_to_read(path)?;
        let (header, _) = read_header(&file)?;
        Ok(Follower {
            path: path.to_owned(),
            file,
            lanes: Vec::new(),
            definitions: Definitions::new(&header),
            identity: Identity::of(&header),
            schema: Schema::default(),
            blocks: Cursor::new(BLOCKS, header.segments),
            heartbeats: Cursor::new(HEARTBEATS, HEARTBEAT_SEGMENTS),
            header,
            syncs: Vec::new(),
            last_ticks: 0,
            end: None,
        })
    }

    /// Passes everything that is new to `news`; nothing, after the end of the recording.
    ///
    /// # Errors
    /// [`Error`], if the file cannot be read. The next call continues where this one ended.
    pub fn poll(&mut self, mut news: impl FnMut(News)) -> Result<(), Error> {
        if self.end.is_some() {
            return Ok(());
        }
        // The header first: if it says that the recording ended, the blocks that are read next are
        // the last.
        self.read_header()?;
        let end = self.how_it_ended();
        // Heartbeats are read before the events and reported after them, so that all operations
        // that they count are reported before.
        let heartbeats = self.read_blocks(Ring::Heartbeats, u64::MAX)?;
        self.read_events(u64::MAX, &mut news)?;
        self.tell(&heartbeats, &mut news);
        if end == Some(End::Killed) {
            self.recover(&mut news)?;
        }
        self.end = end;
        Ok(())
    }

    /// Passes new definitions, and the events of blocks with numbers below `end`, to `news`.
    /// [`Follower::poll`] then continues with block `end`.
    ///
    /// # Errors
    /// As [`Follower::poll`].
    pub fn poll_before(&mut self, end: u64, mut news: impl FnMut(News)) -> Result<(), Error> {
        self.read_header()?;
        self.read_events(end, &mut news)
    }

    /// The number of the block of events that is read next.
    #[must_use]
    pub fn next_block(&self) -> u64 {
        self.blocks.number()
    }

    fn read_events(&mut self, end: u64, news: &mut impl FnMut(News)) -> Result<(), Error> {
        // Bounded, because the writer may be faster than this reader.
        for _ in 0..=self.header.segments {
            let batch = self.read_blocks(Ring::Events, end)?;
            // The writer writes definitions before the blocks that refer to them.
            let defined = self.read_definitions(news);
            self.tell(&batch, news);
            defined?;
            if batch.blocks.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// How it ended; `None` while it continues, or if its end is unknown: a killed process without
    /// a lanes file only stops writing.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// False if the path now names another file, or none.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let (Ok(ours), Ok(there)) = (self.file.metadata(), std::fs::metadata(&self.path)) else {
            return false;
        };
        (ours.dev(), ours.ino()) == (there.dev(), there.ino())
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The header as of the last poll. The process writes it once a second.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The identity of its process, as far as it was read.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The headers of the lanes as of the last poll.
    #[must_use]
    pub fn lanes(&self) -> &[LaneHeader] {
        &self.lanes
    }

    /// Number of blocks that were overwritten or damaged before they were read.
    #[must_use]
    pub fn missed_blocks(&self) -> u64 {
        self.blocks.missed()
    }

    /// The map from ticks to time, exact for the recent past only.
    #[must_use]
    pub fn tick_map(&self) -> TickMap {
        TickMap::new(self.syncs.clone(), self.header.hz)
    }

    /// The latest time stamp known, in ticks. The process compares its clocks once a second, so
    /// that it grows while nothing happens.
    #[must_use]
    pub fn last_ticks(&self) -> u64 {
        self.last_ticks
    }

    fn read_header(&mut self) -> Result<(), Error> {
        // If the header is damaged, the last valid one is kept.
        if let Ok((header, _)) = read_header(&self.file) {
            self.header = Header { segments: self.header.segments, ..header };
        }
        let table = read_up_to(&self.file, LANE_TABLE, LANES * LANE_STRIDE)?;
        self.lanes = table.chunks(LANE_STRIDE).filter_map(LaneHeader::decode).collect();
        Ok(())
    }

    fn how_it_ended(&self) -> Option<End> {
        if self.header.closed {
            return Some(End::Closed);
        }
        let is_dead = self.header.lanes_shared || self.owner_is_gone().unwrap_or(false);
        is_dead.then_some(End::Killed)
    }

    /// True if no process holds the lock on the lanes file, which means that the process is dead.
    /// `None` if there is no readable lanes file of this recording.
    #[must_use]
    pub fn owner_is_gone(&self) -> Option<bool> {
        let lanes = lanes_file::open(self.header.lanes_file.as_ref()?).ok()?;
        let is_its = Owner::of(&lanes)?.wrote(&self.header);
        Some(is_its && lanes.try_lock_shared().is_ok())
    }

    /// Reads new blocks with numbers below `end`, up to about a segment of them.
    fn read_blocks(&mut self, ring: Ring, end: u64) -> Result<Batch, Error> {
        let mut batch = Batch::default();
        let (cursor, is_irregular, most) = match ring {
            Ring::Events => (&mut self.blocks, self.header.is_irregular(), SEGMENT),
            Ring::Heartbeats => {
                (&mut self.heartbeats, false, SEGMENT * u64::from(HEARTBEAT_SEGMENTS))
            }
        };
        while (batch.bytes.len() as u64) < most {
            let (header, bytes) = match cursor.next_before(end, &self.file, is_irregular) {
                Ok(Some(block)) => block,
                Err(error) if batch.blocks.is_empty() => return Err(error),
                // The blocks before the error are returned first.
                Ok(None) | Err(_) => break,
            };
            let start = batch.bytes.len();
            batch.bytes.extend_from_slice(bytes.get(HEADER..).unwrap_or(&[]));
            batch.blocks.push((header, start..batch.bytes.len()));
        }
        Ok(batch)
    }

    fn read_definitions(&mut self, news: &mut impl FnMut(News)) -> Result<(), Error> {
        let mut tell = |definition| match definition {
            Definition::Record(declaration) => self.schema.declare(&declaration),
            Definition::Identity { key, value } => self.identity.set(&key, &value),
            Definition::Counter(_) => {}
            other => news(News::Definition(other)),
        };
        while self.definitions.read(&self.file, &mut tell)? {}
        Ok(())
    }

    fn tell(&mut self, batch: &Batch, news: &mut impl FnMut(News)) {
        for (header, range) in &batch.blocks {
            let payload = batch.bytes.get(range.clone()).unwrap_or(&[]);
            let records: Vec<Record> = Decoder::new(header, payload, &self.schema).collect();
            for record in records {
                self.last_ticks = self.last_ticks.max(record.ticks());
                match record {
                    Record::ClockSync(sync) if header.lane == META_LANE => self.keep(sync),
                    Record::Heartbeat(heartbeat) if header.lane == META_LANE => {
                        news(News::Heartbeat(heartbeat))
                    }
                    record if usize::from(header.lane) < LANES => {
                        news(News::Record(usize::from(header.lane), record));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Keeps a clock comparison unless it is known: it may be in both rings.
    fn keep(&mut self, sync: ClockSync) {
        if self.syncs.last().is_some_and(|latest| latest.ticks >= sync.ticks) {
            return;
        }
        if self.syncs.len() >= 2 * SYNCS {
            self.syncs.drain(..SYNCS);
        }
        self.syncs.push(sync);
    }

    /// Reports the records in the lanes of a killed process, and its steps in flight.
    fn recover(&mut self, news: &mut impl FnMut(News)) -> Result<(), Error> {
        if !self.is_current() {
            return Ok(());
        }
        let recording = Recording::open(&self.path)?;
        for (index, lane) in recording.lanes().iter().enumerate() {
            let steps = lane.in_flight().iter().map(|step| Record::Step(*step));
            for record in lane.recovered_records().iter().copied().chain(steps) {
                news(News::Record(index, record));
            }
        }
        self.lanes = recording.lanes().iter().map(|lane| lane.header.clone()).collect();
        self.last_ticks = self.last_ticks.max(recording.last_ticks());
        Ok(())
    }
}
