// SPDX-License-Identifier: Apache-2.0
//! An open recording of this process: its file, its lanes, and what was written so far.

use crate::config::Config;
use crate::sys;
use ncclscope_recorder::{Recorder, clock, interner, lane, slots};
use ncclscope_trace::codec::META_LANE;
use ncclscope_trace::layout::Header;
use ncclscope_trace::{ClockSync, Comm, Definition, Record, Writer};
use std::io;
use std::path::{Path, PathBuf};

/// A shared lane is left alone until it is this full, or [`Session::tick`] is told to flush.
const LAZY_WORDS: u64 = lane::RING_WORDS / 8;

/// A recording that is open.
#[derive(Debug)]
pub(crate) struct Session {
    writer: Writer,
    path: PathBuf,
    shared: bool,
    strings_known: Vec<bool>,
    comms: Vec<Comm>,
    words: Vec<u64>,
    first_sync: ClockSync,
    failed: bool,
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
        let mut session = Session {
            writer,
            path,
            shared: false,
            strings_known: vec![false; interner::CAPACITY],
            comms: Vec::new(),
            words: Vec::new(),
            first_sync: clock::compare(),
            failed: false,
        };
        session.commit_memory(recorder).map_err(|e| format!("no memory: {e}; recording is off"))?;
        session.keep(|s| s.compare_clocks());
        Ok(session)
    }

    /// Shares the lanes with the file where that is safe, else keeps them private.
    fn commit_memory(&mut self, recorder: &Recorder) -> io::Result<()> {
        let region = &recorder.region;
        let (lanes, slabs) = recorder.wanted(1);
        if sys::is_local(self.writer.file()) {
            let file = Some((self.writer.file(), self.writer.header()));
            let shared = region.reserve(file).and_then(|()| region.grow(lanes, slabs, file));
            self.shared = shared.is_ok();
        }
        if !self.shared {
            if region.lane_header(0).is_none() {
                region.reserve(None)?;
            }
            region.grow(lanes, slabs, None)?;
        }
        self.writer.header_mut().lanes_shared = self.shared;
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

    /// Runs a write; its failure is counted by the writer and remembered here.
    fn keep(&mut self, write: impl FnOnce(&mut Session) -> io::Result<()>) {
        if write(self).is_err() {
            self.failed = true;
        }
    }

    /// Defines a communicator, or says more about one.
    pub(crate) fn define_comm(&mut self, comm: Comm) {
        self.keep(|s| s.writer.define(&Definition::Comm(comm.clone())));
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
        self.keep(|s| s.writer.define(&Definition::CommEnd { index, ticks }));
    }

    /// Leaves a word to the reader.
    pub(crate) fn note(&mut self, text: &str) {
        self.keep(|s| s.writer.define(&Definition::Note(text.to_owned())));
    }

    /// The activation mask that NCCL was asked for.
    pub(crate) fn set_mask(&mut self, mask: u32) {
        self.writer.header_mut().mask = mask;
    }

    /// Moves what the lanes hold to the file, all of it with `flush`. Returns how many words the
    /// fullest lane held.
    pub(crate) fn tick(&mut self, recorder: &Recorder, flush: bool) -> u64 {
        self.define_strings(recorder);
        let mut fullest = 0;
        for index in 0..recorder.region.rings() {
            fullest = fullest.max(self.drain_lane(recorder, index, flush));
        }
        fullest
    }

    /// Readies memory for more threads and operations, ahead of need.
    pub(crate) fn grow(&mut self, recorder: &Recorder, comms: u32) {
        let (lanes, slabs) = recorder.wanted(comms as usize);
        let region = &recorder.region;
        let file = self.shared.then(|| (self.writer.file(), self.writer.header()));
        // Without room, events of further threads are counted as lost.
        if lanes > region.rings() || slabs > region.slabs() {
            let _ = region.grow(lanes, slabs, file);
        }
    }

    /// Gives whole rings to the lanes that are worth it.
    pub(crate) fn complete_lanes(&mut self, recorder: &Recorder) {
        let file = self.shared.then(|| (self.writer.file(), self.writer.header()));
        for lane in recorder.worth_completing() {
            // Without room the lane keeps what it has.
            let _ = recorder.region.complete(lane, file);
        }
    }

    fn define_strings(&mut self, recorder: &Recorder) {
        for index in 0..self.strings_known.len() {
            if self.strings_known[index] {
                continue;
            }
            if let Some((id, text)) = recorder.strings.get(index) {
                self.strings_known[index] = true;
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
        let wait = self.shared && !flush && pending < LAZY_WORDS;
        if pending != 0 && !wait {
            let mut words = std::mem::take(&mut self.words);
            header.peek(ring, &mut words);
            let from = header.tail();
            let lane = u16::try_from(index).unwrap_or(META_LANE);
            self.keep(|s| s.writer.append(lane, from, &words));
            header.take_until(from + words.len() as u64);
            self.words = words;
            if !self.shared {
                self.keep(|s| s.writer.write_lane(index, &header.snapshot()));
            }
        }
        pending
    }

    /// Compares the clocks and writes the header with its counters.
    pub(crate) fn sync(&mut self, recorder: &Recorder, panics: u64, comms_lost: u64) {
        self.keep(|s| s.compare_clocks());
        let header = self.writer.header_mut();
        header.unknown_events = recorder.unknown();
        header.stale = recorder.stale();
        header.strings_lost = recorder.strings.misses();
        header.without_lane = recorder.lost_without_lane();
        header.panics = panics;
        header.comms_lost = comms_lost;
        self.keep(|s| s.writer.sync_header());
    }

    fn compare_clocks(&mut self) -> io::Result<()> {
        let sync = clock::compare();
        let ns = sync.monotonic_ns.saturating_sub(self.first_sync.monotonic_ns);
        if ns > 1_000_000 {
            let ticks = u128::from(sync.ticks.saturating_sub(self.first_sync.ticks));
            let hz = ticks * 1_000_000_000 / u128::from(ns);
            self.writer.header_mut().hz = u64::try_from(hz).unwrap_or(0);
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
        self.tick(recorder, true);
        self.write_in_flight(recorder);
        if self.shared {
            // Late callbacks must not find the file cut below their feet.
            recorder.region.detach();
        }
        let end = self.writer.blocks_end();
        self.keep(|s| s.writer.file().set_len(end));
        self.writer.header_mut().closed = true;
        self.sync(recorder, panics, comms_lost);
    }
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
