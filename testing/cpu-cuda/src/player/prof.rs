// SPDX-License-Identifier: Apache-2.0
//! The counters that report the start and end of a kernel's works to NCCL's profiler.
//!
//! The rules are those of `profiler()` in NCCL's `src/device/common.h`: thread 0 of the block alone
//! writes, and every work counts, whether it is profiled or not. From 2.31 on the host's side
//! (`ncclProfilerPostPlanWork` of `src/plugin/profiler.cc`) counts only works that it profiles: a
//! broadcast makes the two sides drift apart there (NVIDIA/nccl#2368), on a GPU as here.

use super::block::Block;
use super::faults;
use super::memory::Addr;
use crate::layout::Counters;

/// Bytes of a slot {u64 counter, u64 timestamp}.
const SLOT: usize = 16;
/// Bytes of a slot {u64 counter, u64 timestamps[4]}.
const PHASES_SLOT: usize = 40;

/// A border between phases of a work; the value is its index in `timestamps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Begin = 0,
    AfterOpen = 1,
    BeforeClose = 2,
    End = 3,
}

/// A channel's counters during one kernel.
#[derive(Debug)]
pub(crate) struct Profiler<'a> {
    block: &'a Block<'a>,
    started: Option<(Addr, usize)>,
    completed: Option<(Addr, usize)>,
    /// Only 2.31 has them, for every kernel.
    phases: Option<(Addr, usize)>,
    saved: Option<Addr>,
    /// Works done since the communicator began.
    counter: u64,
}

impl<'a> Profiler<'a> {
    /// The counters of the block's channel.
    pub(crate) fn open(block: &'a Block<'a>) -> Self {
        let layout = block.layout;
        let channel = |counters: Counters| {
            let base = block.comm.add(counters.offset).load_addr();
            let own = base.add(block.channel_id * counters.stride);
            (!base.is_null()).then_some((own, counters.stride))
        };
        let saved = layout.channel.work_counter.map(|offset| block.channel.add(offset));
        Self {
            block,
            started: layout.comm.work_started.and_then(channel),
            completed: layout.comm.work_completed.and_then(channel),
            phases: layout.comm.work_phases.and_then(channel),
            saved,
            counter: saved.map_or(0, Addr::load_u64),
        }
    }

    /// Reports the start of a batch; `profiled` is whether each work is timed.
    pub(crate) fn begin(&self, profiled: &[bool]) {
        self.phase(Phase::Begin, profiled, true);
        self.write(self.counters(self.started, profiled), 0);
    }

    /// Writes the time of a phase border, if the works of the batch have phases.
    pub(crate) fn phase(&self, phase: Phase, profiled: &[bool], phased: bool) {
        let Some(slots) = self.phases.filter(|_| phased) else { return };
        let now = self.clock();
        let stamp = |value| (slot(slots, PHASES_SLOT, value).add(8 + 8 * phase as usize), now);
        self.write(self.timed(profiled).map(stamp).collect(), 0);
    }

    /// Whether the device code waits for all threads of the block before it reports the end of
    /// collectives: 2.31 does, for the phases.
    pub(crate) fn joins(&self) -> bool {
        self.phases.is_some()
    }

    /// Reports the end of a batch, as seen by thread 0.
    pub(crate) fn end(&self, profiled: &[bool]) {
        self.phase(Phase::End, profiled, true);
        let mut writes: Vec<_> = match self.phases {
            Some(slots) => self.timed(profiled).map(|n| (slot(slots, PHASES_SLOT, n), n)).collect(),
            None => vec![],
        };
        // NCCL reads the phases as soon as a work is completed.
        writes.extend(self.counters(self.completed, profiled));
        self.write(writes, profiled.len() as u64);
    }

    /// Continues with the next batch.
    pub(crate) fn advance(&mut self, works: usize) {
        self.counter += works as u64;
    }

    /// Saves the count for the channel's next kernel.
    pub(crate) fn close(&self) {
        if let Some(saved) = self.saved {
            saved.store_u64(self.counter);
        }
    }

    /// The counters of the batch's works that are timed.
    fn timed(&self, profiled: &[bool]) -> impl Iterator<Item = u64> {
        let works = (self.counter + 1..).zip(profiled);
        works.filter_map(|(value, &enabled)| enabled.then_some(value))
    }

    fn counters(&self, to: Option<(Addr, usize)>, profiled: &[bool]) -> Vec<(Addr, u64)> {
        match to {
            None => vec![],
            // In 2.26 one bare counter.
            Some((base, stride)) if stride < SLOT => {
                vec![(base, self.counter + profiled.len() as u64)]
            }
            Some(slots) => {
                let now = self.clock();
                let writes = |value| {
                    let slot = slot(slots, SLOT, value);
                    [(slot.add(8), now), (slot, value)]
                };
                self.timed(profiled).flat_map(writes).collect()
            }
        }
    }

    /// Stores in this order, when `works` more works have ended.
    fn write(&self, writes: Vec<(Addr, u64)>, works: u64) {
        match (&self.block.faults, self.completed) {
            (Some(here), Some((channel, _))) => here.write(channel, writes, works),
            _ => writes.into_iter().for_each(|(at, value)| at.store_u64(value)),
        }
    }

    fn clock(&self) -> u64 {
        let now = faults::now();
        self.block.faults.as_ref().map_or(now, |here| here.clock(now))
    }
}

/// The slot of counter `value` among those that fill a channel's `(address, bytes)`.
fn slot((base, bytes): (Addr, usize), size: usize, value: u64) -> Addr {
    base.add(usize::try_from(value).expect("64 bits") % (bytes / size) * size)
}
