// SPDX-License-Identifier: Apache-2.0
//! The life cycle: first communicator, further ones, the last one's end, the end of the process.

mod control;

pub use control::{Refusal, Status};

use crate::config::{Config, FirstWindow, LogTo, Mode, Otlp};
use crate::context::{COMMS, NO_COMM, comm_of, context};
use crate::log::{Logger, Severity, log};
use crate::meter::Meter;
use crate::session::{Session, WindowEnd};
use crate::socket::Socket;
use crate::sys::lock::{Guard, Lock};
use crate::sys::mask::{ActivationMask, Masks};
use crate::watchdog::{Hang, act};
use crate::window::Schedule;
use crate::{drain, lanes, probe, sys};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ncclscope_recorder::{Recorder, board, clock, gate, registry};
use ncclscope_trace::{Comm, EventKind};
use std::path::Path;
use std::thread::Thread;
use std::time::Duration;

/// The process's runtime.
static RUNTIME: Runtime = Runtime::new();
/// Communicators of API v1 to v3 whose hash can be learned from their operations.
const LEARNERS: usize = 256;
/// How long the end of the process waits for the drain thread.
const EXIT_PATIENCE_MS: u64 = 1000;

/// Everything that outlives a callback.
#[derive(Debug)]
pub struct Runtime {
    recorder: Recorder,
    nonce: AtomicU32,
    panics: AtomicU64,
    learned: [Learned; LEARNERS],
    state: Lock<State>,
}

/// Facts about a communicator that API v1 to v3 tell with its operations only.
#[derive(Debug)]
struct Learned {
    hash: AtomicU64,
    rank: AtomicU32,
}

struct State {
    phase: Phase,
    pid: u32,
    log_to: LogTo,
    logger: Option<Logger>,
    mask: Option<u32>,
    next_comm: u16,
    drain: Option<Thread>,
    live: u32,
    comms_lost: u64,
    told_failure: bool,
    /// Reports of hangs so far.
    hangs: u32,
    masks: Masks,
    schedule: Schedule,
    socket: Option<Socket>,
    /// What was asked for before the first communicator.
    early: Option<FirstWindow>,
    step: Option<u64>,
}

impl core::fmt::Debug for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("State").field("phase", &self.phase).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Phase {
    New,
    Off,
    Running(Box<Session>),
    Closed,
}

/// What `init` was told about a communicator.
#[derive(Debug, Clone)]
pub struct CommInfo {
    /// `commId`/`commHash`; 0 unknown.
    pub hash: u64,
    /// Name given by the application.
    pub name: Option<String>,
    /// Nodes; 0 unknown.
    pub nodes: u32,
    /// Ranks; 0 unknown.
    pub ranks: u32,
    /// Rank of this process; -1 unknown.
    pub rank: i32,
    /// API version that NCCL chose.
    pub api_version: u32,
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
            learned: [const { Learned { hash: AtomicU64::new(0), rank: AtomicU32::new(0) } };
                LEARNERS],
            state: Lock::new(State {
                phase: Phase::New,
                pid: 0,
                log_to: LogTo::Nccl,
                logger: None,
                mask: None,
                next_comm: 0,
                drain: None,
                live: 0,
                comms_lost: 0,
                told_failure: false,
                hangs: 0,
                masks: Masks::new(),
                schedule: Schedule::new(),
                socket: None,
                early: None,
                step: None,
            }),
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

    fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// A communicator is initialised. Returns its context, and the activation mask to ask NCCL for
    /// (`None`: leave it alone). `nccl` is an address in the image of the NCCL that calls, `active`
    /// the mask that is to be written. Never fails.
    #[must_use]
    pub fn attach(
        &'static self,
        info: CommInfo,
        nccl: usize,
        active: Option<ActivationMask>,
        logger: Option<Logger>,
    ) -> (u64, Option<u32>) {
        let inert = context(self.nonce.load(Ordering::Relaxed), NO_COMM);
        if gate::is_dead() {
            return (inert, None);
        }
        let mut state = self.lock();
        let nccl_version = sys::nccl_version_at(nccl);
        if state.logger.is_none() {
            state.logger = logger;
        }
        if matches!(state.phase, Phase::New) {
            self.begin(&mut state, nccl_version);
        }
        state.live += 1;
        // It may have lain down for long while there was no communicator.
        state.wake_drain();
        if !matches!(state.phase, Phase::Running(_)) {
            return (context(self.nonce.load(Ordering::Relaxed), NO_COMM), None);
        }
        let index = state.next_comm;
        if index >= COMMS {
            state.comms_lost += 1;
            return (context(self.nonce.load(Ordering::Relaxed), NO_COMM), state.wanted_mask());
        }
        state.next_comm += 1;
        board::watch(index);
        active.into_iter().for_each(|active| state.masks.keep(index, active));
        let mask = state.wanted_mask();
        if let Phase::Running(session) = &mut state.phase {
            session.define_comm(Comm {
                index,
                hash: info.hash,
                name: info.name,
                nodes: info.nodes,
                ranks: info.ranks,
                rank: info.rank,
                ticks: clock::now(),
                api_version: info.api_version,
                nccl_version,
            });
            if let Err(line) = probe::join(index, info.api_version) {
                state.say(Severity::Problem, &line);
            }
        }
        (context(self.nonce.load(Ordering::Relaxed), index), mask)
    }

    /// The first communicator of the process.
    fn begin(&'static self, state: &mut State, nccl_version: u32) {
        let host = sys::host_name();
        state.pid = sys::pid();
        sys::cache_pid();
        let (config, lines) = read_environment(&host, state.pid);
        state.log_to = config.log;
        for line in &lines {
            state.say(Severity::Problem, line);
        }
        if config.mode == Mode::Off {
            state.say(Severity::Info, "NCCLSCOPE_MODE=off: nothing is recorded");
            state.phase = Phase::Off;
            return;
        }
        self.nonce.store(sys::nonce() | 1, Ordering::Relaxed);
        let nonce = self.nonce.load(Ordering::Relaxed);
        let mut session = match Session::open(&config, &self.recorder, &host, nonce) {
            Ok(session) => session,
            Err(line) => {
                state.say(Severity::Problem, &line);
                state.phase = Phase::Off;
                return;
            }
        };
        let mask = config.mask(nccl_version);
        session.set_mask(mask);
        for line in &lines {
            session.note(line);
        }
        if let Some(target) = config.otlp {
            let resource = resource(&target, &host, state.pid, nccl_version);
            match Meter::start(target, config.labels, resource) {
                Ok(meter) => session.measure(meter),
                Err(error) => state.say(Severity::Problem, &format!("no metrics: {error}")),
            }
        }
        registry::install();
        sys::register(in_child, at_exit);
        let stale = config.lanes.clone();
        let body = move || drain_thread(Runtime::get(), stale.as_deref());
        let drain = sys::spawn_quiet("ncclscope/drain", body);
        state.drain = drain.ok();
        if state.drain.is_none() {
            let line = "no thread could be started: records are written at finalize and exit only";
            session.note(line);
            state.say(Severity::Problem, line);
            while session.grow(&self.recorder, 1) {}
        }
        state.say(Severity::Info, &format!("recording to {}", session.path().display()));
        state.mask = Some(mask);
        state.phase = Phase::Running(Box::new(session));
        gate::open();
        self.first_window(state, config.start);
        if config.cuda_events
            && let Err(line) = probe::begin(&self.recorder)
        {
            state.say(Severity::Problem, &line);
        }
        state.listen(config.signals);
        if let Some(dir) = config.control {
            match Socket::open(&dir, nonce, self) {
                Ok(socket) => state.socket = Some(socket),
                Err(error) => {
                    let dir = dir.display();
                    let line = format!("no control socket in {dir}: {error}; all else works");
                    state.say(Severity::Problem, &line);
                }
            }
        }
    }

    /// The window that the process begins with.
    fn first_window(&self, state: &mut State, configured: FirstWindow) {
        gate::stop();
        if let FirstWindow::On(request) = state.early.take().unwrap_or(configured) {
            let turn = state.schedule.request(request, control::realtime_ns());
            self.turn(state, turn.unwrap_or(None));
        }
    }

