// SPDX-License-Identifier: Apache-2.0
//! How busy a proxy progress thread is.

use crate::window::Proxy;

/// One lane's ProxyOps that move something, as a union of intervals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    stopped: u64,
    open: u64,
    /// Until here it is counted, while any is open.
    since: u64,
    /// When the last one stopped.
    idle_from: u64,
    /// Ticks of this window. A window that ended later than the records that came until then
    /// says counted too much: the next one counts that much less.
    busy: i64,
}

impl Load {
    /// A ProxyOp that started at `start` ticks is under way.
    pub(super) fn begin(&mut self, start: u64) {
        if self.open == 0 {
            self.since = start.max(self.idle_from);
        }
        self.open += 1;
    }

    /// One that was under way stopped.
    pub(super) fn stop(&mut self, ticks: u64) {
        self.stopped += 1;
        self.abandon(ticks);
    }

    /// One that was under way is not looked at any longer.
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
        // Ends while one is open, and later than the records that it had seen.
        assert_eq!(load.take(260, 1.0), Some(Proxy { operations: 1, busy: 160.0 }));
        load.stop(240);
        assert_eq!(load.take(300, 1.0), Some(Proxy { operations: 1, busy: 0.0 }));
        // Started before the last one stopped, seen after it.
        load.begin(230);
        load.stop(280);
        assert_eq!(load.take(300, 1.0), Some(Proxy { operations: 1, busy: 20.0 }));
        assert_eq!(load.take(400, 1.0), None);
    }
}
