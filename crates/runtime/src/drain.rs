// SPDX-License-Identifier: Apache-2.0
/*!
Passes records from the lanes to the sinks.

A sink ([`Sink`]) is the recording, the watchdog, or the metrics. This module works only in memory:
a thread of its own writes the file ([`crate::recording`]), and another sends metrics
(`ncclscope_metrics::send`). A slow file system or collector therefore delays neither the emptying
of lanes nor the watchdog.

Host threads send [`Order`]s; they never wait for the lock of [`Drain`].
*/

mod clocks;
mod feed;
mod pace;
mod sink;
mod texts;
pub(crate) mod thread;
mod under_way;

use crate::identity::Known;
use crate::memory::Memory;
use crate::meter::{Farewell, Losses, Meter};
use crate::orders::{Order, Orders};
use crate::recording::{Job, Recording};
use crate::reply::Answer;
use crate::shared::Shared;
use crate::sys::cuda::Device;
use crate::watchdog::{Found, Hang, Watchdog};
use clocks::Clocks;
use core::ops::Range;
use feed::Feed;
use ncclscope_recorder::{Recorder, call_counters, clock, interner, lane};
use ncclscope_trace::codec::MAX_BLOCK_WORDS;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::record::schema;
use ncclscope_trace::{Comm, CommDevice, Definition, Identity, Mark, MarkKind, Record, StrId};
use pace::WriterPace;
use sink::Sink;
use std::collections::BTreeMap;
use std::sync::Arc;
use texts::Texts;
pub(crate) use texts::beginning;
use under_way::UnderWay;

/// A lane in the lanes file is read only when it holds this many words, or when [`Drain::tick`]
/// must flush.
const LAZY_WORDS: u64 = lane::STARTER_WORDS / 2;
/// If a lane holds more words than this and the writer thread makes no progress, the part that was
/// read is freed.
const CROWDED_WORDS: u64 = lane::RING_WORDS / 4 * 3;
/// Maximum number of communicators' roles that are kept.
const ROLES: usize = 1 << 14;

/// The records in these words of a lane, decoded once for all sinks.
fn records(words: &[u64]) -> impl Iterator<Item = Record> {
    let mut rest = words;
    let next = move || {
        let (len, _) = schema(rest.first()?.to_le_bytes()[0])?;
        let record = Record::unpack(rest);
        rest = rest.get(len..)?;
        Some(record)
    };
    std::iter::from_fn(next).flatten()
}

/// Why a window of metrics ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WindowEnd {
    /// The window's time is over; the next window begins.
    Due,
    /// The last communicator was finalized.
    Now,
    /// The process ends.
    Last,
}

/// Reads the lanes of one process.
#[derive(Debug)]
pub(crate) struct Drain {
    recorder: &'static Recorder,
    orders: &'static Orders,
    memory: Memory,
    /// Position up to which each lane was read.
    read: Vec<u64>,
    /// Indices of the lanes with little free space.
    crowded: Vec<usize>,
    writer: WriterPace,
    clocks: Clocks,
    /// Communicators that are alive.
    comms: BTreeMap<u16, Comm>,
    /// The devices of the live communicators.
    devices: BTreeMap<u16, CommDevice>,
    /// Communicators that were finalized since the watchdog's last look.
    ended: Vec<u16>,
    /// The log already says that some communicators are not counted.
    told_uncounted: bool,
    roles: BTreeMap<u64, String>,
    strings_known: Vec<bool>,
    texts: Texts,
    identity: Known,
    feed: Feed,
    meter: Option<Meter>,
    watchdog: Watchdog,
    hangs: Vec<Hang>,
    /// Lines of the watchdog and the meter for the log.
    lines: Vec<String>,
    words: Vec<u64>,
    under_way: UnderWay,
}

