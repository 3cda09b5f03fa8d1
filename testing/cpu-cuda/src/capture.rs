// SPDX-License-Identifier: Apache-2.0
//! Stream capture: work becomes graph nodes instead of running (CUDA Runtime API manual,
//! "Stream Management").
//!
//! A capture belongs to the stream it was begun in. Another stream joins by waiting for an event
//! that was recorded in the capture. Each member has a frontier, the nodes that its next node
//! depends on; an event recorded in a capture carries a frontier to the stream that waits for it.
//! Not enforced: that every stream is joined back at the end, and the calls that the capture modes
//! forbid, because NCCL relies on neither.

pub mod member;

use crate::error::{Error, Result};
use crate::event::{Event, Recorded};
use crate::graph::{Action, GRAPHS, Graph};
use crate::stream::Stream;
use crate::util::lock;
use crate::work::{Kind, Work};
use member::{Capture, Member, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// How [`update`] treats the old frontier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// Extend it.
    Add,
    /// Replace it.
    Set,
}

/// Captures that have begun and not ended.
static ACTIVE: AtomicI32 = AtomicI32::new(0);

/// Whether anything is being captured, in any stream.
pub fn is_any() -> bool {
    ACTIVE.load(Ordering::Acquire) != 0
}

/// Begins a capture in `stream`.
///
/// # Errors
/// [`Error::ILLEGAL_STATE`] if it is capturing already.
pub fn begin(stream: &Stream) -> Result {
    with_member(stream, |member| {
        if member.is_some() {
            return Err(Error::ILLEGAL_STATE);
        }
        let capture = Arc::new(Capture::begin(Graph::create().handle, stream.id));
        *member = Some(Member { capture, frontier: Vec::new() });
        ACTIVE.fetch_add(1, Ordering::AcqRel);
        Ok(())
    })
}

/// Ends the capture that was begun in `stream`; all its members return to normal.
///
/// # Errors
/// [`Error::STREAM_CAPTURE_UNMATCHED`] if it was begun elsewhere,
/// [`Error::STREAM_CAPTURE_INVALIDATED`] if it is broken, [`Error::ILLEGAL_STATE`] without any.
pub fn end(stream: &Stream) -> Result<Arc<Graph>> {
    with_member(stream, |member| {
        let capture = member.as_ref().ok_or(Error::ILLEGAL_STATE)?.capture.clone();
        if capture.origin != stream.id {
            return Err(Error::STREAM_CAPTURE_UNMATCHED);
        }
        let whole = capture.status() == Status::Active;
        ACTIVE.fetch_sub(1, Ordering::AcqRel);
        capture.set(Status::None);
        *member = None;
        let graph = GRAPHS.get(capture.graph)?;
        if whole {
            return Ok(graph);
        }
        graph.destroy()?;
        Err(Error::STREAM_CAPTURE_INVALIDATED)
    })
}

/// Calls `body` with the stream's place in a running capture. A place in a finished capture is
/// cleared first: the caller that ends a capture does not know its members.
pub fn with_member<T>(stream: &Stream, body: impl FnOnce(&mut Option<Member>) -> T) -> T {
    let mut member = lock(&stream.capture);
    if member.as_ref().is_some_and(|m| m.capture.status() == Status::None) {
        *member = None;
    }
    body(&mut member)
}

/// The state of `stream`'s capture.
pub fn status(stream: &Stream) -> Status {
    with_member(stream, |m| m.as_ref().map_or(Status::None, Member::state))
}

/// Succeeds if `stream` is not capturing; otherwise the call invalidates the capture.
///
/// # Errors
/// [`Error::STREAM_CAPTURE_UNSUPPORTED`] if it is capturing.
pub fn forbid(stream: &Stream) -> Result {
    with_member(stream, |member| match member {
        None => Ok(()),
        Some(member) => {
            member.capture.set(Status::Invalidated);
            Err(Error::STREAM_CAPTURE_UNSUPPORTED)
        }
    })
}

/// Runs `work` in `stream`, or makes it a node if the stream is capturing.
///
/// # Errors
/// [`Error::STREAM_CAPTURE_INVALIDATED`] if the capture is broken.
pub fn enqueue(stream: &Arc<Stream>, work: Work) -> Result {
    let left = with_member(stream, |member| match member {
        None => Ok(Some(work)),
        Some(member) => append(member, Action::Work(work)).map(|()| None),
    })?;
    if let Some(work) = left {
        stream.submit(work);
    }
    Ok(())
}

