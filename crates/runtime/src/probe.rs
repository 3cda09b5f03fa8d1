// SPDX-License-Identifier: Apache-2.0
/*!
CUDA events around kernel launches (`NCCLSCOPE_CUDA_EVENTS`): how long NCCL's kernels took and,
while they have not ended, whether their stream has reached them (docs/probe.md).

Each launch of a communicator that has joined has two events: one is recorded in its stream directly
before the kernel, one directly after. They come from a pool for each CUDA context (`pool.rs`). The
pool is filled in `init`, on the application's thread, and emptied with the context's last
communicator. A launch takes a slot of the pool:

```text
free ──launching──▶ claimed ──launched──▶ launched ──the probe's thread──▶ free
                     ▲  └──no stop, or a refusal──▶ abandoned ──▶ free
                     └── if none is free, the stream's next launch takes the slot over
```

A thread of its own queries the driver, because a driver may block its caller for as long as a
kernel hangs, and recording and the watchdog must not wait. The result is recorded as the state
[`State::CUDA_EVENT`] of the launch, and [`state_of`] reads it.

Nothing is recorded in a stream that captures a graph. This module does **not** judge what it sees:
`operations` and the watchdog do.
*/

mod pool;

pub use self::pool::LaunchState;
use self::pool::{InFlight, Pool, Slot};
use crate::context::COMMS;
use crate::sys;
use crate::sys::cuda::{CudaError, Driver};
use crate::sys::lock::{Guard, Lock};
use crate::sys::wake::Wake;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use core::sync::atomic::{Ordering, Ordering::Relaxed};
use ncclscope_control::table::CUDA_EVENTS;
use ncclscope_control::value::CudaEvents;
use ncclscope_recorder::{Recorder, gate};
use ncclscope_trace::{EventKind, Handle, State};
use std::collections::HashMap;
use std::sync::{Once, OnceLock};
use std::time::Duration;

/// Maximum number of CUDA contexts (devices) of a process that have events.
const POOLS: usize = 16;
/// First API version with KernelLaunch events.
const LAUNCHES_SINCE: u32 = 5;
/// Interval of querying the driver while launches are in flight; `IDLE` is that at other times.
const BUSY: Duration = Duration::from_millis(10);
const IDLE: Duration = Duration::from_millis(40);
/// How long the end of a communicator or of the process waits for the probe's thread, ms.
const PATIENCE_MS: u32 = 200;

static PROBE: Probe = Probe::new();

/// The counts of the probe, in launches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Launches that were measured.
    pub measured: u64,
    /// Launches not measured because their stream was capturing a graph.
    pub captured: u64,
    /// Launches not measured because too many were in flight.
    pub without_event: u64,
    /// Launches not measured because the driver returned an error.
    pub failed: u64,
}

/// The state of a launch when the probe's thread last saw it. `launch` is the handle of a
/// KernelLaunch event. Does not block or call the driver; for the watchdog, on any thread.
#[must_use]
pub fn state_of(launch: Handle) -> LaunchState {
    if launch.kind() != EventKind::KernelLaunch || !is_on() {
        return LaunchState::Unknown;
    }
    let mut slots = PROBE.pools.iter().flat_map(Pool::slots);
    let slot = slots.find(|slot| slot.launch.load(Ordering::Acquire) == launch.0);
    slot.map_or(LaunchState::Unknown, |slot| slot.describe(launch))
}

/// The states of all launches that are remembered, as by [`state_of`].
pub(crate) fn states() -> HashMap<Handle, LaunchState> {
    let slots = PROBE.pools.iter().flat_map(Pool::slots).filter(|_| is_on());
    let launch = |slot: &Slot| Handle(slot.launch.load(Ordering::Acquire));
    let known = slots.map(|slot| (launch(slot), slot)).filter(|(launch, _)| !launch.is_null());
    known.map(|(launch, slot)| (launch, slot.describe(launch))).collect()
}

/// True if launches are measured in this process.
#[must_use]
#[inline(always)]
pub fn is_on() -> bool {
    PROBE.on.load(Ordering::Acquire)
}

/// The counts of this process.
#[must_use]
pub fn tally() -> Tally {
    let of = |count: &AtomicU64| count.load(Relaxed);
    let Probe { measured, captured, without_event, failed, .. } = &PROBE;
    Tally {
        measured: of(measured),
        captured: of(captured),
        without_event: of(without_event),
        failed: of(failed),
    }
}

