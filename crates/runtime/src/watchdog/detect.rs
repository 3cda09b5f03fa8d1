// SPDX-License-Identifier: Apache-2.0
//! Detects operations that stand still for too long, in real records and in those of drills.

use super::clock::Clock;
use super::report::{Hang, Happened};
use super::still::{Key, Seen, Stills};
use super::subject::{Subject, Suspect};
use ncclscope_findings::patience::{excused, extended};
use ncclscope_operations::progress::{CommView, ForeignWork, LiveState, OpView, Tracker};
use ncclscope_recorder::NO_COMM;
use ncclscope_trace::Handle;
use std::collections::{BTreeMap, HashSet};

/// Factor of the limit for a communicator's first operation, and for an API call that may be
/// connecting.
const FIRST: u64 = 10;
/// Factor of the longest time that similar operations have stood still so far.
const LONGER_THAN_USUAL: u64 = 10;

/// The operations of a process, and for how long each has stood still.
#[derive(Debug, Default)]
pub(super) struct Detector {
    pub(super) tracker: Tracker,
    stills: Stills,
    stuck: Vec<Stuck>,
    /// The forgotten communicator with the latest end of an operation, and that end in ticks.
    gone: Option<(u16, u64)>,
}

/// A stuck operation or call that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Stuck {
    pub(super) subject: Handle,
    pub(super) comm: u16,
    /// Its start, in ticks.
    pub(super) start: u64,
    /// The report that was made; `None` if it was only counted.
    pub(super) hang: Option<Hang>,
    /// For how long it had stood still when found, ns; `at` is the time seen then, ns.
    pub(super) still_ns: u64,
    pub(super) at: u64,
    /// If its end may have been lost: the time until which events were lost, in ticks.
    pub(super) unknown: Option<u64>,
}

impl Detector {
    /// Updates the operations in flight. All records must have been read.
    pub(super) fn look(&mut self, clock: Clock, seen: Seen, outside: &LiveState<'_>) {
        self.tracker.look(clock.now, clock.hz, outside);
        self.stills.begin_look(seen);
    }

