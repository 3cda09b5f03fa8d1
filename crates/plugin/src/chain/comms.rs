// SPDX-License-Identifier: Apache-2.0
//! The contexts of all plugins for one communicator, and the context that NCCL gets for it.

use super::slab::PLUGINS;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use ncclscope_runtime::context::{COMMS, NO_COMM, comm_of, context};

/// The contexts of all plugins for one communicator.
#[derive(Debug)]
pub(super) struct Comm {
    contexts: [AtomicU64; PLUGINS],
    /// Bit set of the plugins that were initialised for it.
    has: AtomicU8,
    /// Bit set of the plugins that must still be finalized for it.
    lives: AtomicU8,
}

/// The communicators of the process. A context is never reused, because NCCL may use it after the
/// communicator is gone.
#[derive(Debug)]
pub(super) struct Comms {
    comms: Box<[Comm]>,
    nonce: u32,
    next: AtomicU16,
}

impl Comms {
    pub(super) fn new(nonce: u32) -> Comms {
        let comm = || Comm {
            contexts: [const { AtomicU64::new(0) }; PLUGINS],
            has: AtomicU8::new(0),
            lives: AtomicU8::new(0),
        };
        Comms { comms: (0..COMMS).map(|_| comm()).collect(), nonce, next: AtomicU16::new(0) }
    }

    /// Adds a communicator; returns its entry and the context for NCCL. No entry if there are too
    /// many.
    pub(super) fn add(&self) -> (Option<&Comm>, u64) {
        let one_more = |next| (next < COMMS).then_some(next + 1);
        let taken = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        let index = taken.unwrap_or(NO_COMM);
        (self.comms.get(usize::from(index)), context(self.nonce, index))
    }

    /// The communicator of a context that NCCL passed; `None` for any other bits.
    #[inline]
    pub(super) fn get(&self, context: u64) -> Option<&Comm> {
        self.comms.get(usize::from(comm_of(self.nonce, context)))
    }
}

impl Comm {
    /// Stores the context of a plugin that was initialised.
    pub(super) fn set(&self, plugin: usize, context: u64) {
        if let Some(place) = self.contexts.get(plugin) {
            place.store(context, Ordering::Relaxed);
            self.has.fetch_or(1 << plugin, Ordering::Release);
            self.lives.fetch_or(1 << plugin, Ordering::Relaxed);
        }
    }

    /// A plugin's context, even after it was finalized; `None` if the plugin was not initialised.
    #[inline]
    pub(super) fn context(&self, plugin: usize) -> Option<u64> {
        let has = self.has.load(Ordering::Acquire) & 1 << plugin != 0;
        has.then(|| self.contexts.get(plugin).map_or(0, |place| place.load(Ordering::Relaxed)))
    }

    /// Marks the communicator as ended for a plugin: `true` once if the plugin was initialised.
    pub(super) fn end(&self, plugin: usize) -> bool {
        self.lives.fetch_and(!(1 << plugin), Ordering::Relaxed) & 1 << plugin != 0
    }
}
