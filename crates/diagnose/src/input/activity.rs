// SPDX-License-Identifier: Apache-2.0
//! When the application last called NCCL, and when an event last completed: in the process, and on
//! each of its communicators, since a process may run several ranks.

use ncclscope_operations::Event;
use ncclscope_trace::EventKind;

/// Times in ticks; 0 never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    /// The application last called NCCL.
    pub(super) call: u64,
    /// The latest of this call and the last completion of an event.
    pub(super) change: u64,
    /// The longest time between two changes before that.
    pub(super) longest: u64,
    /// Number of changes.
    pub(super) changes: u64,
}

impl Activity {
    /// Notes a call, after all others are known.
    pub(super) fn call_at(&mut self, at: Option<u64>) {
        self.call = self.call.max(at.unwrap_or(0));
        self.change = self.change.max(self.call);
    }

    /// Notes that something changed at `at`. Lanes are read in pieces, so that changes come nearly
    /// in order: one that comes late makes no pause longer than it was.
    fn change(&mut self, at: u64) {
        if at <= self.change {
            return;
        }
        if self.change != 0 {
            self.longest = self.longest.max(at - self.change);
        }
        (self.change, self.changes) = (at, self.changes + 1);
    }
}

/// The activity of a process, and of its communicators by position.
#[derive(Clone, Debug, Default)]
pub(super) struct Activities {
    pub(super) process: Activity,
    pub(super) comms: Vec<Activity>,
}

impl Activities {
    /// Of a process with this number of communicators.
    pub(super) fn new(comms: usize) -> Activities {
        Activities { process: Activity::default(), comms: vec![Activity::default(); comms] }
    }

    /// Adds an event of the communicator at a position.
    pub(super) fn add(&mut self, event: &Event, comm: Option<usize>) {
        let is_call = matches!(
            event.kind(),
            EventKind::CollApi | EventKind::P2pApi | EventKind::Coll | EventKind::P2p
        );
        let call = if is_call { event.start.ticks } else { 0 };
        let stop = event.stop.unwrap_or(0);
        let comm = comm.and_then(|at| self.comms.get_mut(at));
        for of in [Some(&mut self.process), comm].into_iter().flatten() {
            of.call = of.call.max(call);
            of.change(stop);
        }
    }

    /// Adds the latest calls of communicators by their heartbeats, `beats`, after all events. They
    /// are used where calls are missing in the recording. A heartbeat tells a call up to `late`
    /// ticks after it was made, when others may have begun to wait. The call counts as made at the
    /// beginning of that time.
    pub(super) fn finish(&mut self, beats: &[u64], late: u64, has_all_calls: bool) {
        let latest = beats.iter().max().unwrap_or(&0);
        let all = std::iter::once((&mut self.process, latest));
        for (of, &beat) in all.chain(self.comms.iter_mut().zip(beats)) {
            if of.call == 0 || !has_all_calls {
                of.call = of.call.max(beat.saturating_sub(late));
                of.change = of.change.max(beat);
            }
            of.change = of.change.max(of.call);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_tells_a_call_late_and_only_where_calls_are_missing() {
        let found = |call: u64, beat: u64, has_all_calls: bool| {
            let mut all = Activities::new(1);
            all.comms[0].call = call;
            all.finish(&[beat], 100, has_all_calls);
            (all.comms[0].call, all.comms[0].change)
        };
        assert_eq!(found(950, 1000, false), (950, 1000), "the call of which it tells");
        assert_eq!(found(950, 3000, false), (2900, 3000), "a call that was not recorded");
        assert_eq!(found(950, 3000, true), (950, 950));
        assert_eq!((found(0, 3000, true), found(0, 0, true)), ((2900, 3000), (0, 0)));
    }
}
