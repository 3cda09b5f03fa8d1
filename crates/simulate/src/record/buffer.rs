// SPDX-License-Identifier: Apache-2.0
//! The records of one process, by thread, before they are written.

use super::clock::Clocks;
use crate::time::Time;
use ncclscope_trace::codec::META_LANE;
use ncclscope_trace::handle::SLOTS;
use ncclscope_trace::layout::LANE_STRIDE;
use ncclscope_trace::record::{Detail, Packed};
use ncclscope_trace::scratch::lane;
use ncclscope_trace::{EventKind, Handle, Heartbeat, Record, Start, State, Step, StrId, Writer};
use std::io;

/// The thread that calls NCCL.
pub(crate) const API: usize = 0;
/// The proxy progress thread.
pub(crate) const PROXY: usize = 1;
const LANES: usize = 2;
/// The index of the drain thread's records, after those of the lanes.
const META: usize = 2;

#[derive(Debug, Default)]
struct ThreadRecords {
    /// The time of each record, and the position of its words.
    entries: Vec<(Time, u32, u32)>,
    words: Vec<u64>,
    kinds: u32,
}

/// The records of one process.
#[derive(Debug)]
pub(crate) struct RecordBuffer {
    pub(crate) clocks: Clocks,
    /// Events after this time are not recorded.
    pub(crate) end: Time,
    process: u64,
    tracks: [ThreadRecords; LANES + 1],
    strings: Vec<&'static str>,
    sequence: u64,
}

impl RecordBuffer {
    pub(crate) fn new(process: u32, clocks: Clocks, end: Time) -> RecordBuffer {
        RecordBuffer {
            clocks,
            end,
            process: u64::from(process),
            tracks: Default::default(),
            strings: Vec::new(),
            sequence: 0,
        }
    }

    pub(crate) fn string(&mut self, text: &'static str) -> StrId {
        let at = self.strings.iter().position(|&known| known == text).unwrap_or_else(|| {
            self.strings.push(text);
            self.strings.len() - 1
        });
        StrId(u16::try_from(at + 1).unwrap_or(0))
    }

    pub(crate) fn strings(&self) -> impl Iterator<Item = (StrId, &'static str)> {
        (1..).map(StrId).zip(self.strings.iter().copied())
    }

    /// Records the start of an event at `time`. Returns a handle even if it is too late to record.
    pub(crate) fn start(
        &mut self,
        lane: usize,
        time: Time,
        (comm, parent): (u16, Handle),
        detail: Detail,
    ) -> Handle {
        self.sequence += 1;
        let kind = detail.kind();
        let handle = if kind == EventKind::ProxyOp {
            // A slot belongs to one ProxyOp as long as that is in flight.
            let slot = usize::try_from(self.sequence).unwrap_or(0) % SLOTS;
            Handle::slot_op(self.process, lane, self.sequence / SLOTS as u64, slot)
        } else {
            Handle::value(self.process, kind, lane, self.sequence)
        };
        if time <= self.end {
            self.tracks[lane].kinds |= kind.bit();
            let ticks = self.clocks.ticks(time);
            let start = Start { ticks, comm, handle, parent, detail };
            self.push(lane, time, start.pack());
        }
        handle
    }

    pub(crate) fn stop(&mut self, lane: usize, time: Time, handle: Handle) {
        if time <= self.end {
            self.push(lane, time, Record::stop(self.clocks.ticks(time), handle));
        }
    }

    pub(crate) fn state(&mut self, lane: usize, time: Time, of: Handle, state: State, arg: u64) {
        if time <= self.end {
            self.push(lane, time, Record::state(self.clocks.ticks(time), of, state, 0, arg));
        }
    }

    /// Records a step, which is written at `time`.
    pub(crate) fn step(&mut self, time: Time, step: &Step) {
        if time <= self.end {
            self.tracks[PROXY].kinds |= EventKind::ProxyStep.bit();
            self.push(PROXY, time, step.pack());
        }
    }

