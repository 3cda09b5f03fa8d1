// SPDX-License-Identifier: Apache-2.0
/*!
Finds the records of several ranks that belong together: those of a collective, and the network
steps that a send and a receive share.

Nothing is guessed by time. A collective is identified by its communicator's hash, its function, its
sequence number and, if a graph's replays repeat that number, by its index among them. A ProxyOp is
identified by the communicator, both ranks, the channel, its operation's function and sequence
number, and its index among ProxyOps with the same of these; sends and receives have no sequence
number and are only counted. If the count cannot be right, nothing is matched: the process lost
operations, or recorded a window or a sample of them, or has several communicators without a hash
(API v1 to v3).
*/

use crate::ident::{Hash, Map};
use ncclscope_operations::{EventId, Operation, Parent, Timeline};
use ncclscope_trace::{Detail, EventKind};

/// Names of a process's operations that are the same on all ranks.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Names of collectives, by the operation's own event.
    pub(crate) collectives: Map<EventId, u64>,
    /// Names of ProxyOps, by their event.
    pub(crate) proxy_ops: Map<EventId, u64>,
}

impl Names {
    pub(crate) fn new(timeline: &Timeline<'_>, operations: &[Operation]) -> Names {
        let context = Context {
            timeline,
            by_event: operations.iter().map(|o| (o.event, o)).collect(),
            is_partial: [EventKind::ProxyOp, EventKind::Coll, EventKind::CeColl]
                .map(|kind| is_partial(timeline, kind)),
        };
        let collectives = operations.iter().filter_map(|o| context.collective(o)).collect();
        let ops = timeline.events().filter_map(|(id, _)| context.proxy_op(id)).collect();
        Names { collectives: numbered(collectives), proxy_ops: numbered(ops) }
    }
}

/// An event to be named: its start, and a hash of its properties that other events of the rank may
/// share.
struct Candidate {
    ticks: u64,
    event: EventId,
    hash: Hash,
    /// Sends and receives are counted separately.
    is_send: bool,
    /// The recording has all such events, so the n-th here is the n-th on the other ranks.
    is_countable: bool,
}

/// Names events by their hash and, for events with the same hash, by their order.
fn numbered(mut candidates: Vec<Candidate>) -> Map<EventId, u64> {
    candidates.sort_unstable_by_key(|candidate| (candidate.ticks, candidate.event));
    let key = |candidate: &Candidate| candidate.hash.number(u64::from(candidate.is_send)).id();
    let mut counts: Map<u64, u64> = Map::default();
    for candidate in &candidates {
        *counts.entry(key(candidate)).or_default() += 1;
    }
    let mut seen: Map<u64, u64> = Map::default();
    let named = candidates.into_iter().filter_map(|candidate| {
        let key = key(&candidate);
        let nth = seen.entry(key).or_default();
        *nth += 1;
        let is_known = candidate.is_countable || counts.get(&key) == Some(&1);
        is_known.then(|| (candidate.event, candidate.hash.number(*nth).id()))
    });
    named.collect()
}

struct Context<'t, 'r> {
    timeline: &'t Timeline<'r>,
    by_event: Map<EventId, &'t Operation>,
    is_partial: [bool; 3],
}

impl Context<'_, '_> {
    fn collective(&self, operation: &Operation) -> Option<Candidate> {
        let event = self.timeline.event(operation.event);
        let is_ce = event.kind() == EventKind::CeColl;
        let hash = self.communicator("collective", operation.comm?)?;
        let hash = hash
            .number(u64::from(is_ce))
            .text(self.timeline.string(operation.func))
            .number(operation.seq?);
        let is_countable = !self.is_partial[if is_ce { 2 } else { 1 }];
        let (ticks, event) = (event.start.ticks, operation.event);
        Some(Candidate { ticks, event, hash, is_send: false, is_countable })
    }

    fn proxy_op(&self, id: EventId) -> Option<Candidate> {
        let event = self.timeline.event(id);
        let (Detail::ProxyOp(op), Parent::Known(parent)) = (event.start.detail, event.parent)
        else {
            return None;
        };
        let operation = self.by_event.get(&parent)?;
        let hash = self.communicator("proxy", self.timeline.comm_of(event)?)?;
        let (src, dst) = if op.is_send { (op.rank, op.peer) } else { (op.peer, op.rank) };
        let func = match operation.seq {
            // The function is left out, because a Send on one side is a Recv on the other.
            None => "",
            Some(_) => self.timeline.string(operation.func),
        };
        let hash = hash
            .rank(src)
            .rank(dst)
            .number(u64::from(op.channel))
            .text(func)
            .number(operation.seq.map_or(0, |seq| seq + 1));
        let is_countable = !self.is_partial[0];
        // Without a sequence number even a single ProxyOp cannot be identified in an incomplete
        // recording.
        let is_known = is_countable || operation.seq.is_some();
        let (ticks, is_send) = (event.start.ticks, op.is_send);
        is_known.then_some(Candidate { ticks, event: id, hash, is_send, is_countable })
    }

    /// The hash of a communicator; `None` if the API version gives none and the process has
    /// several.
    fn communicator(&self, kind: &str, position: usize) -> Option<Hash> {
        let comm = self.timeline.comm(position);
        let is_known = comm.hash != 0 || self.timeline.recording().comms().len() == 1;
        is_known.then(|| Hash::new(kind).number(comm.hash))
    }
}

/// Whether events of a kind are missing that NCCL reported, or would have reported outside of the
/// windows.
fn is_partial(timeline: &Timeline<'_>, kind: EventKind) -> bool {
    let recording = timeline.recording();
    recording.lacks(kind) || recording.is_windowed()
}
