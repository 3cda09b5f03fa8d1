// SPDX-License-Identifier: Apache-2.0
//! Graphs and user objects.

use crate::capture;
use crate::error::{Error, Out, Result, put};
use crate::event::EVENTS;
use crate::graph::{
    Action, EXECS, GRAPHS, Graph, UserObject, change_user_references, create_user_object,
    node_by_handle,
};
use crate::stream;
use crate::types::{HostFunction, HostNodeParams};
use crate::work::{Kind, Work};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// The flag `cudaGraphUserObjectMove`: the graph takes over the caller's references.
const MOVE: u32 = 1;

/// The caller's array of nodes.
///
/// # Safety
/// `first` must point to `count` nodes that live for `'a`, or be NULL with `count` 0.
unsafe fn nodes<'a>(first: *const usize, count: usize) -> Result<&'a [usize]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Error::INVALID_VALUE),
        // SAFETY: the caller vouches for the array.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}

fn add(out: Out<'_, usize>, graph: usize, action: Action, after: &[usize]) -> Result {
    put(out, GRAPHS.get(graph)?.add(action, after)?)
}

/// Connects the nodes of two arrays pairwise.
fn connect(graph: usize, from: &[usize], to: &[usize]) -> Result {
    let graph = GRAPHS.get(graph)?;
    from.iter().zip(to).try_for_each(|(&from, &to)| graph.connect(from, to))
}

fn instantiate(out: Out<'_, usize>, graph: usize) -> Result {
    put(out, EXECS.add(Arc::new(GRAPHS.get(graph)?.instantiate()?)))
}

