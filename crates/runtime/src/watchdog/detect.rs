// SPDX-License-Identifier: Apache-2.0
//! What stands still for too long: the one way from records to a hang, for real ones and drills.

use super::clock::Clock;
use super::judge::Subject;
use super::report::Hang;
use super::still::{Key, Seen, Stills};
use ncclscope_analyze::progress::{CommView, Outside, Tracker};
use ncclscope_trace::Handle;

/// How much longer a communicator's first operation, and an API call that may be connecting, gets.
const FIRST: u64 = 10;
/// How much longer it gets while other operations of the process complete, or where operations like
/// it take long.
const EXCUSED: u64 = 4;
/// What has an excuse gets no longer than this, unless the limit itself is longer: PyTorch's own
/// watchdog ends the process after 600 s, and the report must come before.
const EXCUSE_MOST_NS: u64 = 540_000_000_000;
/// How much longer than operations like it have stood still so far it may.
const LONGER_THAN_USUAL: u64 = 10;

/// Operations of a process, and since when they stand still.
#[derive(Debug, Default)]
pub(super) struct Detector {
    pub(super) tracker: Tracker,
    stills: Stills,
    stuck: Vec<Stuck>,
}

/// Something that was found and has not ended.
#[derive(Clone, Debug)]
pub(super) struct Stuck {
    pub(super) subject: Handle,
    pub(super) comm: u16,
    /// When it began, in ticks.
    pub(super) start: u64,
    pub(super) hang: Hang,
    /// It was reported; else only counted.
    pub(super) is_told: bool,
    /// For how long it had stood still, and the time seen then, ns.
    pub(super) still_ns: u64,
    pub(super) at: u64,
}

/// Something that stands still.
#[derive(Clone, Debug)]
pub(super) struct Suspect {
    pub(super) subject: Subject,
    /// For how long it has, and after how long it is stuck: ns.
    pub(super) still_ns: u64,
    pub(super) limit_ns: u64,
}

impl Suspect {
    pub(super) const fn is_stuck(&self) -> bool {
        self.still_ns >= self.limit_ns
    }
}

impl Detector {
    /// Sees what is in flight; all records are read.
    pub(super) fn look(&mut self, clock: Clock, seen: Seen, outside: &Outside<'_>) {
        self.tracker.look(clock.now, clock.hz, outside);
        self.stills.begin_look(seen);
    }

    /// What has not moved for `limit` less `before`, ns; nothing that was found already. Once
    /// after each look.
    pub(super) fn suspects(&mut self, clock: Clock, limit: u64, before: u64) -> Vec<Suspect> {
        let soon = limit.saturating_sub(before);
        let comms: Vec<CommView> = self.tracker.comms().collect();
        let mut is_old = false;
        for comm in &comms {
            let still = comm.since.map(|since| self.still(Key::Comm(comm.comm), since, clock));
            is_old |= still.is_some_and(|still| still >= soon);
        }
        let calls = self.tracker.calls();
        for call in &calls {
            is_old |= self.still(Key::Call(call.handle.0), call.start, clock) >= soon;
        }
        let latest_end = comms.iter().map(|comm| comm.last_end).max().unwrap_or(0);
        let others_move = self.still(Key::End, latest_end, clock) < limit;
        if !is_old {
            return Vec::new();
        }
        let mut suspects = Vec::new();
        let mut seen: Vec<u16> = Vec::new();
        for op in self.tracker.in_flight() {
            // Only the oldest of a communicator can be stuck; the others are behind it.
            if seen.contains(&op.comm) {
                continue;
            }
            seen.push(op.comm);
            let since = comms.iter().find(|comm| comm.comm == op.comm).and_then(|comm| comm.since);
            let still_ns = self.still(Key::Comm(op.comm), since.unwrap_or(op.since), clock);
            let limit_ns = limit_of(limit, op.is_first, others_move, clock.ns(op.usual));
            suspects.push(Suspect { subject: Subject::Op(op), still_ns, limit_ns });
        }
        // A launch waits where the device has too much to do already: that is no hang of its own.
        let waits = suspects.iter().any(|suspect| suspect.still_ns >= suspect.limit_ns / 2);
        for call in calls.into_iter().filter(|_| !waits) {
            let connects = call.ending.is_some() && call.launch.is_none();
            let limit_ns = limit_of(limit, connects, others_move, 0);
            let still_ns = self.still(Key::Call(call.handle.0), call.start, clock);
            suspects.push(Suspect { subject: Subject::Call(call), still_ns, limit_ns });
        }
        suspects.retain(|suspect| {
            suspect.still_ns >= suspect.limit_ns.saturating_sub(before)
                && !self.is_known(suspect.subject.handle())
        });
        suspects
    }