impl Drain {
    pub(crate) fn new(
        shared: &'static Shared,
        memory: Memory,
        recording: Arc<Recording>,
        watchdog: Watchdog,
    ) -> Drain {
        let clocks = Clocks::new();
        let mut feed = Feed::new(shared, recording);
        feed.clock(*clocks.first());
        Drain {
            recorder: &shared.recorder,
            orders: &shared.orders,
            memory,
            read: Vec::new(),
            crowded: Vec::new(),
            writer: WriterPace::default(),
            clocks,
            comms: BTreeMap::new(),
            devices: BTreeMap::new(),
            ended: Vec::new(),
            told_uncounted: false,
            roles: BTreeMap::new(),
            strings_known: vec![false; interner::CAPACITY],
            texts: Texts::default(),
            identity: Known::default(),
            feed,
            meter: None,
            watchdog,
            hangs: Vec::new(),
            lines: Vec::new(),
            words: Vec::new(),
            under_way: UnderWay::default(),
        }
    }

    pub(crate) fn measure(&mut self, meter: Meter) {
        self.meter = Some(meter);
    }

    /// Adds the part of the process's identity that is known at its start.
    pub(crate) fn identify(&mut self, identity: Identity) {
        let facts = self.identity.begin(identity);
        self.define(facts);
    }

