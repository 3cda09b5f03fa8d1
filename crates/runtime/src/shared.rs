// SPDX-License-Identifier: Apache-2.0
/*!
The state that callbacks, host threads and our own threads share: the recorder, the state, the
orders, the log and the counters. All of it is memory.

This module starts no thread and waits for none: [`crate::Runtime`] does.
*/

use crate::log::{Log, Severity};
use crate::orders::{Order, Orders, no_orders};
use crate::state::State;
use crate::sys::lock::{Guard, Lock};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use ncclscope_recorder::{Recorder, gate};
use ncclscope_trace::codec::KindCounts;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::layout::Header;
use std::path::Path;

/// Number of communicators of API v1 to v3 whose hash can be learned from their operations.
const LEARNERS: usize = 256;

#[derive(Debug)]
pub(crate) struct Shared {
    /// The recorder, to which callbacks write.
    pub(crate) recorder: Recorder,
    pub(crate) nonce: AtomicU32,
    panics: AtomicU64,
    pub(crate) comms_lost: AtomicU64,
    pub(crate) texts_lost: AtomicU64,
    /// Records for which the writer's queue had no room, by kind.
    unwritten: [AtomicU64; KINDS],
    learned: [LearnedComm; LEARNERS],
    state: Lock<State>,
    pub(crate) orders: Orders,
    pub(crate) log: Log,
    /// The file is new and has no definitions yet.
    pub(crate) is_unknown: AtomicBool,
}

/// Facts about a communicator that API v1 to v3 report only with its operations.
#[derive(Debug)]
struct LearnedComm {
    hash: AtomicU64,
    rank: AtomicU32,
}

impl Shared {
    pub(crate) const fn new() -> Shared {
        Shared {
            recorder: Recorder::new(),
            nonce: AtomicU32::new(0),
            panics: AtomicU64::new(0),
            comms_lost: AtomicU64::new(0),
            texts_lost: AtomicU64::new(0),
            unwritten: [const { AtomicU64::new(0) }; KINDS],
            learned: [const { LearnedComm { hash: AtomicU64::new(0), rank: AtomicU32::new(0) } };
                LEARNERS],
            state: Lock::new(State::new()),
            orders: no_orders(),
            log: Log::new(),
            is_unknown: AtomicBool::new(false),
        }
    }

    /// Notes what an operation of API v1 to v3 reports about its communicator. For callbacks.
    #[inline]
    pub(crate) fn learn(&self, comm: u16, hash: u64, rank: i32) {
        let Some(slot) = self.learned.get(usize::from(comm)) else { return };
        if slot.hash.load(Ordering::Relaxed) == 0 {
            slot.rank.store(rank.cast_unsigned(), Ordering::Relaxed);
            slot.hash.store(hash, Ordering::Release);
        }
    }

    /// Hash and rank of a communicator of API v1 to v3; `None` until its operations have reported
    /// them.
    pub(crate) fn learned(&self, comm: u16) -> Option<(u64, i32)> {
        let slot = self.learned.get(usize::from(comm))?;
        let hash = slot.hash.load(Ordering::Acquire);
        (hash != 0).then(|| (hash, slot.rank.load(Ordering::Relaxed).cast_signed()))
    }

    /// Hash and rank of all communicators for which they are known, by index.
    pub(crate) fn all_learned(&self) -> impl Iterator<Item = (u16, (u64, i32))> {
        let all = (0u16..).zip(&self.learned);
        all.filter_map(|(index, _)| Some((index, self.learned(index)?)))
    }

    /// Ends recording after a callback panicked.
    #[cold]
    pub(crate) fn contain(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        self.kill();
    }

    /// Logs, when the drain thread ends, that the reason was a panic.
    pub(crate) fn tell_of_panics(&'static self) {
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

    /// Ends recording for the rest of the process. Safe in the child of a fork.
    pub(crate) fn kill(&self) {
        gate::kill();
        self.recorder.shut();
    }

    /// True if none of its locks is held now.
    pub(crate) fn is_free(&self) -> bool {
        self.state.is_free() && self.orders.is_free() && self.log.is_free()
    }

    pub(crate) fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// Sends an order to the drain thread.
    pub(crate) fn order(&self, order: Order, weight: usize) {
        // The queue counts an order that does not fit.
        let _ = self.orders.put(order, weight);
    }

    /// Logs that something differs from what the user requested.
    pub(crate) fn problem(&self, line: &str) {
        self.log.say(Severity::Problem, line);
    }

    /// Logs that something differs from what the user requested, and notes it in the recording.
    pub(crate) fn tell(&self, line: String) {
        self.problem(&line);
        self.order(Order::Note(line), 0);
    }

    /// Notes that the recording's file was created.
    pub(crate) fn opened(&self, path: &Path) {
        self.lock().recording = Some(path.to_owned());
        self.log.say(Severity::Info, &format!("recording to {}", path.display()));
    }

    /// Requests that all definitions be written again, because the file is new.
    pub(crate) fn reintroduce(&self) {
        self.is_unknown.store(true, Ordering::Relaxed);
        self.lock().wake_drain();
    }

    /// Counts records that could not be written.
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
