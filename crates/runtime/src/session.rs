// SPDX-License-Identifier: Apache-2.0
//! An open recording of this process: its file, its lanes, and what was written so far.

use crate::config::Config;
use crate::lanes::LanesFile;
use crate::meter::{Losses, Meter};
use crate::sys;
use crate::watchdog::{Found, Hang, Place, Watchdog};
use ncclscope_recorder::{Recorder, clock, interner, lane, slots};
use ncclscope_trace::codec::META_LANE;
use ncclscope_trace::dump::Checkpoint;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::lanes_file::Owner;
use ncclscope_trace::layout::Header;
use ncclscope_trace::progress::{Thread, Vital};
use ncclscope_trace::{ClockSync, Comm, Definition, Mark, Record, StrId, TickMap, What, Writer};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A lane in the lanes file is left alone until it is this full, or [`Session::tick`] is told to
/// flush.
const LAZY_WORDS: u64 = lane::STARTER_WORDS / 2;
/// Lanes and slabs that `init` itself readies: enough until the drain thread comes, which readies
/// the rest. A page costs `init` a microsecond or more.
const FIRST_LANES: usize = 2;
const FIRST_SLABS: usize = 2;
/// How long the end of the process waits for the last metrics to be sent.
const EXPORT_PATIENCE: Duration = Duration::from_secs(2);
/// Texts of marks have numbers behind those of NCCL's strings.
const FIRST_TEXT: u16 = 0x1000;
/// Texts that are kept apart, and bytes kept of each.
const TEXTS: usize = 4096;
const TEXT_BYTES: usize = 120;
/// Room that the lanes file should have when lanes grow.
const HEADROOM: u64 = 4 << 20;

/// A recording that is open.
#[derive(Debug)]
pub(crate) struct Session {
    writer: Writer,
    path: PathBuf,
    lanes: Option<LanesFile>,
    /// Lanes whose rings are whole, but not present yet.
    absent: Vec<usize>,
    strings_known: Vec<bool>,
    comms: Vec<Comm>,
    ended: Vec<u16>,
    words: Vec<u64>,
    first_sync: ClockSync,
    latest_sync: ClockSync,
    /// Texts of marks; the first has the number [`FIRST_TEXT`].
    texts: Vec<String>,
    texts_lost: u64,
    meter: Option<Meter>,
    watchdog: Option<Watchdog>,
    hangs: Vec<Hang>,
    failed: bool,
}

/// Why a window of metrics ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WindowEnd {
    /// Its time is over; otherwise it goes on.
    Due,
    /// No communicator is left.
    Now,
    /// The process ends.
    Last,
}

impl Session {
    /// Creates the file and the lanes. The line says why not, and what to do.
    pub(crate) fn open(
        config: &Config,
        recorder: &Recorder,
        host: &str,
        nonce: u32,
    ) -> Result<Session, String> {
        clock::choose(config.counter);
        let process = nonce % 1023 + 1;
        recorder.set_process(u64::from(process));
        let header = Header {
            pid: sys::pid(),
            process,
            clock: clock::source(),
            hz: 0,
            host: host.to_owned(),
            ..Header::default()
        };
        let (writer, path) = create(&config.dir, &header, config.ring_bytes).map_err(|e| {
            format!("cannot record in {}: {e}; recording is off", config.dir.display())
        })?;
        let sync = clock::compare();
        let mut session = Session {
            writer,
            path,
            lanes: None,
            absent: Vec::new(),
            strings_known: vec![false; interner::CAPACITY],
            comms: Vec::new(),
            ended: Vec::new(),
            words: Vec::new(),
            first_sync: sync,
            latest_sync: sync,
            texts: Vec::new(),
            texts_lost: 0,
            meter: None,
            watchdog: None,
            hangs: Vec::new(),
            failed: false,
        };
        session
            .commit_memory(recorder, config.lanes.as_deref(), nonce)
            .map_err(|e| format!("no memory: {e}; recording is off"))?;
        session.keep(|s| s.compare_clocks());
        let place = Place::new(host, session.writer.header().pid, session.define_place());
        let (limit, actions) = (config.hang_after, config.hang_actions.clone());
        session.watchdog = Some(Watchdog::new(place, limit, actions));
        Ok(session)
    }

