// SPDX-License-Identifier: Apache-2.0
/*!
The watchdog: how far the process has come, and whether it is stuck. The drain thread runs it once a
second.

The counts of every communicator that changed, and what is in flight, go to the recording
([`heartbeats`]). An operation in which nothing has changed for longer than the limit is stuck
([`detect`]; only time that the watchdog saw pass counts, [`still`]). Then [`judge`] applies the
rules of `ncclscope_findings` to its state, [`report`] writes their answer as text, and [`act`] runs
the user's actions. A drill ([`drill`]) takes the same path with records of its own.

The watchdog must never report what is no hang:

- Nothing in flight is no hang.
- A communicator's first operation connects, and gets ten times the limit.
- While operations of other communicators complete, the limit of one that stands still counts from
  the last of these, up to four times the limit in all.
- An operation whose class (same communicator and function, similar size) used to take long gets up
  to four times the limit.
- A lost event affects only the operation that it belongs to.

[`blind`] reports what the watchdog cannot see. One rank cannot see whether another *rank* never
entered an operation: `ncclscope diagnose` compares the ranks.
*/

pub(crate) mod act;
mod blind;
mod clock;
mod counted;
mod detect;
mod drill;
mod heartbeats;
mod json;
mod judge;
mod own_process;
mod report;
mod seen;
mod setup;
mod shortage;
mod still;
mod subject;
#[cfg(test)]
mod tests;

use crate::config::HangActions;
use crate::probe::{self, LaunchState};
use crate::sys::cuda::Device;
use blind::Blind;
use clock::Clock;
use counted::Counted;
use detect::{Detector, Stuck};
use drill::Drill;
use heartbeats::{LastWritten, Pauses};
use ncclscope_control::value::CudaEvents;
use ncclscope_operations::progress::{LaunchFate, LiveState, LostEvent, OpView, Tracker};
use ncclscope_recorder::missed::{self, Miss};
use ncclscope_recorder::{Recorder, clock as ticks, gate, slots};
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::progress::{Heartbeat, Progress};
use ncclscope_trace::{Comm, EventKind, Handle, Mark, Record, StrId};
pub(crate) use own_process::OwnProcess;
pub(crate) use report::{Hang, Happened};
use seen::{StepSeen, Threads};
use setup::Setups;
use shortage::Shortages;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;
use still::Seen;
use subject::{Subject, Suspect};

/// Time between two looks, ns. `CLOSE_LOOK_NS` applies while something may be stuck,
/// `DRILL_LOOK_NS` during a drill.
const LOOK_NS: u64 = 1_000_000_000;
const CLOSE_LOOK_NS: u64 = 400_000_000;
const DRILL_LOOK_NS: u64 = 50_000_000;
/// Threads are looked at from this time before the limit on, ns.
const BEFORE_NS: u64 = 2_000_000_000;
/// Maximum number of reports of one process; `MOST_AT_ONCE` is that of one look. Further hangs are
/// only counted.
const MOST_REPORTS: u32 = 64;
const MOST_AT_ONCE: usize = 8;
/// Maximum number of lost events kept until the next look.
const MOST_MISSES: usize = 1 << 14;

/// The watchdog of one process.
#[derive(Debug)]
pub(crate) struct Watchdog {
    detector: Detector,
    own: OwnProcess,
    /// Time after which something counts as stuck; `None`: never.
    limit_ns: Option<u64>,
    pub(crate) actions: HangActions,
    counts: BTreeMap<u16, Counted>,
    told: BTreeMap<u16, LastWritten>,
    /// The number of communicators so far.
    begun: u64,
    pauses: Pauses,
    threads: Threads,
    shortages: Shortages,
    setups: Setups,
    /// The report of a call in [`setup`] that has not returned, for how long it had stood still
    /// then (ns), and the time seen then (ns).
    setup_hang: Option<(Hang, u64, u64)>,
    /// The states of launches by CUDA events, as of the latest look.
    launches: HashMap<Handle, LaunchState>,
    /// When the next look is due, ns of `CLOCK_MONOTONIC`.
    next: u64,
    seen: Seen,
    /// Ticks of the counter at the latest [`Watchdog::tick`].
    ticks: u64,
    drill: Option<Drill>,
    reports: u32,
    blind: Blind,
    losses: Losses,
    /// Operations were left out of the recording.
    partial: bool,
}

