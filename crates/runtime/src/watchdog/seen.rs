// SPDX-License-Identifier: Apache-2.0
//! What the watchdog reads besides the records: steps in flight, and the system's view of threads.

use crate::sys::threads::{GONE, Seen, UNKNOWN, look};
use ncclscope_findings::rank;
use ncclscope_operations::threads::{self, Role};
use ncclscope_recorder::{Recorder, slots};
use ncclscope_trace::progress;
use ncclscope_trace::record::{STEP_SHIFT, Step, step_flags};
use std::collections::BTreeMap;

/// Minimum time between two looks at a thread that show whether it runs, ns.
const APART_NS: u64 = 100_000_000;
/// Maximum age of the earlier look, ns.
const OLDEST_NS: u64 = 10_000_000_000;
/// Maximum number of threads that are looked at.
const MOST: usize = 64;

/// A step in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepSeen {
    /// Lane of its operation.
    pub(super) lane: usize,
    /// [`ncclscope_trace::Handle::op_ref`] of its operation.
    pub(super) op_ref: u32,
    /// Its number within the operation.
    pub(super) step: u32,
    /// Number of the latest of its three states that it has reached; 0 if none.
    pub(super) reached: u8,
    /// When it reached that state, in ticks.
    pub(super) since: u64,
}

/// The steps in flight, sorted by [`StepSeen::order`], so that those of an operation are together.
pub(super) fn steps(recorder: &Recorder, now: u64) -> Vec<StepSeen> {
    let all = slots::in_flight(&recorder.region, now).into_iter();
    let mut steps: Vec<StepSeen> = all.map(|(lane, step)| StepSeen::of(lane, &step)).collect();
    steps.sort_by_key(StepSeen::order);
    steps
}

impl StepSeen {
    /// The sort key: lane and operation.
    pub(super) const fn order(&self) -> (usize, u32) {
        (self.lane, self.op_ref)
    }

    /// The present state of a step of a lane.
    pub(super) fn of(lane: usize, step: &Step) -> StepSeen {
        let flags = [step_flags::THIRD, step_flags::SECOND, step_flags::FIRST];
        let last = (0..).zip(flags).find(|&(_, flag)| step.has(flag)).map(|(at, _)| 3 - at);
        let reached = last.unwrap_or(0);
        let after = usize::from(reached).checked_sub(1).and_then(|at| step.states.get(at));
        let since = step.ticks.saturating_add(after.copied().unwrap_or(0) << STEP_SHIFT);
        StepSeen { lane, op_ref: step.op_ref, step: step.step, reached, since }
    }
}

/// A thread at two looks.
#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) now: Seen,
    /// Kinds of the events that it started, as bits.
    pub(super) kinds: u32,
    pub(super) role: Role,
    /// Between the two looks: `span_ns` the time, then processor time, and time it was ready but
    /// did not run; ns.
    pub(super) span_ns: u64,
    pub(super) cpu_ns: u64,
    pub(super) delay_ns: u64,
    /// The earlier look, and its time.
    before: (Seen, u64),
    at: u64,
}

/// The threads that make callbacks, by lane.
#[derive(Debug, Default)]
pub(super) struct Threads {
    lanes: BTreeMap<usize, Thread>,
}

impl Threads {
    /// Looks at the threads at `now` ticks, which is `now_ns`. Returns the records for the
    /// recording.
    pub(super) fn look(
        &mut self,
        recorder: &Recorder,
        now: u64,
        now_ns: u64,
    ) -> Vec<(progress::Thread, String)> {
        let mut told = Vec::new();
        let has_api = threads::has_api(recorder.lanes().map(|(_, lane)| lane.kinds()));
        for (lane, header) in recorder.lanes().filter(|(_, lane)| lane.thread() != 0).take(MOST) {
            let seen = look(header.thread());
            let kinds = header.kinds();
            let role = Role::of(kinds, has_api);
            if seen.state == UNKNOWN {
                // The remembered state would be taken for the present one.
                self.lanes.remove(&lane);
                continue;
            }
            told.push((
                progress::Thread {
                    ticks: now,
                    tid: seen.tid,
                    state: seen.state,
                    place: ncclscope_trace::StrId::NONE,
                    cpu_ns: seen.cpu_ns,
                    run_delay_ns: seen.run_delay_ns,
                    kinds,
                },
                seen.place.clone(),
            ));
            self.see(lane, seen, (kinds, role), now_ns);
        }
        told
    }

    /// Takes the state of a lane's thread at `now_ns`, with the kinds of events that it started.
    pub(super) fn see(&mut self, lane: usize, seen: Seen, (kinds, role): (u32, Role), now_ns: u64) {
        match self.lanes.get_mut(&lane).filter(|thread| thread.now.tid == seen.tid) {
            Some(thread) => thread.see(seen, (kinds, role), now_ns),
            None => drop(self.lanes.insert(lane, Thread::new(seen, (kinds, role), now_ns))),
        }
    }

    /// True if two looks at each thread that existed both times are far enough apart.
    pub(super) fn can_tell(&self) -> bool {
        self.lanes.is_empty() || self.lanes.values().any(|thread| thread.span_ns >= APART_NS)
    }

    pub(super) fn of(&self, lane: usize) -> Option<&Thread> {
        self.lanes.get(&lane)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Thread> {
        self.lanes.values()
    }
}

impl Thread {
    fn new(now: Seen, (kinds, role): (u32, Role), at: u64) -> Thread {
        let before = (now.clone(), at);
        Thread { now, kinds, role, span_ns: 0, cpu_ns: 0, delay_ns: 0, before, at }
    }

    fn see(&mut self, seen: Seen, (kinds, role): (u32, Role), at: u64) {
        if at.saturating_sub(self.at) > OLDEST_NS {
            *self = Thread::new(seen, (kinds, role), at);
            return;
        }
        if at.saturating_sub(self.before.1) > OLDEST_NS {
            self.before = (self.now.clone(), self.at);
        }
        let (before, then) = &self.before;
        self.span_ns = at.saturating_sub(*then);
        self.cpu_ns = seen.cpu_ns.saturating_sub(before.cpu_ns);
        self.delay_ns = seen.run_delay_ns.saturating_sub(before.run_delay_ns);
        (self.now, self.kinds, self.role, self.at) = (seen, kinds, role, at);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.now.state == GONE
    }

    /// The thread in the form that the rules take.
    pub(super) fn observed(&self) -> rank::Thread {
        rank::Thread {
            tid: self.now.tid,
            state: self.now.state,
            place: self.now.place.clone(),
            span_ns: self.span_ns,
            cpu_ns: self.cpu_ns,
            delay_ns: self.delay_ns,
        }
    }

    /// True if a report should name the thread. That a thread has ended is normal for most threads.
    pub(super) fn is_worth_telling(&self) -> bool {
        !self.is_gone() || self.role.is_proxy()
    }
}