/// Adds a node after the frontier; the node becomes the new frontier.
fn append(member: &mut Member, action: Action) -> Result {
    check(member)?;
    let node = GRAPHS.get(member.capture.graph)?.add(action, &member.frontier)?;
    member.frontier = vec![node];
    Ok(())
}

fn check(member: &Member) -> Result {
    match member.capture.status() {
        Status::Active => Ok(()),
        _ => Err(Error::STREAM_CAPTURE_INVALIDATED),
    }
}

/// Records `event` in `stream`. In a capture the event gets the frontier; with `external` it
/// becomes a node that records the event in every replay.
///
/// # Errors
/// [`Error::STREAM_CAPTURE_INVALIDATED`] if the capture is broken.
pub fn record(stream: &Arc<Stream>, event: &Arc<Event>, external: bool) -> Result {
    let captured = with_member(stream, |member| match member {
        None => Ok(false),
        Some(member) if external => append(member, Action::Record(event.clone())).map(|()| true),
        Some(member) => {
            check(member)?;
            event.set(Recorded::Capture(member.clone()));
            Ok(true)
        }
    })?;
    if !captured {
        stream.submit(event.record());
    }
    Ok(())
}

/// Makes `stream` wait for `event`. An event of a capture takes the stream into it; with
/// `external` the wait becomes a node.
///
/// # Errors
/// [`Error::STREAM_CAPTURE_ISOLATION`] if a capturing stream waits for an event outside,
/// [`Error::STREAM_CAPTURE_MERGE`] if event and stream belong to different captures.
pub fn wait(stream: &Arc<Stream>, event: &Arc<Event>, external: bool) -> Result {
    let recorded = event.recorded();
    let left = with_member(stream, |member| match (member, recorded) {
        (Some(member), _) if external => append(member, Action::Wait(event.clone())).map(|()| None),
        (Some(_), Recorded::Nothing) => Ok(None),
        (Some(_), Recorded::Point(_)) => Err(Error::STREAM_CAPTURE_ISOLATION),
        (Some(member), Recorded::Capture(at)) => {
            if member.capture.id != at.capture.id {
                return Err(Error::STREAM_CAPTURE_MERGE);
            }
            check(member)?;
            extend(&mut member.frontier, &at.frontier);
            Ok(None)
        }
        (None, Recorded::Nothing) => Ok(None),
        (None, Recorded::Point(marker)) => Ok(Some(marker)),
        (member @ None, Recorded::Capture(at)) => {
            check(&at).map_err(|_| Error::CAPTURED_EVENT)?;
            *member = Some(at);
            Ok(None)
        }
    })?;
    if let Some(marker) = left {
        stream.submit(Work::new(Kind::WaitEvent, move || marker.wait()));
    }
    Ok(())
}

/// Changes the frontier of a capturing stream (`cudaStreamUpdateCaptureDependencies`).
///
/// # Errors
/// [`Error::ILLEGAL_STATE`] if the stream is not capturing.
pub fn update(stream: &Stream, nodes: Vec<usize>, how: Update) -> Result {
    with_member(stream, |member| {
        let member = member.as_mut().ok_or(Error::ILLEGAL_STATE)?;
        check(member)?;
        if how == Update::Set {
            member.frontier.clear();
        }
        extend(&mut member.frontier, &nodes);
        Ok(())
    })
}

