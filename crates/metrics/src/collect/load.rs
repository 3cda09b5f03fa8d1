// SPDX-License-Identifier: Apache-2.0
//! The load of a proxy progress thread.

use crate::window::Proxy;

/// The union of the intervals of a lane's ProxyOps that move data.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    stopped: u64,
    open: u64,
    /// Time up to which `busy` is counted, in ticks, while a ProxyOp is open.
    since: u64,
    /// Stop of the last ProxyOp, in ticks.
    idle_from: u64,
    /// Busy ticks of this window. Negative if the previous window counted too much, because it
    /// ended later than the stop of a ProxyOp whose record came after it.
    busy: i64,
}

impl Load {
    /// Adds an open ProxyOp that started at `start` ticks.
    pub(super) fn begin(&mut self, start: u64) {
        if self.open == 0 {
            self.since = start.max(self.idle_from);
        }
        self.open += 1;
    }

    /// An open ProxyOp stopped.
    pub(super) fn stop(&mut self, ticks: u64) {
        self.stopped += 1;
        self.abandon(ticks);
    }

    /// An open ProxyOp is no longer tracked.
    pub(super) fn abandon(&mut self, ticks: u64) {
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.count_to(ticks);
            self.idle_from = self.idle_from.max(ticks);
        }
    }

    /// Ends the window at `now` ticks; `None` if nothing happened.
    pub(super) fn take(&mut self, now: u64, seconds_per_tick: f64) -> Option<Proxy> {
        if self.open > 0 {
            self.count_to(now);
        }
        let busy = u64::try_from(self.busy).unwrap_or(0);
        self.busy = self.busy.min(0);
        let operations = std::mem::take(&mut self.stopped);
        let busy = ncclscope_operations::stats::to_f64(busy) * seconds_per_tick;
        (operations > 0 || busy > 0.0).then_some(Proxy { operations, busy })
    }

    fn count_to(&mut self, ticks: u64) {
        let passed = ticks.wrapping_sub(self.since).cast_signed();
        self.busy = self.busy.saturating_add(passed);
        self.since = ticks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_count_once_and_windows_add_up() {
        let mut load = Load::default();
        load.begin(100);
        load.begin(150);
        load.stop(200);
        // The window ends while a ProxyOp is open, and later than its records so far.
        assert_eq!(load.take(260, 1.0), Some(Proxy { operations: 1, busy: 160.0 }));
        load.stop(240);
        assert_eq!(load.take(300, 1.0), Some(Proxy { operations: 1, busy: 0.0 }));
        // It started before the last one stopped, and is read after that.
        load.begin(230);
        load.stop(280);
        assert_eq!(load.take(300, 1.0), Some(Proxy { operations: 1, busy: 20.0 }));
        assert_eq!(load.take(400, 1.0), None);
    }
}
