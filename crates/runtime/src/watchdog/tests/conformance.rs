// SPDX-License-Identifier: Apache-2.0
//! The watchdog of a root rank gives the class that `diagnose` gives with all ranks, or none.
//!
//! Each fault of the simulator is planted in a job. The recording of each rank that `diagnose`
//! blames is then played to a watchdog, in the order and at the times at which its drain thread
//! would have read it.

use super::super::*;
use super::look_at;
use crate::sys;
use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Options, diagnose, open};
use ncclscope_findings::{FindingClass, Tool};
use ncclscope_operations::threads::Role;
use ncclscope_simulate::{Fault, Planted, Scenario, run};
use ncclscope_trace::record::{STEP_SHIFT, step_flags};
use ncclscope_trace::{Recording, Step};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Limit of the watchdog; the simulated jobs stand still for longer.
const LIMIT: Duration = Duration::from_secs(8);
const HOLD_S: u32 = 20;
/// Jobs for each fault.
const JOBS: u64 = 3;
/// A second of the watchdog's own clock, ns.
const SECOND: u64 = 1_000_000_000;

/// A recorded process that is replayed.
struct Replay<'r> {
    recording: &'r Recording,
    watchdog: Watchdog,
    hz: u64,
    /// The simulated `CLOCK_MONOTONIC`.
    now_ns: u64,
    /// The records that are not read yet, the earliest last: time of reading, lane, record.
    unread: Vec<(u64, usize, Record)>,
    /// All steps with their lanes.
    steps: Vec<(usize, Step)>,
    /// Number of heartbeats of the recording that were read.
    heartbeats: usize,
}