fn extend(frontier: &mut Vec<usize>, nodes: &[usize]) {
    for &node in nodes {
        if !frontier.contains(&node) {
            frontier.push(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::NON_BLOCKING;
    use std::sync::Mutex;

    fn stream() -> Arc<Stream> {
        Arc::new(Stream::new(0, NON_BLOCKING, 0))
    }

    fn note(log: &Arc<Mutex<Vec<u32>>>, value: u32) -> Work {
        let log = log.clone();
        Work::new(Kind::Host, move || lock(&log).push(value))
    }

    #[test]
    fn captured_work_runs_only_when_launched() {
        let (stream, log) = (stream(), Arc::new(Mutex::new(Vec::new())));
        begin(&stream).unwrap();
        assert_eq!(status(&stream), Status::Active);
        enqueue(&stream, note(&log, 1)).unwrap();
        enqueue(&stream, note(&log, 2)).unwrap();
        let graph = end(&stream).unwrap();
        assert_eq!(status(&stream), Status::None);
        assert!(lock(&log).is_empty());
        let exec = Arc::new(graph.instantiate().unwrap());
        for _ in 0..2 {
            enqueue(&stream, exec.launch().unwrap()).unwrap();
        }
        stream.synchronize();
        assert_eq!(*lock(&log), [1, 2, 1, 2]);
    }

    #[test]
    fn an_event_takes_another_stream_into_the_capture_and_back() {
        let (origin, other, log) = (stream(), stream(), Arc::new(Mutex::new(Vec::new())));
        let (fork, join) = (Arc::new(Event::new(false)), Arc::new(Event::new(false)));
        begin(&origin).unwrap();
        enqueue(&origin, note(&log, 1)).unwrap();
        record(&origin, &fork, false).unwrap();
        assert_eq!(fork.is_done(), Err(Error::CAPTURED_EVENT));
        wait(&other, &fork, false).unwrap();
        enqueue(&other, note(&log, 2)).unwrap();
        record(&other, &join, false).unwrap();
        wait(&origin, &join, false).unwrap();
        enqueue(&origin, note(&log, 3)).unwrap();
        assert_eq!(end(&other).map(|g| g.handle), Err(Error::STREAM_CAPTURE_UNMATCHED));
        let graph = end(&origin).unwrap();
        assert_eq!(status(&other), Status::None);
        assert_eq!(graph.nodes().len(), 3);
        Arc::new(graph.instantiate().unwrap()).launch().unwrap().run();
        assert_eq!(*lock(&log), [1, 2, 3]);
    }

    #[test]
    fn the_frontier_can_be_set_from_outside() {
        let (stream, log) = (stream(), Arc::new(Mutex::new(Vec::new())));
        begin(&stream).unwrap();
        enqueue(&stream, note(&log, 1)).unwrap();
        let graph = with_member(&stream, |m| m.as_ref().unwrap().capture.graph);
        let graph = GRAPHS.get(graph).unwrap();
        let alone = graph.add(Action::Work(note(&log, 2)), &[]).unwrap();
        update(&stream, vec![alone], Update::Add).unwrap();
        update(&stream, vec![alone], Update::Add).unwrap();
        let frontier = |s: &Stream| with_member(s, |m| m.as_ref().unwrap().frontier.clone());
        assert_eq!(frontier(&stream).len(), 2);
        update(&stream, vec![alone], Update::Set).unwrap();
        assert_eq!(frontier(&stream), [alone]);
        end(&stream).unwrap();
        assert_eq!(update(&stream, Vec::new(), Update::Set), Err(Error::ILLEGAL_STATE));
    }

    #[test]
    fn work_outside_is_isolated_from_captures() {
        let (capturing, live) = (stream(), stream());
        let (event, unused) = (Arc::new(Event::new(false)), Arc::new(Event::new(false)));
        record(&live, &event, false).unwrap();
        begin(&capturing).unwrap();
        assert_eq!(wait(&capturing, &event, false), Err(Error::STREAM_CAPTURE_ISOLATION));
        wait(&capturing, &event, true).unwrap();
        wait(&capturing, &unused, false).unwrap();
        record(&capturing, &event, true).unwrap();
        assert_eq!(begin(&capturing), Err(Error::ILLEGAL_STATE));
        assert_eq!(end(&capturing).unwrap().nodes().len(), 2);
    }

    #[test]
    fn a_forbidden_call_breaks_the_capture() {
        let stream = stream();
        forbid(&stream).unwrap();
        begin(&stream).unwrap();
        assert_eq!(forbid(&stream), Err(Error::STREAM_CAPTURE_UNSUPPORTED));
        let work = Work::new(Kind::Empty, || ());
        assert_eq!(enqueue(&stream, work), Err(Error::STREAM_CAPTURE_INVALIDATED));
        assert_eq!(end(&stream).map(|g| g.handle), Err(Error::STREAM_CAPTURE_INVALIDATED));
        assert_eq!(end(&stream).map(|g| g.handle), Err(Error::ILLEGAL_STATE));
    }
}