    /// Records a heartbeat record of the drain thread.
    pub(crate) fn heartbeat(&mut self, time: Time, heartbeat: &Heartbeat) {
        self.push(META, time, heartbeat.pack());
    }

    /// The heartbeat records so far, in order.
    pub(crate) fn heartbeats(&self) -> impl Iterator<Item = Heartbeat> {
        let ThreadRecords { entries, words, .. } = &self.tracks[META];
        entries.iter().filter_map(|&(_, from, len)| {
            match Record::unpack(&words[from as usize..(from + len) as usize])? {
                Record::Heartbeat(heartbeat) => Some(heartbeat),
                _ => None,
            }
        })
    }

    /// Records a clock synchronization.
    pub(crate) fn sync(&mut self, time: Time) {
        self.push(META, time, Record::clock_sync(&self.clocks.sync(time)));
    }

    /// Records a mark, by its words.
    pub(crate) fn mark(&mut self, time: Time, words: &[u64]) {
        if time <= self.end {
            self.tracks[META].push(time, words);
        }
    }

    fn push(&mut self, track: usize, time: Time, packed: Packed) {
        self.tracks[track].push(time, packed.words());
    }

    /// The kinds of events that a lane's thread started.
    pub(crate) fn kinds(&self, lane: usize) -> u32 {
        self.tracks[lane].kinds
    }

    /// The kinds of events that any thread started.
    pub(crate) fn all_kinds(&self) -> u32 {
        self.tracks.iter().fold(0, |kinds, track| kinds | track.kinds)
    }

    /// Writes all records in time order, in batches of `turn` ns, as the drain thread does.
    pub(crate) fn write(&mut self, writer: &mut Writer, turn: u64) -> io::Result<()> {
        for track in &mut self.tracks {
            track.entries.sort_by_key(|entry| entry.0);
        }
        let latest = |track: &ThreadRecords| track.entries.last().map_or(0, |entry| entry.0);
        let end = self.tracks.iter().map(latest).max().unwrap_or(0);
        let (mut at, mut positions) = ([0; LANES + 1], [0; LANES + 1]);
        let mut until = turn;
        let mut words = Vec::new();
        while until < end.saturating_add(2 * turn) {
            for (index, track) in self.tracks.iter().enumerate() {
                words.clear();
                let rest = &track.entries[at[index]..];
                let count = rest.partition_point(|entry| entry.0 < until);
                for &(_, from, len) in &rest[..count] {
                    words.extend(&track.words[from as usize..(from + len) as usize]);
                }
                at[index] += count;
                let lane =
                    if index == META { META_LANE } else { u16::try_from(index).unwrap_or(0) };
                writer.append(lane, positions[index], &words)?;
                positions[index] += words.len() as u64;
            }
            until += turn;
        }
        for index in 0..LANES {
            writer.write_lane(index, &self.lane_header(index))?;
        }
        Ok(())
    }

    fn lane_header(&self, index: usize) -> [u8; LANE_STRIDE] {
        let mut bytes = [0; LANE_STRIDE];
        let mut put = |at: usize, value: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + value.len()) {
                place.copy_from_slice(value);
            }
        };
        let words = self.tracks[index].words.len() as u64;
        put(lane::STATE, &u32::from(words != 0).to_le_bytes());
        put(lane::KINDS, &self.tracks[index].kinds.to_le_bytes());
        put(lane::HEAD, &words.to_le_bytes());
        put(lane::TAIL, &words.to_le_bytes());
        bytes
    }
}

impl ThreadRecords {
    fn push(&mut self, time: Time, words: &[u64]) {
        let at = u32::try_from(self.words.len()).unwrap_or(u32::MAX);
        self.words.extend_from_slice(words);
        self.entries.push((time, at, u32::try_from(words.len()).unwrap_or(0)));
    }
}
