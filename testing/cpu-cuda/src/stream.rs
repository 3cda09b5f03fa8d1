// SPDX-License-Identifier: Apache-2.0
//! Streams: one worker thread and one queue each, started by the first piece of work.
//!
//! A stream counts submitted and completed work; waiting for a stream means waiting for a count.
//! The legacy default stream of a device and its blocking streams wait for each other (CUDA Runtime
//! API manual, "Stream synchronization behavior"): the stream that submits first queues a wait for
//! the other side's count. The per-thread default stream is treated as the legacy one, which only
//! adds order. Captures are in `capture.rs`: here work always runs.

use crate::capture::member::Member;
use crate::counts;
use crate::device;
use crate::error::Result;
use crate::util::{Table, lock, wait_while};
use crate::work::{Kind, Work};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

#[derive(Default)]
struct Queue {
    pending: VecDeque<Work>,
    submitted: u64,
    completed: u64,
    worker: bool,
    closing: bool,
}

/// A stream.
pub struct Stream {
    /// Unique in the process (`cudaStreamGetId`).
    pub id: u64,
    /// Its device.
    pub device: i32,
    /// `cudaStreamNonBlocking` (1) or 0.
    pub flags: u32,
    /// Accepted and reported, without effect.
    pub priority: i32,
    legacy: bool,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// The capture that the stream takes part in.
    pub(crate) capture: Mutex<Option<Member>>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = lock(&self.queue);
        f.debug_struct("Stream")
            .field("id", &self.id)
            .field("device", &self.device)
            .field("submitted", &queue.submitted)
            .field("completed", &queue.completed)
            .field("pending", &queue.pending)
            .finish_non_exhaustive()
    }
}

/// All streams that `cudaStreamCreate*` made.
pub static STREAMS: Table<Stream> = Table::new(1);
/// The legacy default stream of each device.
static LEGACY: Mutex<Option<HashMap<i32, Arc<Stream>>>> = Mutex::new(None);

/// The flag `cudaStreamNonBlocking`.
pub const NON_BLOCKING: u32 = 1;

/// The stream behind a `cudaStream_t`; 0, 1 and 2 name the default stream of the current device.
///
/// # Errors
/// [`crate::error::Error::INVALID_RESOURCE_HANDLE`] if there is none.
pub fn by_handle(handle: usize) -> Result<Arc<Stream>> {
    if handle <= 2 { Ok(legacy(device::current())) } else { STREAMS.get(handle) }
}

/// The legacy default stream of `device`.
pub fn legacy(device: i32) -> Arc<Stream> {
    let mut all = lock(&LEGACY);
    let new = || Arc::new(Stream { legacy: true, ..Stream::new(device, 0, 0) });
    all.get_or_insert_default().entry(device).or_insert_with(new).clone()
}

/// Waits for everything submitted so far on `device` (`cudaDeviceSynchronize`).
pub fn synchronize_device(device: i32) {
    legacy(device).synchronize();
    for stream in STREAMS.all().iter().filter(|s| s.device == device) {
        stream.synchronize();
    }
}