crate::exports::runtime! {
    /// Creates an empty graph.
    fn cudaGraphCreate(out: Out<'_, usize>, _flags: u32) { put(out, Graph::create().handle) }

    /// Destroys a graph; executable graphs made from it stay valid.
    fn cudaGraphDestroy(graph: usize) { GRAPHS.get(graph)?.destroy() }

    /// Adds a node that calls a host function.
    fn cudaGraphAddHostNode(
        out: Out<'_, usize>, graph: usize, after: *const usize, count: usize,
        params: Option<&HostNodeParams>,
    ) {
        let params = params.ok_or(Error::INVALID_VALUE)?;
        let work = super::stream::host_work(params.function, params.user_data)?;
        // SAFETY: the caller passes `count` nodes.
        add(out, graph, Action::Work(work), unsafe { nodes(after, count) }?)
    }

    /// Adds a node that does nothing.
    fn cudaGraphAddEmptyNode(
        out: Out<'_, usize>, graph: usize, after: *const usize, count: usize,
    ) {
        let nothing = Work::new(Kind::Empty, || ());
        // SAFETY: the caller passes `count` nodes.
        add(out, graph, Action::Work(nothing), unsafe { nodes(after, count) }?)
    }

    /// Adds a node that records an event.
    fn cudaGraphAddEventRecordNode(
        out: Out<'_, usize>, graph: usize, after: *const usize, count: usize, event: usize,
    ) {
        let action = Action::Record(EVENTS.get(event)?);
        // SAFETY: the caller passes `count` nodes.
        add(out, graph, action, unsafe { nodes(after, count) }?)
    }

    /// Adds a node that waits for an event.
    fn cudaGraphAddEventWaitNode(
        out: Out<'_, usize>, graph: usize, after: *const usize, count: usize, event: usize,
    ) {
        let action = Action::Wait(EVENTS.get(event)?);
        // SAFETY: the caller passes `count` nodes.
        add(out, graph, action, unsafe { nodes(after, count) }?)
    }

    /// Adds dependencies, pair by pair.
    fn cudaGraphAddDependencies(
        graph: usize, from: *const usize, to: *const usize, count: usize,
    ) {
        // SAFETY: the caller passes `count` nodes.
        let from = unsafe { nodes(from, count) }?;
        // SAFETY: as above.
        connect(graph, from, unsafe { nodes(to, count) }?)
    }

    /// Adds dependencies, pair by pair (CUDA 12.3 form). Edge data have no effect.
    fn cudaGraphAddDependencies_v2(
        graph: usize, from: *const usize, to: *const usize, _edges: usize, count: usize,
    ) {
        // SAFETY: the caller passes `count` nodes.
        let from = unsafe { nodes(from, count) }?;
        // SAFETY: as above.
        connect(graph, from, unsafe { nodes(to, count) }?)
    }

    /// The graph's nodes, as many as fit; without an array, their number.
    fn cudaGraphGetNodes(graph: usize, out: *mut MaybeUninit<usize>, count: Option<&mut usize>) {
        let all = GRAPHS.get(graph)?.nodes();
        let count = count.ok_or(Error::INVALID_VALUE)?;
        if !out.is_null() {
            // SAFETY: the caller offers room for `count` nodes.
            let room = unsafe { std::slice::from_raw_parts_mut(out, *count) };
            for (slot, &node) in room.iter_mut().zip(&all) {
                slot.write(node);
            }
        }
        *count = all.len();
        Ok(())
    }

    /// The action of a node.
    fn cudaGraphNodeGetType(node: usize, out: Out<'_, i32>) {
        let (graph, index) = node_by_handle(node)?;
        put(out, graph.kind(index).ok_or(Error::INVALID_VALUE)? as i32)
    }

    /// Creates an executable graph.
    fn cudaGraphInstantiate(out: Out<'_, usize>, graph: usize, _flags: u64) {
        instantiate(out, graph)
    }

    /// Creates an executable graph.
    fn cudaGraphInstantiateWithFlags(out: Out<'_, usize>, graph: usize, _flags: u64) {
        instantiate(out, graph)
    }

    /// Launches an executable graph. Launching inside a capture is not supported.
    fn cudaGraphLaunch(exec: usize, stream: usize) {
        let (exec, stream) = (EXECS.get(exec)?, stream::by_handle(stream)?);
        capture::forbid(&stream)?;
        stream.submit(exec.launch()?);
        Ok(())
    }

    /// Nothing needs to be uploaded.
    fn cudaGraphUpload(exec: usize, _stream: usize) { EXECS.get(exec).map(drop) }

    /// Destroys an executable graph when its launches are done.
    fn cudaGraphExecDestroy(exec: usize) { EXECS.remove(exec).map(drop) }

    /// Creates a user object.
    fn cudaUserObjectCreate(
        out: Out<'_, usize>, data: usize, destroy: Option<HostFunction>, count: u32, _flags: u32,
    ) {
        let out = out.ok_or(Error::INVALID_VALUE)?;
        let destroy = destroy.filter(|_| count > 0).ok_or(Error::INVALID_VALUE)?;
        let object = UserObject::new(move || {
            let data = std::ptr::with_exposed_provenance_mut(data);
            // SAFETY: the client promises a function that may be called once with this argument.
            unsafe { destroy(data) };
        });
        out.write(create_user_object(object, count));
        Ok(())
    }

    /// Adds references of the client.
    fn cudaUserObjectRetain(object: usize, count: u32) {
        change_user_references(object, i64::from(count)).map(drop)
    }

    /// Drops references of the client.
    fn cudaUserObjectRelease(object: usize, count: u32) {
        change_user_references(object, -i64::from(count)).map(drop)
    }

    /// Retains a user object for a graph.
    fn cudaGraphRetainUserObject(graph: usize, object: usize, count: u32, flags: u32) {
        let graph = GRAPHS.get(graph)?;
        let taken = if flags & MOVE != 0 { -i64::from(count) } else { 0 };
        let object = change_user_references(object, taken)?;
        for _ in 0..count {
            graph.retain(object.clone());
        }
        Ok(())
    }

    /// Drops references of a graph.
    fn cudaGraphReleaseUserObject(graph: usize, object: usize, count: u32) {
        let (graph, object) = (GRAPHS.get(graph)?, change_user_references(object, 0)?);
        for _ in 0..count {
            graph.release(&object);
        }
        Ok(())
    }
}
