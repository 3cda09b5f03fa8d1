// SPDX-License-Identifier: Apache-2.0
//! What can be asked of a process at run time, whoever asks: the application, a signal, a client of
//! the control socket.

use super::{Phase, Runtime, State, session_of};
use crate::config::FirstWindow;
use crate::log::Severity;
use crate::session::Session;
use crate::sys::{
    self,
    signal::{self, Wish},
};
use crate::window::{Request, Turn};
use core::sync::atomic::Ordering;
use ncclscope_recorder::{clock, gate, slots};
use ncclscope_trace::dump::{Checkpoint, Rest};
use ncclscope_trace::{EventKind, StrId, What};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long NCCL's threads may hold a mask that they read, before operations with it begin.
const MASK_SETTLES: Duration = Duration::from_millis(1);

/// The longest simulated hang.
const LONGEST_DRILL: Duration = Duration::from_secs(3600);
/// Bytes of what a process says of what it waits for.
const WHY_BYTES: usize = 48 << 10;
/// Between two looks at threads, which tell what they do.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Why something that was asked for is not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Nothing is recorded in this process: it is off, or failed, or a fork's child.
    Off,
    /// What was asked for makes no sense: why.
    Bad(String),
    /// The system refused: what, and why.
    System(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Off => f.write_str(
                "nothing is recorded in this process (NCCLSCOPE_MODE=off, a failure that the log \
                 names, or a forked child)",
            ),
            Refusal::Bad(why) | Refusal::System(why) => f.write_str(why),
        }
    }
}

/// What a process says of itself, for a list of processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Operations that begin now are recorded.
    pub started: bool,
    /// A window waits for its time or its step.
    pub waiting: bool,
    /// The recording.
    pub recording: PathBuf,
    /// Communicators that are alive: hash, rank, ranks.
    pub comms: Vec<(u64, i32, u32)>,
    /// NCCL's version code; 0 unknown.
    pub nccl_version: u32,
    /// The latest training step that was told.
    pub step: Option<u64>,
}