/// A measured launch between its start and its stop.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    launch: Handle,
    slot: &'static Slot,
}

impl Ticket {
    /// Handle of the KernelLaunch event.
    #[must_use]
    pub fn launch(&self) -> Handle {
        self.launch
    }
}

/// Begins measuring a kernel launch of `comm` on `stream`. Called in the callback, on the launching
/// thread. `None` if the launch is not measured.
#[must_use]
pub fn launching(comm: u16, launch: Handle, stream: u64) -> Option<Ticket> {
    let pool = PROBE.pool_of(comm).filter(|_| is_on())?;
    let driver = PROBE.driver.get()?;
    let stream = usize::try_from(stream).ok()?;
    if pool.check().is_err() {
        PROBE.failed.fetch_add(1, Relaxed);
        return None;
    }
    if !driver.is_live(stream) {
        PROBE.captured.fetch_add(1, Relaxed);
        return None;
    }
    let Some(slot) = pool.claim(launch, stream) else {
        PROBE.without_event.fetch_add(1, Relaxed);
        return None;
    };
    if driver.record(slot.start.load(Relaxed), stream).is_err() {
        abandon(slot);
        return None;
    }
    Some(Ticket { launch, slot })
}

/// Ends a launch: its kernel is in the stream now. Called in the callback, on the same thread.
pub fn launched(ticket: Ticket) {
    let slot = ticket.slot;
    let (event, stream) = (slot.stop.load(Relaxed), slot.stream.load(Relaxed));
    match PROBE.driver.get().map(|driver| driver.record(event, stream)) {
        Some(Ok(())) => slot.launched(),
        _ => abandon(slot),
    }
}

/// Gives up a launch that failed and so has no stop.
pub fn missed(ticket: Ticket) {
    abandon(ticket.slot);
}

fn abandon(slot: &Slot) {
    PROBE.failed.fetch_add(1, Relaxed);
    slot.abandon();
}

/// Finds the driver and starts the probe's thread, the first time; `setting` is that of the
/// variable.
///
/// # Errors
/// A line with the reason why there are no CUDA events.
pub(crate) fn begin(recorder: &'static Recorder, setting: CudaEvents) -> Result<(), String> {
    let mut begun = Ok(());
    PROBE.begun.call_once_force(|_| begun = find_and_start(recorder, setting));
    begun
}

fn find_and_start(recorder: &'static Recorder, setting: CudaEvents) -> Result<(), String> {
    let off = |why: &str| format!("{}: {why}: no CUDA events", set_to(setting));
    let driver = Driver::loaded().map_err(|why| off(&why))?;
    // Set only here, because the process begins once.
    let _ = PROBE.driver.set(driver);
    sys::spawn_quiet("ncclscope/probe", move || run(recorder))
        .map_err(|error| off(&format!("no thread could be started: {error}")))?;
    PROBE.has_thread.store(true, Ordering::Release);
    PROBE.on.store(true, Ordering::Release);
    Ok(())
}

/// The variable and its value, for the log.
fn set_to(setting: CudaEvents) -> String {
    format!("{}={}", CUDA_EVENTS.name, setting.name())
}

/// True if NCCL with this version of the API reports its launches.
pub(crate) const fn has_launches(api_version: u32) -> bool {
    api_version >= LAUNCHES_SINCE
}

/// Adds a communicator that is initialised on the calling thread, whose CUDA context it uses. The
/// probe has begun.
///
/// # Errors
/// A line with the reason why the communicator's launches are not measured.
pub(crate) fn join(comm: u16, api_version: u32, setting: CudaEvents) -> Result<(), String> {
    let Some(driver) = PROBE.driver.get().filter(|_| is_on()) else { return Ok(()) };
    let off =
        |why: &str| format!("{}: {why}: no CUDA events of this communicator", set_to(setting));
    if !has_launches(api_version) {
        return Err(off("this NCCL does not report its launches (2.28 does)"));
    }
    let context = driver.context().ok_or_else(|| off("NCCL came without a CUDA context"))?;
    let turn = PROBE.patient_turn().ok_or_else(|| off("the CUDA driver does not answer"))?;
    // A driver may give a new context the address of one that it destroyed.
    let used = |pool: &&Pool| pool.context.load(Relaxed) == context && pool.check().is_ok();
    let unused = |pool: &&Pool| pool.users.load(Relaxed) == 0;
    let mut pools = (1..).zip(&PROBE.pools);
    let pool = pools
        .clone()
        .find(|(_, pool)| used(pool))
        .or_else(|| pools.find(|(_, pool)| unused(pool) && pool.context.load(Relaxed) == 0));
    let (number, pool) = pool.ok_or_else(|| off("too many CUDA contexts"))?;
    if unused(&pool) {
        let filled = driver.within(context, || pool.fill(driver));
        filled.flatten().map_err(|error| off(&format!("CUDA error {}", error.0)))?;
        pool.context.store(context, Relaxed);
        pool.lost.store(0, Ordering::Release);
    }
    pool.users.fetch_add(1, Relaxed);
    if let Some(place) = PROBE.pool_of.get(usize::from(comm)) {
        place.store(number, Ordering::Release);
    }
    drop(turn);
    Ok(())
}

