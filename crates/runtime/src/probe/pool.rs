// SPDX-License-Identifier: Apache-2.0
/*!
The events of one CUDA context, and the launches around which they are recorded.

A slot's state and the number of its launch are one word ([`Word`]), so that the probe's thread
notices if a callback takes the slot over while it queries the driver. This module does **not**
decide which launches are measured.
*/

use crate::sys::cuda::{CudaError, Driver};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize};
use core::sync::atomic::{Ordering, Ordering::Relaxed};
use ncclscope_recorder::clock;
use ncclscope_trace::Handle;
use std::sync::OnceLock;

/// Maximum number of launches in flight per context; CUDA itself queues about as many.
pub(super) const SLOTS: usize = 1024;
/// Maximum number of slots that a callback looks at to find a free one.
const TRIES: u32 = 4;
/// Places for the newest launch of each stream, by the stream's hash.
const NEWEST: usize = 64;

/// The state of a kernel launch on the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaunchState {
    /// The state is unknown: the probe is off, the launch was captured into a graph, found no free
    /// event, or is forgotten, or its CUDA context was destroyed, as at the end of a process.
    Unknown,
    /// The stream has not reached the launch: earlier work in the stream has not ended.
    NotStarted,
    /// The stream has reached the launch, which has not ended. Its kernel may still wait for room
    /// on the GPU.
    Running {
        /// When the stream was first seen to have reached the launch, in ticks; up to 40 ms late.
        since: u64,
    },
    /// The launch has ended.
    Done {
        /// Time on the GPU from the launch's turn in its stream to the end of its kernel, ns.
        ns: u64,
        /// When the end was seen, in ticks; up to 40 ms late.
        seen: u64,
    },
    /// The driver returned an error: the context is lost (`CUresult`).
    Failed {
        /// The driver's status.
        status: i32,
    },
}

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Stage {
    /// No launch uses it, or its launch has ended.
    Free,
    /// A callback records its events.
    Claimed,
    /// Its events are recorded, and its end is unknown.
    Launched,
    /// The probe's thread writes what it has seen.
    Settling,
    /// Its launch was given up.
    Abandoned,
}

impl Stage {
    const ALL: [Stage; 5] =
        [Stage::Free, Stage::Claimed, Stage::Launched, Stage::Settling, Stage::Abandoned];
}

/// A slot's state, and above it the number of its launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Word(u64);

impl Word {
    const fn new(turn: u64, stage: Stage) -> Word {
        Word(turn << 3 | stage as u64)
    }

    fn stage(self) -> Stage {
        let found = Stage::ALL.into_iter().find(|&stage| stage as u64 == self.0 & 7);
        found.unwrap_or(Stage::Abandoned)
    }

    const fn at(self, stage: Stage) -> Word {
        Word::new(self.0 >> 3, stage)
    }
}

/// The events of one CUDA context.
#[derive(Debug)]
pub(super) struct Pool {
    /// The CUDA context; 0 if the pool is unused.
    pub(super) context: AtomicUsize,
    /// Number of communicators that use this context.
    pub(super) users: AtomicU32,
    /// The driver's error after which the context and its events may be gone; 0 if there is none.
    pub(super) lost: AtomicI32,
    /// Number of launches that took a slot or tried to.
    turns: AtomicU64,
    slots: OnceLock<Box<[Slot]>>,
    /// Number of the slot that a stream's newest launch took.
    newest: [AtomicU32; NEWEST],
}

impl Pool {
    pub(super) const fn new() -> Pool {
        Pool {
            context: AtomicUsize::new(0),
            users: AtomicU32::new(0),
            lost: AtomicI32::new(0),
            turns: AtomicU64::new(0),
            slots: OnceLock::new(),
            newest: [const { AtomicU32::new(0) }; NEWEST],
        }
    }

    /// The error after which the context's events, which may no longer exist, are not used.
    pub(super) fn check(&self) -> Result<(), CudaError> {
        match self.lost.load(Ordering::Acquire) {
            0 => Ok(()),
            status => Err(CudaError(status)),
        }
    }

