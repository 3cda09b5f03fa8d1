// SPDX-License-Identifier: Apache-2.0
//! Events.

use crate::capture;
use crate::error::{Error, Out, Result, put};
use crate::event::{EVENTS, Event};
use crate::nccl;
use crate::stream;
use std::sync::Arc;

/// The flag `cudaEventDisableTiming`.
const DISABLE_TIMING: u32 = 2;
/// The flag `cudaEventRecordExternal`.
const RECORD_EXTERNAL: u32 = 1;

fn create(out: Out<'_, usize>, flags: u32) -> Result {
    let out = out.ok_or(Error::INVALID_VALUE)?;
    out.write(EVENTS.add(Arc::new(Event::new(flags & DISABLE_TIMING == 0))));
    Ok(())
}

fn record(event: usize, stream: usize, flags: u32) -> Result {
    let external = flags & RECORD_EXTERNAL != 0;
    capture::record(&stream::by_handle(stream)?, &EVENTS.get(event)?, external)
}

crate::exports::runtime! {
    /// Creates an event.
    fn cudaEventCreate(out: Out<'_, usize>) { create(out, 0) }

    /// Creates an event.
    fn cudaEventCreateWithFlags(out: Out<'_, usize>, flags: u32) { create(out, flags) }

    /// Destroys an event; waits for it continue.
    fn cudaEventDestroy(event: usize) { EVENTS.remove(event).map(drop) }

    /// Records an event in a stream.
    fn cudaEventRecord(event: usize, stream: usize) { record(event, stream, 0) }

    /// Records an event in a stream, in a capture as a node if it is external.
    fn cudaEventRecordWithFlags(event: usize, stream: usize, flags: u32) {
        record(event, stream, flags)
    }

    /// Whether an event's point is reached.
    fn cudaEventQuery(event: usize) {
        if EVENTS.get(event)?.is_done()? { nccl::healthy() } else { Err(Error::NOT_READY) }
    }

    /// Waits for an event's point.
    fn cudaEventSynchronize(event: usize) {
        if let Some(point) = EVENTS.get(event)?.point()? {
            point.wait();
        }
        nccl::healthy()
    }

    /// Milliseconds between two events.
    fn cudaEventElapsedTime(out: Out<'_, f32>, start: usize, end: usize) {
        put(out, EVENTS.get(start)?.elapsed_ms(&*EVENTS.get(end)?)?)
    }

    /// Milliseconds between two events (CUDA 12.8 form, which differs in error handling only).
    fn cudaEventElapsedTime_v2(out: Out<'_, f32>, start: usize, end: usize) {
        put(out, EVENTS.get(start)?.elapsed_ms(&*EVENTS.get(end)?)?)
    }
}