impl<'r> Replay<'r> {
    fn new(recording: &'r Recording) -> Replay<'r> {
        let mut watchdog = Watchdog::new(
            OwnProcess::of(recording.identity()),
            Some(LIMIT),
            HangActions::default(),
        );
        for id in 0..=u16::MAX {
            if let Some(text) = recording.string(StrId(id)) {
                watchdog.string(StrId(id), text);
            }
        }
        recording.comms().iter().for_each(|comm| watchdog.comm(comm));
        let (mut unread, mut steps) = (Vec::new(), Vec::new());
        for lane in 0..recording.lanes().len() {
            let mut latest = 0;
            for record in recording.records(lane) {
                if let Record::Step(step) = record {
                    steps.push((lane, step));
                }
                let Some(at) = readable_at(&record) else { continue };
                // A lane is read in order.
                latest = latest.max(at);
                unread.push((latest, lane, record));
            }
        }
        unread.sort_by_key(|&(at, lane, _)| (at, lane));
        unread.reverse();
        let second = 1e9 / recording.tick_map().ns_per_tick();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some GHz")]
        let hz = second as u64;
        Replay { recording, watchdog, hz, now_ns: 0, unread, steps, heartbeats: 0 }
    }

    /// The classes that the watchdog reports while the process runs; `None` for a hang without a
    /// class.
    fn run(mut self) -> BTreeSet<Option<FindingClass>> {
        let mut classes = BTreeSet::new();
        let end = self.recording.heartbeats().last().map_or(0, Heartbeat::ticks);
        let mut now = self.recording.first_ticks();
        while now <= end {
            now += self.hz / 2;
            self.now_ns += SECOND / 2;
            self.read(now);
            let found = self.look(now);
            classes.extend(found.hangs.into_iter().map(|hang| hang.class));
        }
        classes
    }

    /// Reads what was recorded until `now`.
    fn read(&mut self, now: u64) {
        while let Some((_, lane, record)) = self.unread.pop_if(|(at, ..)| *at <= now) {
            self.watchdog.record(lane, &record);
        }
        let heartbeats = self.recording.heartbeats().get(self.heartbeats..).unwrap_or(&[]);
        let new = heartbeats.iter().take_while(|heartbeat| heartbeat.ticks() <= now);
        for heartbeat in new {
            self.heartbeats += 1;
            if let Heartbeat::Thread(thread) = heartbeat {
                let place = self.recording.string(thread.place).unwrap_or_default().to_owned();
                let lanes = self.recording.lanes().iter();
                let lane = lanes.clone().position(|lane| lane.header.kinds == thread.kinds);
                let seen = sys::threads::Seen {
                    tid: thread.tid,
                    name: String::new(),
                    state: thread.state,
                    place,
                    cpu_ns: thread.cpu_ns,
                    run_delay_ns: thread.run_delay_ns,
                };
                let role = Role::of(thread.kinds, true);
                let threads = &mut self.watchdog.threads;
                threads.see(lane.unwrap(), seen, (thread.kinds, role), self.now_ns);
            }
        }
    }

    fn look(&mut self, now: u64) -> Found {
        let in_flight = self
            .steps
            .iter()
            .filter_map(|(lane, step)| Some(StepSeen::of(*lane, &in_flight_at(step, now)?)));
        let mut steps: Vec<StepSeen> = in_flight.collect();
        steps.sort_by_key(StepSeen::order);
        let clock = Clock { now, hz: self.hz };
        self.watchdog.seen.tick(self.now_ns);
        look_at(&mut self.watchdog, clock, true, &steps)
    }
}

/// When the drain thread reads a record, in ticks; `None` for a step that never stops.
fn readable_at(record: &Record) -> Option<u64> {
    match record {
        Record::Step(step) => step.has(step_flags::STOPPED).then(|| end(step)),
        other => Some(other.ticks()),
    }
}

fn end(step: &Step) -> u64 {
    step.ticks + (step.end << STEP_SHIFT)
}

/// A step as its slot holds it at `now`; `None` if it is not in flight then.
fn in_flight_at(step: &Step, now: u64) -> Option<Step> {
    let is_over = step.has(step_flags::STOPPED) && end(step) <= now;
    if step.ticks > now || is_over {
        return None;
    }
    let mut then = *step;
    let flags = [step_flags::FIRST, step_flags::SECOND, step_flags::THIRD];
    for (flag, after) in flags.into_iter().zip(step.states) {
        if step.ticks + (after << STEP_SHIFT) > now {
            then.flags &= !flag;
        }
    }
    Some(then)
}

/// For each root rank of the verdicts on a job with this fault: the verdict's class, the rank, and
/// what its own watchdog reports.
fn roots(fault: Fault, seed: u64) -> Vec<(FindingClass, u32, BTreeSet<Option<FindingClass>>)> {
    let fault = vec![Planted::new(fault)];
    let mut scenario = Scenario { seed, fault, ..Scenario::default() };
    (scenario.job.ranks, scenario.job.steps, scenario.job.hold_s) = (16, 3, HOLD_S);
    let dir = tempfile::tempdir().unwrap();
    run(&scenario, dir.path()).unwrap();
    let read = open(&[dir.path().into()], &InputOptions::default()).unwrap();
    let paths = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_recording = |path: &PathBuf| path.extension().is_some_and(|it| it == "nscope");
    let recordings: Vec<Recording> =
        paths.filter(is_recording).map(|path| Recording::open(&path).unwrap()).collect();
    let of_rank = |rank| recordings.iter().find(|one| one.identity().rank == Some(rank));
    let verdicts = diagnose(&read.job, &Options::default()).findings;
    let roots =
        verdicts.iter().flat_map(|one| one.root_ranks.iter().map(|&rank| (one.class, rank)));
    // A rank that never began has no recording.
    let alone = |(class, rank)| Some((class, rank, Replay::new(of_rank(rank)?).run()));
    roots.filter_map(alone).collect()
}

#[test]
fn a_root_rank_shows_the_class_of_the_verdict_or_none() {
    let mut seen = BTreeSet::new();
    for fault in Fault::all() {
        for (class, rank, alone) in (1..=JOBS).flat_map(|seed| roots(fault, seed)) {
            let is_same = alone.iter().flatten().all(|&own| own == class);
            assert!(is_same, "{}: all say {class}, rank {rank} says {alone:?}", fault.name());
            seen.extend(alone.into_iter().flatten());
        }
    }
    // All classes that one rank can show, except those that need CUDA events, or a process whose
    // threads can be looked at.
    let mut local: BTreeSet<FindingClass> = FindingClass::ALL.into_iter().collect();
    let needs_more = [FindingClass::GpuDead, FindingClass::CommSetup];
    local.retain(|class| class.is_reported_by(Tool::Watchdog) && !needs_more.contains(class));
    assert_eq!(seen, local);
}