/// Lost events.
#[derive(Debug, Default)]
struct Losses {
    /// Position in the recorder's lost events; `misses` are those read.
    position: missed::ReadPosition,
    misses: Vec<Miss>,
    /// If lost events are unknown: the time until which, in ticks.
    overrun: Option<u64>,
    total: u64,
}

/// The results of a look, to be recorded and acted on.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Progress records for the recording.
    heartbeats: Vec<Heartbeat>,
    /// Records of threads, with the text of their place in the kernel, which has no string number
    /// yet.
    threads: Vec<(ncclscope_trace::progress::Thread, String)>,
    /// What a look at a silent process saw, and when.
    setup: Option<(u64, setup::Seen)>,
    pub(crate) hangs: Vec<Hang>,
    /// Lines for the log and the recording.
    pub(crate) lines: Vec<String>,
}

impl Found {
    /// The words of all records; `number` returns the string number of a text.
    pub(crate) fn words(&self, mut number: impl FnMut(&str) -> StrId) -> Vec<u64> {
        let mut words = Vec::new();
        for heartbeat in &self.heartbeats {
            words.extend_from_slice(heartbeat.pack().words());
        }
        for (thread, place) in &self.threads {
            let place = if place.is_empty() { StrId::NONE } else { number(place) };
            let thread = Heartbeat::Thread(ncclscope_trace::progress::Thread { place, ..*thread });
            words.extend_from_slice(thread.pack().words());
        }
        if let Some((ticks, seen)) = &self.setup {
            let setup = Heartbeat::Setup(seen.record(*ticks, number));
            words.extend_from_slice(setup.pack().words());
        }
        words
    }

    /// The progress of communicators.
    pub(crate) fn progress(&self) -> impl Iterator<Item = &Progress> {
        self.heartbeats.iter().filter_map(|heartbeat| match heartbeat {
            Heartbeat::Progress(progress) => Some(progress),
            _ => None,
        })
    }
}

