// SPDX-License-Identifier: Apache-2.0
/*!
The byte layout of the scratch: lane headers, rings and ProxyOp slots.

The recorder writes these with atomic stores into shared memory; recorder and readers use the same
byte offsets from here.

Lane header (1,280 bytes): `state:u32@0 (0: never used) kinds:u32@4 (mask of event kinds seen)
thread:u32@8`, the producer's line
`head:u64@64 (words ever pushed) sequence:u64@72`, the consumer's line `tail:u64@192 (words taken)
hidden:u64@208 (words at the ring's end that are in no file)`, and the losses `u64[64]@256` by kind:
events that were not recorded at all, and `u64[64]@768`: stops and states of recorded events that
were not.

Slot (320 bytes): header `handle:u64@0 (0: free) start:u64@8 flags:u32@16 …`, then eight steps of 32
bytes: `start|repeats:u64@0 (48|16 bits) d0:u32@8 d1:u32@12 d2:u32@16 size:u32@20 step:u32@24
tag:u32@28`. The tag is the slot's generation << 5 and five bits: 0 live, then the step's first,
second and third state recorded, and its size given.
*/

use crate::bytes::{u32_at, u64_at};
use crate::codec::KindCounts;
use crate::handle::{Handle, STEPS_IN_FLIGHT};
use crate::kind::{EventKind, KINDS, MOST_KINDS};
use crate::layout::{LANE_STRIDE, MOST_COUNTED, RING_BYTES, SLOT_BYTES, later_kinds};
use crate::record::{Record, STEP_SHIFT, Step, step_flags};
use crate::schema::Schema;
use crate::words::MAX_WORDS;
use std::collections::BTreeMap;

/// Offsets within a lane header.
pub mod lane {
    /// State of the lane: how often it was taken and given back; odd while a thread holds it.
    pub const STATE: usize = 0;
    /// Mask of event kinds that the lane's threads started.
    pub const KINDS: usize = 4;
    /// Id of the thread that holds the lane, or held it last; 0 unknown.
    pub const THREAD: usize = 8;
    /// Words ever pushed.
    pub const HEAD: usize = 64;
    /// Value handles ever made.
    pub const SEQUENCE: usize = 72;
    /// Words taken by the drain thread.
    pub const TAIL: usize = 192;
    /// Words at the end of the ring that lie in private memory, not in the file.
    pub const HIDDEN: usize = 208;
    /// Events lost, by kind.
    pub const LOST: usize = 256;
    /// Stops and states lost, by kind.
    pub const LOST_ENDS: usize = LOST + 8 * crate::kind::MOST_KINDS;
}

/// Offsets within a slot and its steps.
pub mod slot {
    /// The ProxyOp's handle; 0 when free.
    pub const HANDLE: usize = 0;
    /// When it started, in ticks.
    pub const START: usize = 8;
    /// Bit 0 send; from bit 16 on the communicator.
    pub const FLAGS: usize = 16;
    /// Index of the next free slot plus one (owner only).
    pub const NEXT: usize = 20;
    /// First step.
    pub const STEPS: usize = 64;
    /// Bytes of a step.
    pub const STEP_BYTES: usize = 32;
    /// Start in ticks (48 bits) and repeats (16 bits).
    pub const STEP_START: usize = 0;
    /// Ticks to the first, second and third state, each `u32`, in units of 2^STEP_SHIFT.
    pub const STEP_STATES: usize = 8;
    /// Bytes transferred.
    pub const STEP_SIZE: usize = 20;
    /// NCCL's step number.
    pub const STEP_NUMBER: usize = 24;
    /// [`Handle::step_tag`](crate::Handle::step_tag) | bits below.
    pub const STEP_TAG: usize = 28;
    /// Tag bit: the step started and did not stop. The bits above it are
    /// [`crate::record::step_flags`] from `FIRST` to `SIZED`, shifted right by one.
    pub const LIVE: u32 = 1;
}

/// Bits of [`slot::STEP_START`] that hold the time.
pub const STEP_TIME_MASK: u64 = (1 << 48) - 1;

/// The positions of a lane, and its counts of losses.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LaneHeader {
    /// Whether any thread ever used the lane.
    pub used: bool,
    /// Mask of event kinds started on it.
    pub kinds: u32,
    /// Id of the thread that held it last; 0 unknown.
    pub thread: u32,
    /// Words ever pushed.
    pub head: u64,
    /// Words taken by the drain thread.
    pub tail: u64,
    /// Words at the end of the ring that lie in private memory, not in the file.
    pub hidden: u64,
    /// Events that were not recorded at all, by kind.
    pub lost: KindCounts,
    /// Stops and states of recorded events that were not recorded, by kind.
    pub lost_ends: KindCounts,
    /// Sums of `lost` and `lost_ends` for kinds of a later version, by the kind's number.
    pub later_kinds: BTreeMap<u8, u64>,
    /// Some counts are larger than any process can have counted: the bytes are damaged. These
    /// counts are left out.
    pub is_damaged: bool,
}

