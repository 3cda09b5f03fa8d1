// SPDX-License-Identifier: Apache-2.0
/*!
The process's runtime: what callbacks, host threads and our own threads share.

Three locks, taken in this order, each for work in memory only: that of the [`Drain`], which host
threads take at the end of the process alone; that of the [`State`], which they take for a moment;
and those of queues. The file, NCCL's log and the network have threads of their own, which wait for
them without any of these.
*/

mod begin;
mod control;
mod life;
mod resource;
mod state;

pub use control::Refusal;
pub use state::CommInfo;

use crate::context::comm_of;
use crate::drain::{Drain, Order, Orders, no_orders};
use crate::library::Libraries;
use crate::log::{Log, Severity};
use crate::reply::{Answer, Reply};
use crate::sys::lock::{Guard, Lock};
use crate::watchdog::{Hang, Happened, act};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use ncclscope_control::reader::Settings;
use ncclscope_control::variable::Variable;
use ncclscope_recorder::{Recorder, gate};
use ncclscope_trace::codec::KindCounts;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::layout::Header;
use state::{Phase, State};
use std::path::Path;
use std::sync::{Once, OnceLock};
use std::time::Duration;

/// The process's runtime.
static RUNTIME: Runtime = Runtime::new();
/// Communicators of API v1 to v3 whose hash can be learned from their operations.
const LEARNERS: usize = 256;

/// Everything that outlives a callback.
#[derive(Debug)]
pub struct Runtime {
    recorder: Recorder,
    nonce: AtomicU32,
    panics: AtomicU64,
    comms_lost: AtomicU64,
    texts_lost: AtomicU64,
    /// Records for which the file's queue had no room.
    unwritten: [AtomicU64; KINDS],
    learned: [LearnedComm; LEARNERS],
    begun: Once,
    state: Lock<State>,
    drain: Lock<Option<Box<Drain>>>,
    orders: Orders,
    libraries: Libraries,
    log: Log,
    /// Reports of hangs so far.
    hangs: AtomicU32,
    /// What the variables said at the first communicator.
    settings: OnceLock<Settings>,
    /// The file is a new one, which knows no definition yet.
    is_unknown: AtomicBool,
}

/// Facts about a communicator that API v1 to v3 tell with its operations only.
#[derive(Debug)]
struct LearnedComm {
    hash: AtomicU64,
    rank: AtomicU32,
}

/// How full the lanes are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) fullest: u64,
    pub(crate) comms: u32,
    /// When a window begins or ends.
    pub(crate) next: Option<Duration>,
}

impl Runtime {
    const fn new() -> Runtime {
        Runtime {
            recorder: Recorder::new(),
            nonce: AtomicU32::new(0),
            panics: AtomicU64::new(0),
            comms_lost: AtomicU64::new(0),
            texts_lost: AtomicU64::new(0),
            unwritten: [const { AtomicU64::new(0) }; KINDS],
            learned: [const { LearnedComm { hash: AtomicU64::new(0), rank: AtomicU32::new(0) } };
                LEARNERS],
            begun: Once::new(),
            state: Lock::new(State::new()),
            drain: Lock::new(None),
            orders: no_orders(),
            libraries: Libraries::new(|| RUNTIME.recorder.strings.forget_addresses()),
            log: Log::new(),
            hangs: AtomicU32::new(0),
            settings: OnceLock::new(),
            is_unknown: AtomicBool::new(false),
        }
    }

