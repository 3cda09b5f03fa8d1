// SPDX-License-Identifier: Apache-2.0
//! A capture, and the places that streams and events have in it.
//!
//! A capture knows its graph by handle: nodes of a graph hold events, and an event may have a place
//! in a capture.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// State of a capture (`cudaStreamCaptureStatus`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// Not capturing, or over.
    None = 0,
    /// Capturing.
    Active = 1,
    /// Invalidated by a forbidden call; it can only be ended.
    Invalidated = 2,
}

/// A capture.
#[derive(Debug)]
pub struct Capture {
    /// Unique in the process.
    pub id: u64,
    /// The handle of the graph that is being built.
    pub graph: usize,
    /// The stream that it was begun in.
    pub(crate) origin: u64,
    status: AtomicI32,
}

impl Capture {
    /// A capture into `graph` that begins in the stream with the id `origin`.
    pub(crate) fn begin(graph: usize, origin: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, graph, origin, status: AtomicI32::new(Status::Active as i32) }
    }

    pub(crate) fn status(&self) -> Status {
        match self.status.load(Ordering::Acquire) {
            0 => Status::None,
            1 => Status::Active,
            _ => Status::Invalidated,
        }
    }

    pub(crate) fn set(&self, status: Status) {
        self.status.store(status as i32, Ordering::Release);
    }
}

/// A stream's or an event's place in a capture.
#[derive(Clone, Debug)]
pub struct Member {
    /// The capture.
    pub capture: Arc<Capture>,
    /// Handles of the nodes that the next node depends on.
    pub frontier: Vec<usize>,
}

impl Member {
    /// The state of the capture.
    pub fn state(&self) -> Status {
        self.capture.status()
    }
}