    /// A communicator is finalized. Its late events are still recorded.
    pub fn detach(&self, context: u64) {
        // NCCL finalizes what `init` gave it; anything else must not end a communicator's life.
        if gate::is_dead() || !self.is_ours(context) {
            return;
        }
        let index = self.comm_of(context);
        probe::leave(index);
        let mut guard = self.lock();
        let state = &mut *guard;
        state.live = state.live.saturating_sub(1);
        state.masks.forget(index);
        let last = state.live == 0;
        let (panics, comms_lost) = (self.panics.load(Ordering::Relaxed), state.comms_lost);
        if let Phase::Running(session) = &mut state.phase {
            if index != NO_COMM {
                session.end_comm(index);
            }
            if last {
                session.tick(&self.recorder, true);
                session.close_window(&self.recorder, WindowEnd::Now);
                session.sync(&self.recorder, panics, comms_lost);
            }
        }
        state.tell_failure();
        if last {
            // It belongs to an NCCL that may be unloaded now.
            state.logger = None;
        }
    }

    /// One round of the drain thread; `None` when there is nothing left to do, ever.
    pub(crate) fn tick(&'static self, flush: bool, sync: bool) -> Option<Load> {
        while self.grow() {}
        let mut guard = self.lock();
        let state = &mut *guard;
        let (comms, next) = (state.live, self.keep_schedule(state));
        let Phase::Running(session) = &mut state.phase else { return None };
        let fullest = session.tick(&self.recorder, flush);
        if sync {
            self.define_learned(session);
            session.sync(&self.recorder, self.panics.load(Ordering::Relaxed), state.comms_lost);
        }
        state.tell_failure();
        let works = state.tell_hangs();
        drop(guard);
        self.act(works);
        Some(Load { fullest, comms, next })
    }

    /// Has done what the user wants done about hangs, by other threads.
    fn act(&'static self, works: Vec<act::Work>) {
        for work in works {
            if let Err(line) = act::begin(self, work) {
                self.lock().say(Severity::Problem, &line);
            }
        }
    }

    /// Readies a piece of memory. The lock is held for a piece only: an `init` may wait for it.
    fn grow(&self) -> bool {
        let mut state = self.lock();
        let comms = state.live;
        let Phase::Running(session) = &mut state.phase else { return false };
        session.grow(&self.recorder, comms)
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

    fn define_learned(&self, session: &mut Session) {
        for (index, slot) in (0u16..).zip(&self.learned) {
            let hash = slot.hash.load(Ordering::Acquire);
            if hash == 0 {
                continue;
            }
            if let Some(comm) = session.nameless_comm(index) {
                let rank = slot.rank.load(Ordering::Relaxed).cast_signed();
                session.define_comm(Comm { hash, rank, ..comm.clone() });
            }
        }
    }

    /// A callback panicked: nothing is recorded any more.
    #[cold]
    pub fn contain(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        self.kill();
    }

    /// Ends the recording for good. Safe in a child of a fork.
    fn kill(&self) {
        gate::kill();
        self.recorder.shut();
    }

    /// The process ends in order.
    fn close(&self) {
        let mut waited = 0;
        let mut guard = loop {
            match self.state.try_lock() {
                Some(guard) => break guard,
                None if waited < EXIT_PATIENCE_MS => {
                    std::thread::sleep(Duration::from_millis(1));
                    waited += 1;
                }
                // The lanes are in the file; its reader will find everything.
                None => return,
            }
        };
        let state = &mut *guard;
        // In a child of a fork the file is the parent's.
        if state.pid != sys::pid() {
            return;
        }
        probe::close();
        self.kill();
        if let Phase::Running(session) = &mut state.phase {
            self.define_learned(session);
            let panics = self.panics.load(Ordering::Relaxed);
            session.close(&self.recorder, panics, state.comms_lost);
            state.tell_failure();
            state.phase = Phase::Closed;
        }
        state.socket = None;
    }

    /// False once nothing can be recorded any more.
    pub(crate) fn is_running(&self) -> bool {
        !gate::is_dead()
    }
}

impl State {
    fn wake_drain(&self) {
        self.drain.iter().for_each(Thread::unpark);
    }

