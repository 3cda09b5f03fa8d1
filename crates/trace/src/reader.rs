// SPDX-License-Identifier: Apache-2.0
/*!
Reads a recording of a process that exited, was killed, or still runs.

Opening indexes the blocks; records are decoded lane by lane on request. Damaged parts are omitted
and named in [`Recording::problems`]; only a file without a usable header is an error.
*/

mod clock;
mod later;
mod lost;
mod older;
mod recover;
mod span;

pub use older::OlderPart;

use crate::clock::ClockSync;
use crate::codec::{self, BlockHeader, Decoder, META_LANE};
use crate::counters::{Counter, of_later_versions};
use crate::define::{Comm, CommDevice, Definition, Definitions, StrId};
use crate::error::Error;
use crate::files::{read_around_holes, read_up_to};
use crate::first_page::read_header;
use crate::handle::LANES;
use crate::identity::Identity;
use crate::lanes_file::{self, Owner};
use crate::layout::{
    BLOCKS, HEARTBEAT_SEGMENTS, HEARTBEATS, Header, LANE_STRIDE, LANE_TABLE, RING_BYTES, SEGMENT,
    lanes_checksum,
};
use crate::mark::Mark;
use crate::pairs::PairCount;
use crate::progress::Heartbeat;
use crate::record::{Record, Step};
use crate::schema::{Declaration, Schema};
use crate::scratch::LaneHeader;
use crate::segment_blocks::{Found, SegmentBlocks};
use crate::segments::{
    Head, RingSegments, damage_before, in_short, missing_blocks, segments_to_read, torn,
};
use crate::source::Source;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Blocks of lanes whose records this process decoded.
static DECODED: AtomicU64 = AtomicU64::new(0);

/// Number of blocks of lanes that this process decoded, without those decoded only for their latest
/// time stamp. For the test that each verb decodes each block once, and for progress.
#[doc(hidden)]
pub fn decoded_blocks() -> u64 {
    DECODED.load(Relaxed)
}

/// An open recording.
#[derive(Debug)]
pub struct Recording {
    file: Source,
    header: Header,
    /// Indexed by string id, because names are looked up several times for each operation.
    strings: Vec<Option<String>>,
    comms: Vec<Comm>,
    comm_ends: HashMap<u16, u64>,
    comm_devices: HashMap<u16, CommDevice>,
    notes: Vec<String>,
    lanes: Vec<Lane>,
    syncs: Vec<ClockSync>,
    marks: Vec<Mark>,
    heartbeats: Vec<Heartbeat>,
    hangs: Vec<(u64, String)>,
    identity: Identity,
    roles: HashMap<u64, String>,
    schema: Schema,
    declared: Vec<Arc<Declaration>>,
    counters: Vec<Counter>,
    later_counters: BTreeMap<String, u64>,
    unknown: BTreeMap<u8, u64>,
    problems: Vec<String>,
    has_hole: bool,
    /// See [`Recording::is_copy`].
    is_older: bool,
    /// The latest time stamp in blocks of [`META_LANE`], in ticks.
    last_own: u64,
    /// The latest time stamp of all records, in ticks.
    last_ticks: OnceLock<u64>,
    block_numbers: Vec<u64>,
    /// The first block with counts of sends and receives: its number, and the counts.
    pairs: Option<(u64, Vec<PairCount>)>,
    /// Number of records that blocks announce and that cannot be read.
    unreadable: AtomicU64,
    /// Most segments of the block ring that are read; the newest ones.
    most_segments: usize,
    /// Bytes of the segments of the block ring that are read, and of all; `None` if none is left
    /// out.
    part: Option<(u64, u64)>,
    /// The oldest and the newest epoch of the blocks that were read.
    epochs: Option<(u32, u32)>,
}

/// One lane of a recording.
#[derive(Debug, Default)]
pub struct Lane {
    /// Its header: kinds seen and losses.
    pub header: LaneHeader,
    blocks: Vec<BlockRef>,
    /// The latest time stamp of its last block, in ticks; computed on first use.
    last: OnceLock<u64>,
    recovered: Vec<Record>,
    in_flight: Vec<Step>,
}