    /// What has not moved for its limit less `before`, ns, and was not found before. Call once
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
        let foreign = self.tracker.foreign();
        for work in &foreign {
            is_old |= self.still(Key::Foreign(work.owner), work.since, clock) >= soon;
        }
        // Asked at each look, so that the age of an end is measured from the look after it.
        let mut ends = Ends::default();
        let latest = comms.iter().map(|comm| (comm.comm, comm.last_end)).chain(self.gone);
        for (comm, end) in latest.filter(|&(_, end)| end > 0) {
            ends.add(comm, self.still(Key::End(comm), end, clock));
        }
        if !is_old {
            return Vec::new();
        }
        let mut suspects = Vec::new();
        let since: BTreeMap<u16, u64> =
            comms.iter().filter_map(|comm| Some((comm.comm, comm.since?))).collect();
        for op in oldest(self.tracker.in_flight()) {
            let since = since.get(&op.comm).copied().unwrap_or(op.since);
            let still_ns = self.still(Key::Comm(op.comm), since, clock);
            let others_ns = ends.excuse(limit, still_ns, Some(op.comm));
            let limit_ns = limit_of(limit, op.is_first, others_ns, clock.ns(op.usual));
            suspects.push(Suspect { subject: Subject::Op(op), still_ns, limit_ns });
        }
        // A call waits in the kernel launch if the device has too much queued work; that is not a
        // hang of its own.
        let waits = suspects.iter().any(|suspect| suspect.still_ns >= suspect.limit_ns / 2);
        for call in calls.into_iter().filter(|_| !waits) {
            let connects = call.ending.is_some() && call.launch.is_none();
            let still_ns = self.still(Key::Call(call.handle.0), call.start, clock);
            // The call may wait for room behind operations of its own communicator, which is
            // therefore not excluded.
            let others_ns = ends.excuse(limit, still_ns, None);
            let limit_ns = limit_of(limit, connects, others_ns, 0);
            suspects.push(Suspect { subject: Subject::Call(call), still_ns, limit_ns });
        }
        suspects.extend(foreign.into_iter().map(|work| self.foreign(work, clock, limit, &ends)));
        let known = self.known();
        suspects.retain(|suspect| {
            suspect.still_ns >= suspect.limit_ns.saturating_sub(before)
                && !known.contains(&suspect.subject.handle())
        });
        suspects
    }

    /// Transfers for another process. How long its operations usually take is not known here.
    fn foreign(&mut self, work: ForeignWork, clock: Clock, limit: u64, ends: &Ends) -> Suspect {
        let still_ns = self.still(Key::Foreign(work.owner), work.since, clock);
        let others_ns = ends.excuse(limit, still_ns, None);
        let limit_ns = limit_of(limit, work.is_first, others_ns, 0);
        Suspect { subject: Subject::Foreign(work), still_ns, limit_ns }
    }

    fn still(&mut self, key: Key, since: u64, clock: Clock) -> u64 {
        self.stills.ns(key, since, clock.ns_since(since))
    }

    /// How long `subject` has stood still as of the latest look, ns.
    pub(super) fn still_of(&mut self, subject: &Subject, clock: Clock) -> u64 {
        let key = match subject {
            Subject::Op(op) => Key::Comm(op.comm),
            Subject::Call(call) => Key::Call(call.handle.0),
            Subject::Foreign(work) => Key::Foreign(work.owner),
        };
        self.still(key, subject.since(), clock)
    }

    /// Handles of what was found before and has not ended.
    pub(super) fn known(&self) -> HashSet<Handle> {
        self.stuck.iter().map(|stuck| stuck.subject).collect()
    }

    /// Communicators with something that is stuck.
    pub(super) fn stuck_comms(&self) -> HashSet<u16> {
        self.stuck.iter().map(|stuck| stuck.comm).collect()
    }

    /// Number of stuck operations and calls.
    pub(super) fn count(&self) -> usize {
        self.stuck.len()
    }

    pub(super) fn add(&mut self, stuck: Stuck) {
        self.stuck.push(stuck);
    }

    /// Forgets a communicator, but keeps the time of its latest end.
    pub(super) fn forget_comm(&mut self, index: u16) {
        let end = self.tracker.comm_view(index).map(|comm| (index, comm.last_end));
        self.gone = self.gone.into_iter().chain(end).max_by_key(|&(_, end)| end);
        self.tracker.forget_comm(index);
    }

    /// Forgets operations that started until `until` (ticks), because their ends may have been
    /// lost. Returns those of them that were stuck; they stay so until a later event shows that
    /// they have ended.
    pub(super) fn forget(&mut self, until: u64) -> Vec<Stuck> {
        self.tracker.forget(until);
        let is_forgotten = |stuck: &&mut Stuck| stuck.unknown.is_none() && stuck.start <= until;
        let known = self.stuck.iter_mut().filter(is_forgotten);
        let forget = |stuck: &mut Stuck| {
            stuck.unknown = Some(until);
            stuck.clone()
        };
        known.map(forget).collect()
    }

    /// Removes what was stuck and no longer is, and returns each with its outcome.
    pub(super) fn take_over(&mut self) -> Vec<(Stuck, Happened)> {
        if self.stuck.is_empty() {
            return Vec::new();
        }
        let calls = self.tracker.calls();
        let mut open: HashSet<Handle> = calls.iter().map(|call| call.handle).collect();
        open.extend(self.tracker.in_flight().iter().map(|op| op.handle));
        open.extend(self.tracker.foreign().iter().flat_map(|work| &work.ops).map(|op| op.handle));
        let comm = |stuck: &Stuck| self.tracker.comm_view(stuck.comm);
        let ended = |stuck: &Stuck| comm(stuck).is_some_and(|comm| comm.ended);
        // An operation that started after `since` has ended, so that an earlier one must have
        // ended, too.
        let is_followed = |stuck: &Stuck, since| comm(stuck).is_some_and(|c| c.last_end > since);
        let is_over = |stuck: &Stuck| match stuck.unknown {
            // No later event shows the end of another process's work.
            Some(_) if stuck.comm == NO_COMM => true,
            Some(since) => is_followed(stuck, since) || ended(stuck),
            None => !open.contains(&stuck.subject),
        };
        let over: Vec<Stuck> = self.stuck.extract_if(.., |stuck| is_over(stuck)).collect();
        let end = |stuck: &Stuck| match stuck.unknown {
            Some(since) if is_followed(stuck, since) => Happened::Recovered,
            Some(_) => Happened::Unknown,
            // The operations of a communicator end in order.
            None if self.tracker.past(stuck.comm).any(|past| past.start >= stuck.start) => {
                Happened::Recovered
            }
            None if ended(stuck) => Happened::Destroyed,
            None => Happened::Recovered,
        };
        over.into_iter().map(|stuck| (stuck.clone(), end(&stuck))).collect()
    }
}

