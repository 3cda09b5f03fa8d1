// SPDX-License-Identifier: Apache-2.0
//! Streams, captures and host functions.

use crate::capture::member::Status;
use crate::capture::{self, Update};
use crate::device;
use crate::error::{Error, Out, Result, put, put_if};
use crate::event::EVENTS;
use crate::graph::GRAPHS;
use crate::nccl;
use crate::stream::{self, NON_BLOCKING, STREAMS, Stream};
use crate::types::HostFunction;
use crate::work::{Kind, Work};
use std::cell::Cell;
use std::sync::Arc;

/// The flag `cudaEventWaitExternal`.
const WAIT_EXTERNAL: u32 = 1;

thread_local! {
    /// `cudaStreamCaptureMode` of the thread: 0 global, 1 thread-local, 2 relaxed. It is stored,
    /// but has no effect.
    static MODE: Cell<i32> = const { Cell::new(0) };
}

fn create(out: Out<'_, usize>, flags: u32, priority: i32) -> Result {
    if flags & !NON_BLOCKING != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let out = out.ok_or(Error::INVALID_VALUE)?;
    out.write(STREAMS.add(Arc::new(Stream::new(device::current(), flags, priority))));
    Ok(())
}

/// The information about a capture. Each part is optional.
struct CaptureInfo<'a> {
    status: Out<'a, i32>,
    id: Out<'a, u64>,
    graph: Out<'a, usize>,
    nodes: Out<'a, *const usize>,
    edges: Out<'a, *const u8>,
    count: Out<'a, usize>,
}

/// Fills `info`. The array of nodes stays valid until the stream's next call, as the manual says.
fn capture_info(stream: usize, info: CaptureInfo<'_>) -> Result {
    let stream = stream::by_handle(stream)?;
    capture::with_member(&stream, |member| {
        let state = member.as_ref().map_or(Status::None, |m| m.state());
        put(info.status, state as i32)?;
        if let (Some(member), Status::Active) = (member, state) {
            put_if(info.id, member.capture.id);
            put_if(info.graph, member.capture.graph);
            put_if(info.nodes, member.frontier.as_ptr());
            put_if(info.edges, std::ptr::null());
            put_if(info.count, member.frontier.len());
        }
        Ok(())
    })
}

fn update_dependencies(stream: usize, nodes: *const usize, count: usize, flags: u32) -> Result {
    let nodes = match (nodes.is_null(), count) {
        (_, 0) => &[][..],
        (true, _) => return Err(Error::INVALID_VALUE),
        // SAFETY: the caller passes `count` nodes.
        (false, _) => unsafe { std::slice::from_raw_parts(nodes, count) },
    };
    let how = match flags {
        0 => Update::Add,
        1 => Update::Set,
        _ => return Err(Error::INVALID_VALUE),
    };
    // `nodes` may be this very stream's frontier, which the update changes.
    capture::update(&*stream::by_handle(stream)?, nodes.to_vec(), how)
}

/// Work that calls a host function.
pub(crate) fn host_work(function: Option<HostFunction>, data: usize) -> Result<Work> {
    let function = function.ok_or(Error::INVALID_VALUE)?;
    Ok(Work::new(Kind::Host, move || {
        let data = std::ptr::with_exposed_provenance_mut(data);
        // SAFETY: the client promises a function that may be called with this argument.
        unsafe { function(data) };
    }))
}