impl Lane {
    /// Its number of blocks in the file.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }
    /// The bytes of these blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.len as u64).sum()
    }
    /// The records that these blocks announce.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.header.records)).sum()
    }
    /// Records that were in no block yet and were taken from the lane itself.
    #[must_use]
    pub fn recovered(&self) -> usize {
        self.recovered.len()
    }
    pub(crate) fn recovered_records(&self) -> &[Record] {
        &self.recovered
    }
    /// Steps that had started and not stopped when the process ended.
    #[must_use]
    pub fn in_flight(&self) -> &[Step] {
        &self.in_flight
    }
}

/// The lanes of a process that did not close its recording.
#[derive(Debug)]
struct Scratch {
    file: File,
    table: u64,
    rings: u64,
}

/// A lane's number, and the bytes of its ring.
type Ring = (usize, Vec<u8>);

#[derive(Debug, Clone, Copy)]
struct BlockRef {
    at: u64,
    len: usize,
    header: BlockHeader,
}

impl Recording {
    /// Opens the recording `path`.
    ///
    /// # Errors
    /// [`Error`], if the file cannot be read or has no usable header.
    pub fn open(path: &Path) -> Result<Recording, Error> {
        Recording::open_end(path, usize::MAX)
    }

    /// Opens the end of the recording `path`: the newest `segments` segments of its block ring, and
    /// all that is outside of that ring.
    ///
    /// # Errors
    /// As [`Recording::open`].
    pub fn open_end(path: &Path, segments: usize) -> Result<Recording, Error> {
        let file = Source::open(path)?;
        let (header, page) = read_header(&*file.get()?)?;
        let mut recording = Recording {
            file,
            strings: Vec::new(),
            comms: Vec::new(),
            comm_ends: HashMap::new(),
            comm_devices: HashMap::new(),
            notes: Vec::new(),
            lanes: Vec::new(),
            syncs: Vec::new(),
            marks: Vec::new(),
            heartbeats: Vec::new(),
            hangs: Vec::new(),
            identity: Identity::of(&header),
            header,
            roles: HashMap::new(),
            schema: Schema::default(),
            declared: Vec::new(),
            counters: Vec::new(),
            later_counters: BTreeMap::new(),
            unknown: BTreeMap::new(),
            problems: Vec::new(),
            has_hole: false,
            is_older: false,
            last_own: 0,
            last_ticks: OnceLock::new(),
            block_numbers: Vec::new(),
            pairs: None,
            unreadable: AtomicU64::new(0),
            most_segments: segments,
            part: None,
            epochs: None,
        };
        recording.lanes.resize_with(LANES, Lane::default);
        // The scratch first: records that a live process moves to blocks meanwhile are then read
        // twice instead of not at all, and their positions show the duplicates.
        let scratch = recording.scratch()?;
        let (table, rings) = recording.read_lanes(scratch.as_ref())?;
        recording.read_definitions()?;
        recording.later_counters = of_later_versions(&recording.counters, &page, &table);
        recording.index_blocks()?;
        recording.recover(scratch.as_ref(), &rings)?;
        recording.rest();
        Ok(recording)
    }

    /// Frees what is not needed between reads, because a run may have very many recordings.
    fn rest(&mut self) {
        let is_used = |lane: &Lane| {
            lane.header != LaneHeader::default() || LaneParts { lane, next: 0 }.begins().is_some()
        };
        self.lanes.truncate(self.lanes.iter().rposition(is_used).map_or(0, |last| last + 1));
        self.lanes.shrink_to_fit();
        self.file.rest();
    }

    /// Reads the lane table's bytes, and the rings of lanes that were used.
    fn read_lanes(&mut self, scratch: Option<&Scratch>) -> Result<(Vec<u8>, Vec<Ring>), Error> {
        let own = self.file.get()?;
        let (file, at) = scratch.map_or((&*own, LANE_TABLE), |s| (&s.file, s.table));
        let mut table = read_around_holes(file, at, LANES * LANE_STRIDE)?;
        let is_wrong = |expected| expected != lanes_checksum(&table);
        if self.header.lanes_checksum.is_some_and(is_wrong) {
            let text = "counts of lost events and numbers of threads may be wrong";
            self.problems.push(format!("the lane table is missing or damaged: {text}"));
        }
        table.resize(table.len().next_multiple_of(LANE_STRIDE), 0);
        let mut rings = Vec::new();
        for (index, bytes) in table.chunks(LANE_STRIDE).enumerate() {
            let Some(header) = LaneHeader::decode(bytes) else { break };
            if let Some(scratch) = scratch.filter(|_| header.used) {
                let at = scratch.rings + (index * RING_BYTES) as u64;
                rings.push((index, read_up_to(&scratch.file, at, RING_BYTES)?));
            }
            if header.is_damaged {
                let text = "its counts of lost events are impossible, and left out";
                self.problems.push(format!("lane {index} is damaged: {text}"));
            }
            self.lanes[index].header = header;
        }
        Ok((table, rings))
    }

