// SPDX-License-Identifier: Apache-2.0
//! Streams: one worker thread and one queue each, started by the first piece of work.
//!
//! A stream counts what was submitted and what is complete; waiting for a stream means waiting for
//! a count. The legacy default stream of a device and its blocking streams wait for each other
//! (CUDA Runtime API manual, "Stream synchronization behavior"): whoever submits first queues a
//! wait for the other side's count. The per-thread default stream is treated as the legacy one,
//! which only adds order. Captures are in `capture.rs`: here work always runs.

use crate::capture::Member;
use crate::device;
use crate::error::{Error, Result};
use crate::util::{Table, lock, wait_while};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// What a piece of work is, with the numbers of `cudaGraphNodeType` (CUDA Runtime API manual).
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
    /// Nothing but order.
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
    /// What it is.
    pub kind: Kind,
    body: Arc<dyn Fn() + Send + Sync>,
}

impl Work {
    /// Work that calls `body`.
    pub fn new(kind: Kind, body: impl Fn() + Send + Sync + 'static) -> Self {
        Self { kind, body: Arc::new(body) }
    }

    /// Does the work on the calling thread. What it wrote is visible to whoever learns of its end,
    /// also in other processes, where no lock passes the news.
    pub fn run(&self) {
        (self.body)();
        fence(Ordering::SeqCst);
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}

/// A point in a stream that others can wait for.
#[derive(Debug, Default)]
pub struct Marker {
    reached: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Marker {
    /// Declares the point reached.
    pub fn signal(&self) {
        lock(&self.reached).get_or_insert_with(Instant::now);
        self.changed.notify_all();
    }

    /// Blocks until the point is reached.
    pub fn wait(&self) {
        drop(wait_while(&self.changed, lock(&self.reached), |reached| reached.is_none()));
    }

    /// When the point was reached, if it was.
    pub fn reached(&self) -> Option<Instant> {
        *lock(&self.reached)
    }
}

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
/// [`Error::INVALID_RESOURCE_HANDLE`] if there is none.
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

    /// Queues `work` behind everything submitted before, here and where the rules of the legacy
    /// default stream say so.
    pub fn submit(self: &Arc<Self>, work: Work) {
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
            // Before the count: a graph that waits to be destroyed goes with its last work.
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

    /// Lets the worker end when it has done what is queued (`cudaStreamDestroy`).
    pub fn close(&self) {
        lock(&self.queue).closing = true;
        self.changed.notify_all();
    }
}

/// What an event was last recorded for.
#[derive(Clone, Debug)]
pub(crate) enum Recorded {
    /// Never: nothing to wait for.
    Nothing,
    /// A point in a stream.
    Point(Arc<Marker>),
    /// A place in a capture.
    Capture(Member),
}

/// An event. Waiting for it means waiting for the point it was recorded for *at that moment*:
/// recording it again makes a new point and leaves earlier waits alone.
#[derive(Debug)]
pub struct Event {
    /// False for `cudaEventDisableTiming`.
    pub timing: bool,
    recorded: Mutex<Recorded>,
}

/// All events.
pub static EVENTS: Table<Event> = Table::new(2);

impl Event {
    /// An event that was never recorded.
    pub fn new(timing: bool) -> Self {
        Self { timing, recorded: Mutex::new(Recorded::Nothing) }
    }

    pub(crate) fn recorded(&self) -> Recorded {
        lock(&self.recorded).clone()
    }

    pub(crate) fn set(&self, recorded: Recorded) {
        *lock(&self.recorded) = recorded;
    }

    /// The point to wait for, if any.
    ///
    /// # Errors
    /// [`Error::CAPTURED_EVENT`] if it was last recorded in a capture.
    pub fn point(&self) -> Result<Option<Arc<Marker>>> {
        match self.recorded() {
            Recorded::Nothing => Ok(None),
            Recorded::Point(marker) => Ok(Some(marker)),
            Recorded::Capture(_) => Err(Error::CAPTURED_EVENT),
        }
    }