/// Removes a finalized communicator after its launches were measured. The events of its CUDA
/// context are destroyed with the context's last communicator.
pub(crate) fn leave(comm: u16) {
    let Some(pool) = PROBE.pool_of(comm) else { return };
    PROBE.round();
    if let Some(place) = PROBE.pool_of.get(usize::from(comm)) {
        place.store(0, Ordering::Release);
    }
    // Without the turn, the thread may be inside the driver with these events, so that they stay.
    let (Some(driver), Some(turn)) = (PROBE.driver.get(), PROBE.patient_turn()) else { return };
    if pool.users.fetch_sub(1, Relaxed) == 1 {
        let context = pool.context.load(Relaxed);
        if pool.check().is_err() {
            pool.take_events(|_| {});
            pool.context.store(0, Relaxed);
        } else if driver.within(context, || pool.empty(driver)).is_ok() {
            pool.context.store(0, Relaxed);
        }
    }
    drop(turn);
}

/// Measures what has ended when the process exits. The driver is not called after this, because it
/// will be shut down next.
pub(crate) fn close() {
    if PROBE.on.swap(false, Ordering::AcqRel) {
        PROBE.round();
        if let Some(mut turn) = PROBE.patient_turn() {
            turn.is_over = true;
        }
    }
}

/// Body of the probe's thread.
fn run(recorder: &'static Recorder) {
    let mut sleep = IDLE;
    while !gate::is_dead() {
        PROBE.wake.wait(Some(sleep));
        let wanted = PROBE.rounds_wanted.load(Ordering::Acquire);
        let turn = PROBE.turn.lock();
        let Some(driver) = PROBE.driver.get().filter(|_| !turn.is_over) else { return };
        sleep = if PROBE.ask(driver, recorder) { BUSY } else { IDLE };
        drop(turn);
        PROBE.rounds_done.store(wanted, Ordering::Release);
    }
}

/// Held by the thread that may query the driver about events.
#[derive(Debug)]
struct ProbeRound {
    /// No thread may query the driver any more.
    is_over: bool,
}

#[derive(Debug)]
struct Probe {
    on: AtomicBool,
    driver: OnceLock<Driver>,
    pools: [Pool; POOLS],
    /// Number of each communicator's pool, from 1; 0 if it has none.
    pool_of: [AtomicU8; COMMS as usize],
    turn: Lock<ProbeRound>,
    begun: Once,
    has_thread: AtomicBool,
    wake: Wake,
    /// Rounds that other threads requested of the probe's thread; `rounds_done` counts those done.
    rounds_wanted: AtomicU64,
    rounds_done: AtomicU64,
    measured: AtomicU64,
    captured: AtomicU64,
    without_event: AtomicU64,
    failed: AtomicU64,
}

