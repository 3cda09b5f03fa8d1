// SPDX-License-Identifier: Apache-2.0
/*!
How far the process has come, and whether it is stuck: asked by the drain thread once a second.

The counts of every communicator that changed, and what is in flight, go to the recording
([`vitals`]). An operation in which nothing has changed for longer than the limit is stuck: then
[`judge`] says which of the local classes of docs/hang.md it is, [`report`] puts that into words,
and [`act`] does what the user wants done about it.

It must never fire for what is no hang. Nothing in flight is none; a communicator's first operation
connects and gets ten times the limit; one that stands still while others of the process complete
gets four times the limit, and so does, at most, one whose like used to take long; what was lost is
forgotten. Whether another *rank* never entered cannot be seen from here: `ncclscope diagnose`
compares the ranks.
*/

pub(crate) mod act;
mod clock;
mod json;
mod judge;
mod report;
mod seen;
mod vitals;

use crate::config::HangActions;
use clock::Clock;
use judge::Subject;
use ncclscope_analyze::progress::{CommView, Tracker};
use ncclscope_recorder::board::{self, Counts};
use ncclscope_recorder::{Recorder, clock as ticks, gate, slots};
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::progress::Vital;
use ncclscope_trace::{Comm, EventKind, Handle, StrId};
pub(crate) use report::{Hang, Happened, Place};
use seen::Threads;
use std::collections::BTreeMap;
use std::time::Duration;
use vitals::Told;

/// Between two looks, ns; and while something may be stuck.
const LOOK_NS: u64 = 1_000_000_000;
const CLOSE_LOOK_NS: u64 = 400_000_000;
/// Threads are looked at from so long before the limit on.
const BEFORE_NS: u64 = 2_000_000_000;
/// How much longer a communicator's first operation, and an API call that may be connecting, gets;
/// up to a limit.
const FIRST: u64 = 10;
const FIRST_MOST_NS: u64 = 3_600_000_000_000;
/// How much longer it gets while other operations of the process complete, or where operations like
/// it take long.
const EXCUSED: u64 = 4;
/// How much longer than operations like it have stood still so far it may.
const LONGER_THAN_USUAL: u64 = 10;
/// Reports of one process; further ones are only counted.
const MOST_REPORTS: u32 = 64;

/// Watches one process.
#[derive(Debug)]
pub(crate) struct Watchdog {
    tracker: Tracker,
    place: Place,
    /// After how long something is stuck; `None`: never.
    limit_ns: Option<u64>,
    pub(crate) actions: HangActions,
    counts: BTreeMap<u16, Counts>,
    told: BTreeMap<u16, Told>,
    threads: Threads,
    /// When the next look is due, ns of `CLOCK_MONOTONIC`.
    next: u64,
    stuck: Vec<Stuck>,
    drill: Option<Drill>,
    reports: u32,
    /// Operations were left out of the recording.
    partial: bool,
}

/// Something that was reported and has not ended.
#[derive(Clone, Debug)]
struct Stuck {
    subject: Handle,
    comm: u16,
    /// When it began, and since when nothing moved, in ticks.
    start: u64,
    since: u64,
    hang: Hang,
}

/// A simulated hang: from and until when, ns of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
struct Drill {
    begin: u64,
    end: u64,
    told: bool,
}

/// What a look found, to be written and done.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Records for the recording.
    pub(crate) vitals: Vec<Vital>,
    /// The same of threads, whose place in the kernel has no number yet.
    pub(crate) threads: Vec<(ncclscope_trace::progress::Thread, String)>,
    /// What is to be told.
    pub(crate) hangs: Vec<Hang>,
}