    /// The process's place in its job, where a launcher told it; its rank.
    fn define_place(&mut self) -> Option<u32> {
        let number = |names: &[&str]| {
            names.iter().find_map(|name| std::env::var(name).ok()?.parse::<u32>().ok())
        };
        let rank = number(&["RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"]);
        let world = number(&["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE"]);
        if let Some(rank) = rank {
            let world = world.unwrap_or(0);
            self.keep(|s| s.writer.define(&Definition::Global { rank, world }));
        }
        rank
    }

    /// Puts the lanes into a lanes file where there can be one, else keeps them private.
    fn commit_memory(
        &mut self,
        recorder: &Recorder,
        folder: Option<&Path>,
        nonce: u32,
    ) -> io::Result<()> {
        let region = &recorder.region;
        let header = self.writer.header();
        let recording = std::path::absolute(&self.path)?;
        let owner = Owner { pid: header.pid, process: header.process, recording };
        let lanes = folder.and_then(|folder| LanesFile::create(folder, &owner, nonce).ok());
        let file = lanes.as_ref().and_then(|lanes| lanes.with_room(HEADROOM));
        if file.is_some() && region.reserve(file).is_ok() {
            self.writer.header_mut().lanes_file = lanes.as_ref().map(|l| l.path().to_owned());
            self.lanes = lanes;
        } else {
            lanes.iter().for_each(LanesFile::remove);
            region.reserve(None)?;
        }
        region.grow(FIRST_LANES, FIRST_SLABS, self.room_in_lanes_file())?;
        for lane in 0..FIRST_LANES {
            region.complete(lane, self.room_in_lanes_file())?;
            self.absent.push(lane);
        }
        self.writer.sync_header()
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// True after a write failed; told once.
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }

    /// Measures from here on.
    pub(crate) fn measure(&mut self, meter: Meter) {
        self.meter = Some(meter);
    }

    /// The watchdog.
    pub(crate) fn watchdog(&mut self) -> Option<&mut Watchdog> {
        self.watchdog.as_mut()
    }

    /// What the watchdog has to tell since the last time.
    pub(crate) fn take_hangs(&mut self) -> Vec<Hang> {
        std::mem::take(&mut self.hangs)
    }

    /// Lets the watchdog look, all lanes having been read, and writes what it found.
    fn look(&mut self, recorder: &Recorder) {
        let Some(mut watchdog) = self.watchdog.take() else { return };
        let Found { vitals, threads, hangs } =
            watchdog.look(recorder, clock::now(), self.writer.header().hz);
        for vital in vitals {
            self.keep(|s| s.writer.append(META_LANE, 0, vital.pack().words()));
        }
        for (thread, place) in threads {
            let place = if place.is_empty() { StrId::NONE } else { self.text(&place) };
            let thread = Vital::Thread(Thread { place, ..thread });
            self.keep(|s| s.writer.append(META_LANE, 0, thread.pack().words()));
        }
        for hang in &hangs {
            let (ticks, text) = (hang.ticks, hang.lines().join("\n"));
            self.keep(|s| s.writer.define(&Definition::Hang { ticks, text }));
        }
        self.hangs.extend(hangs);
        self.watchdog = Some(watchdog);
    }

    /// Ticks of a second, as far as that is known; else 0.
    pub(crate) fn hz(&self) -> u64 {
        self.writer.header().hz
    }

    /// Compares the clocks before the first figure, which nobody could tell the time of otherwise.
    fn clock_meter(&mut self) {
        if self.meter.is_some() && self.writer.header().hz == 0 {
            self.keep(|s| s.compare_clocks());
        }
    }

