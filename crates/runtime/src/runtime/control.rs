// SPDX-License-Identifier: Apache-2.0
//! Requests to a process at run time, from the application, by a signal, or on the control socket.

use super::Runtime;
use crate::log::Severity;
use crate::orders::Order;
use crate::own;
use crate::state::{Phase, State};
use crate::sys::lock::Lock;
use crate::sys::{self, signal};
use crate::watchdog::Why;
use crate::window::{ClockReading, GateAction, Schedule};
use core::sync::atomic::Ordering;
use ncclscope_control::directories::{dump_name, is_recording_file};
use ncclscope_control::message::{CommMember, ProcessStatus, Recorded};
use ncclscope_control::signal::SignalRequest;
use ncclscope_control::table::{HANG_SEC, MODE};
use ncclscope_control::value::FirstWindow;
use ncclscope_control::window::RecordingWindow;
use ncclscope_recorder::{clock, gate};
use ncclscope_trace::{EventKind, MarkKind};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long NCCL's threads may use an activation mask that they have read, before operations start
/// with the new one.
const MASK_SETTLES: Duration = Duration::from_millis(1);

/// Maximum length of a simulated hang.
const LONGEST_DRILL: Duration = Duration::from_secs(3600);
/// How long a dump waits until everything recorded is in the file.
const DUMP_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of a process's answer about what it waits for, bytes.
const WHY_BYTES: usize = 48 << 10;
/// Time between the two looks at the threads that show whether they run.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Why a request was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Nothing is recorded in this process: recording is off or failed, or this is a fork's child.
    Off,
    /// There is no communicator yet, and so no recording.
    Early,
    /// The request is invalid, with the reason.
    Bad(String),
    /// A system call failed, with its name and the reason.
    System(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Off => f.write_str(
                "nothing is recorded in this process (NCCLSCOPE_MODE=off, a failure that the log \
                 names, or a forked child)",
            ),
            Refusal::Early => f.write_str(
                "there is no communicator yet: a recording begins with the first one that NCCL \
                 gives to the plugin",
            ),
            Refusal::Bad(why) | Refusal::System(why) => f.write_str(why),
        }
    }
}