impl Watchdog {
    /// A watchdog of the process at `place`.
    pub(crate) fn new(place: Place, limit: Option<Duration>, actions: HangActions) -> Watchdog {
        let limit_ns = limit.map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX / 64));
        Watchdog {
            tracker: Tracker::default(),
            place,
            limit_ns,
            actions,
            counts: BTreeMap::new(),
            told: BTreeMap::new(),
            threads: Threads::default(),
            next: 0,
            stuck: Vec::new(),
            drill: None,
            reports: 0,
            partial: false,
        }
    }

    /// A communicator, or more about one.
    pub(crate) fn comm(&mut self, comm: &Comm) {
        self.tracker.comm(comm);
        self.place.comm(comm);
        self.told.entry(comm.index).or_default();
    }

    /// The communicator was finalized.
    pub(crate) fn end_comm(&mut self, index: u16) {
        self.tracker.end_comm(index);
        self.next = 0;
    }

    /// A string of the process's table.
    pub(crate) fn string(&mut self, id: StrId, text: &str) {
        self.place.string(id, text);
    }

    /// Words of a lane, whole records.
    pub(crate) fn words(&mut self, lane: usize, words: &[u64]) {
        self.tracker.words(lane, words);
    }

    /// Something was reported that has not ended.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    /// True when it is time to look: all lanes are to be read before.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = ticks::now_ns() >= self.next;
        if is_due {
            // Before the lanes: so an operation that is counted is also read.
            let indices = self.told.iter().filter(|(_, told)| !told.ended).map(|(&comm, _)| comm);
            self.counts = indices.filter_map(|comm| Some((comm, board::counts(comm)?))).collect();
        }
        is_due
    }

    /// The next tick looks, whenever it comes.
    pub(crate) fn hurry(&mut self) {
        self.next = 0;
    }

    /// Looks, at `now` ticks, of which a second has `hz`.
    pub(crate) fn look(&mut self, recorder: &Recorder, now: u64, hz: u64) -> Found {
        let clock = Clock { now, hz };
        let mut found = Found::default();
        self.next = ticks::now_ns() + LOOK_NS;
        if hz == 0 {
            return found;
        }
        let is_live = |op| slots::at(&recorder.region, op).is_some_and(|slot| slot.holds(op));
        // At the end of the process nothing is recorded any more, and nothing left out.
        let is_stopped = !gate::is_started() && !gate::is_dead();
        self.partial |= recorder.left_out() > 0 || is_stopped;
        self.tracker.lost(losses(recorder), now);
        self.tracker.look(now, hz, &is_live);
        self.tracker.abandoned().for_each(|op| recorder.abandon(op));
        let steps = seen::steps(recorder, now);
        self.recover(clock, &mut found);
        self.run_drill(clock, &mut found);
        let suspects = self.suspects(clock, BEFORE_NS);
        if !suspects.is_empty() {
            self.next = ticks::now_ns() + CLOSE_LOOK_NS;
            found.threads = self.threads.look(recorder, now, ticks::now_ns());
        }
        for (subject, is_stuck) in suspects {
            if is_stuck && self.threads.can_tell() {
                self.fire(subject, clock, &steps, &mut found);
            }
        }
        let is_stuck = |comm| self.stuck.iter().any(|stuck| stuck.comm == comm);
        let told = vitals::Context {
            counts: &self.counts,
            place: &self.place,
            partial: self.partial,
            lossy: self.tracker.is_lossy(),
            is_stuck: &is_stuck,
        };
        found.vitals = told.vitals(&mut self.told, &self.tracker, &steps, clock);
        found
    }

    /// What has not moved for the limit less `before`, each with whether the limit is over; nothing
    /// that was reported already.
    fn suspects(&self, clock: Clock, before: u64) -> Vec<(Subject, bool)> {
        let Some(limit) = self.limit_ns else { return Vec::new() };
        let comms: Vec<CommView> = self.tracker.comms().collect();
        let is_old = comms.iter().any(|comm| {
            comm.since.is_some_and(|since| clock.ns_since(since) >= limit.saturating_sub(before))
        });
        let calls = self.tracker.calls();
        let is_old_call =
            calls.iter().any(|call| clock.ns_since(call.start) >= limit.saturating_sub(before));
        if !is_old && !is_old_call {
            return Vec::new();
        }
        let latest_end = comms.iter().map(|comm| comm.last_end).max().unwrap_or(0);
        let others_move = clock.ns_since(latest_end) < limit;
        let mut suspects: Vec<(Subject, u64, u64)> = Vec::new();
        let mut seen: Vec<u16> = Vec::new();
        for op in self.tracker.in_flight() {
            // Only the oldest of a communicator can be stuck; the others are behind it.
            if seen.contains(&op.comm) {
                continue;
            }
            seen.push(op.comm);
            let limit = limit_of(limit, op.is_first, others_move, clock.ns(op.usual));
            suspects.push((Subject::Op(op.clone()), clock.ns_since(op.since), limit));
        }
        // A launch waits where the device has too much to do already: that is no hang of its own.
        let waits = suspects.iter().any(|(_, idle, limit)| idle >= &(limit / 2));
        for call in calls.into_iter().filter(|_| !waits) {
            let connects = call.ending.is_some() && call.launch.is_none();
            let limit = limit_of(limit, connects, others_move, 0);
            suspects.push((Subject::Call(call), clock.ns_since(call.start), limit));
        }
        let reported =
            |subject: &Subject| self.stuck.iter().any(|stuck| stuck.subject == subject.handle());
        suspects
            .into_iter()
            .filter(|(subject, idle, limit)| {
                *idle >= limit.saturating_sub(before) && !reported(subject)
            })
            .map(|(subject, idle, limit)| (subject, idle >= limit))
            .collect()
    }

    fn fire(
        &mut self,
        subject: Subject,
        clock: Clock,
        steps: &[seen::StepSeen],
        found: &mut Found,
    ) {
        self.reports += 1;
        let (handle, comm, since) = (subject.handle(), subject.comm(), subject.since());
        let hang = self.describe(&subject, clock, steps, Happened::Hung);
        if self.reports <= MOST_REPORTS {
            found.hangs.push(hang.clone());
        }
        let start = subject.start();
        self.stuck.push(Stuck { subject: handle, comm, start, since, hang });
    }

    /// What is known of something that does not move.
    fn describe(
        &self,
        subject: &Subject,
        clock: Clock,
        steps: &[seen::StepSeen],
        happened: Happened,
    ) -> Hang {
        let in_flight = self.tracker.in_flight();
        let scene = judge::Scene {
            in_flight: &in_flight,
            comm: self.tracker.comms().find(|comm| comm.comm == subject.comm()),
            steps,
            threads: &self.threads,
            clock,
        };
        let verdict = scene.judge(subject);
        self.place.hang(&scene, subject, verdict, happened, self.tracker.past(subject.comm()))
    }

    /// Tells of what was stuck and is not any more.
    fn recover(&mut self, clock: Clock, found: &mut Found) {
        if self.stuck.is_empty() {
            return;
        }
        let open: Vec<Handle> = self.tracker.in_flight().iter().map(|op| op.handle).collect();
        let calls: Vec<Handle> = self.tracker.calls().iter().map(|call| call.handle).collect();
        let moved =
            |stuck: &Stuck| !open.contains(&stuck.subject) && !calls.contains(&stuck.subject);
        let over: Vec<Stuck> = self.stuck.extract_if(.., |stuck| moved(stuck)).collect();
        let ended = |index| self.tracker.comms().any(|comm| comm.comm == index && comm.ended);
        for Stuck { start, since, comm, mut hang, .. } in over {
            // Operations of a communicator end in their order.
            let is_past = self.tracker.past(comm).any(|past| past.start >= start);
            hang.end(clock, clock.ns_since(since), is_past || !ended(comm));
            found.hangs.push(hang);
        }
    }

    /// Begins a simulated hang.
    pub(crate) fn begin_drill(&mut self, length: Duration) {
        let begin = ticks::now_ns();
        let end = begin.saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
        self.drill = Some(Drill { begin, end, told: false });
        self.next = 0;
    }

    fn run_drill(&mut self, clock: Clock, found: &mut Found) {
        let Some(drill) = &mut self.drill else { return };
        let now = ticks::now_ns();
        let still_ns = now.saturating_sub(drill.begin);
        if !drill.told {
            drill.told = true;
            found.hangs.push(self.place.drill(clock, still_ns));
        }
        if now >= drill.end {
            let mut hang = self.place.drill(clock, still_ns);
            hang.end(clock, still_ns, true);
            found.hangs.push(hang);
            self.drill = None;
        }
    }

    /// A first look at the threads, for [`Watchdog::why`].
    pub(crate) fn sample(&mut self, recorder: &Recorder, now: u64) {
        self.threads.look(recorder, now, ticks::now_ns());
    }

    /// What the process waits for now: what is in flight, the oldest of each communicator first. To
    /// be asked after a look, and 100 ms or more after [`Watchdog::sample`].
    pub(crate) fn why(&mut self, recorder: &Recorder, now: u64, hz: u64) -> Vec<Hang> {
        let clock = Clock { now, hz };
        let steps = seen::steps(recorder, now);
        self.threads.look(recorder, now, ticks::now_ns());
        let mut seen: Vec<u16> = Vec::new();
        let mut subjects = Vec::new();
        for op in self.tracker.in_flight() {
            if !seen.contains(&op.comm) {
                seen.push(op.comm);
                subjects.push(Subject::Op(op));
            }
        }
        subjects.extend(self.tracker.calls().into_iter().map(Subject::Call));
        let stuck = |handle| self.stuck.iter().any(|stuck| stuck.subject == handle);
        let happened = |subject: &Subject| {
            if stuck(subject.handle()) { Happened::Hung } else { Happened::InFlight }
        };
        subjects
            .iter()
            .map(|subject| self.describe(subject, clock, &steps, happened(subject)))
            .collect()
    }
}