    /// The file and offsets of the lanes; `None` if the recording is closed, or they are not
    /// available.
    fn scratch(&mut self) -> Result<Option<Scratch>, Error> {
        let beside = self.lanes_file();
        if beside.is_none() && self.header.lanes_file.is_some() {
            // Another process may just have moved the lanes into the recording.
            (self.header, _) = read_header(&*self.file.get()?)?;
        }
        let header = &self.header;
        if header.closed {
            return Ok(None);
        }
        if header.lanes_shared {
            let (file, rings) = (self.file.get()?.try_clone()?, header.scratch_offset());
            return Ok(Some(Scratch { file, table: LANE_TABLE, rings }));
        }
        let (table, rings) = (lanes_file::TABLE, lanes_file::RINGS);
        Ok(beside.map(|file| Scratch { file, table, rings }))
    }

    fn lanes_file(&self) -> Option<File> {
        let file = lanes_file::open(self.header.lanes_file.as_ref()?).ok()?;
        let owner = Owner::of(&file)?;
        owner.wrote(&self.header).then_some(file)
    }

    fn read_definitions(&mut self) -> Result<(), Error> {
        // The length in the header may be out of date; the checksums show where the definitions
        // end.
        let mut definitions = Definitions::new(&self.header);
        let file = self.file.get()?.try_clone()?;
        let mut places = HashMap::new();
        let mut keep = |definition| self.define(definition, &mut places);
        while definitions.read(&file, &mut keep)? {}
        let expected = [self.header.definitions, self.header.more_definitions];
        let pairs = expected.iter().zip(definitions.read);
        let missing: u64 = pairs.map(|(expected, read)| expected.saturating_sub(read)).sum();
        if missing != 0 {
            self.problems.push(format!("{missing} bytes of definitions are missing or damaged"));
        }
        if self.identity.replaces.is_some() {
            let text = "what came before is missing: the first file was removed while written";
            self.problems.push(text.into());
        }
        Ok(())
    }

    /// Keeps a definition; `places` maps [`Comm::index`] to the index in `comms`.
    fn define(&mut self, definition: Definition, places: &mut HashMap<u16, usize>) {
        match definition {
            Definition::String { id, text } => {
                let at = usize::from(id.0);
                if at >= self.strings.len() {
                    self.strings.resize(at + 1, None);
                }
                self.strings[at] = Some(text);
            }
            // The writer defines a communicator again when it knows more about it.
            Definition::Comm(comm) => {
                let place = *places.entry(comm.index).or_insert(self.comms.len());
                match self.comms.get_mut(place) {
                    Some(known) => *known = comm,
                    None => self.comms.push(comm),
                }
            }
            Definition::CommEnd { index, ticks } => {
                self.comm_ends.insert(index, ticks);
            }
            Definition::CommDevice(device) => {
                self.comm_devices.insert(device.comm, device);
            }
            Definition::Note(text) => self.notes.push(text),
            Definition::Role { hash, text } => {
                self.roles.insert(hash, text);
            }
            Definition::Hang { ticks, text } => self.hangs.push((ticks, text)),
            Definition::Identity { key, value } => self.identity.set(&key, &value),
            Definition::Record(declaration) => {
                self.schema.declare(&declaration);
                self.declared.push(declaration);
            }
            Definition::Counter(counter) => self.counters.push(counter),
        }
    }