    /// Gives the event a new point and returns the work that reaches it.
    pub fn record(&self) -> Work {
        let marker = Arc::new(Marker::default());
        self.set(Recorded::Point(marker.clone()));
        Work::new(Kind::RecordEvent, move || marker.signal())
    }

    /// The work that waits for the event's present point, if there is one.
    ///
    /// # Errors
    /// As [`Event::point`].
    pub fn wait(&self) -> Result<Option<Work>> {
        let point = self.point()?;
        Ok(point.map(|marker| Work::new(Kind::WaitEvent, move || marker.wait())))
    }

    /// Whether the event's point is reached; an event never recorded counts as reached.
    ///
    /// # Errors
    /// As [`Event::point`].
    pub fn is_done(&self) -> Result<bool> {
        Ok(self.point()?.is_none_or(|marker| marker.reached().is_some()))
    }

    /// Milliseconds from `self` to `later`, negative if they are the other way round.
    ///
    /// # Errors
    /// [`Error::INVALID_RESOURCE_HANDLE`] without timing or record, [`Error::NOT_READY`] if either
    /// is pending.
    pub fn elapsed_ms(&self, later: &Self) -> Result<f32> {
        if !self.timing || !later.timing {
            return Err(Error::INVALID_RESOURCE_HANDLE);
        }
        let time = |event: &Self| -> Result<Instant> {
            let point = event.point()?.ok_or(Error::INVALID_RESOURCE_HANDLE)?;
            point.reached().ok_or(Error::NOT_READY)
        };
        let (start, end) = (time(self)?, time(later)?);
        let ahead = end.saturating_duration_since(start).as_secs_f32();
        let behind = start.saturating_duration_since(end).as_secs_f32();
        Ok((ahead - behind) * 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    fn stream(flags: u32) -> Arc<Stream> {
        Arc::new(Stream::new(0, flags, 0))
    }

    /// Work that blocks until the returned sender is dropped.
    fn gate() -> (Work, mpsc::Sender<()>) {
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
    fn waiting_for_an_event_means_its_record_at_that_moment() {
        let (first, second) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let event = Event::new(true);
        first.submit(event.record());
        first.synchronize();
        let wait = event.wait().unwrap().unwrap();
        // A later record that is not reached must not hold the earlier wait.
        let (block, open) = gate();
        first.submit(block);
        first.submit(event.record());
        second.submit(wait);
        second.synchronize();
        assert_eq!(event.is_done(), Ok(false));
        drop(open);
        first.synchronize();
        assert_eq!(event.is_done(), Ok(true));
    }

    #[test]
    fn an_event_holds_another_stream_back() {
        let (first, second) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let event = Event::new(false);
        let (block, open) = gate();
        first.submit(block);
        first.submit(event.record());
        second.submit(event.wait().unwrap().unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!second.is_idle());
        drop(open);
        second.synchronize();
        assert_eq!(event.is_done(), Ok(true));
    }

    #[test]
    fn events_measure_time_between_their_points() {
        let stream = stream(NON_BLOCKING);
        let (start, end) = (Event::new(true), Event::new(true));
        assert_eq!(start.elapsed_ms(&end), Err(Error::INVALID_RESOURCE_HANDLE));
        stream.submit(start.record());
        let pause = || std::thread::sleep(Duration::from_millis(5));
        stream.submit(Work::new(Kind::Host, pause));
        let (block, open) = gate();
        stream.submit(block);
        stream.submit(end.record());
        assert_eq!(start.elapsed_ms(&end), Err(Error::NOT_READY));
        drop(open);
        stream.synchronize();
        let forth = start.elapsed_ms(&end).unwrap();
        assert!(forth >= 5.0, "{forth}");
        assert!((end.elapsed_ms(&start).unwrap() + forth).abs() < 1e-3);
        assert_eq!(Event::new(false).elapsed_ms(&end), Err(Error::INVALID_RESOURCE_HANDLE));
    }

    #[test]
    fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
        // A device of its own keeps other tests out.
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