/// The oldest operation of each communicator: only it can be stuck, because the others are behind
/// it. An operation that lacks only its stop waits for another one in the same kernel, and comes
/// last.
fn oldest(mut in_flight: Vec<OpView>) -> Vec<OpView> {
    in_flight.sort_by_key(|op| op.is_only_unstopped);
    let mut seen: HashSet<u16> = HashSet::new();
    in_flight.retain(|op| seen.insert(op.comm));
    in_flight.sort_by_key(|op| (op.start, op.number));
    in_flight
}

/// For how long no operation has ended on the communicator with the latest end, and on all others,
/// ns.
#[derive(Debug, Default)]
struct Ends {
    latest: Option<(u16, u64)>,
    other: Option<u64>,
}

impl Ends {
    /// Adds communicator `comm`, on which no operation has ended for `still` ns.
    fn add(&mut self, comm: u16, still: u64) {
        let before = self.latest.filter(|&(_, latest)| latest <= still);
        let (first, second) = match before {
            Some(latest) => (latest, Some(still)),
            None => ((comm, still), self.latest.map(|(_, latest)| latest)),
        };
        self.latest = Some(first);
        self.other = self.other.into_iter().chain(second).min();
    }

    /// Extended limit (ns) of something that has stood still for `still`: it is excused until no
    /// operation has ended for `limit`, except on communicator `own`. 0 if there is no excuse.
    fn excuse(&self, limit: u64, still: u64, own: Option<u16>) -> u64 {
        let of_another = self.latest.filter(|&(comm, _)| own != Some(comm)).map(|(_, ns)| ns);
        let left = limit.saturating_sub(of_another.or(self.other).unwrap_or(limit));
        if left > 0 { still.saturating_add(left) } else { 0 }
    }
}