    fn index_blocks(&mut self) -> Result<(), Error> {
        // Blocks of heartbeats are numbered separately.
        self.index_ring(HEARTBEATS, HEARTBEAT_SEGMENTS, usize::MAX)?;
        self.block_numbers.clear();
        (self.pairs, self.epochs) = (None, None);
        let all = self.index_ring(BLOCKS, self.header.segments, self.most_segments)?;
        if let Some((all, epochs)) = all.zip(self.epochs) {
            self.problems.extend(damage_before(&all, epochs, &self.header));
        }
        for lane in &mut self.lanes {
            lane.blocks.sort_by_key(|b| b.header.seq);
        }
        self.marks.sort_by_key(|mark| mark.ticks);
        self.heartbeats.sort_by_key(Heartbeat::ticks);
        let (is_whole, newest) = (self.is_whole(), self.epochs.map_or(0, |(_, newest)| newest));
        let missing = missing_blocks(&mut self.block_numbers, newest, &self.header, is_whole);
        self.problems.extend(missing.lines());
        self.has_hole =
            missing.first != 0 || missing.inside != 0 || self.identity.replaces.is_some();
        self.problems.extend(self.untold_lanes());
        Ok(())
    }

    /// Indexes the blocks of a ring. Returns the heads of all segments if older ones are left out.
    fn index_ring(
        &mut self,
        base: u64,
        segments: u32,
        most: usize,
    ) -> Result<Option<Vec<Head>>, Error> {
        let RingSegments { places, all } =
            segments_to_read(&*self.file.get()?, base, segments, most)?;
        let bytes = |segments: usize| segments as u64 * SEGMENT;
        self.part = all.as_ref().map(|all| (bytes(places.len()), bytes(all.len())));
        for segment in places {
            let at = base + segment * SEGMENT;
            let length = usize::try_from(SEGMENT).unwrap_or(0);
            let bytes = read_up_to(&*self.file.get()?, at, length)?;
            self.index_segment(segment, at, &bytes);
        }
        Ok(all)
    }

    fn index_segment(&mut self, segment: u64, start: u64, bytes: &[u8]) {
        for found in SegmentBlocks::new(bytes) {
            match found {
                Found::Block(at, len, header, payload) => {
                    self.index_block(BlockRef { at: start + at as u64, len, header }, payload);
                }
                Found::Torn(at, lost) => self.problems.push(torn(segment, start + at as u64, lost)),
            }
        }
    }

    fn index_block(&mut self, block: BlockRef, payload: &[u8]) {
        self.block_numbers.push(block.header.seq);
        let epoch = block.header.epoch;
        let (oldest, newest) = self.epochs.unwrap_or((epoch, epoch));
        self.epochs = Some((oldest.min(epoch), newest.max(epoch)));
        if block.header.lane == META_LANE {
            let mut records = Decoder::new(&block.header, payload, &self.schema);
            let mut pairs = Vec::new();
            for record in records.by_ref() {
                self.last_own = self.last_own.max(record.ticks());
                match record {
                    Record::ClockSync(sync) => self.syncs.push(sync),
                    Record::Mark(mark) => self.marks.push(mark),
                    Record::Heartbeat(heartbeat) => self.heartbeats.push(heartbeat),
                    Record::PairCount(pair) => pairs.push(pair),
                    Record::Unknown { code, .. } => *self.unknown.entry(code).or_default() += 1,
                    _ => {}
                }
            }
            let left = records.left();
            self.unreadable.fetch_add(left.into(), Relaxed);
            self.keep_pairs(block.header.seq, pairs, left);
        } else if let Some(lane) = self.lanes.get_mut(usize::from(block.header.lane)) {
            lane.blocks.push(block);
        } else {
            self.problems.push(format!("block {} of an impossible lane", block.header.seq));
        }
    }

    fn latest(&self) -> u64 {
        let mut bytes = Vec::new();
        let mut in_lane = |lane: &Lane| {
            let last = lane.blocks.last();
            let in_block =
                last.map(|block| *lane.last.get_or_init(|| self.latest_of(block, &mut bytes)));
            in_block.unwrap_or(0).max(latest(&lane.recovered))
        };
        let in_lanes = self.lanes.iter().map(&mut in_lane).max();
        in_lanes.unwrap_or(0).max(self.last_own)
    }

    /// The latest time stamp of a block. If its header does not have it, the records are decoded
    /// and not kept, because a run may have very many recordings.
    fn latest_of(&self, block: &BlockRef, bytes: &mut Vec<u8>) -> u64 {
        if block.header.last_ticks != 0 {
            return block.header.last_ticks;
        }
        let Ok(Some(payload)) = self.payload(block, bytes) else { return 0 };
        let records = Decoder::new(&block.header, payload, &self.schema);
        records.map(|record| record.ticks()).max().unwrap_or(0)
    }