    /// The process's runtime.
    #[must_use]
    #[inline(always)]
    pub fn get() -> &'static Runtime {
        &RUNTIME
    }

    /// What callbacks write to.
    #[must_use]
    #[inline(always)]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The value of a variable; its default until the first communicator.
    pub(crate) fn setting<T>(&self, variable: &Variable<T>) -> T {
        self.settings.get().map_or_else(|| variable.default(), |settings| settings.get(variable))
    }

    /// The communicator of a context that NCCL passed.
    #[must_use]
    #[inline(always)]
    pub fn comm_of(&self, context: u64) -> u16 {
        comm_of(self.nonce.load(Ordering::Relaxed), context)
    }

    /// False for the context of another process.
    #[must_use]
    #[inline(always)]
    pub fn is_ours(&self, context: u64) -> bool {
        context >> 32 == u64::from(self.nonce.load(Ordering::Relaxed))
    }

    /// Notes what an operation of API v1 to v3 tells about its communicator. For callbacks.
    #[inline]
    pub fn learn(&self, comm: u16, hash: u64, rank: i32) {
        let Some(slot) = self.learned.get(usize::from(comm)) else { return };
        if slot.hash.load(Ordering::Relaxed) == 0 {
            slot.rank.store(rank.cast_unsigned(), Ordering::Relaxed);
            slot.hash.store(hash, Ordering::Release);
        }
    }

    /// A callback panicked: nothing is recorded any more.
    #[cold]
    pub fn contain(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        self.kill();
    }

    /// Says, as the drain thread ends, that a panic is why: nothing else would.
    fn tell_of_panics(&'static self) {
        if self.panics.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.problem(
            "a defect of the plugin (a panic) was contained: in this process the recording and the \
             watchdog have ended, and nothing else is affected; please report it",
        );
        if self.lock().next_comm > 0 {
            self.log.speak();
        }
    }

    /// Ends the recording for good. Safe in a child of a fork.
    fn kill(&self) {
        gate::kill();
        self.recorder.shut();
    }

    /// False once nothing can be recorded any more.
    pub(crate) fn is_running(&self) -> bool {
        !gate::is_dead()
    }

    fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// One round of the drain thread; `None` when there is nothing left to do, ever.
    pub(crate) fn tick(&'static self, flush: bool, sync: bool) -> Option<Load> {
        let mut state = self.lock();
        if !state.is_running() {
            return None;
        }
        let (comms, next) = (state.live, self.keep_schedule(&mut state));
        let has_log = state.next_comm > 0;
        drop(state);
        let mut drain = self.drain.lock();
        let load = drain.as_mut().map(|drain| {
            while drain.grow(comms) {}
            let fullest = self.round(drain, flush, sync);
            (Load { fullest, comms, next }, drain.take_hangs())
        });
        drop(drain);
        let (load, hangs) = load?;
        self.report(hangs);
        if has_log {
            self.log.speak();
        }
        Some(load)
    }

    /// Carries what there is to the sinks. Returns how many words the fullest lane held.
    fn round(&self, drain: &mut Drain, flush: bool, sync: bool) -> u64 {
        if self.is_unknown.swap(false, Ordering::Relaxed) {
            drain.introduce();
        }
        let fullest = drain.tick(flush);
        drain.take_lines().iter().for_each(|line| self.problem(line));
        self.texts_lost.store(drain.texts_lost(), Ordering::Relaxed);
        if sync {
            self.tell_learned(drain);
            drain.sync();
        }
        fullest
    }

    /// Hash and rank of a communicator of API v1 to v3, once its operations have told them.
    fn learned(&self, comm: u16) -> Option<(u64, i32)> {
        let slot = self.learned.get(usize::from(comm))?;
        let hash = slot.hash.load(Ordering::Acquire);
        (hash != 0).then(|| (hash, slot.rank.load(Ordering::Relaxed).cast_signed()))
    }

    fn tell_learned(&self, drain: &mut Drain) {
        for (index, _) in (0u16..).zip(&self.learned) {
            if let Some((hash, rank)) = self.learned(index)
                && drain.learn(index, hash, rank)
            {
                let mut state = self.lock();
                let comm = state.comms.get_mut(&index);
                comm.into_iter().for_each(|comm| (comm.hash, comm.rank) = (hash, rank));
            }
        }
    }

    /// Hands an order to the drain thread; without one, it is carried out here.
    fn order(&'static self, order: Order, weight: usize) {
        // What finds no room is counted by the queue.
        let _ = self.orders.put(order, weight);
    }

    /// Has the drain thread do its round now, or does it here where there is none.
    fn hurry(&'static self, state: Guard<'_, State>) {
        match &state.drain {
            Some(drain) => drain.wake(),
            None => {
                drop(state);
                let mut drain = self.drain.lock();
                if let Some(drain) = drain.as_mut() {
                    self.round(drain, true, true);
                }
            }
        }
    }

    /// Gives an order, and waits for the answer.
    fn ask<T>(
        &'static self,
        order: impl FnOnce(Answer<T>) -> Order,
        patience: Duration,
    ) -> Option<T> {
        let (reply, answer) = Reply::new();
        self.order(order(answer), 0);
        self.hurry(self.lock());
        reply.wait(patience)
    }

    /// Says what the watchdog found, and has done what the user wants done about it.
    fn report(&'static self, hangs: Vec<Hang>) {
        if hangs.is_empty() {
            return;
        }
        let actions = {
            let mut drain = self.drain.lock();
            let Some(drain) = drain.as_mut() else { return };
            drain.watchdog().0.actions.clone()
        };
        let recording = self.lock().recording.clone().unwrap_or_default();
        let mut copies = actions.dump;
        let mut works = Vec::new();
        for hang in hangs {
            if actions.log {
                hang.lines().iter().for_each(|line| self.log.say(Severity::Hang, line));
            }
            let number = self.hangs.fetch_add(1, Ordering::Relaxed);
            let (actions, recording) = (actions.clone(), recording.clone());
            let nonce = self.nonce.load(Ordering::Relaxed);
            let copies = hang.happened == Happened::Hung && std::mem::take(&mut copies);
            works.push(act::Work { hang, actions, recording, nonce, number, copies });
        }
        act::begin(self, works).iter().for_each(|line| self.problem(line));
    }

    /// Says that something is not as the user wanted it.
    pub(crate) fn problem(&self, line: &str) {
        self.log.say(Severity::Problem, line);
    }

    /// The recording's file is there.
    pub(crate) fn opened(&self, path: &Path) {
        self.lock().recording = Some(path.to_owned());
        self.log.say(Severity::Info, &format!("recording to {}", path.display()));
    }

    /// There can be no recording: the line says why.
    pub(crate) fn give_up(&'static self, line: &str) {
        self.problem(line);
        self.kill();
        let mut state = self.lock();
        state.phase = Phase::Off;
        if let Some(mask) = state.mask {
            state.masks.clear(mask & !ncclscope_trace::EventKind::KernelCh.bit());
        }
        let has_log = state.next_comm > 0;
        drop(state);
        if has_log {
            self.log.speak();
        }
    }

    /// The file is a new one: it is to get all definitions again.
    pub(crate) fn reintroduce(&self) {
        self.is_unknown.store(true, Ordering::Relaxed);
        self.lock().wake_drain();
    }

    /// Counts records that found no way into the file.
    pub(crate) fn lose_unwritten(&self, records: &KindCounts) {
        for (sum, count) in self.unwritten.iter().zip(records) {
            sum.fetch_add(*count, Ordering::Relaxed);
        }
    }

    /// Writes the counters into a header.
    pub(crate) fn count(&self, header: &mut Header) {
        let recorder = &self.recorder;
        header.unknown_events = recorder.unknown();
        header.stale = recorder.stale();
        header.strings_lost = recorder.strings.misses()
            + self.texts_lost.load(Ordering::Relaxed)
            + self.orders.refused();
        header.left_out = recorder.left_out();
        header.without_lane = recorder.lost_without_lane();
        header.without_slot = recorder.lost_without_slot();
        header.panics = self.panics.load(Ordering::Relaxed);
        header.comms_lost = self.comms_lost.load(Ordering::Relaxed);
        for (to, from) in header.unwritten.iter_mut().zip(&self.unwritten) {
            *to += from.swap(0, Ordering::Relaxed);
        }
    }
}