/// How long something may stand still, ns; its like did so for `usual`.
fn limit_of(limit: u64, is_first: bool, others_move: bool, usual: u64) -> u64 {
    let excused = limit.saturating_mul(EXCUSED);
    if is_first {
        limit.saturating_mul(FIRST).min(FIRST_MOST_NS.max(limit))
    } else if others_move {
        excused
    } else {
        usual.saturating_mul(LONGER_THAN_USUAL).clamp(limit, excused)
    }
}

/// Events and ends that were lost, but those whose loss cannot look like a hang.
fn losses(recorder: &Recorder) -> u64 {
    use EventKind::{KernelPhase, NetPlugin, ProxyCtrl, ProxyStep};
    let counts =
        |kind: &EventKind| !matches!(kind, ProxyStep | ProxyCtrl | NetPlugin | KernelPhase);
    let sum = |lost: [u64; KINDS]| -> u64 {
        EventKind::ALL.iter().filter(|kind| counts(kind)).map(|kind| lost[kind.index()]).sum()
    };
    let lanes = recorder.lanes().map(|(_, lane)| sum(lane.lost()) + sum(lane.lost_ends()));
    lanes.sum::<u64>() + sum(recorder.lost_without_lane())
}

#[cfg(test)]
mod tests {
    use super::limit_of;

    #[test]
    fn what_has_an_excuse_gets_longer() {
        const S: u64 = 1_000_000_000;
        assert_eq!(limit_of(5 * S, false, false, 0), 5 * S);
        assert_eq!(limit_of(5 * S, true, false, 0), 50 * S, "it connects");
        assert_eq!(limit_of(600 * S, true, true, 0), 3_600 * S, "but not all day");
        assert_eq!(limit_of(5 * S, false, true, 0), 20 * S, "others go on");
        assert_eq!(limit_of(5 * S, false, false, S / 10), 5 * S, "far from the limit");
        assert_eq!(limit_of(5 * S, false, false, S), 10 * S, "ten times as long as ever");
        assert_eq!(limit_of(5 * S, false, false, 60 * S), 20 * S, "a long pause is no habit");
        assert_eq!(limit_of(u64::MAX / 64, true, false, u64::MAX), u64::MAX / 64, "no overflow");
    }
}