/// The limit of something, ns. `others` is its extended limit while other operations end, `usual`
/// the longest time that similar operations stood still.
fn limit_of(limit: u64, is_first: bool, others: u64, usual: u64) -> u64 {
    if is_first {
        extended(limit, FIRST)
    } else {
        usual.saturating_mul(LONGER_THAN_USUAL).max(others).clamp(limit, excused(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_operations::progress::LaunchFate;
    use ncclscope_trace::record::{Coll, KernelCh, P2p, ProxyOp, step_flags};
    use ncclscope_trace::{Detail, EventKind, Record, Start, State, Step};

    const HZ: u64 = 1_000_000_000;

    /// A collective of communicator `comm` whose kernel starts at `ticks` and stops at `end`, if
    /// ever.
    fn coll(detector: &mut Detector, comm: u16, ticks: u64, end: Option<u64>) {
        let of = |kind| Handle::value(1, kind, usize::from(comm), ticks / HZ);
        let mut start = |handle, parent, detail| {
            let record = Start { ticks, comm, handle, parent, detail }.pack();
            detector.tracker.words(usize::from(comm), record.words());
        };
        let (op, kernel) = (of(EventKind::Coll), of(EventKind::KernelCh));
        let detail = Coll { count: 1, channels: 1, ..Coll::default() };
        start(op, Handle::NULL, Detail::Coll(detail));
        start(kernel, op, Detail::KernelCh(KernelCh { channel: 0, ptimer: 0 }));
        let stops = [Some((ticks, op)), end.map(|end| (end, kernel))];
        for (ticks, handle) in stops.into_iter().flatten() {
            detector.tracker.words(usize::from(comm), Record::stop(ticks, handle).words());
        }
    }

    #[test]
    fn what_ended_on_a_communicator_that_is_gone_excuses_as_long() {
        let (mut detector, mut seen) = (Detector::default(), Seen::default());
        let outside = LiveState { is_live: &|_| false, fate: &|_| LaunchFate::Unknown };
        for comm in 0..3 {
            coll(&mut detector, comm, HZ, Some(HZ + 1));
        }
        coll(&mut detector, 0, 2 * HZ, None);
        let mut limits = Vec::new();
        for second in 3..=20 {
            seen.tick(second * HZ);
            let clock = Clock { now: second * HZ, hz: HZ };
            if second == 6 {
                coll(&mut detector, 1, second * HZ - 1, Some(second * HZ));
            }
            detector.look(clock, seen, &outside);
            let suspects = detector.suspects(clock, 5 * HZ, 5 * HZ);
            limits.push(suspects[0].limit_ns.div_ceil(HZ));
            match second {
                // Forgets the communicator with the latest end, and then another one.
                8 => detector.forget_comm(1),
                10 => detector.forget_comm(2),
                _ => {}
            }
        }
        // It has stood still since 3 s, and is excused until 5 s after the end at 6 s; forgetting
        // changes nothing.
        assert_eq!(limits[..8], [5, 5, 5, 8, 8, 8, 8, 8], "{limits:?}");
        assert!(limits[8..].iter().all(|&limit| limit == 5), "{limits:?}");
    }

    /// A send and a receive in one kernel: NCCL stops both when both are done.
    #[test]
    fn a_receive_that_is_done_is_not_what_is_stuck() {
        let (mut detector, mut seen) = (Detector::default(), Seen::default());
        let outside = LiveState { is_live: &|_| true, fate: &|_| LaunchFate::Unknown };
        let group = Handle::value(1, EventKind::Group, 0, 1);
        let mut ops = Vec::new();
        for (number, is_send) in [(1, false), (2, true)] {
            let (op, ticks) = (Handle::value(1, EventKind::P2p, 0, number), HZ + number);
            let proxy = Handle::slot_op(1, 1, number, number.try_into().unwrap());
            let p2p = P2p { peer: 1, count: 1, channels: 1, group, ..P2p::default() };
            let its = ProxyOp { is_send, peer: 1, steps: 1, ..ProxyOp::default() };
            let mut put = |lane: usize, words: &[u64]| detector.tracker.words(lane, words);
            for (handle, parent, detail, lane) in
                [(op, Handle::NULL, Detail::P2p(p2p), 0), (proxy, op, Detail::ProxyOp(its), 1)]
            {
                let start = Start { ticks, comm: 0, handle, parent, detail };
                put(lane, start.pack().words());
            }
            put(0, Record::stop(ticks + 5, op).words());
            put(1, Record::state(ticks, proxy, State::PROXY_OP_IN_PROGRESS, 0, 0).words());
            if !is_send {
                let flags = step_flags::STOPPED;
                let step = Step { ticks, flags, op_ref: proxy.op_ref(), ..Step::default() };
                put(1, step.pack().words());
            }
            ops.push(op);
        }
        seen.tick(100 * HZ);
        let clock = Clock { now: 100 * HZ, hz: HZ };
        detector.look(clock, seen, &outside);
        let suspects = detector.suspects(clock, 5 * HZ, u64::MAX);
        let subjects: Vec<Handle> = suspects.iter().map(|one| one.subject.handle()).collect();
        assert_eq!(subjects, [ops[1]]);
    }

    #[test]
    fn what_has_an_excuse_gets_longer() {
        const S: u64 = 1_000_000_000;
        assert_eq!(limit_of(5 * S, false, 0, 0), 5 * S);
        assert_eq!(limit_of(5 * S, true, 0, 0), 50 * S, "it connects");
        assert_eq!(limit_of(5 * S, false, 7 * S, 0), 7 * S, "others went on until 2 s ago");
        assert_eq!(limit_of(5 * S, false, 99 * S, 0), 20 * S, "others go on");
        assert_eq!(limit_of(5 * S, false, 0, S / 10), 5 * S, "far from the limit");
        assert_eq!(limit_of(5 * S, false, 0, S), 10 * S, "ten times as long as ever");
        assert_eq!(limit_of(5 * S, false, 0, 60 * S), 20 * S, "a long pause is no habit");
        assert_eq!(limit_of(u64::MAX / 64, true, 0, u64::MAX), u64::MAX / 64, "no overflow");
    }

    #[test]
    fn no_excuse_lasts_until_pytorch_ends_the_process() {
        const S: u64 = 1_000_000_000;
        for (first, others, usual) in [(true, 0, 0), (false, 840 * S, 0), (false, 0, 90 * S)] {
            assert_eq!(limit_of(300 * S, first, others, usual), 540 * S);
        }
        assert_eq!(limit_of(900 * S, true, 1800 * S, 0), 900 * S, "the user's own word");
    }

    #[test]
    fn what_ends_excuses_what_stands_still_elsewhere() {
        let mut ends = Ends::default();
        assert_eq!(ends.excuse(5, 3, None), 0);
        ends.add(7, 4);
        assert_eq!(ends.excuse(5, 3, Some(7)), 0, "its own communicator's");
        assert_eq!(ends.excuse(5, 3, None), 4);
        assert_eq!(ends.excuse(5, 3, Some(8)), 4, "for one more");
        for comm in [8, 9] {
            ends.add(comm, 2);
            assert_eq!(ends.excuse(5, 3, Some(7)), 6);
        }
        assert_eq!(ends.excuse(5, 3, Some(8)), 6, "that of 9");
        ends.add(10, 3);
        assert_eq!((ends.latest, ends.other), (Some((8, 2)), Some(2)));
        assert_eq!(ends.excuse(2, 3, None), 0, "long ago");
    }
}