    fn tick_map(&self) -> TickMap {
        TickMap::new(vec![self.first_sync, self.latest_sync], self.writer.header().hz)
    }

    /// Ends the window of metrics.
    pub(crate) fn close_window(&mut self, recorder: &Recorder, end: WindowEnd) {
        let is_due = |meter: &Meter| end != WindowEnd::Due || meter.is_due();
        if !self.meter.as_ref().is_some_and(is_due) {
            return;
        }
        let clock = self.tick_map();
        let mut lane_full = [0; KINDS];
        for (_, lane) in recorder.lanes() {
            lane_full.iter_mut().zip(lane.lost()).for_each(|(sum, lost)| *sum += lost);
        }
        let losses = Losses {
            lane_full,
            no_lane: recorder.lost_without_lane(),
            stale: recorder.stale(),
            unknown: recorder.unknown(),
        };
        let meter = self.meter.iter_mut();
        meter.for_each(|meter| meter.close(&clock, &losses, end == WindowEnd::Last));
    }

    /// Runs a write; its failure is counted by the writer and remembered here.
    fn keep(&mut self, write: impl FnOnce(&mut Session) -> io::Result<()>) {
        if write(self).is_err() {
            self.failed = true;
        }
    }

    /// Defines a communicator, or says more about one.
    pub(crate) fn define_comm(&mut self, comm: Comm) {
        self.keep(|s| s.writer.define(&Definition::Comm(comm.clone())));
        self.meter.iter_mut().for_each(|meter| meter.comm(&comm));
        self.watchdog.iter_mut().for_each(|watchdog| watchdog.comm(&comm));
        match self.comms.iter_mut().find(|c| c.index == comm.index) {
            Some(known) => *known = comm,
            None => self.comms.push(comm),
        }
    }

    /// A communicator that was defined without its hash (API v1 to v3).
    pub(crate) fn nameless_comm(&self, index: u16) -> Option<&Comm> {
        self.comms.iter().find(|c| c.index == index && c.hash == 0)
    }

    /// The communicator was finalized.
    pub(crate) fn end_comm(&mut self, index: u16) {
        let ticks = clock::now();
        self.ended.push(index);
        self.watchdog.iter_mut().for_each(|watchdog| watchdog.end_comm(index));
        self.keep(|s| s.writer.define(&Definition::CommEnd { index, ticks }));
    }

    /// Leaves a word to the reader.
    pub(crate) fn note(&mut self, text: &str) {
        self.keep(|s| s.writer.define(&Definition::Note(text.to_owned())));
    }

    /// Puts a moment between the records.
    pub(crate) fn mark(&mut self, what: What, name: StrId, value: u64) {
        let mark = Mark { ticks: clock::now(), what, name, value };
        self.keep(|s| s.writer.append(META_LANE, 0, &mark.words()));
    }

    /// A moment with a text. Beyond [`TEXTS`] different ones it goes without, and is counted.
    pub(crate) fn note_moment(&mut self, text: &str) {
        let id = self.text(text);
        self.mark(What::Note, id, 0);
    }

    /// The number of a text of ours; none beyond [`TEXTS`] different ones, which is counted.
    fn text(&mut self, text: &str) -> StrId {
        let text = beginning(text);
        let known = self.texts.iter().position(|known| known == text);
        if known.is_none() && self.texts.len() >= TEXTS {
            self.texts_lost += 1;
            return StrId::NONE;
        }
        let index = known.unwrap_or(self.texts.len());
        let id = StrId(FIRST_TEXT + u16::try_from(index).unwrap_or(0));
        if known.is_none() {
            self.texts.push(text.to_owned());
            self.keep(|s| s.writer.define(&Definition::String { id, text: text.to_owned() }));
        }
        id
    }

    /// What a communicator is for.
    pub(crate) fn define_role(&mut self, hash: u64, role: &str) {
        let text = beginning(role).to_owned();
        self.keep(|s| s.writer.define(&Definition::Role { hash, text }));
    }