    pub(super) fn slots(&self) -> &[Slot] {
        self.slots.get().map_or(&[], |slots| slots)
    }

    /// Creates all events, or none if that fails.
    pub(super) fn fill(&self, driver: &Driver) -> Result<(), CudaError> {
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| Slot::default()).collect());
        for slot in slots {
            for event in [&slot.start, &slot.stop] {
                match driver.create() {
                    Ok(new) => event.store(new, Relaxed),
                    Err(error) => {
                        self.empty(driver);
                        return Err(error);
                    }
                }
            }
            slot.set(Stage::Free);
        }
        Ok(())
    }

    /// Destroys all events.
    pub(super) fn empty(&self, driver: &Driver) {
        self.take_events(|event| driver.destroy(event));
    }

    /// Takes all events out of the slots. The known states of launches are kept.
    pub(super) fn take_events(&self, take: impl Fn(usize)) {
        for slot in self.slots() {
            // No launch has claimed the slot.
            slot.set(Stage::Abandoned);
            for event in [&slot.start, &slot.stop] {
                let event = event.swap(0, Relaxed);
                if event != 0 {
                    take(event);
                }
            }
        }
    }

    /// Claims a slot for a launch: a free one, found by a bounded search, because slots come free
    /// approximately in order, else that of the stream's newest launch, which has ended once this
    /// one has. So the last launch of a stream is always seen. `None` if there is neither.
    pub(super) fn claim(&self, launch: Handle, stream: usize) -> Option<&Slot> {
        let newest = self.newest.get(hash(stream))?;
        for _ in 0..TRIES {
            let turn = self.turns.fetch_add(1, Relaxed);
            let index = usize::try_from(turn).unwrap_or(0) % SLOTS;
            let slot = self.slots().get(index)?;
            if slot.claim(slot.word().at(Stage::Free), turn) {
                newest.store(u32::try_from(index).unwrap_or(0), Relaxed);
                slot.begin(launch, stream);
                return Some(slot);
            }
        }
        let slot = self.slots().get(newest.load(Relaxed) as usize)?;
        let word = slot.word();
        let is_own = word.stage() == Stage::Launched && slot.stream.load(Relaxed) == stream;
        if !is_own || !slot.claim(word, self.turns.fetch_add(1, Relaxed)) {
            return None;
        }
        slot.begin(launch, stream);
        Some(slot)
    }

    /// The launches whose end is unknown, the oldest first. Slots that were given up become free.
    pub(super) fn in_flight(&self) -> Vec<InFlight<'_>> {
        let mut found = Vec::new();
        for slot in self.slots() {
            let word = slot.word();
            match word.stage() {
                Stage::Launched => found.push(InFlight { slot, word }),
                Stage::Abandoned if slot.stop.load(Relaxed) != 0 => slot.set(Stage::Free),
                _ => {}
            }
        }
        found.sort_unstable_by_key(|one| one.word.0);
        found
    }
}

/// The place of a stream in [`Pool::newest`]. A stream is the address of an object, or a small
/// number.
fn hash(stream: usize) -> usize {
    (stream ^ stream >> 6 ^ stream >> 12 ^ stream >> 18) % NEWEST
}

/// A slot whose launch's end is unknown, as it was when it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight<'a> {
    pub(super) slot: &'a Slot,
    word: Word,
}