impl Runtime {
    /// Records the operations of `window`. Before the first communicator, the window waits for it.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn start(&'static self, window: RecordingWindow) -> Result<(), Refusal> {
        let mut state = self.live()?;
        let bad = |why: &str| Refusal::Bad(why.to_owned());
        if matches!(state.phase, Phase::New) {
            Schedule::new().request(window, ClockReading::read()).map_err(bad)?;
            state.early = Some(FirstWindow::On(window));
            return Ok(());
        }
        let turn = state.schedule.request(window, ClockReading::read()).map_err(bad)?;
        self.turn(&mut state, turn);
        // The drain thread sleeps until the next event of the old schedule.
        state.wake_drain();
        Ok(())
    }

    /// Stops recording operations issued from now on. Earlier ones are recorded to their end.
    ///
    /// # Errors
    /// [`Refusal::Off`].
    pub fn stop(&'static self) -> Result<(), Refusal> {
        let mut state = self.live()?;
        if matches!(state.phase, Phase::New) {
            state.early = Some(FirstWindow::Off);
            return Ok(());
        }
        let turn = state.schedule.stop(ClockReading::read());
        self.turn(&mut state, Some(turn));
        state.wake_drain();
        Ok(())
    }

    /// True while new operations are recorded.
    #[must_use]
    pub fn is_started(&self) -> bool {
        gate::is_started()
    }

    /// Adds a mark with a text to the recording.
    ///
    /// # Errors
    /// [`Refusal::Off`].
    pub fn mark(&'static self, text: &str) -> Result<(), Refusal> {
        let state = self.running()?;
        self.moment(MarkKind::Note, Some(text.to_owned()), 0);
        drop(state);
        Ok(())
    }

    /// Notes that a training step begins.
    ///
    /// # Errors
    /// [`Refusal::Off`].
    pub fn set_step(&'static self, step: u64) -> Result<(), Refusal> {
        let mut state = self.live()?;
        state.step = Some(step);
        if state.is_running() {
            self.moment(MarkKind::Step, None, step);
        }
        let turn = state.schedule.step(step, ClockReading::read());
        self.turn(&mut state, turn);
        Ok(())
    }

    /// Sets the role of a communicator: `tp`, `dp`, `pp`, or any other name.
    ///
    /// # Errors
    /// [`Refusal::Off`].
    pub fn set_role(&'static self, hash: u64, role: &str) -> Result<(), Refusal> {
        let state = self.running()?;
        self.shared.order(Order::Role { hash, text: role.to_owned() }, 64 + role.len());
        drop(state);
        Ok(())
    }

    /// Copies the present recording to `to`: a file if it ends with `.nscope`, else a directory,
    /// which is created. Without `to`, copies to a new directory beside the recording, which only
    /// this user can write to. Returns the file. Only the caller waits for the copy.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn dump(&'static self, to: Option<&Path>) -> Result<PathBuf, Refusal> {
        let slow = || Refusal::System("the recording's file system does not answer".into());
        drop(self.running()?);
        // The writer thread has created the copy before it answers.
        let copy = self.ask(Order::Dump, DUMP_PATIENCE).ok_or_else(slow)?;
        let (checkpoint, rest) =
            copy.map_err(|error| Refusal::System(format!("cannot copy the recording: {error}")))?;
        let recording = self.running()?.recording.clone().ok_or_else(slow)?;
        let (mut dir, name) = dump_place(&recording, to);
        let nonce = self.shared.nonce.load(Ordering::Relaxed);
        let written = ncclscope_trace::create_directories(&dir).and_then(|()| match to {
            Some(file) if is_recording_file(file) => {
                checkpoint.write(file, &rest).map(|()| file.to_owned())
            }
            Some(_) => checkpoint.write_into(&dir, &name, nonce, &rest),
            None => {
                dir = new_directory(&dir)?;
                checkpoint.write_into(&dir, &name, nonce, &rest)
            }
        });
        let file = dir.join(&name);
        written
            .map_err(|error| Refusal::System(format!("cannot write {}: {error}", file.display())))
    }

    /// The state of recording in this process; `job` is the id of its job.
    ///
    /// # Errors
    /// [`Refusal::Off`].
    pub(crate) fn status(&self, job: &str) -> Result<ProcessStatus, Refusal> {
        let state = self.running()?;
        let comms = state.comms.values();
        let comms = comms.map(|it| CommMember { hash: it.hash, rank: it.rank, ranks: it.ranks });
        Ok(ProcessStatus {
            pid: sys::pid(),
            recorded: match (gate::is_started(), state.schedule.waits()) {
                (true, _) => Recorded::Yes,
                (false, true) => Recorded::Waiting,
                (false, false) => Recorded::No,
            },
            job: job.to_owned(),
            nccl_version: state.nccl_version,
            step: state.step,
            comms: comms.collect(),
            more_comms: 0,
            recording: state.recording.clone().unwrap_or_default(),
            mode: self.setting(&MODE).word().to_owned(),
            window: state.schedule.state(ClockReading::read()),
        })
    }

    /// Simulates, for `length`, an operation that stands still. The watchdog finds it after a
    /// second, or after half of `length` if that is less, and takes all actions for a hang, each
    /// marked as a drill.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn simulate_hang(&'static self, length: Duration) -> Result<(), Refusal> {
        let state = self.live()?;
        if length.is_zero() || length > LONGEST_DRILL {
            return Err(Refusal::Bad("a simulated hang takes up to an hour".into()));
        }
        drop(state);
        let state = self.running()?;
        if self.setting(&HANG_SEC).is_none() {
            let why =
                "NCCLSCOPE_HANG_SEC is 0: no operation is reported as stuck, not even a drill's";
            return Err(Refusal::Bad(why.into()));
        }
        self.shared.order(Order::Drill(length), 0);
        self.hurry(state);
        Ok(())
    }

    /// What the process waits for: the operations in flight as JSON (`ncclscope.hang/2`), the
    /// oldest of each communicator first, as far as they fit; their number; and one line for each
    /// kind of hang that the watchdog cannot see. Takes a fifth of a second, to see what threads
    /// do. Blocks on the drain thread, so only for threads of this library.
    ///
    /// # Errors
    /// [`Refusal::Off`].
    pub(crate) fn why(&'static self) -> Result<Why, Refusal> {
        drop(self.running()?);
        if let Some(drain) = self.drain.lock().as_mut() {
            let (watchdog, _) = drain.watchdog();
            watchdog.sample(&self.shared.recorder, clock::now());
            watchdog.hurry();
            self.round(drain, true, false);
        }
        crate::sys::wake::pause(LOOK_AGAIN);
        let mut drain = self.drain.lock();
        let Some((watchdog, hz)) = drain.as_mut().map(|drain| drain.watchdog()) else {
            return Err(Refusal::Off);
        };
        Ok(watchdog.why(&self.shared.recorder, clock::now(), hz, WHY_BYTES))
    }

    /// Executes requests by signals since the last call. For the drain thread, which does not wait
    /// for a copy.
    pub(crate) fn heed_signals(&'static self) {
        for request in signal::take() {
            match request {
                // Refused only if nothing is recorded.
                SignalRequest::Toggle if self.is_started() => drop(self.stop()),
                SignalRequest::Toggle => drop(self.start(RecordingWindow::default())),
                SignalRequest::Dump => {
                    let dump = || self.tell_of(&self.dump(None));
                    let begun = sys::spawn_quiet("ncclscope/dump", dump);
                    if let Err(error) = begun {
                        let refusal = Refusal::System(format!("no thread for a dump: {error}"));
                        self.tell_of(&Err(refusal));
                    }
                }
            }
        }
    }

    pub(crate) fn tell_of(&'static self, dump: &Result<PathBuf, Refusal>) {
        match dump {
            Ok(file) => {
                self.shared.log.say(Severity::Info, &format!("dumped to {}", file.display()))
            }
            Err(refusal) => self.shared.problem(&refusal.to_string()),
        }
        self.shared.log.speak();
    }

    /// Starts or ends the window if due. Returns the time until the next change, if any.
    pub(super) fn keep_schedule(&self, state: &mut State) -> Option<Duration> {
        while let Some(turn) = state.schedule.due(ClockReading::read()) {
            self.turn(state, Some(turn));
        }
        state.schedule.wait(ClockReading::read())
    }

    /// Executes an action of the schedule.
    pub(super) fn turn(&self, state: &mut State, turn: Option<GateAction>) {
        let Some(mask) = state.mask else { return };
        // The activation bit of KernelCh stays set, because NCCL and the device would count kernels
        // differently if it changed (2.31); the gate leaves these events out instead.
        let parts = mask & !EventKind::KernelCh.bit();
        if let Some(GateAction::Start { .. } | GateAction::Stop) = turn {
            // A request to this process comes after the operator's to NCCL.
            state.outside.resumes = None;
        }
        match turn {
            Some(GateAction::Start { sample }) => {
                if state.masks.set(mask) {
                    // Waits, because an operation that started with the old mask would be recorded
                    // in part.
                    crate::sys::wake::pause(MASK_SETTLES);
                }
                gate::set_sample(sample);
                // Recorded here, so that all operations of the window lie between the two marks.
                self.moment(MarkKind::Start, None, u64::from(sample));
                gate::start();
            }
            Some(GateAction::Stop) => {
                if gate::stop() {
                    self.moment(MarkKind::Stop, None, 0);
                }
                state.masks.clear(parts);
            }
            Some(GateAction::Settle) => gate::settle(),
            None => {}
        }
    }

    /// Adds a mark with the current time to the recording.
    fn moment(&self, what: MarkKind, text: Option<String>, value: u64) {
        let weight = 64 + text.as_ref().map_or(0, String::len);
        // The queue counts an order that does not fit.
        let _ =
            self.shared.orders.put(Order::Mark { ticks: clock::now(), what, text, value }, weight);
    }

    /// Adds a mark with a time in ticks.
    pub(super) fn moment_at(&self, ticks: u64, what: MarkKind, value: u64) {
        let _ = self.shared.orders.put(Order::Mark { ticks, what, text: None, value }, 64);
    }

    /// The locked state; refused if nothing is recorded in this process.
    fn live(&self) -> Result<crate::sys::lock::Guard<'_, State>, Refusal> {
        // A child's copy of the lock may be held by a thread that exists only in the parent.
        if gate::is_dead() || sys::is_child() {
            return Err(Refusal::Off);
        }
        let state = self.shared.lock();
        let is_off = matches!(state.phase, Phase::Off | Phase::Closed);
        if is_off { Err(Refusal::Off) } else { Ok(state) }
    }

    /// The locked state; refused if there is no recording.
    fn running(&self) -> Result<crate::sys::lock::Guard<'_, State>, Refusal> {
        let state = self.live()?;
        match state.phase {
            Phase::New => Err(Refusal::Early),
            _ if state.is_running() => Ok(state),
            _ => Err(Refusal::Off),
        }
    }
}

