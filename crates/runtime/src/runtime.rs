// SPDX-License-Identifier: Apache-2.0
/*!
The process's runtime: what callbacks, host threads and our own threads do with the state that they
share ([`Shared`]).

There are three kinds of locks, taken in this order and held for work in memory only: that of the
[`Drain`], which host threads take only at the end of the process; that of the [`State`], which they
hold briefly; and those of queues. Work with the file, NCCL's log and the network is done by other
threads, which hold none of these locks while they wait.
*/

mod begin;
mod control;
mod life;
mod mask;
mod resource;
mod rounds;

pub use control::Refusal;

use crate::context::comm_of;
use crate::drain::Drain;
use crate::library::Libraries;
use crate::orders::Order;
use crate::reply::{Answer, Reply};
use crate::shared::Shared;
use crate::state::State;
use crate::sys::lock::{Guard, Lock};
use core::sync::atomic::{AtomicU32, Ordering};
use ncclscope_control::reader::Settings;
use ncclscope_control::variable::Variable;
use ncclscope_recorder::{Recorder, gate};
use std::sync::{Once, OnceLock};
use std::time::Duration;

static RUNTIME: Runtime = Runtime::new();

/// The state of the process that outlives a callback.
#[derive(Debug)]
pub struct Runtime {
    shared: Shared,
    begun: Once,
    drain: Lock<Option<Box<Drain>>>,
    libraries: Libraries,
    /// Number of hangs reported so far.
    hangs: AtomicU32,
    /// The settings, as read at the first communicator; unset before.
    settings: OnceLock<Settings>,
}

impl Runtime {
    const fn new() -> Runtime {
        Runtime {
            shared: Shared::new(),
            begun: Once::new(),
            drain: Lock::new(None),
            libraries: Libraries::new(|| RUNTIME.shared.recorder.strings.forget_addresses()),
            hangs: AtomicU32::new(0),
            settings: OnceLock::new(),
        }
    }

    /// The process's runtime.
    #[must_use]
    #[inline(always)]
    pub fn get() -> &'static Runtime {
        &RUNTIME
    }

    /// The recorder, to which callbacks write.
    #[must_use]
    #[inline(always)]
    pub fn recorder(&self) -> &Recorder {
        &self.shared.recorder
    }

    /// The value of a setting; its default before the first communicator.
    pub(crate) fn setting<T>(&self, variable: &Variable<T>) -> T {
        self.settings.get().map_or_else(|| variable.default(), |settings| settings.get(variable))
    }

    /// Index of the communicator of a context that NCCL passed.
    #[must_use]
    #[inline(always)]
    pub fn comm_of(&self, context: u64) -> u16 {
        comm_of(self.shared.nonce.load(Ordering::Relaxed), context)
    }

    /// True if the context is of this process.
    #[must_use]
    #[inline(always)]
    pub fn is_ours(&self, context: u64) -> bool {
        context >> 32 == u64::from(self.shared.nonce.load(Ordering::Relaxed))
    }

    /// Stores what an operation of API v1 to v3 reports about its communicator. For callbacks.
    #[inline]
    pub fn learn(&self, comm: u16, hash: u64, rank: i32) {
        self.shared.learn(comm, hash, rank);
    }

    /// Ends recording after a callback panicked.
    #[cold]
    pub fn contain(&self) {
        self.shared.contain();
    }

    /// Logs that something differs from what the user requested.
    pub(crate) fn problem(&self, line: &str) {
        self.shared.problem(line);
    }

    /// False once recording has ended for good.
    pub(crate) fn is_running(&self) -> bool {
        !gate::is_dead()
    }

    /// One round from lanes to sinks. Returns the number of words that the fullest lane held.
    fn round(&self, drain: &mut Drain, flush: bool, sync: bool) -> u64 {
        if self.shared.is_unknown.swap(false, Ordering::Relaxed) {
            drain.introduce();
        }
        let fullest = drain.tick(flush);
        drain.take_lines().iter().for_each(|line| self.shared.problem(line));
        self.shared.texts_lost.store(drain.texts_lost(), Ordering::Relaxed);
        if sync {
            self.tell_learned(drain);
            drain.sync();
        }
        fullest
    }

    fn tell_learned(&self, drain: &mut Drain) {
        for (index, (hash, rank)) in self.shared.all_learned() {
            if drain.learn(index, hash, rank) {
                let mut state = self.shared.lock();
                let comm = state.comms.get_mut(&index);
                comm.into_iter().for_each(|comm| (comm.hash, comm.rank) = (hash, rank));
            }
        }
    }

    /// Starts a round of the drain thread now, or runs it on the calling thread if there is no
    /// drain thread.
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

    /// Sends an order to the drain thread and waits for its answer.
    fn ask<T>(
        &'static self,
        order: impl FnOnce(Answer<T>) -> Order,
        patience: Duration,
    ) -> Option<T> {
        let (reply, answer) = Reply::new();
        self.shared.order(order(answer), 0);
        self.hurry(self.shared.lock());
        reply.wait(patience)
    }
}
