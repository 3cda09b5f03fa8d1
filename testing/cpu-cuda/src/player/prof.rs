// SPDX-License-Identifier: Apache-2.0
//! The counters through which NCCL's profiler learns when a kernel began and ended a work.

use std::time::{SystemTime, UNIX_EPOCH};

use super::block::Block;
use super::memory::Addr;
use crate::layout::Counters;

/// Bytes of a slot {u64 counter, u64 timestamp}.
const SLOT: usize = 16;

/// A channel's counters during one kernel.
#[derive(Debug)]
pub(crate) struct Profiler {
    started: Option<(Addr, usize)>,
    completed: Option<(Addr, usize)>,
    saved: Option<Addr>,
    /// Works done since the communicator began.
    counter: u64,
    enabled_only: bool,
}

impl Profiler {
    /// The counters of the block's channel. With `enabled_only` works that NCCL does not profile
    /// are not counted.
    pub(crate) fn open(block: &Block<'_>, enabled_only: bool) -> Self {
        let layout = block.layout;
        let channel = |counters: Counters| {
            let base = block.comm.add(counters.offset).load_addr();
            let own = base.add(block.channel_id * counters.stride);
            (!base.is_null()).then_some((own, counters.stride))
        };
        let saved = layout.channel.work_counter.map(|offset| block.channel.add(offset));
        Self {
            started: layout.comm.work_started.and_then(channel),
            completed: layout.comm.work_completed.and_then(channel),
            saved,
            counter: saved.map_or(0, Addr::load_u64),
            enabled_only,
        }
    }

    /// Says that a batch begins; `profiled` tells for each work whether it is timed.
    pub(crate) fn begin(&self, profiled: &[bool]) {
        self.post(self.started, profiled);
    }

    /// Says that a batch has ended.
    pub(crate) fn end(&mut self, profiled: &[bool]) {
        self.post(self.completed, profiled);
        self.counter += profiled.iter().filter(|&&enabled| self.counts(enabled)).count() as u64;
    }

    /// Leaves the count to the channel's next kernel.
    pub(crate) fn close(&self) {
        if let Some(saved) = self.saved {
            saved.store_u64(self.counter);
        }
    }

    fn counts(&self, enabled: bool) -> bool {
        enabled || !self.enabled_only
    }

    fn post(&self, to: Option<(Addr, usize)>, profiled: &[bool]) {
        let Some((base, stride)) = to else { return };
        if stride < SLOT {
            // Up to 2.26 one bare counter.
            base.store_u64(self.counter + profiled.len() as u64);
            return;
        }
        let mut value = self.counter;
        for &enabled in profiled {
            value += u64::from(self.counts(enabled));
            if enabled {
                let slots = stride / SLOT;
                let slot = base.add(usize::try_from(value).expect("64 bits") % slots * SLOT);
                slot.add(8).store_u64(global_timer());
                slot.store_u64(value);
            }
        }
    }
}

/// Nanoseconds since 1970, as the GPU's `%globaltimer` counts.
fn global_timer() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