impl InFlight<'_> {
    /// Writes to the slot unless another launch has taken it over; returns whether it has not.
    fn write(&self, then: Stage, write: impl FnOnce(&Slot)) -> bool {
        let state = &self.slot.state;
        let own = self.word.at(Stage::Settling);
        let taken = state.compare_exchange(self.word.0, own.0, Ordering::Acquire, Relaxed);
        if taken.is_ok() {
            write(self.slot);
            state.store(self.word.at(then).0, Ordering::Release);
        }
        taken.is_ok()
    }

    /// True if the stream was not seen to have reached the launch.
    pub(super) fn is_new(&self) -> bool {
        self.slot.began.load(Relaxed) == 0
    }

    /// Notes that the stream has reached the launch.
    pub(super) fn begins(&self) {
        self.write(Stage::Launched, |slot| slot.began.store(clock::now(), Relaxed));
    }

    /// Notes that the launch has ended, after `tell` was called with its handle. Returns false if
    /// another launch has taken the slot over.
    pub(super) fn ends(&self, ns: u64, tell: impl FnOnce(Handle)) -> bool {
        self.write(Stage::Free, |slot| {
            tell(Handle(slot.launch.load(Relaxed)));
            slot.ns.store(ns, Relaxed);
            slot.ended.store(clock::now(), Ordering::Release);
        })
    }

    /// Notes the driver's error for the launch; it has ended if `has_ended`. Returns false if
    /// another launch has taken the slot over.
    pub(super) fn fails(&self, error: CudaError, has_ended: bool) -> bool {
        self.write(Stage::Free, |slot| {
            if has_ended {
                slot.ended.store(clock::now(), Ordering::Release);
            }
            // At the end of a process, or after a reset of the device, no GPU is at fault.
            let status = if error.is_teardown() { 0 } else { error.0 };
            slot.status.store(status, Ordering::Release);
        })
    }
}

/// Two events and the launch around which they are recorded.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// A [`Word`].
    state: AtomicU64,
    /// The driver's error for the launch; 0 if there is none.
    status: AtomicI32,
    pub(super) start: AtomicUsize,
    pub(super) stop: AtomicUsize,
    /// Handle of the KernelLaunch event; 0 while the slot changes.
    pub(super) launch: AtomicU64,
    pub(super) stream: AtomicUsize,
    /// When the stream was first seen to have reached the launch, in ticks; 0 if not yet.
    began: AtomicU64,
    /// When the launch's end was seen, in ticks; 0 if not yet.
    ended: AtomicU64,
    ns: AtomicU64,
}

impl Slot {
    fn word(&self) -> Word {
        Word(self.state.load(Ordering::Acquire))
    }

    /// Sets the state of a slot that no other thread changes now.
    fn set(&self, stage: Stage) {
        self.state.store(self.word().at(stage).0, Ordering::Release);
    }

    fn claim(&self, from: Word, turn: u64) -> bool {
        let claimed = Word::new(turn, Stage::Claimed);
        self.state.compare_exchange(from.0, claimed.0, Ordering::Acquire, Relaxed).is_ok()
    }

    fn begin(&self, launch: Handle, stream: usize) {
        self.launch.store(0, Ordering::SeqCst);
        self.stream.store(stream, Relaxed);
        self.began.store(0, Relaxed);
        self.status.store(0, Ordering::Release);
        self.ended.store(0, Ordering::Release);
        self.ns.store(0, Relaxed);
        self.launch.store(launch.0, Ordering::SeqCst);
    }

    /// Both events are recorded. Only for who claimed the slot.
    pub(super) fn launched(&self) {
        self.set(Stage::Launched);
    }

    /// Gives up the launch. Only for who claimed the slot.
    pub(super) fn abandon(&self) {
        self.set(Stage::Abandoned);
    }

    /// The state of this launch; unknown if the slot belongs to another one.
    pub(super) fn describe(&self, launch: Handle) -> LaunchState {
        // The order of the loads matters: the end is written before the state, and cleared after
        // the launch.
        let stage = self.word().stage();
        let (ended, status) =
            (self.ended.load(Ordering::Acquire), self.status.load(Ordering::Acquire));
        let is_in_flight = matches!(stage, Stage::Launched | Stage::Settling);
        let state = match self.began.load(Relaxed) {
            _ if ended != 0 => LaunchState::Done { ns: self.ns.load(Relaxed), seen: ended },
            _ if status != 0 => LaunchState::Failed { status },
            _ if stage == Stage::Claimed => LaunchState::NotStarted,
            0 if is_in_flight => LaunchState::NotStarted,
            since if is_in_flight => LaunchState::Running { since },
            _ => LaunchState::Unknown,
        };
        let is_same = self.launch.load(Ordering::SeqCst) == launch.0;
        if is_same { state } else { LaunchState::Unknown }
    }
}