impl Watchdog {
    pub(crate) fn new(own: OwnProcess, limit: Option<Duration>, actions: HangActions) -> Watchdog {
        let limit_ns = limit.map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX / 64));
        Watchdog {
            detector: Detector::default(),
            own,
            limit_ns,
            actions,
            counts: BTreeMap::new(),
            told: BTreeMap::new(),
            begun: 0,
            pauses: Pauses::default(),
            threads: Threads::default(),
            shortages: Shortages::new(),
            setups: Setups::default(),
            setup_hang: None,
            launches: HashMap::new(),
            next: 0,
            seen: Seen::default(),
            ticks: 0,
            drill: None,
            reports: 0,
            blind: Blind::default(),
            losses: Losses::default(),
            partial: false,
        }
    }

    /// Notes whether CUDA events are recorded, for the text about what cannot be seen.
    pub(crate) fn cuda_events(&mut self, setting: CudaEvents) {
        self.blind.cuda_events = setting;
    }

    /// Takes a communicator, or additional facts about one.
    pub(crate) fn comm(&mut self, comm: &Comm) {
        self.detector.tracker.comm(comm);
        self.own.comm(comm);
        self.told.entry(comm.index).or_insert_with(|| {
            self.begun += 1;
            LastWritten::default()
        });
    }

    pub(crate) fn device(&mut self, comm: u16, device: Device) {
        self.own.device(comm, device);
    }

    /// Takes the end of a communicator. Call before its counter cell is given to another one.
    pub(crate) fn end_comm(&mut self, index: u16) {
        self.detector.tracker.end_comm(index);
        // The communicator may have been created after the counts were read for this look.
        if let (Entry::Vacant(unread), Some(counted)) =
            (self.counts.entry(index), Counted::read(index))
        {
            unread.insert(counted);
        }
        self.next = 0;
    }

    /// Takes a string of the process's table.
    pub(crate) fn string(&mut self, id: StrId, text: &str) {
        self.detector.tracker.string(id, text);
        self.own.string(id, text);
    }

    /// Takes words of a lane that form whole records.
    pub(crate) fn words(&mut self, lane: usize, words: &[u64]) {
        self.detector.tracker.words(lane, words);
    }

    /// Takes a record of a lane that was decoded for other sinks, too.
    pub(crate) fn record(&mut self, lane: usize, record: &Record) {
        self.detector.tracker.record(lane, record);
    }

    /// True if something that is stuck was found and has not ended.
    pub(crate) fn is_stuck(&self) -> bool {
        self.detector.count() > 0
    }

    /// True if a look is due; all lanes must be read before it. Call at least four times a second,
    /// because longer gaps do not count as time seen ([`still`]).
    pub(crate) fn is_due(&mut self, recorder: &Recorder) -> bool {
        self.tick();
        self.losses.take(recorder);
        let is_due = ticks::now_ns() >= self.next;
        if is_due {
            // Read before the lanes, so that each operation that is counted is also read.
            let indices = self.told.iter().filter(|(_, told)| !told.ended).map(|(&comm, _)| comm);
            self.counts = indices.filter_map(|comm| Some((comm, Counted::read(comm)?))).collect();
        }
        is_due
    }

    /// Notes that the process runs now. Also called within a look, which may take long on a busy
    /// machine.
    fn tick(&mut self) {
        let before = std::mem::replace(&mut self.ticks, ticks::now());
        if self.seen.tick(ticks::now_ns()) {
            // What threads and operations did in the meantime proves nothing.
            self.threads = Threads::default();
            self.detector.tracker.was_away(before, self.ticks);
        }
    }

    /// Notes that a timer of the drain thread was `ns` late.
    pub(crate) fn late(&mut self, ns: u64) {
        self.shortages.late(ns);
    }

    /// Takes the mark that NCCL's activation mask is now another's, or as requested again.
    pub(crate) fn set_others_mask(&mut self, mark: &Mark) {
        self.blind.others_mask = mark.others_mask();
        if mark.ends_kernels() {
            self.detector.tracker.kernels_off(mark.ticks);
        }
        self.hurry();
    }

    /// Makes the next look due at once.
    pub(crate) fn hurry(&mut self) {
        self.next = 0;
    }

    /// Looks at the process at `now` ticks; `hz` is the number of ticks per second.
    pub(crate) fn look(&mut self, recorder: &Recorder, now: u64, hz: u64) -> Found {
        let clock = Clock { now, hz };
        let mut found = Found::default();
        self.next = ticks::now_ns() + LOOK_NS;
        if hz == 0 {
            return found;
        }
        self.forget_gone();
        // At the end of the process nothing is recorded any more, and nothing counts as left out.
        let sample = if gate::is_dead() { Some(1) } else { gate::sample() };
        self.partial |= recorder.left_out() > 0 || sample.is_none();
        if self.partial {
            self.detector.tracker.partial();
        }
        self.heed_losses(recorder, clock, &mut found);
        self.detector.tracker.settled(gate::settled_until());
        self.see(recorder, clock);
        self.tick();
        self.detector.tracker.abandoned().for_each(|op| recorder.abandon(op));
        let steps = seen::steps(recorder, now);
        self.recover(clock, &mut found);
        self.run_drill(clock, &steps, &mut found);
        let limit = self.limit_ns.unwrap_or(u64::MAX);
        let suspects = self.detector.suspects(clock, limit, BEFORE_NS);
        if suspects.is_empty() && self.drill.is_none() {
            self.pauses.forget_threads();
        } else {
            let drill = self.drill.as_ref().map(|_| DRILL_LOOK_NS);
            let limits = suspects.iter().map(Suspect::left_ns).chain(drill);
            let pause = limits.fold(CLOSE_LOOK_NS, u64::min).max(DRILL_LOOK_NS);
            self.next = ticks::now_ns() + pause;
            let threads = self.threads.look(recorder, now, ticks::now_ns());
            if !suspects.is_empty() && self.pauses.are_threads_due(clock) {
                found.threads = threads;
            }
        }
        self.tick();
        self.fire(suspects, clock, &steps, &mut found);
        self.tell_heartbeats(clock, &steps, &mut found);
        // During a hang, which may last a night, shortages are of no use.
        if !self.is_stuck() {
            let shortage = self.shortages.look(recorder, clock);
            found.heartbeats.extend(shortage.map(Heartbeat::Shortage));
        }
        let calls = self.counts.values().map(|counted| counted.counts.calls());
        let (seen, event) =
            self.setups.look((calls.sum(), self.begun), (clock, self.seen), self.limit_ns);
        found.setup = seen.map(|seen| (clock.now, seen));
        found.hangs.extend(event.and_then(|event| self.setup_event(event, clock)));
        let comms = self.detector.tracker.comms();
        let blind = self.blind.look(sample, comms, &self.own, self.seen);
        if self.limit_ns.is_some() {
            found.lines.extend(blind);
        }
        found
    }

    /// Forgets communicators whose end was recorded by the previous look, unless something of them
    /// is stuck.
    fn forget_gone(&mut self) {
        let (detector, own, blind) = (&mut self.detector, &mut self.own, &mut self.blind);
        let stuck = detector.stuck_comms();
        self.told.retain(|&comm, told| {
            let keep = !told.ended || stuck.contains(&comm);
            if !keep {
                detector.forget_comm(comm);
                own.forget(comm);
                blind.forget(comm);
            }
            keep
        });
    }

    /// Updates what is in flight.
    fn see(&mut self, recorder: &Recorder, clock: Clock) {
        let is_live = |op| slots::at(&recorder.region, op).is_some_and(|slot| slot.holds(op));
        self.launches = probe::states();
        let fate = |launch: Handle| match self.launches.get(&launch) {
            Some(LaunchState::NotStarted) => LaunchFate::Waits,
            Some(LaunchState::Running { since }) => LaunchFate::Runs { since: *since },
            Some(LaunchState::Done { seen, .. }) => LaunchFate::Ended { at: *seen },
            Some(LaunchState::Failed { .. }) => LaunchFate::Lost,
            Some(LaunchState::Unknown) | None => LaunchFate::Unknown,
        };
        let outside = LiveState { is_live: &is_live, fate: &fate };
        self.detector.look(clock, self.seen, &outside);
    }

    /// A lost event makes its operation doubtful, or all operations if that is unknown.
    fn heed_losses(&mut self, recorder: &Recorder, clock: Clock, found: &mut Found) {
        let tracker = &mut self.detector.tracker;
        for miss in self.losses.misses.drain(..) {
            let missed = match miss {
                Miss::Start(kind, parent) => LostEvent::Start { kind, parent },
                Miss::Stop(handle) => LostEvent::Stop(handle),
            };
            tracker.missed(missed, clock.now);
        }
        let total = losses(recorder);
        if total > self.losses.total {
            self.losses.total = total;
            tracker.lost();
        }
        if let Some(until) = self.losses.overrun.take() {
            // Operations that began later are complete.
            let stuck = self.detector.forget(until).into_iter();
            let unknown = stuck.filter_map(|stuck| stuck.end(clock, self.seen, Happened::Unknown));
            found.hangs.extend(unknown);
            found.lines.extend(self.blind.overrun(self.seen));
        }
    }

    fn tell_heartbeats(&mut self, clock: Clock, steps: &[StepSeen], found: &mut Found) {
        let told = heartbeats::Context {
            counts: &self.counts,
            own: &self.own,
            partial: self.partial,
            lossy: self.detector.tracker.is_lossy(),
            stuck: self.detector.stuck_comms(),
        };
        let tracker = &self.detector.tracker;
        found.heartbeats = told.heartbeats(&mut self.told, &mut self.pauses, tracker, steps, clock);
    }

    /// Reports what is stuck: the first ones in detail, the others only by name.
    fn fire(
        &mut self,
        mut suspects: Vec<Suspect>,
        clock: Clock,
        steps: &[StepSeen],
        found: &mut Found,
    ) {
        suspects.retain(|suspect| suspect.is_stuck() && self.threads.can_tell());
        suspects.sort_by_key(|suspect| std::cmp::Reverse(suspect.still_ns));
        if suspects.is_empty() {
            return;
        }
        let first = found.hangs.len();
        let in_flight = self.detector.tracker.in_flight();
        for suspect in suspects {
            let is_told = found.hangs.len() - first < MOST_AT_ONCE && self.reports < MOST_REPORTS;
            let hang = is_told.then(|| {
                let tracker = &self.detector.tracker;
                self.describe(tracker, &in_flight, &suspect, (clock, steps), Happened::Hung)
            });
            if let Some(hang) = &hang {
                self.reports += 1;
                found.hangs.push(hang.clone());
            } else if let Some(last) = found.hangs.get_mut(first..).and_then(<[Hang]>::last_mut) {
                last.and(&self.own, &suspect.subject);
            }
            self.detector.add(suspect.into_stuck(hang, self.seen));
        }
    }

    /// The report of something that stands still. Its cost grows with all that is in flight
    /// (`in_flight`, queried once per look), so that only few are described.
    fn describe(
        &self,
        tracker: &Tracker,
        in_flight: &[OpView],
        suspect: &Suspect,
        (clock, steps): (Clock, &[StepSeen]),
        happened: Happened,
    ) -> Hang {
        #[cfg(test)]
        tests::DESCRIBED.with(|count| count.set(count.get() + 1));
        let comm = suspect.subject.comm();
        let scene = judge::Scene {
            own: &self.own,
            in_flight,
            comm: tracker.comm_view(comm),
            steps,
            threads: &self.threads,
            launches: &self.launches,
            clock,
        };
        let verdict = scene.judge(&suspect.subject);
        self.own.hang(&scene, suspect, verdict, happened, tracker.past(comm))
    }

    /// Reports a call that creates or ends a communicator and stands for the limit, or its end.
    fn setup_event(&mut self, event: setup::Event, clock: Clock) -> Option<Hang> {
        match event {
            setup::Event::Hung(seen, still_ns) if self.reports < MOST_REPORTS => {
                let limit_ns = self.limit_ns.unwrap_or(0);
                let hang = self.own.setup_hang(&seen, (still_ns, limit_ns), clock)?;
                self.reports += 1;
                self.setup_hang = Some((hang.clone(), still_ns, self.seen.total()));
                Some(hang)
            }
            setup::Event::Hung(..) => None,
            setup::Event::Over => {
                let (mut hang, still_ns, at) = self.setup_hang.take()?;
                let still_ns = still_ns + self.seen.total().saturating_sub(at);
                hang.end(clock, still_ns, Happened::Recovered);
                Some(hang)
            }
        }
    }

    /// Reports what was stuck and has ended.
    fn recover(&mut self, clock: Clock, found: &mut Found) {
        for (stuck, happened) in self.detector.take_over() {
            // The unknown outcome was reported before.
            if happened != Happened::Unknown {
                found.hangs.extend(stuck.end(clock, self.seen, happened));
            }
        }
    }

    /// Begins a simulated hang, unless the watchdog is off.
    pub(crate) fn begin_drill(&mut self, length: Duration) {
        let Some(limit) = self.limit_ns else { return };
        self.drill = Some(Drill::new(length, limit, self.own.first()));
        self.next = 0;
    }

    fn run_drill(&mut self, clock: Clock, steps: &[StepSeen], found: &mut Found) {
        let Some(mut drill) = self.drill.take() else { return };
        for suspect in drill.look(clock, self.seen) {
            if suspect.is_stuck() && self.threads.can_tell() {
                let tracker = &drill.detector.tracker;
                let (flight, scene) = (tracker.in_flight(), (clock, steps));
                let hang = self.describe(tracker, &flight, &suspect, scene, Happened::Hung);
                let hang = self.own.as_drill(hang);
                found.hangs.push(hang.clone());
                drill.detector.add(suspect.into_stuck(Some(hang), self.seen));
            }
        }
        let over = drill.detector.take_over();
        let ends = over.into_iter().filter_map(|(stuck, what)| stuck.end(clock, self.seen, what));
        found.hangs.extend(ends);
        self.drill = Some(drill).filter(|drill| !drill.is_over());
    }

    /// Takes a first look at the threads, for [`Watchdog::why`].
    pub(crate) fn sample(&mut self, recorder: &Recorder, now: u64) {
        self.threads.look(recorder, now, ticks::now_ns());
    }

    /// What the process waits for now: the oldest operation of each communicator, stuck ones first.
    /// As many as fit into `room` bytes are described. Call after a look, and at least 100 ms after
    /// [`Watchdog::sample`].
    pub(crate) fn why(&mut self, recorder: &Recorder, now: u64, hz: u64, room: usize) -> Why {
        let clock = Clock { now, hz };
        let steps = seen::steps(recorder, now);
        self.threads.look(recorder, now, ticks::now_ns());
        self.waits_for((clock, &steps), room)
    }

    fn waits_for(&mut self, (clock, steps): (Clock, &[StepSeen]), mut room: usize) -> Why {
        let in_flight = self.detector.tracker.in_flight();
        let calls = self.detector.tracker.calls();
        let foreign = self.detector.tracker.foreign();
        let mut seen: HashSet<u16> = HashSet::new();
        let oldest: Vec<&OpView> = in_flight.iter().filter(|op| seen.insert(op.comm)).collect();
        let mut why = Why { count: oldest.len() + calls.len() + foreign.len(), ..Why::default() };
        let subjects = oldest.into_iter().cloned().map(Subject::Op);
        let mut subjects: Vec<Subject> =
            subjects.chain(calls.into_iter().map(Subject::Call)).collect();
        subjects.extend(foreign.into_iter().map(Subject::Foreign));
        let known = self.detector.known();
        let is_stuck = |subject: &Subject| known.contains(&subject.handle());
        subjects.sort_by_key(|subject| !is_stuck(subject));
        for subject in subjects {
            let still_ns = self.detector.still_of(&subject, clock);
            let is_stuck = is_stuck(&subject);
            let happened = if is_stuck { Happened::Hung } else { Happened::InFlight };
            let suspect = Suspect { subject, still_ns, limit_ns: self.limit_ns.unwrap_or(0) };
            let tracker = &self.detector.tracker;
            let hang = self.describe(tracker, &in_flight, &suspect, (clock, steps), happened);
            let text = hang.json();
            room = room.saturating_sub(text.len());
            if room == 0 {
                break;
            }
            why.hangs.push(text);
        }
        why.blind = self.setups.now(clock).into_iter().chain(self.blind.now()).collect();
        why
    }
}