/// Directory and name of a dump of `recording`. In a directory it gets the name of the recording,
/// so that the dumps of all ranks can lie in one directory and are read as one run.
fn dump_place(recording: &Path, to: Option<&Path>) -> (PathBuf, String) {
    let name_of = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder_of = |path: &Path| path.parent().unwrap_or_else(|| Path::new("")).to_owned();
    match to {
        Some(file) if is_recording_file(file) => (folder_of(file), name_of(file)),
        Some(dir) => (dir.to_owned(), name_of(recording)),
        None => (folder_of(recording), name_of(recording)),
    }
}

/// Creates a directory for a dump beside a recording. Other users may be able to write there and to
/// guess the name, so that an existing directory is not used unless it belongs to this user alone.
fn new_directory(beside: &Path) -> io::Result<PathBuf> {
    static LAST: Lock<(u64, u32)> = Lock::new((0, 0));
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let dir = beside.join(next_dump(&mut LAST.lock(), seconds));
    // Users that can read the recordings can read the dump.
    let mode = std::fs::metadata(beside)?.mode() & 0o055 | 0o700;
    own::ready(&dir, mode).map(|()| dir.clone()).or_else(|_| own::instead_of(&dir))
}

/// The name of the next dump. `last` is the second of the latest dump, and the number of dumps in
/// it.
fn next_dump(last: &mut (u64, u32), seconds: u64) -> String {
    *last = if last.0 == seconds { (seconds, last.1 + 1) } else { (seconds, 1) };
    dump_name(seconds, last.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_of_all_ranks_can_lie_in_one_directory() {
        let recording = Path::new("/run/h-7.nscope");
        let file = |to| dump_place(recording, Some(Path::new(to)));
        assert_eq!(file("/x/a.nscope"), ("/x".into(), "a.nscope".into()));
        assert_eq!(file("/x"), ("/x".into(), "h-7.nscope".into()));
        assert_eq!(file("a.nscope"), ("".into(), "a.nscope".into()));
        assert_eq!(dump_place(recording, None), ("/run".into(), "h-7.nscope".into()));
        let mut last = (0, 0);
        let names = [7, 7, 7, 8].map(|seconds| next_dump(&mut last, seconds));
        assert_eq!(names, ["dump-7", "dump-7.2", "dump-7.3", "dump-8"]);
    }
}