    /// Reads a block again and returns its payload; `None` if it has gone. Its records then count
    /// as unreadable, unless a process that still runs may have overwritten them.
    fn read_block<'b>(&self, block: &BlockRef, bytes: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        DECODED.fetch_add(1, Relaxed);
        let payload = self.payload(block, bytes);
        if payload.is_err() || (matches!(payload, Ok(None)) && self.header.closed) {
            self.unreadable.fetch_add(block.header.records.into(), Relaxed);
        }
        payload.ok().flatten()
    }

    /// Reads a block again and returns its payload; `None` if it was overwritten.
    fn payload<'b>(
        &self,
        block: &BlockRef,
        bytes: &'b mut Vec<u8>,
    ) -> io::Result<Option<&'b [u8]>> {
        bytes.resize(block.len, 0);
        self.file.get()?.read_exact_at(bytes, block.at)?;
        let parsed = codec::parse(bytes).ok().filter(|(header, ..)| *header == block.header);
        Ok(parsed.map(|(.., payload)| payload))
    }

    /// The records of a lane in the order in which they were pushed. A step is at the position of
    /// its stop; steps in flight come last.
    #[must_use]
    pub fn records(&self, lane: usize) -> LaneRecords<'_> {
        LaneRecords {
            recording: self,
            lane: self.lanes.get(lane),
            block: 0,
            rest: 0,
            buffer: vec![],
        }
    }

    /// Passes every record of all lanes to `visitor`, each decoded once, roughly in the order in
    /// which they were pushed.
    ///
    /// The lane whose next block begins first is read first. So only one block is in memory, and
    /// [`Visitor::reached`] can report the time up to which all records were passed.
    pub fn visit(&self, visitor: &mut impl Visitor) {
        let mut lanes: Vec<(usize, LaneParts<'_>)> = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            let parts = LaneParts { lane, next: 0 };
            lanes.extend(parts.begins().map(|_| (index, parts)));
        }
        let (mut bytes, mut reached) = (Vec::new(), 0);
        loop {
            let next = lanes
                .iter()
                .enumerate()
                .filter_map(|(at, (_, parts))| parts.begins().map(|begins| (begins, at)));
            let Some((begins, at)) = next.min() else { break };
            if begins > reached {
                reached = begins;
                visitor.reached(reached);
            }
            let (lane, parts) = &mut lanes[at];
            self.visit_part(*parts, &mut bytes, |record| visitor.record(*lane, record));
            parts.next += 1;
        }
    }

    /// Passes every record of a lane to `each`, decoded once, in the order in which they were
    /// pushed. A step is at the position of its stop; steps in flight come last.
    pub fn visit_lane(&self, lane: usize, mut each: impl FnMut(&Record)) {
        let Some(lane) = self.lanes.get(lane) else { return };
        let mut bytes = Vec::new();
        for next in 0..=lane.blocks.len() {
            self.visit_part(LaneParts { lane, next }, &mut bytes, &mut each);
        }
    }

    fn visit_part(&self, parts: LaneParts<'_>, bytes: &mut Vec<u8>, mut each: impl FnMut(&Record)) {
        let Some(block) = parts.lane.blocks.get(parts.next) else {
            parts.lane.recovered.iter().for_each(&mut each);
            return parts.lane.in_flight.iter().for_each(|step| each(&Record::Step(*step)));
        };
        let Some(payload) = self.read_block(block, bytes) else { return };
        let mut records = Decoder::new(&block.header, payload, &self.schema);
        let mut latest = 0;
        records.by_ref().for_each(|record| {
            latest = latest.max(record.ticks());
            each(&record);
        });
        self.unreadable.fetch_add(records.left().into(), Relaxed);
        if parts.next + 1 == parts.lane.blocks.len() {
            parts.lane.last.get_or_init(|| latest);
        }
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }
    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }
    /// A string of the string table; `None` for [`StrId::NONE`] or if its definition is missing.
    #[must_use]
    pub fn string(&self, id: StrId) -> Option<&str> {
        self.strings.get(usize::from(id.0))?.as_deref()
    }
    /// All strings of the string table, in no order.
    pub fn strings(&self) -> impl Iterator<Item = &str> {
        self.strings.iter().flatten().map(String::as_str)
    }
    /// The communicators, in the order of their `init`.
    #[must_use]
    pub fn comms(&self) -> &[Comm] {
        &self.comms
    }
    /// When a communicator was finalized, in ticks; `None` if it was not.
    #[must_use]
    pub fn comm_end(&self, index: u16) -> Option<u64> {
        self.comm_ends.get(&index).copied()
    }
    /// The device that a communicator is on, where the plugin knew it.
    #[must_use]
    pub fn comm_device(&self, index: u16) -> Option<&CommDevice> {
        self.comm_devices.get(&index)
    }
    /// The plugin's notes about itself.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
    /// The marks of the application and of clients of the control socket, in order.
    #[must_use]
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }
    /// The heartbeats that the recording still has, in the order of time.
    #[must_use]
    pub fn heartbeats(&self) -> &[Heartbeat] {
        &self.heartbeats
    }
    /// The reports of the rank's own watchdog: the time in ticks, and the lines.
    #[must_use]
    pub fn hangs(&self) -> &[(u64, String)] {
        &self.hangs
    }
    /// The identity of its process.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }
    /// The role of a communicator, if the application set one.
    #[must_use]
    pub fn role(&self, comm: &Comm) -> Option<&str> {
        self.roles.get(&comm.hash).map(String::as_str)
    }
    /// The lanes; most are unused.
    #[must_use]
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }
    /// The damage, in words.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
    /// The problems without the line on how an unclosed recording ended.
    #[must_use]
    pub fn damage(&self) -> &[String] {
        self.problems.get(usize::from(!self.header.closed)..).unwrap_or_default()
    }
    /// The damage in at most a few lines, after the recording was read.
    #[must_use]
    pub fn damage_in_short(&self) -> Vec<String> {
        in_short(self.damage(), self.unreadable())
    }
    /// Whether records between others are missing or damaged, in the blocks read so far.
    #[must_use]
    pub fn has_hole(&self) -> bool {
        self.has_hole || self.unreadable() != 0
    }
    /// Number of records that the blocks decoded so far announce and that cannot be read.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable.load(Relaxed)
    }
    /// The latest time stamp known, in ticks.
    #[must_use]
    pub fn last_ticks(&self) -> u64 {
        *self.last_ticks.get_or_init(|| self.latest())
    }
}

