// SPDX-License-Identifier: Apache-2.0
//! Events: points in streams that other streams and the host can wait for.

use crate::capture::member::Member;
use crate::error::{Error, Result};
use crate::util::{Table, lock, wait_while};
use crate::work::{Kind, Work};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// A point in a stream that others can wait for.
#[derive(Debug, Default)]
pub struct Marker {
    reached: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Marker {
    /// Marks the point as reached.
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

    /// Sets a new point of the event and returns the work that reaches it.
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
    use crate::stream::tests::gate;
    use crate::stream::{NON_BLOCKING, Stream};
    use std::time::Duration;

    fn stream(flags: u32) -> Arc<Stream> {
        Arc::new(Stream::new(0, flags, 0))
    }

    #[test]
    fn waiting_for_an_event_means_its_record_at_that_moment() {
        let (first, second) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
        let event = Event::new(true);
        first.submit(event.record());
        first.synchronize();
        let wait = event.wait().unwrap().unwrap();
        // A later record that is not reached must not hold up an earlier wait.
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
}