crate::exports::runtime! {
    /// Creates a blocking stream.
    fn cudaStreamCreate(out: Out<'_, usize>) { create(out, 0, 0) }

    /// Creates a stream.
    fn cudaStreamCreateWithFlags(out: Out<'_, usize>, flags: u32) { create(out, flags, 0) }

    /// Creates a stream; the priority is only stored.
    fn cudaStreamCreateWithPriority(out: Out<'_, usize>, flags: u32, priority: i32) {
        create(out, flags, priority)
    }

    /// Destroys a stream when its work is done.
    fn cudaStreamDestroy(stream: usize) {
        STREAMS.remove(stream)?.close();
        Ok(())
    }

    /// Waits for the stream's work.
    fn cudaStreamSynchronize(stream: usize) {
        let stream = stream::by_handle(stream)?;
        capture::forbid(&stream)?;
        stream.synchronize();
        nccl::healthy()
    }

    /// Whether the stream's work is done.
    fn cudaStreamQuery(stream: usize) {
        let stream = stream::by_handle(stream)?;
        capture::forbid(&stream)?;
        if stream.is_idle() { nccl::healthy() } else { Err(Error::NOT_READY) }
    }

    /// Makes a stream wait for an event.
    fn cudaStreamWaitEvent(stream: usize, event: usize, flags: u32) {
        let event = EVENTS.get(event)?;
        capture::wait(&stream::by_handle(stream)?, &event, flags & WAIT_EXTERNAL != 0)
    }

    /// The stream's unique id.
    fn cudaStreamGetId(stream: usize, out: Out<'_, u64>) {
        put(out, stream::by_handle(stream)?.id)
    }

    /// The stream's flags.
    fn cudaStreamGetFlags(stream: usize, out: Out<'_, u32>) {
        put(out, stream::by_handle(stream)?.flags)
    }

    /// The stream's priority.
    fn cudaStreamGetPriority(stream: usize, out: Out<'_, i32>) {
        put(out, stream::by_handle(stream)?.priority)
    }

    /// The stream's device.
    fn cudaStreamGetDevice(stream: usize, out: Out<'_, i32>) {
        put(out, stream::by_handle(stream)?.device)
    }

    /// Calls a host function in the order of a stream.
    fn cudaLaunchHostFunc(stream: usize, function: Option<HostFunction>, data: usize) {
        capture::enqueue(&stream::by_handle(stream)?, host_work(function, data)?)
    }

    /// Begins a capture. The default stream cannot capture.
    fn cudaStreamBeginCapture(stream: usize, _mode: i32) {
        if stream <= 2 {
            return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
        }
        capture::begin(&*stream::by_handle(stream)?)
    }

    /// Ends a capture.
    fn cudaStreamEndCapture(stream: usize, out: Out<'_, usize>) {
        let out = out.ok_or(Error::INVALID_VALUE)?;
        out.write(0);
        let graph = capture::end(&*stream::by_handle(stream)?)?;
        debug_assert!(GRAPHS.get(graph.handle).is_ok());
        out.write(graph.handle);
        Ok(())
    }

    /// Whether the stream is capturing.
    fn cudaStreamIsCapturing(stream: usize, out: Out<'_, i32>) {
        put(out, capture::status(&*stream::by_handle(stream)?) as i32)
    }

    /// State and id of the stream's capture (CUDA 10 form).
    fn cudaStreamGetCaptureInfo(stream: usize, status: Out<'_, i32>, id: Out<'_, u64>) {
        capture_info(
            stream,
            CaptureInfo { status, id, graph: None, nodes: None, edges: None, count: None },
        )
    }

    /// The stream's capture (CUDA 11.3 form).
    fn cudaStreamGetCaptureInfo_v2(
        stream: usize, status: Out<'_, i32>, id: Out<'_, u64>, graph: Out<'_, usize>,
        nodes: Out<'_, *const usize>, count: Out<'_, usize>,
    ) {
        capture_info(stream, CaptureInfo { status, id, graph, nodes, edges: None, count })
    }

    /// The stream's capture (CUDA 12.3 form). No edge carries data here.
    fn cudaStreamGetCaptureInfo_v3(
        stream: usize, status: Out<'_, i32>, id: Out<'_, u64>, graph: Out<'_, usize>,
        nodes: Out<'_, *const usize>, edges: Out<'_, *const u8>, count: Out<'_, usize>,
    ) {
        capture_info(stream, CaptureInfo { status, id, graph, nodes, edges, count })
    }

    /// Changes what the stream's next captured node depends on.
    fn cudaStreamUpdateCaptureDependencies(
        stream: usize, nodes: *const usize, count: usize, flags: u32,
    ) {
        update_dependencies(stream, nodes, count, flags)
    }

    /// Changes what the stream's next captured node depends on (CUDA 12.3 form).
    fn cudaStreamUpdateCaptureDependencies_v2(
        stream: usize, nodes: *const usize, _edges: usize, count: usize, flags: u32,
    ) {
        update_dependencies(stream, nodes, count, flags)
    }

    /// Exchanges the thread's capture mode.
    fn cudaThreadExchangeStreamCaptureMode(mode: Option<&mut i32>) {
        let mode = mode.ok_or(Error::INVALID_VALUE)?;
        if !(0..=2).contains(mode) {
            return Err(Error::INVALID_VALUE);
        }
        *mode = MODE.replace(*mode);
        Ok(())
    }
}