impl Stream {
    /// A stream of `device`; nothing runs before the first work.
    pub fn new(device: i32, flags: u32, priority: i32) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            device,
            flags,
            priority,
            legacy: false,
            queue: Mutex::default(),
            changed: Condvar::new(),
            capture: Mutex::new(None),
        }
    }

    /// Queues `work` after everything submitted before to this stream, and to other streams by the
    /// rules of the legacy default stream.
    pub fn submit(self: &Arc<Self>, work: Work) {
        counts::submitted(work.kind);
        for (stream, count) in self.implicit_dependencies() {
            self.push(Work::new(Kind::Empty, move || stream.wait_for(count)));
        }
        self.push(work);
    }

    /// Streams with unfinished work that must come first, with the counts to wait for.
    fn implicit_dependencies(&self) -> Vec<(Arc<Self>, u64)> {
        let others = if self.legacy {
            let blocking = |s: &Arc<Self>| s.device == self.device && s.flags & NON_BLOCKING == 0;
            STREAMS.all().into_iter().filter(blocking).collect()
        } else if self.flags & NON_BLOCKING == 0 {
            vec![legacy(self.device)]
        } else {
            Vec::new()
        };
        others.into_iter().filter_map(|s| s.unfinished().map(|count| (s, count))).collect()
    }

    fn unfinished(&self) -> Option<u64> {
        let queue = lock(&self.queue);
        (queue.completed < queue.submitted).then_some(queue.submitted)
    }

    fn push(self: &Arc<Self>, work: Work) {
        let mut queue = lock(&self.queue);
        queue.pending.push_back(work);
        queue.submitted += 1;
        if !queue.worker {
            queue.worker = true;
            let stream = self.clone();
            std::thread::Builder::new()
                .name(format!("cuda-stream-{}", self.id))
                .spawn(move || stream.work())
                .expect("a thread for the stream");
        }
        self.changed.notify_all();
    }

    /// The worker: runs the queue in order until the stream is closed and empty.
    fn work(&self) {
        device::set_current(self.device).expect("the stream was made on it");
        loop {
            let idle = |q: &mut Queue| q.pending.is_empty() && !q.closing;
            let mut queue = wait_while(&self.changed, lock(&self.queue), idle);
            let Some(work) = queue.pending.pop_front() else { return };
            drop(queue);
            work.run();
            // Before the count: the last work drops a graph that waits for its destruction.
            drop(work);
            lock(&self.queue).completed += 1;
            self.changed.notify_all();
        }
    }

    fn wait_for(&self, count: u64) {
        drop(wait_while(&self.changed, lock(&self.queue), |q| q.completed < count));
    }

    /// Waits for everything submitted so far.
    pub fn synchronize(&self) {
        let count = lock(&self.queue).submitted;
        self.wait_for(count);
    }

    /// Whether everything submitted is complete.
    pub fn is_idle(&self) -> bool {
        self.unfinished().is_none()
    }

    /// Lets the worker exit when the queue is empty (`cudaStreamDestroy`).
    pub fn close(&self) {
        lock(&self.queue).closing = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::event::Marker;
    use std::sync::mpsc;

    fn stream(flags: u32) -> Arc<Stream> {
        Arc::new(Stream::new(0, flags, 0))
    }

    /// Work that blocks until the returned sender is dropped.
    pub(crate) fn gate() -> (Work, mpsc::Sender<()>) {
        let (open, closed) = mpsc::channel();
        let closed = Mutex::new(closed);
        let wait = move || {
            lock(&closed).recv().unwrap_err();
        };
        (Work::new(Kind::Host, wait), open)
    }

    #[test]
    fn work_runs_in_order_and_synchronize_waits_for_all_of_it() {
        let (stream, log) = (stream(NON_BLOCKING), Arc::new(Mutex::new(Vec::new())));
        for i in 0..100 {
            let log = log.clone();
            stream.submit(Work::new(Kind::Host, move || lock(&log).push(i)));
        }
        stream.synchronize();
        assert!(stream.is_idle());
        assert_eq!(*lock(&log), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
        // A separate device excludes other tests.
        let device = 6;
        let blocking = Arc::new(Stream::new(device, 0, 0));
        STREAMS.add(blocking.clone());
        let legacy = legacy(device);
        let log = Arc::new(Mutex::new(Vec::new()));
        let note = |text: &'static str| {
            let log = log.clone();
            Work::new(Kind::Host, move || lock(&log).push(text))
        };
        let (block, open) = gate();
        blocking.submit(block);
        blocking.submit(note("blocking"));
        legacy.submit(note("legacy"));
        blocking.submit(note("blocking again"));
        let free = Arc::new(Stream::new(device, NON_BLOCKING, 0));
        free.submit(note("free"));
        free.synchronize();
        drop(open);
        synchronize_device(device);
        assert_eq!(*lock(&log), ["free", "blocking", "legacy", "blocking again"]);
    }

    #[test]
    fn a_closed_stream_finishes_its_queue() {
        let stream = stream(NON_BLOCKING);
        let done = Arc::new(Marker::default());
        let (block, open) = gate();
        stream.submit(block);
        let signal = done.clone();
        stream.submit(Work::new(Kind::Host, move || signal.signal()));
        stream.close();
        drop(open);
        done.wait();
    }
}