/// What a process waits for.
#[derive(Debug, Default)]
pub(crate) struct Why {
    /// What is in flight, as JSON, as far as there is room.
    pub(crate) hangs: Vec<String>,
    /// Number of operations and calls in flight, described or not.
    pub(crate) count: usize,
    /// The kinds of hangs that cannot be seen, with the reason.
    pub(crate) blind: Vec<String>,
}

/// Texts as a JSON array.
pub(crate) fn texts(texts: &[String]) -> String {
    texts.iter().fold(json::Json::array(), |all, text| all.text("", text)).end()
}

impl Losses {
    /// Reads the events lost since the last call, before they are overwritten.
    fn take(&mut self, recorder: &Recorder) {
        let is_whole = recorder.take_missed(&mut self.position, &mut self.misses);
        if !is_whole || self.misses.len() > MOST_MISSES {
            self.misses.clear();
            self.overrun = Some(recorder.missed_at());
        }
    }
}

impl Suspect {
    fn into_stuck(self, hang: Option<Hang>, seen: Seen) -> Stuck {
        let Suspect { subject, still_ns, .. } = self;
        let (comm, start) = (subject.comm(), subject.start());
        let at = seen.total();
        let subject = subject.handle();
        Stuck { subject, comm, start, hang, still_ns, at, unknown: None }
    }
}

impl Stuck {
    /// The report of the outcome; `None` if the hang was not reported.
    fn end(self, clock: Clock, seen: Seen, happened: Happened) -> Option<Hang> {
        let Stuck { hang, still_ns, at, .. } = self;
        let mut hang = hang?;
        hang.end(clock, still_ns + seen.total().saturating_sub(at), happened);
        Some(hang)
    }
}

/// Number of lost events and ends, without kinds whose loss cannot look like a hang.
fn losses(recorder: &Recorder) -> u64 {
    let sum = |lost: [u64; KINDS]| -> u64 {
        let kinds = EventKind::ALL.into_iter().filter(|kind| !kind.is_spare());
        kinds.map(|kind| lost[kind.index()]).sum()
    };
    let lanes = recorder.lanes().map(|(_, lane)| sum(lane.lost()) + sum(lane.lost_ends()));
    lanes.sum::<u64>() + sum(recorder.lost_without_lane())
}