    /// The communicators that were not finalized.
    pub(crate) fn live_comms(&self) -> Vec<&Comm> {
        self.comms.iter().filter(|comm| !self.ended.contains(&comm.index)).collect()
    }

    /// The recording as it is now.
    pub(crate) fn checkpoint(&self) -> io::Result<Checkpoint> {
        self.writer.checkpoint()
    }

    /// The activation mask that NCCL was asked for.
    pub(crate) fn set_mask(&mut self, mask: u32) {
        self.writer.header_mut().mask = mask;
    }

    /// Moves what the lanes hold to the file, all of it with `flush`. Returns how many words the
    /// fullest lane held.
    pub(crate) fn tick(&mut self, recorder: &Recorder, flush: bool) -> u64 {
        self.clock_meter();
        let is_due = self.watchdog.as_mut().is_some_and(Watchdog::is_due);
        self.define_strings(recorder);
        let mut fullest = 0;
        for index in 0..recorder.region.rings() {
            fullest = fullest.max(self.drain_lane(recorder, index, flush || is_due));
        }
        if is_due {
            self.look(recorder);
        }
        self.close_window(recorder, WindowEnd::Due);
        fullest
    }

    /// Readies a piece of memory for more threads and operations, ahead of need. False if there is
    /// enough, or no room: events of further threads are then counted as lost.
    pub(crate) fn grow(&mut self, recorder: &Recorder, comms: u32) -> bool {
        let region = &recorder.region;
        if let Some(lane) = self.absent.pop() {
            region.prefault(lane);
            return true;
        }
        let (lanes, slabs) = recorder.wanted(comms as usize);
        let (has_lanes, has_slabs) = (region.rings(), region.slabs());
        if lanes > has_lanes || slabs > has_slabs {
            let more = |wanted: usize, has: usize| wanted.min(has + 1);
            let file = self.room_in_lanes_file();
            return region.grow(more(lanes, has_lanes), more(slabs, has_slabs), file).is_ok();
        }
        let Some(lane) = recorder.worth_completing().next() else { return false };
        let completed = region.complete(lane, self.room_in_lanes_file()).is_ok();
        if completed {
            self.absent.push(lane);
        }
        completed
    }

    fn room_in_lanes_file(&self) -> Option<&File> {
        self.lanes.as_ref().and_then(|lanes| lanes.with_room(HEADROOM))
    }

    fn define_strings(&mut self, recorder: &Recorder) {
        for index in 0..self.strings_known.len() {
            if self.strings_known[index] {
                continue;
            }
            if let Some((id, text)) = recorder.strings.get(index) {
                self.strings_known[index] = true;
                self.meter.iter_mut().for_each(|meter| meter.string(id, &text));
                self.watchdog.iter_mut().for_each(|watchdog| watchdog.string(id, &text));
                self.keep(|s| s.writer.define(&Definition::String { id, text }));
            }
        }
    }

    fn drain_lane(&mut self, recorder: &Recorder, index: usize, flush: bool) -> u64 {
        let region = &recorder.region;
        let (Some(header), Some(ring)) = (region.lane_header(index), region.ring(index)) else {
            return 0;
        };
        let pending = header.pending();
        let survives = self.lanes.is_some() && header.is_shared();
        let wait = survives && !flush && pending < LAZY_WORDS;
        if pending != 0 && !wait {
            let mut words = std::mem::take(&mut self.words);
            header.peek(ring, &mut words);
            let from = header.tail();
            let lane = u16::try_from(index).unwrap_or(META_LANE);
            self.keep(|s| s.writer.append(lane, from, &words));
            self.meter.iter_mut().for_each(|meter| meter.words(index, &words));
            self.watchdog.iter_mut().for_each(|watchdog| watchdog.words(index, &words));
            header.take_until(from + words.len() as u64);
            self.words = words;
        }
        pending
    }