impl Probe {
    const fn new() -> Probe {
        Probe {
            on: AtomicBool::new(false),
            driver: OnceLock::new(),
            pools: [const { Pool::new() }; POOLS],
            pool_of: [const { AtomicU8::new(0) }; COMMS as usize],
            turn: Lock::new(ProbeRound { is_over: false }),
            begun: Once::new(),
            has_thread: AtomicBool::new(false),
            wake: Wake::new(),
            rounds_wanted: AtomicU64::new(0),
            rounds_done: AtomicU64::new(0),
            measured: AtomicU64::new(0),
            captured: AtomicU64::new(0),
            without_event: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    fn pool_of(&self, comm: u16) -> Option<&Pool> {
        let number = self.pool_of.get(usize::from(comm))?.load(Ordering::Acquire);
        self.pools.get(usize::from(number).checked_sub(1)?)
    }

    /// Waits for a round of the probe's thread that starts now. Not done here, because a thread
    /// that exits may have no lane for the records any more.
    fn round(&self) {
        if !self.has_thread.load(Ordering::Acquire) || gate::is_dead() {
            return;
        }
        let wanted = self.rounds_wanted.fetch_add(1, Ordering::AcqRel) + 1;
        self.wake.wake();
        let is_done = || self.rounds_done.load(Ordering::Acquire) >= wanted;
        for _ in 0..PATIENCE_MS * 10 {
            if is_done() {
                break;
            }
            crate::sys::wake::pause(Duration::from_micros(100));
        }
    }

    /// The right to query the driver; `None` if the probe's thread does not release it within
    /// [`PATIENCE_MS`].
    fn patient_turn(&self) -> Option<Guard<'_, ProbeRound>> {
        for _ in 0..PATIENCE_MS {
            if let Some(turn) = self.turn.try_lock() {
                return Some(turn);
            }
            crate::sys::wake::pause(Duration::from_millis(1));
        }
        None
    }

    /// Queries the driver about all launches in flight. True if there were any. The caller holds
    /// the turn.
    fn ask(&self, driver: &Driver, recorder: &Recorder) -> bool {
        let mut any = false;
        for pool in &self.pools {
            let in_flight = pool.in_flight();
            if in_flight.is_empty() {
                continue;
            }
            any = true;
            let context = pool.context.load(Relaxed);
            let ask = || self.ask_about(&in_flight, driver, recorder);
            let asked = pool.check().and_then(|()| driver.within(context, ask).flatten());
            if let Err(error) = asked {
                pool.lost.store(error.0, Ordering::Release);
                // Those that have ended are free, and may belong to another launch.
                pool.in_flight().iter().for_each(|one| self.fail(one, error, false));
            }
        }
        any
    }

    /// Queries the driver about the launches of one context. A stream runs in order: a launch
    /// behind one that has not ended has not ended either.
    ///
    /// # Errors
    /// The driver's error: the context is lost.
    fn ask_about(
        &self,
        in_flight: &[InFlight<'_>],
        driver: &Driver,
        recorder: &Recorder,
    ) -> Result<(), CudaError> {
        let mut waiting = Vec::new();
        for one in in_flight {
            let slot = one.slot;
            let stream = slot.stream.load(Relaxed);
            if waiting.contains(&stream) {
                continue;
            }
            let (start, stop) = (slot.start.load(Relaxed), slot.stop.load(Relaxed));
            if driver.is_reached(stop)? {
                match driver.elapsed_ns(start, stop) {
                    Ok(ns) => self.measure(one, ns, recorder),
                    // The launch has ended, but its duration is unknown.
                    Err(error) => self.fail(one, error, true),
                }
                continue;
            }
            waiting.push(stream);
            if one.is_new() && driver.is_reached(start)? {
                one.begins();
            }
        }
        Ok(())
    }

    fn measure(&self, one: &InFlight<'_>, ns: u64, recorder: &Recorder) {
        let tell = |launch| recorder.state(launch, State::CUDA_EVENT, 0, ns);
        self.measured.fetch_add(u64::from(one.ends(ns, tell)), Relaxed);
    }

    fn fail(&self, one: &InFlight<'_>, error: CudaError, has_ended: bool) {
        self.failed.fetch_add(u64::from(one.fails(error, has_ended)), Relaxed);
    }
}

/// Serializes the tests that turn the process's probe on or off.
#[cfg(test)]
pub(crate) static TEST_TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::pool::SLOTS;
    use super::*;
    use crate::sys::cuda::fake::{CONTEXT, driver, world};

    static RECORDER: Recorder = Recorder::new();
    const STREAM: u64 = 0x51;
    const API: u32 = LAUNCHES_SINCE;
    const ON: CudaEvents = CudaEvents::On;

    fn handle(number: u64) -> Handle {
        Handle::value(1, EventKind::KernelLaunch, 0, number)
    }

    fn launch(comm: u16, number: u64) -> (usize, usize) {
        let ticket = launching(comm, handle(number), STREAM).expect("it is measured");
        assert_eq!(state_of(handle(number)), LaunchState::NotStarted, "it is being launched");
        launched(ticket);
        (ticket.slot.start.load(Relaxed), ticket.slot.stop.load(Relaxed))
    }

    fn ask() -> bool {
        PROBE.ask(PROBE.driver.get().unwrap(), &RECORDER)
    }

    /// More launches are in flight than there are events.
    fn too_many_launches() {
        for number in 100..100 + SLOTS as u64 {
            launch(1, number);
        }
        let other = 0x53;
        assert!(launching(1, handle(9), other).is_none(), "no event is free");
        let tally = tally();
        let refused = (tally.captured, tally.without_event, tally.failed);
        assert_eq!((tally.measured, refused), (1, (1, 1, 4)));
        // The stream's newest launch is seen whatever happens, in place of the one before it.
        let newest = 100 + SLOTS as u64;
        launch(1, newest);
        assert_eq!(state_of(handle(newest - 1)), LaunchState::Unknown);
        assert_eq!([100, newest].map(|n| state_of(handle(n))), [LaunchState::NotStarted; 2]);

        world(|world| world.reached = world.events.keys().map(|&event| (event, 7)).collect());
        ask();
        leave(1);
        let ended = [100, newest].map(|n| state_of(handle(n)));
        assert!(
            ended.iter().all(|end| matches!(end, LaunchState::Done { ns: 0, .. })),
            "{ended:?}"
        );
        assert_eq!(world(|world| world.events.len()), 2 * SLOTS, "one communicator is left");
        leave(2);
        assert_eq!(world(|world| world.events.len()), 0);
    }

    /// A single test, because there is one probe for the process.
    #[test]
    fn a_launch_is_followed_to_its_end_and_nothing_is_left() {
        let _turn = TEST_TURN.lock().unwrap();
        assert_eq!(join(1, API, ON), Ok(()), "off: nothing to do");
        assert!(launching(1, handle(1), STREAM).is_none());
        PROBE.driver.set(driver()).unwrap();
        PROBE.on.store(true, Ordering::Release);
        assert!(join(0, 4, ON).unwrap_err().contains("2.28"));
        assert_eq!((join(1, API, ON), join(2, API, ON)), (Ok(()), Ok(())));
        assert_eq!(world(|world| world.events.len()), 2 * SLOTS, "two communicators, one context");

        let (first, second) = (launch(1, 1), launch(2, 2));
        assert!(ask());
        assert_eq!([1, 2].map(|n| state_of(handle(n))), [LaunchState::NotStarted; 2]);
        world(|world| world.reached.insert(first.0, 1000));
        ask();
        assert!(matches!(state_of(handle(1)), LaunchState::Running { since: 1.. }));
        assert_eq!(state_of(handle(2)), LaunchState::NotStarted, "it is behind the first");
        world(|world| world.reached.extend([(first.1, 251_000), (second.0, 251_500)]));
        ask();
        assert!(matches!(state_of(handle(1)), LaunchState::Done { ns: 249_999..=250_001, .. }));
        assert!(matches!(state_of(handle(2)), LaunchState::Running { .. }));
        world(|world| world.failure = 719);
        ask();
        assert_eq!(state_of(handle(2)), LaunchState::Failed { status: 719 });
        assert!(!ask(), "nothing is in flight");
        world(|world| world.failure = 0);
        assert!(launching(1, handle(3), STREAM).is_none(), "the context is lost");
        // A driver gives a new context the address of the old one.
        assert_eq!(join(3, API, ON), Ok(()));
        launch(3, 3);
        world(|world| world.failure = 709);
        ask();
        assert_eq!(state_of(handle(3)), LaunchState::Unknown, "no GPU is at fault");
        world(|world| world.failure = 0);
        [1, 2, 3].into_iter().for_each(leave);
        let forgotten = world(|world| core::mem::take(&mut world.events));
        assert_eq!(forgotten.len(), 4 * SLOTS, "events of a lost context are not used again");
        assert_eq!((join(1, API, ON), join(2, API, ON)), (Ok(()), Ok(())));

        let captured = 0x52;
        world(|world| world.capturing.insert(captured));
        assert!(launching(1, handle(3), captured as u64).is_none());
        let ticket = launching(1, handle(4), STREAM).unwrap();
        missed(ticket);
        assert_eq!([3, 4, 5].map(|n| state_of(handle(n))), [LaunchState::Unknown; 3]);
        assert!(!ask(), "a failed launch is given up");

        too_many_launches();
        let (context, mode, breaches) = world(|world| (world.context, world.mode, world.breaches));
        assert_eq!((context, mode, breaches), (Some(CONTEXT), 0, 0), "as they were");
        assert_eq!(join(3, API, ON), Ok(()));
        launch(3, 6);
        close();
        assert!(!is_on() && launching(3, handle(7), STREAM).is_none());
    }
}