/// Takes the records of a recording: see [`Recording::visit`].
pub trait Visitor {
    /// A record. Those of one lane come in the order in which they were pushed.
    fn record(&mut self, lane: usize, record: &Record);
    /// Every record that was pushed before these ticks has been given.
    fn reached(&mut self, ticks: u64);
}

/// The unread parts of a lane: its blocks, then the records that were in no block.
#[derive(Clone, Copy)]
struct LaneParts<'a> {
    lane: &'a Lane,
    next: usize,
}

impl LaneParts<'_> {
    /// The ticks of the first record of the next part; `None` if all parts are read.
    fn begins(&self) -> Option<u64> {
        let Lane { blocks, recovered, in_flight, .. } = self.lane;
        match self.next.checked_sub(blocks.len()) {
            None => blocks.get(self.next).map(|block| block.header.first_ticks),
            Some(0) => {
                let first = recovered.first().map(Record::ticks);
                first.or_else(|| in_flight.first().map(|step| step.ticks))
            }
            Some(_) => None,
        }
    }
}

/// Iterator over the records of a lane; see [`Recording::records`].
#[derive(Debug)]
pub struct LaneRecords<'a> {
    recording: &'a Recording,
    lane: Option<&'a Lane>,
    block: usize,
    rest: usize,
    buffer: Vec<Record>,
}

impl Iterator for LaneRecords<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let lane = self.lane?;
        loop {
            if let Some(record) = self.buffer.get(self.rest) {
                self.rest += 1;
                return Some(*record);
            }
            if self.block > lane.blocks.len() {
                return None;
            }
            (self.rest, self.buffer) = (0, Vec::new());
            let part = LaneParts { lane, next: self.block };
            let (bytes, buffer) = (&mut Vec::new(), &mut self.buffer);
            self.recording.visit_part(part, bytes, |record| buffer.push(*record));
            self.block += 1;
        }
    }
}

/// The latest time stamp of records; 0 if there are none.
fn latest(records: &[Record]) -> u64 {
    records.iter().map(Record::ticks).max().unwrap_or(0)
}