    /// Compares the clocks and writes the header with its counters.
    pub(crate) fn sync(&mut self, recorder: &Recorder, panics: u64, comms_lost: u64) {
        self.keep(|s| s.compare_clocks());
        let header = self.writer.header_mut();
        header.unknown_events = recorder.unknown();
        header.stale = recorder.stale();
        header.strings_lost = recorder.strings.misses() + self.texts_lost;
        header.left_out = recorder.left_out();
        header.without_lane = recorder.lost_without_lane();
        header.panics = panics;
        header.comms_lost = comms_lost;
        self.write_lane_headers(recorder);
        self.keep(|s| s.writer.sync_header());
    }

    /// Copies the lane headers to the recording: the lanes file may be gone when it is read.
    fn write_lane_headers(&mut self, recorder: &Recorder) {
        for lane in 0..recorder.region.rings() {
            let header = recorder.region.lane_header(lane).filter(|header| header.was_used());
            if let Some(header) = header {
                self.keep(|s| s.writer.write_lane(lane, &header.snapshot()));
            }
        }
    }

    fn compare_clocks(&mut self) -> io::Result<()> {
        let sync = clock::compare();
        self.latest_sync = sync;
        let ns = sync.monotonic_ns.saturating_sub(self.first_sync.monotonic_ns);
        if ns > 1_000_000 {
            let ticks = u128::from(sync.ticks.saturating_sub(self.first_sync.ticks));
            let hz = ticks * 1_000_000_000 / u128::from(ns);
            self.writer.header_mut().hz = u64::try_from(hz).unwrap_or(0);
            let clock = self.tick_map();
            self.meter.iter_mut().for_each(|meter| meter.clock(&clock));
        }
        self.writer.append(META_LANE, 0, Record::clock_sync(&sync).words())
    }

    /// Writes the steps that are still under way: their slots are about to go.
    fn write_in_flight(&mut self, recorder: &Recorder) {
        for (index, step) in slots::in_flight(&recorder.region, clock::now()) {
            let Some(header) = recorder.region.lane_header(index) else { continue };
            let (lane, position) = (u16::try_from(index).unwrap_or(META_LANE), header.tail());
            self.keep(|s| s.writer.append(lane, position, step.pack().words()));
        }
    }

    /// Ends the recording: everything is in blocks, and the file as short as it can be.
    pub(crate) fn close(&mut self, recorder: &Recorder, panics: u64, comms_lost: u64) {
        if self.writer.header().hz == 0 {
            self.keep(|s| s.compare_clocks());
        }
        self.watchdog.iter_mut().for_each(Watchdog::hurry);
        self.tick(recorder, true);
        self.write_in_flight(recorder);
        let end = self.writer.blocks_end();
        self.keep(|s| s.writer.file().set_len(end));
        let header = self.writer.header_mut();
        header.closed = true;
        header.lanes_file = None;
        self.sync(recorder, panics, comms_lost);
        // What late callbacks still write goes nowhere.
        self.lanes.iter().for_each(LanesFile::remove);
        self.close_window(recorder, WindowEnd::Last);
        self.meter.iter().for_each(|meter| meter.flush(EXPORT_PATIENCE));
    }
}

/// As much of a text as is kept: whole characters.
fn beginning(text: &str) -> &str {
    let fits = (0..=TEXT_BYTES.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    fits.and_then(|end| text.get(..end)).unwrap_or("")
}

/// Creates `HOST-PID.nscope` in `dir`, or, where an earlier process left one, `HOST-PID.nscope.N`.
fn create(dir: &Path, header: &Header, ring_bytes: u64) -> io::Result<(Writer, PathBuf)> {
    std::fs::create_dir_all(dir)?;
    let name = format!("{}-{}.nscope", header.host, header.pid);
    for attempt in 0..100 {
        let path = match attempt {
            0 => dir.join(&name),
            n => dir.join(format!("{name}.{n}")),
        };
        match Writer::create(&path, header.clone(), ring_bytes) {
            Ok(writer) => return Ok((writer, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("100 recordings of the name {name} are already there")))
}