    /// What NCCL is to be asked for now.
    fn wanted_mask(&self) -> Option<u32> {
        let stopped = EventKind::KernelCh.bit();
        self.mask.map(|mask| if gate::is_started() { mask } else { mask & stopped })
    }

    /// Says, once, that something could not be written.
    fn tell_failure(&mut self) {
        let Phase::Running(session) = &self.phase else { return };
        if session.failed() && !self.told_failure {
            self.told_failure = true;
            let line = format!(
                "cannot write {}: what does not fit is counted as lost; free some space",
                session.path().display()
            );
            self.say(Severity::Problem, &line);
        }
    }

    /// Says what the watchdog found, and what is to be done about it.
    fn tell_hangs(&mut self) -> Vec<act::Work> {
        let Some(session) = session_of(self) else { return Vec::new() };
        let hangs = session.take_hangs();
        let Some(actions) = session.watchdog().map(|it| it.actions.clone()) else {
            return Vec::new();
        };
        let recording = session.path().to_owned();
        let lines = hangs.iter().filter(|_| actions.log).flat_map(Hang::lines);
        lines.for_each(|line| self.say(Severity::Hang, &line));
        let first = self.hangs;
        self.hangs += u32::try_from(hangs.len()).unwrap_or(0);
        let work = |(number, hang)| {
            let (actions, recording) = (actions.clone(), recording.clone());
            act::Work { hang, actions, recording, number }
        };
        (first..).zip(hangs).map(work).collect()
    }

    fn listen(&self, signals: Vec<(sys::signal::Wish, u8)>) {
        for (wish, signal) in signals {
            if !sys::signal::listen(signal, wish) {
                let line = format!("signal {signal} is in use by the process: it is left alone");
                self.say(Severity::Problem, &line);
            }
        }
    }

    fn say(&self, severity: Severity, line: &str) {
        log(self.log_to, self.logger.as_ref(), severity, line);
    }
}

/// What metrics say of this process. The user's word wins.
fn resource(target: &Otlp, host: &str, pid: u32, nccl_version: u32) -> Vec<(String, String)> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (major, minor, patch) =
        (nccl_version / 10_000, nccl_version / 100 % 100, nccl_version % 100);
    let known = [
        ("service.name", Some("ncclscope".to_owned())),
        ("service.instance.id", Some(format!("{host}-{pid}"))),
        ("host.name", Some(host.to_owned())),
        ("process.pid", Some(pid.to_string())),
        ("nccl.version", (nccl_version != 0).then(|| format!("{major}.{minor}.{patch}"))),
        ("nccl.plugin.version", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("slurm.job.id", variable("SLURM_JOB_ID")),
        ("k8s.pod.name", variable("K8S_POD_NAME").or_else(|| variable("POD_NAME"))),
        ("k8s.node.name", variable("K8S_NODE_NAME").or_else(|| variable("NODE_NAME"))),
        ("k8s.namespace.name", variable("K8S_NAMESPACE").or_else(|| variable("POD_NAMESPACE"))),
    ];
    let mut resource = target.resource.clone();
    for (name, value) in known {
        if let Some(value) = value.filter(|_| !resource.iter().any(|(known, _)| known == name)) {
            resource.push((name.to_owned(), value));
        }
    }
    resource
}

/// The session, while there is one.
fn session_of(state: &mut State) -> Option<&mut Session> {
    match &mut state.phase {
        Phase::Running(session) => Some(session),
        _ => None,
    }
}

fn read_environment(host: &str, pid: u32) -> (Config, Vec<String>) {
    let names: Vec<String> =
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    Config::read(&|name| std::env::var(name).ok(), &names, host, pid)
}

fn drain_thread(runtime: &'static Runtime, stale_lanes: Option<&Path>) {
    let body = || {
        // Memory for this process's own threads comes first.
        runtime.tick(false, false);
        stale_lanes.into_iter().for_each(lanes::adopt_stale);
        drain::run(runtime);
    };
    if std::panic::catch_unwind(body).is_err() {
        runtime.contain();
    }
}

/// After a fork the child has no drain thread, and its memory is the parent's recording.
extern "C" fn in_child() {
    Runtime::get().kill();
}

extern "C" fn at_exit() {
    let _ = std::panic::catch_unwind(|| Runtime::get().close());
}