impl Runtime {
    /// Records what `request` says, from now on or later. Before the first communicator it waits
    /// for that.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn start(&self, request: Request) -> Result<(), Refusal> {
        let mut state = self.live()?;
        if matches!(state.phase, Phase::New) {
            state.early = Some(FirstWindow::On(request));
            return Ok(());
        }
        let bad = |why: &str| Refusal::Bad(why.to_owned());
        let turn = state.schedule.request(request, realtime_ns()).map_err(bad)?;
        self.turn(&mut state, turn);
        // It sleeps until what it knows to be next.
        state.wake_drain();
        Ok(())
    }

    /// Leaves out what is issued from here on. What was issued before is recorded to its end.
    ///
    /// # Errors
    /// [`Refusal::Off`].
    pub fn stop(&self) -> Result<(), Refusal> {
        let mut state = self.live()?;
        if matches!(state.phase, Phase::New) {
            state.early = Some(FirstWindow::Off);
            return Ok(());
        }
        let turn = state.schedule.stop(realtime_ns());
        self.turn(&mut state, Some(turn));
        state.wake_drain();
        Ok(())
    }

    /// True while operations that begin are recorded.
    #[must_use]
    pub fn is_started(&self) -> bool {
        gate::is_started()
    }

    /// Puts a text into the recording.
    ///
    /// # Errors
    /// [`Refusal::Off`].
    pub fn mark(&self, text: &str) -> Result<(), Refusal> {
        let mut state = self.live()?;
        let session = session_of(&mut state).ok_or(Refusal::Off)?;
        session.note_moment(text);
        Ok(())
    }

    /// A training step begins.
    ///
    /// # Errors
    /// [`Refusal::Off`].
    pub fn set_step(&self, step: u64) -> Result<(), Refusal> {
        let mut state = self.live()?;
        state.step = Some(step);
        if let Some(session) = session_of(&mut state) {
            session.mark(What::Step, StrId::NONE, step);
        }
        let turn = state.schedule.step(step, realtime_ns());
        self.turn(&mut state, turn);
        Ok(())
    }

    /// Says what a communicator is for: `tp`, `dp`, `pp`, or whatever the user calls it.
    ///
    /// # Errors
    /// [`Refusal::Off`].
    pub fn set_role(&self, hash: u64, role: &str) -> Result<(), Refusal> {
        let mut state = self.live()?;
        let session = session_of(&mut state).ok_or(Refusal::Off)?;
        session.define_role(hash, role);
        Ok(())
    }

    /// Copies the recording as it is now to `to`: a file if it ends with `.nscope`, else a
    /// directory, which is made. Without `to`, to a new directory beside the recording. Returns the
    /// file. The caller waits for the copy; nobody else does.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn dump(&self, to: Option<&Path>) -> Result<PathBuf, Refusal> {
        let (checkpoint, rest, file) = {
            let mut state = self.live()?;
            let (panics, comms_lost) = (self.panics.load(Ordering::Relaxed), state.comms_lost);
            let session = session_of(&mut state).ok_or(Refusal::Off)?;
            self.define_learned(session);
            let file = dump_file(session.path(), to);
            let (checkpoint, rest) = self.checkpoint(session, panics, comms_lost)?;
            (checkpoint, rest, file)
        };
        let failed = |error: std::io::Error| {
            Refusal::System(format!("cannot write {}: {error}", file.display()))
        };
        if let Some(dir) = file.parent() {
            std::fs::create_dir_all(dir).map_err(failed)?;
        }
        checkpoint.write(&file, &rest).map_err(failed)?;
        Ok(file)
    }

    fn checkpoint(
        &self,
        session: &mut Session,
        panics: u64,
        comms_lost: u64,
    ) -> Result<(Checkpoint, Vec<Rest>), Refusal> {
        session.tick(&self.recorder, true);
        session.sync(&self.recorder, panics, comms_lost);
        let under_way = slots::in_flight(&self.recorder.region, clock::now());
        let rest = under_way.into_iter().filter_map(|(lane, step)| {
            let position = self.recorder.region.lane_header(lane)?.tail();
            let words = step.pack().words().to_vec();
            Some(Rest { lane: u16::try_from(lane).ok()?, position, words })
        });
        let rest = rest.collect();
        match session.checkpoint() {
            Ok(checkpoint) => Ok((checkpoint, rest)),
            Err(error) => Err(Refusal::System(format!("cannot copy the recording: {error}"))),
        }
    }

    /// What the process says of itself.
    ///
    /// # Errors
    /// [`Refusal::Off`].
    pub fn status(&self) -> Result<Status, Refusal> {
        let mut state = self.live()?;
        let (waiting, step) = (state.schedule.waits(), state.step);
        let session = session_of(&mut state).ok_or(Refusal::Off)?;
        let comms = session.live_comms();
        Ok(Status {
            started: gate::is_started(),
            waiting,
            recording: session.path().to_owned(),
            nccl_version: comms.iter().map(|comm| comm.nccl_version).max().unwrap_or(0),
            comms: comms.iter().map(|comm| (comm.hash, comm.rank, comm.ranks)).collect(),
            step,
        })
    }

    /// Pretends that an operation is stuck from now on for `length`: the watchdog reports it at
    /// once, and does whatever is to be done about a hang, with the word that it is a drill.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn simulate_hang(&self, length: Duration) -> Result<(), Refusal> {
        let mut state = self.live()?;
        if length.is_zero() || length > LONGEST_DRILL {
            return Err(Refusal::Bad("a simulated hang takes up to an hour".into()));
        }
        let session = session_of(&mut state).ok_or(Refusal::Off)?;
        session.watchdog().ok_or(Refusal::Off)?.begin_drill(length);
        state.wake_drain();
        Ok(())
    }

    /// What the process waits for, each as JSON (`ncclscope.hang/1`): what is in flight, the oldest
    /// of each communicator first. Takes a fifth of a second, to see what threads do.
    ///
    /// # Errors
    /// [`Refusal::Off`].
    pub fn why(&self) -> Result<Vec<String>, Refusal> {
        {
            let mut state = self.live()?;
            let session = session_of(&mut state).ok_or(Refusal::Off)?;
            if let Some(watchdog) = session.watchdog() {
                watchdog.sample(&self.recorder, clock::now());
                watchdog.hurry();
            }
            session.tick(&self.recorder, true);
        }
        std::thread::sleep(LOOK_AGAIN);
        let mut state = self.live()?;
        let session = session_of(&mut state).ok_or(Refusal::Off)?;
        let hz = session.hz();
        let Some(watchdog) = session.watchdog() else { return Ok(Vec::new()) };
        let hangs = watchdog.why(&self.recorder, clock::now(), hz);
        let mut room = WHY_BYTES;
        let texts = hangs.iter().map(crate::watchdog::Hang::json);
        Ok(texts
            .take_while(|text| {
                room = room.saturating_sub(text.len());
                room > 0
            })
            .collect())
    }

    /// Does what signals asked for since the last time. For the drain thread, which does not wait
    /// for a copy.
    pub(crate) fn heed_signals(&'static self) {
        for wish in signal::take() {
            match wish {
                // Refused only where there is nothing to record.
                Wish::Toggle if self.is_started() => drop(self.stop()),
                Wish::Toggle => drop(self.start(Request::default())),
                Wish::Dump => {
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

    pub(crate) fn tell_of(&self, dump: &Result<PathBuf, Refusal>) {
        let state = self.lock();
        match dump {
            Ok(file) => state.say(Severity::Info, &format!("dumped to {}", file.display())),
            Err(refusal) => state.say(Severity::Problem, &refusal.to_string()),
        }
    }

    /// What the time brings, and how long until it brings more.
    pub(super) fn keep_schedule(&self, state: &mut State) -> Option<Duration> {
        while let Some(turn) = state.schedule.due(realtime_ns()) {
            self.turn(state, Some(turn));
        }
        let wait = state.schedule.next()?.saturating_sub(realtime_ns());
        Some(Duration::from_nanos(wait))
    }

    /// Does what the schedule says.
    pub(super) fn turn(&self, state: &mut State, turn: Option<Turn>) {
        let Some(mask) = state.mask else { return };
        // NCCL and the device count kernels apart where KernelCh comes and goes (2.31), so it
        // stays, and the gate leaves them out.
        let parts = mask & !EventKind::KernelCh.bit();
        match turn {
            Some(Turn::Start { sample }) => {
                if state.masks.set(mask) {
                    // An operation that began with the old mask would be recorded in part.
                    std::thread::sleep(MASK_SETTLES);
                }
                gate::set_sample(sample);
                // Every operation of the window lies between the two marks.
                mark(state, What::Start, u64::from(sample));
                gate::start();
            }
            Some(Turn::Stop) => {
                if gate::stop() {
                    mark(state, What::Stop, 0);
                }
                state.masks.clear(parts);
            }
            Some(Turn::Settle) => gate::settle(),
            None => {}
        }
    }

    fn live(&self) -> Result<crate::sys::lock::Guard<'_, State>, Refusal> {
        let state = self.lock();
        let is_off = gate::is_dead() || matches!(state.phase, Phase::Off | Phase::Closed);
        if is_off { Err(Refusal::Off) } else { Ok(state) }
    }
}

fn mark(state: &mut State, what: What, value: u64) {
    if let Some(session) = session_of(state) {
        session.mark(what, StrId::NONE, value);
    }
}

pub(super) fn realtime_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Where a dump of `recording` goes. A directory gets the name of the recording, so that those of
/// all ranks can lie in one and are read as one run.
fn dump_file(recording: &Path, to: Option<&Path>) -> PathBuf {
    let name = recording.file_name().unwrap_or_default();
    match to {
        Some(file) if file.extension().is_some_and(|e| e == "nscope") => file.to_owned(),
        Some(dir) => dir.join(name),
        None => {
            let seconds = realtime_ns() / 1_000_000_000;
            let beside = recording.parent().unwrap_or_else(|| Path::new("."));
            beside.join(format!("dump-{seconds}")).join(name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_of_all_ranks_can_lie_in_one_directory() {
        let recording = Path::new("/run/h-7.nscope");
        let file = |to| dump_file(recording, Some(Path::new(to)));
        assert_eq!(file("/x/a.nscope"), Path::new("/x/a.nscope"));
        assert_eq!(file("/x"), Path::new("/x/h-7.nscope"));
        let own = dump_file(recording, None);
        assert!(own.starts_with("/run") && own.ends_with("h-7.nscope"));
        assert!(own.parent().unwrap().to_str().unwrap().starts_with("/run/dump-"));
    }
}