    /// Reports libraries of the process that can communicate without NCCL.
    pub(crate) fn beside(&mut self, libraries: &[&'static str]) {
        let facts = self.identity.beside(libraries);
        self.define(facts);
        self.meter.iter_mut().for_each(|meter| meter.beside(libraries));
    }

    fn define(&mut self, definitions: Vec<Definition>) {
        definitions.into_iter().for_each(|definition| self.feed.define(definition));
    }

    /// Sets the hash of a communicator that was defined without it (API v1 to v3).
    pub(crate) fn learn(&mut self, index: u16, hash: u64, rank: i32) -> bool {
        let Some(comm) = self.comms.get(&index).filter(|comm| comm.hash == 0) else { return false };
        let comm = Comm { hash, rank, ..comm.clone() };
        self.comm(comm);
        true
    }

    /// Prepares more memory; see [`Memory::grow`].
    pub(crate) fn grow(&mut self, comms: u32) -> bool {
        self.memory.grow(comms)
    }

    /// A number that grows while the writer thread makes progress.
    pub(crate) fn progress(&self) -> u64 {
        self.feed.done()
    }

    /// The hangs found since the last call.
    pub(crate) fn take_hangs(&mut self) -> Vec<Hang> {
        std::mem::take(&mut self.hangs)
    }

    /// The lines for the log since the last call.
    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    /// The watchdog, and the number of ticks per second.
    pub(crate) fn watchdog(&mut self) -> (&mut Watchdog, u64) {
        (&mut self.watchdog, self.clocks.hz())
    }

    /// Number of texts that got no string number because there was no room.
    pub(crate) fn texts_lost(&self) -> u64 {
        self.texts.lost()
    }

    /// Passes orders, strings and the content of lanes to the sinks; with `flush` the whole
    /// content. Returns the number of words that the fullest lane held.
    pub(crate) fn tick(&mut self, flush: bool) -> u64 {
        let (mut fullest, mut later) = self.pass(flush);
        while !later.is_empty() {
            let (more, next) = self.last_pass();
            later.into_iter().for_each(|order| self.answer(order));
            (fullest, later) = (fullest.max(more), next);
        }
        self.under_way.clear();
        self.make_room();
        self.feed.flush();
        self.lines.extend(self.meter.iter_mut().flat_map(Meter::take_lines));
        fullest
    }

    /// One pass from the lanes to the sinks. Returns the number of words that the fullest lane
    /// held, and the orders that need all earlier records to be processed.
    fn pass(&mut self, flush: bool) -> (u64, Vec<Order>) {
        self.clock_early();
        self.recorder.reap();
        let is_due = self.watchdog.is_due(self.recorder);
        // Read before the orders and strings: whatever the records below these heads refer to is in
        // the queue or in the table by now.
        let heads: Vec<u64> = self.recorder.lanes().map(|(_, header)| header.head()).collect();
        let (later, flush) = self.take_orders(flush || is_due);
        self.define_strings();
        let mut fullest = 0;
        for (index, &head) in heads.iter().enumerate() {
            fullest = fullest.max(self.read_lane(index, head, flush));
        }
        if is_due {
            self.look();
        }
        self.close_window(WindowEnd::Due);
        (fullest, later)
    }

    /// Passes on everything recorded before this call, including records behind the heads of the
    /// previous pass. A step that is in flight now, or stops meanwhile, is in `under_way` or was
    /// passed on.
    fn last_pass(&mut self) -> (u64, Vec<Order>) {
        self.under_way.note(&self.recorder.region, clock::now());
        self.pass(true)
    }

    /// Frees crowded lanes if the writer thread has made no progress for a while; the words that
    /// were read are in its queue, too.
    fn make_room(&mut self) {
        let (done, now) = (self.feed.done(), clock::now_ns());
        let is_stuck = self.writer.is_stuck(done, self.feed.is_behind(), now);
        for index in std::mem::take(&mut self.crowded) {
            if is_stuck
                && let Some(header) = self.recorder.region.lane_header(index)
                && let Some(&read) = self.read.get(index)
            {
                header.take_until(read);
            }
        }
    }

    /// Takes the waiting orders. Returns those to execute after the lanes were read, and whether
    /// all lanes must be read.
    fn take_orders(&mut self, mut flush: bool) -> (Vec<Order>, bool) {
        let mut later = Vec::new();
        for order in self.orders.take() {
            match order {
                Order::Comm(comm) => {
                    let facts = self.identity.comm(&comm, self.comms.values());
                    self.define(facts);
                    self.comm(comm);
                }
                Order::Learned { index, hash, rank } => {
                    self.learn(index, hash, rank);
                }
                Order::CommEnd { index, ticks } => {
                    self.comms.remove(&index);
                    self.devices.remove(&index);
                    self.ended.push(index);
                    self.sinks().for_each(|sink| sink.comm_end(index, ticks));
                }
                Order::Mark { ticks, what, text, value } => {
                    let name = text.map_or(StrId::NONE, |text| self.text(&text));
                    let mark = Mark { ticks, what, name, value };
                    self.feed.meta(&mark.words());
                    self.meter.iter_mut().for_each(|meter| meter.mark(mark));
                    if what == MarkKind::Mask {
                        self.watchdog.set_others_mask(&mark);
                    }
                }
                Order::Role { hash, text } => self.role(hash, &text),
                Order::Note(text) => self.feed.define(Definition::Note(text)),
                Order::Device { index, device } => {
                    let facts = self.identity.device(&device);
                    self.define(facts);
                    self.device(index, &device);
                    self.watchdog.device(index, device);
                }
                Order::Drill(length) => self.watchdog.begin_drill(length),
                Order::Flush(_) | Order::Dump(_) => {
                    flush = true;
                    later.push(order);
                }
            }
        }
        (later, flush)
    }

    /// Executes an order after the lanes have been read.
    fn answer(&mut self, order: Order) {
        // The times in a copy, or of the records read now, are converted with the last comparison
        // of the clocks.
        self.compare_clocks();
        let hz = self.clocks.hz();
        match order {
            Order::Flush(done) => {
                self.close_window(WindowEnd::Now);
                self.feed.finish(Job::Sync { hz, done: Some(done) });
            }
            Order::Dump(done) => {
                let rest = self.under_way.rest(&self.read);
                self.feed.finish(Job::Checkpoint { hz, rest, done });
            }
            _ => {}
        }
    }

    fn sinks(&mut self) -> impl Iterator<Item = &mut dyn Sink> {
        let meter = self.meter.iter_mut().map(|meter| -> &mut dyn Sink { meter });
        let feed: &mut dyn Sink = &mut self.feed;
        let watchdog: &mut dyn Sink = &mut self.watchdog;
        [feed, watchdog].into_iter().chain(meter)
    }

    fn comm(&mut self, comm: Comm) {
        self.sinks().for_each(|sink| sink.comm(&comm));
        self.comms.insert(comm.index, comm);
    }

    fn device(&mut self, comm: u16, device: &Device) {
        let Ok(index) = u32::try_from(device.index) else { return };
        let [pci, uuid] = [&device.pci, &device.uuid].map(|text| text.clone().unwrap_or_default());
        let device = CommDevice { comm, index, pci, uuid };
        self.feed.define(Definition::CommDevice(device.clone()));
        if let Some(meter) = &mut self.meter {
            meter.device(&device);
        }
        self.devices.insert(comm, device);
    }

    /// Records the role of a communicator, once.
    fn role(&mut self, hash: u64, text: &str) {
        let text = beginning(text, texts::BYTES);
        let is_known = self.roles.get(&hash).is_some_and(|known| known == text);
        if !is_known && (self.roles.len() < ROLES || self.roles.contains_key(&hash)) {
            self.roles.insert(hash, text.to_owned());
            self.feed.define(Definition::Role { hash, text: text.to_owned() });
        }
    }

    /// The string number of a text of the plugin's own.
    fn text(&mut self, text: &str) -> StrId {
        let (id, new) = self.texts.number(text);
        if let Some(text) = new {
            self.feed.define(Definition::String { id, text: text.to_owned() });
        }
        id
    }

    fn define_strings(&mut self) {
        let recorder = self.recorder;
        for index in 0..self.strings_known.len() {
            if !self.strings_known[index]
                && let Some((id, text)) = recorder.strings.get(index)
            {
                self.strings_known[index] = true;
                self.sinks().for_each(|sink| sink.string(id, &text));
            }
        }
    }

    /// Reads a lane up to `head` and passes the words to the sinks. Returns the number of words it
    /// held.
    fn read_lane(&mut self, index: usize, head: u64, flush: bool) -> u64 {
        let region = &self.recorder.region;
        let (Some(header), Some(ring)) = (region.lane_header(index), region.ring(index)) else {
            return 0;
        };
        if self.read.len() <= index {
            self.read.resize(index + 1, 0);
        }
        let Range { start, end } = self.read[index].max(header.tail())..head;
        let pending = end.saturating_sub(start);
        let survives = self.memory.lanes().is_some() && header.is_shared();
        let wait = survives && !flush && pending < LAZY_WORDS;
        if pending != 0 && !wait {
            let mut words = std::mem::take(&mut self.words);
            let mut from = start;
            // In pieces of one block, so that the words stay in the cache for all sinks.
            while from < end {
                words.clear();
                header.copy(ring, from..end.min(from + MAX_BLOCK_WORDS as u64), &mut words);
                let whole = self.feed.words(index, from, &words);
                self.hand_out(index, words.get(..whole).unwrap_or(&words));
                // If the lane ends within a record, the rest is not a record and is skipped.
                from = if whole == 0 { end } else { from + whole as u64 };
            }
            self.words = words;
            self.read[index] = end;
        }
        if header.pending() > CROWDED_WORDS {
            self.crowded.push(index);
        }
        pending
    }

    /// Passes whole records of a lane to the sinks of this process.
    fn hand_out(&mut self, lane: usize, words: &[u64]) {
        match &mut self.meter {
            Some(meter) => {
                for record in records(words) {
                    self.watchdog.record(lane, &record);
                    meter.record(lane, &record);
                }
            }
            // The watchdog needs only a part of a step's record.
            None => self.watchdog.words(lane, words),
        }
        self.under_way.words(lane, words);
    }

    /// Runs the watchdog after all lanes were read, and records what it found.
    fn look(&mut self) {
        let found = self.watchdog.look(self.recorder, clock::now(), self.clocks.hz());
        let words = found.words(|place| self.text(place));
        if let Some(meter) = &mut self.meter {
            found.progress().for_each(|progress| meter.progress(progress));
        }
        self.feed.heartbeats(words);
        self.feed.freeze(self.watchdog.is_stuck());
        let Found { hangs, lines, .. } = found;
        for line in &lines {
            self.feed.define(Definition::Note(line.clone()));
        }
        self.lines.extend(lines);
        for hang in &hangs {
            let (ticks, text) = (hang.ticks, hang.lines().join("\n"));
            self.feed.define(Definition::Hang { ticks, text });
        }
        self.hangs.extend(hangs);
        if self.clocks.hz() != 0 {
            self.ended.drain(..).for_each(call_counters::leave);
        }
        if call_counters::refused() != 0 && !std::mem::replace(&mut self.told_uncounted, true) {
            let cells = call_counters::CELLS;
            self.feed.define(Definition::Note(format!(
                "more than {cells} communicators at a time: the calls of some are not counted"
            )));
        }
    }

    /// Compares the clocks a second time in the first pass, a moment after the process began: the
    /// length of a tick is unknown until then, and the process may be killed in its first second.
    fn clock_early(&mut self) {
        if self.clocks.hz() == 0 {
            self.compare_clocks();
        }
    }

    fn compare_clocks(&mut self) {
        let sync = *self.clocks.compare();
        self.feed.clock(sync);
        if self.clocks.hz() != 0 {
            let map = self.clocks.map();
            self.meter.iter_mut().for_each(|meter| meter.clock(&map));
        }
    }

    /// Compares the clocks, and orders the writer thread to write the header with its counters.
    pub(crate) fn sync(&mut self) {
        self.compare_clocks();
        self.recorder.reap_lanes();
        for doubt in self.clocks.doubts() {
            self.feed.define(Definition::Note(doubt));
        }
        self.feed.finish(Job::Sync { hz: self.clocks.hz(), done: None });
        self.feed.flush();
    }

    fn close_window(&mut self, end: WindowEnd) {
        let Some(meter) = &mut self.meter else { return };
        let is_over = match end {
            WindowEnd::Due => meter.is_due(),
            WindowEnd::Now => meter.may_end_now(),
            WindowEnd::Last => true,
        };
        if !is_over {
            return;
        }
        let recorder = self.recorder;
        let (mut lane_full, mut ends) = ([0; KINDS], [0; KINDS]);
        for (_, lane) in recorder.lanes() {
            lane_full.iter_mut().zip(lane.lost()).for_each(|(sum, lost)| *sum += lost);
            ends.iter_mut().zip(lane.lost_ends()).for_each(|(sum, lost)| *sum += lost);
        }
        let losses = Losses {
            lane_full,
            ends,
            no_lane: recorder.lost_without_lane(),
            no_slot: recorder.lost_without_slot(),
            stale: recorder.stale(),
            unknown: recorder.unknown(),
        };
        meter.close(&self.clocks.map(), &losses, end == WindowEnd::Last);
    }

    /// Ends the recording when the process exits with this status: orders the writer thread to
    /// write the rest. Returns the wait for the last metrics, if metrics are on.
    pub(crate) fn close(&mut self, status: u8, done: Answer<()>) -> Option<Farewell> {
        self.identity.exits(status).into_iter().for_each(|fact| self.feed.define(fact));
        if self.clocks.hz() == 0 {
            self.compare_clocks();
        }
        self.watchdog.hurry();
        self.tick(true);
        let (_, later) = self.last_pass();
        later.into_iter().for_each(|order| self.answer(order));
        self.compare_clocks();
        self.close_window(WindowEnd::Last);
        let rest = self.under_way.rest(&self.read);
        self.feed.finish(Job::Close { hz: self.clocks.hz(), rest, done });
        self.feed.flush();
        self.meter.as_ref().map(Meter::farewell)
    }

    /// A new file replaced one that was removed, and has no definitions yet: queues all of them
    /// again.
    pub(crate) fn introduce(&mut self) {
        let recorder = self.recorder;
        let feed = &mut self.feed;
        self.identity.definitions().into_iter().for_each(|fact| feed.define(fact));
        let known = (0..self.strings_known.len()).filter(|&index| self.strings_known[index]);
        for (id, text) in known.filter_map(|index| recorder.strings.get(index)) {
            feed.string(id, &text);
        }
        for (id, text) in self.texts.all() {
            feed.string(id, text);
        }
        self.comms.values().for_each(|comm| feed.comm(comm));
        for device in self.devices.values() {
            feed.define(Definition::CommDevice(device.clone()));
        }
        for (&hash, text) in &self.roles {
            feed.define(Definition::Role { hash, text: text.clone() });
        }
        feed.clock(*self.clocks.first());
        feed.begin_anew();
    }
}
