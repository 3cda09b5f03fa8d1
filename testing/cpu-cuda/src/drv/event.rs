// SPDX-License-Identifier: Apache-2.0
//! Events as a profiler uses them. The driver's rules are enforced more strictly than for NCCL: no
//! call on a thread that runs a host function, no event of another device, and no query of an event
//! during a capture, unless the thread's capture mode is relaxed (CUDA Driver API manual,
//! `cuThreadExchangeStreamCaptureMode`). A violation is refused and counted, and a line at the exit
//! of the process prints the counts. Unlike in a driver, it does **not** invalidate the capture.

use crate::capture::member::Status;
use crate::error::{Error, Out, Result, put};
use crate::event::{EVENTS, Event};
use crate::util::lock;
use crate::{capture, device, nccl, stream, work};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: i32 = 2;

thread_local! {
    /// The thread's capture mode (`CU_STREAM_CAPTURE_MODE_GLOBAL` at first).
    static MODE: Cell<i32> = const { Cell::new(0) };
}

/// The device of each event.
static DEVICES: Mutex<Option<HashMap<usize, i32>>> = Mutex::new(None);
static MADE: AtomicU64 = AtomicU64::new(0);
static DESTROYED: AtomicU64 = AtomicU64::new(0);
static RECORDED: AtomicU64 = AtomicU64::new(0);
static CAPTURED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn tell() {
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let [made, destroyed, recorded] = [&MADE, &DESTROYED, &RECORDED].map(of);
    let [captured, refused] = [&CAPTURED, &REFUSED].map(of);
    crate::log!(
        "driver events: made={made} destroyed={destroyed} recorded={recorded} \
         captured={captured} refused={refused}"
    );
}

fn refuse(error: Error) -> Result {
    add(&REFUSED);
    Err(error)
}

/// Succeeds on a thread that may call the driver.
fn permitted() -> Result {
    if work::is_in_host_function() { refuse(Error::NOT_PERMITTED) } else { Ok(()) }
}

fn device_of(event: usize) -> Result<i32> {
    let known = lock(&DEVICES).as_ref().and_then(|devices| devices.get(&event).copied());
    known.ok_or(Error::INVALID_RESOURCE_HANDLE)
}

crate::exports::driver! {
    /// Creates an event of the current context.
    fn cuEventCreate(out: Out<'_, usize>, flags: u32) {
        static END: Once = Once::new();
        permitted()?;
        END.call_once(|| {
            // SAFETY: the function stays loaded as long as the process runs.
            let _ = unsafe { libc::atexit(tell) };
        });
        let out = out.ok_or(Error::INVALID_VALUE)?;
        let event = EVENTS.add(Arc::new(Event::new(flags & DISABLE_TIMING == 0)));
        lock(&DEVICES).get_or_insert_default().insert(event, device::current());
        add(&MADE);
        out.write(event);
        Ok(())
    }

    /// Destroys an event.
    fn cuEventDestroy_v2(event: usize) {
        permitted()?;
        EVENTS.remove(event)?;
        lock(&DEVICES).get_or_insert_default().remove(&event);
        add(&DESTROYED);
        Ok(())
    }

    /// Records an event in a stream of its device.
    fn cuEventRecord(event: usize, stream: usize) {
        permitted()?;
        let stream = stream::by_handle(stream)?;
        if device_of(event)? != stream.device {
            return refuse(Error::INVALID_RESOURCE_HANDLE);
        }
        add(if capture::status(&stream) == Status::None { &RECORDED } else { &CAPTURED });
        capture::record(&stream, &EVENTS.get(event)?, false)
    }

    /// Whether an event's point is reached.
    fn cuEventQuery(event: usize) {
        permitted()?;
        if capture::is_any() && MODE.get() != RELAXED {
            return refuse(Error::STREAM_CAPTURE_UNSUPPORTED);
        }
        if EVENTS.get(event)?.is_done()? { nccl::healthy() } else { Err(Error::NOT_READY) }
    }

    /// Milliseconds between two events.
    fn cuEventElapsedTime(out: Out<'_, f32>, start: usize, end: usize) {
        permitted()?;
        put(out, EVENTS.get(start)?.elapsed_ms(&*EVENTS.get(end)?)?)
    }

    /// Whether a stream is capturing.
    fn cuStreamIsCapturing(stream: usize, out: Out<'_, i32>) {
        permitted()?;
        put(out, capture::status(&*stream::by_handle(stream)?) as i32)
    }

    /// Sets the thread's capture mode, and returns the previous one.
    fn cuThreadExchangeStreamCaptureMode(mode: Option<&mut i32>) {
        let mode = mode.ok_or(Error::INVALID_VALUE)?;
        if !(0..=RELAXED).contains(mode) {
            return Err(Error::INVALID_VALUE);
        }
        *mode = MODE.replace(*mode);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{NON_BLOCKING, STREAMS, Stream};
    use crate::work::{Kind, Work};
    use std::mem::MaybeUninit;

    fn event() -> usize {
        let mut event = MaybeUninit::new(0);
        // SAFETY: the place is valid to write to.
        assert_eq!(unsafe { cuEventCreate(Some(&mut event), 0) }, 0);
        // SAFETY: it was initialised above.
        unsafe { event.assume_init() }
    }

    fn exchange(mut mode: i32) -> i32 {
        // SAFETY: the place is valid.
        assert_eq!(unsafe { cuThreadExchangeStreamCaptureMode(Some(&mut mode)) }, 0);
        mode
    }

    #[test]
    fn a_profiler_that_breaks_a_rule_is_refused() {
        let event = event();
        // Other tests may capture at the same time.
        assert_eq!(exchange(RELAXED), 0);
        let stream = Arc::new(Stream::new(0, NON_BLOCKING, 0));
        let other = STREAMS.add(Arc::new(Stream::new(3, NON_BLOCKING, 0)));
        // SAFETY: any handle will do.
        let elsewhere = unsafe { cuEventRecord(event, other) };
        // SAFETY: any handle will do.
        let query = || unsafe { cuEventQuery(event) };
        assert_eq!(elsewhere, Error::INVALID_RESOURCE_HANDLE.0);
        assert_eq!(query(), 0, "never recorded counts as reached");
        let (send, told) = std::sync::mpsc::channel();
        let send = Mutex::new(send);
        stream.submit(Work::new(Kind::Host, move || {
            // SAFETY: any handle will do.
            lock(&send).send(unsafe { cuEventQuery(event) }).unwrap();
        }));
        assert_eq!(told.recv().unwrap(), Error::NOT_PERMITTED.0);
        // SAFETY: the event is not used again.
        assert_eq!(unsafe { cuEventDestroy_v2(event) }, 0);
        assert_ne!(query(), 0);
    }

    #[test]
    fn a_question_while_something_is_captured_needs_the_relaxed_mode() {
        let event = event();
        let stream = Stream::new(0, NON_BLOCKING, 0);
        capture::begin(&stream).unwrap();
        // SAFETY: any handle will do.
        let query = || unsafe { cuEventQuery(event) };
        assert_eq!(query(), Error::STREAM_CAPTURE_UNSUPPORTED.0);
        assert_eq!((exchange(RELAXED), query()), (0, 0));
        capture::end(&stream).unwrap().destroy().unwrap();
    }
}