    fn still(&mut self, key: Key, since: u64, clock: Clock) -> u64 {
        self.stills.ns(key, since, clock.ns_since(since))
    }

    /// For how long `subject` has stood still, as of the last look, ns.
    pub(super) fn still_of(&mut self, subject: &Subject, clock: Clock) -> u64 {
        let key = match subject {
            Subject::Op(op) => Key::Comm(op.comm),
            Subject::Call(call) => Key::Call(call.handle.0),
        };
        self.still(key, subject.since(), clock)
    }

    /// Whether it was found before, and has not ended.
    pub(super) fn is_known(&self, subject: Handle) -> bool {
        self.stuck.iter().any(|stuck| stuck.subject == subject)
    }

    /// Whether something of this communicator is stuck.
    pub(super) fn is_stuck(&self, comm: u16) -> bool {
        self.stuck.iter().any(|stuck| stuck.comm == comm)
    }

    /// How many are stuck.
    pub(super) fn count(&self) -> usize {
        self.stuck.len()
    }

    pub(super) fn add(&mut self, stuck: Stuck) {
        self.stuck.push(stuck);
    }

    /// What was stuck and is not any more, each with whether it ended by itself.
    pub(super) fn take_over(&mut self) -> Vec<(Stuck, bool)> {
        if self.stuck.is_empty() {
            return Vec::new();
        }
        let open: Vec<Handle> = self.tracker.in_flight().iter().map(|op| op.handle).collect();
        let calls: Vec<Handle> = self.tracker.calls().iter().map(|call| call.handle).collect();
        let moved =
            |stuck: &Stuck| !open.contains(&stuck.subject) && !calls.contains(&stuck.subject);
        let over: Vec<Stuck> = self.stuck.extract_if(.., |stuck| moved(stuck)).collect();
        let ended = |index| self.tracker.comms().any(|comm| comm.comm == index && comm.ended);
        let by_itself = |stuck: &Stuck| {
            // Operations of a communicator end in their order.
            let is_past = self.tracker.past(stuck.comm).any(|past| past.start >= stuck.start);
            is_past || !ended(stuck.comm)
        };
        over.into_iter().map(|stuck| (stuck.clone(), by_itself(&stuck))).collect()
    }
}

/// How long something may stand still, ns; its like did so for `usual`.
fn limit_of(limit: u64, is_first: bool, others_move: bool, usual: u64) -> u64 {
    let most = EXCUSE_MOST_NS.max(limit);
    let excused = limit.saturating_mul(EXCUSED).min(most);
    if is_first {
        limit.saturating_mul(FIRST).min(most)
    } else if others_move {
        excused
    } else {
        usual.saturating_mul(LONGER_THAN_USUAL).clamp(limit, excused)
    }
}

#[cfg(test)]
mod tests {
    use super::limit_of;

    #[test]
    fn what_has_an_excuse_gets_longer() {
        const S: u64 = 1_000_000_000;
        assert_eq!(limit_of(5 * S, false, false, 0), 5 * S);
        assert_eq!(limit_of(5 * S, true, false, 0), 50 * S, "it connects");
        assert_eq!(limit_of(5 * S, false, true, 0), 20 * S, "others go on");
        assert_eq!(limit_of(5 * S, false, false, S / 10), 5 * S, "far from the limit");
        assert_eq!(limit_of(5 * S, false, false, S), 10 * S, "ten times as long as ever");
        assert_eq!(limit_of(5 * S, false, false, 60 * S), 20 * S, "a long pause is no habit");
        assert_eq!(limit_of(u64::MAX / 64, true, false, u64::MAX), u64::MAX / 64, "no overflow");
    }

    #[test]
    fn no_excuse_lasts_until_pytorch_ends_the_process() {
        const S: u64 = 1_000_000_000;
        for (first, others, usual) in [(true, false, 0), (false, true, 0), (false, false, 90 * S)] {
            assert_eq!(limit_of(300 * S, first, others, usual), 540 * S);
        }
        assert_eq!(limit_of(900 * S, true, true, 0), 900 * S, "the user's own word");
    }
}
