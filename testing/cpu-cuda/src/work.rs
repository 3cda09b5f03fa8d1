// SPDX-License-Identifier: Apache-2.0
//! Pieces of work, which streams run and graphs hold.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The type of a piece of work, with the numbers of `cudaGraphNodeType` (CUDA Runtime API manual).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    /// A kernel launch.
    Kernel = 0,
    /// A copy.
    Memcpy = 1,
    /// A fill.
    Memset = 2,
    /// A host function.
    Host = 3,
    /// A whole graph.
    Graph = 4,
    /// Nothing; it only orders other work.
    Empty = 5,
    /// Waits for an event.
    WaitEvent = 6,
    /// Records an event.
    RecordEvent = 7,
    /// Writes to or waits for memory words.
    MemOp = 12,
}

/// A piece of work. It may run more than once: graphs replay.
#[derive(Clone)]
pub struct Work {
    /// Its type.
    pub kind: Kind,
    body: Arc<dyn Fn() + Send + Sync>,
}

impl Work {
    /// Work that calls `body`.
    pub fn new(kind: Kind, body: impl Fn() + Send + Sync + 'static) -> Self {
        Self { kind, body: Arc::new(body) }
    }

    /// Runs the work on the calling thread. Its writes are visible to all threads that see its end,
    /// also in other processes, without a lock.
    pub fn run(&self) {
        let outer = IN_HOST.replace(self.kind == Kind::Host || IN_HOST.get());
        (self.body)();
        IN_HOST.set(outer);
        fence(Ordering::SeqCst);
    }
}

thread_local! {
    /// The thread runs a host function.
    static IN_HOST: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs a host function, which must not call CUDA.
pub fn is_in_host_function() -> bool {
    IN_HOST.get()
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}