impl LaneHeader {
    /// Decodes a lane header; `None` if `bytes` are too few.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<LaneHeader> {
        let bytes = bytes.get(..LANE_STRIDE)?;
        let possible = |count: &u64| *count <= MOST_COUNTED;
        let counts = |at: usize| {
            let mut counts = [0; KINDS];
            for (kind, count) in counts.iter_mut().enumerate() {
                *count = u64_at(bytes, at + 8 * kind).filter(possible).unwrap_or(0);
            }
            counts
        };
        let mut losses = (0..2 * MOST_KINDS).filter_map(|at| u64_at(bytes, lane::LOST + 8 * at));
        let mut later_kinds = later_kinds(bytes, &[lane::LOST, lane::LOST_ENDS]);
        later_kinds.retain(|_, count| possible(count));
        let head = u64_at(bytes, lane::HEAD)?;
        Some(LaneHeader {
            used: u32_at(bytes, lane::STATE)? != 0 || head != 0,
            kinds: u32_at(bytes, lane::KINDS)?,
            thread: u32_at(bytes, lane::THREAD)?,
            head,
            tail: u64_at(bytes, lane::TAIL)?,
            hidden: u64_at(bytes, lane::HIDDEN)?,
            lost: counts(lane::LOST),
            lost_ends: counts(lane::LOST_ENDS),
            later_kinds,
            is_damaged: losses.any(|count| !possible(&count)),
        })
    }
}

impl LaneHeader {
    /// True if some of the words from position `from` to the head are in private memory and not in
    /// the file.
    #[must_use]
    pub fn hides(&self, from: u64) -> bool {
        const WORDS: u64 = (RING_BYTES / 8) as u64;
        let end = self.head.saturating_sub(from).saturating_add(from % WORDS);
        self.hidden != 0 && self.head > from && end > WORDS - self.hidden.min(WORDS)
    }
}

/// The records between two positions of a ring of a dead (or stopped) process, and the number of
/// words that are not a record, because the kill interrupted a write.
#[must_use]
pub fn ring_records(ring: &[u8], from: u64, head: u64, schema: &Schema) -> (Vec<Record>, u64) {
    let words = (RING_BYTES / 8) as u64;
    // Words older than one round of the ring are overwritten.
    let mut at = from.max(head.saturating_sub(words));
    let mut records = Vec::new();
    // Positions count words from 0, so a position with the highest bit is invalid.
    if head > u64::MAX / 2 {
        return (records, head - at);
    }
    while at < head {
        let word = |i: u64| {
            let index = usize::try_from((at + i) % words).unwrap_or(0);
            u64_at(ring, index * 8).unwrap_or(0)
        };
        let code = word(0).to_le_bytes()[0];
        let Some((len, _)) = schema.of(code) else {
            return (records, head - at);
        };
        if at + len as u64 > head {
            return (records, head - at);
        }
        let mut copy: Vec<u64> = (0..len as u64).map(word).collect();
        // Fields that the writer did not have are 0.
        copy.resize(len.max(MAX_WORDS), 0);
        let ticks = copy.get(1).copied().unwrap_or(0);
        records.push(Record::unpack(&copy).unwrap_or(Record::Unknown { ticks, code }));
        at += len as u64;
    }
    (records, 0)
}

/// The latest start of a step in flight in a slot, or `now` if that is later. A step in flight may
/// have started after the newest record.
#[must_use]
pub fn latest_start(slot: &[u8], now: u64) -> u64 {
    let ahead = |step: &Step| {
        let ahead = step.ticks.wrapping_sub(now) & STEP_TIME_MASK;
        // Starts are stored modulo 2^48 ticks; the value nearest to `now` is meant.
        if ahead <= STEP_TIME_MASK / 2 { ahead } else { 0 }
    };
    now + slot_steps(slot, now).iter().map(ahead).max().unwrap_or(0)
}

/// The steps in flight of a live slot, as unstopped step records; empty for a free slot. `now` is
/// the latest known time, which completes the stored 48 bits of a start.
#[must_use]
pub fn slot_steps(slot: &[u8], now: u64) -> Vec<Step> {
    let mut steps = Vec::new();
    let handle = Handle(u64_at(slot, slot::HANDLE).unwrap_or(0));
    if slot.len() < SLOT_BYTES || handle.is_null() || handle.kind() != EventKind::ProxyOp {
        return steps;
    }
    let is_send = u32_at(slot, slot::FLAGS).unwrap_or(0) & 1 != 0;
    for index in 0..STEPS_IN_FLIGHT {
        let at = slot::STEPS + index * slot::STEP_BYTES;
        let u32_ = |o: usize| u32_at(slot, at + o).unwrap_or(0);
        let tag = u32_(slot::STEP_TAG);
        let bits = tag ^ handle.step_tag();
        if bits >= 32 || bits & slot::LIVE == 0 {
            continue;
        }
        let packed = u64_at(slot, at + slot::STEP_START).unwrap_or(0);
        let age = now.wrapping_sub(packed) & STEP_TIME_MASK;
        let seen = bits.to_le_bytes()[0] & !1;
        steps.push(Step {
            ticks: now.wrapping_sub(age),
            flags: (u8::from(is_send) * step_flags::IS_SEND) | (seen << 1),
            repeats: u16::try_from(packed >> 48).unwrap_or(u16::MAX),
            step: u32_(slot::STEP_NUMBER),
            op_ref: handle.op_ref(),
            size: u32_(slot::STEP_SIZE),
            states: [0, 4, 8].map(|o| u64::from(u32_(slot::STEP_STATES + o))),
            end: age >> STEP_SHIFT,
        });
    }
    steps
}
