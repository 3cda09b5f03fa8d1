// SPDX-License-Identifier: Apache-2.0
/*!
What is the same on all ranks: collectives, and the network steps that a send and a receive share.

Nothing is guessed by time. A collective is known by its communicator's hash, its function, its
sequence number and, where a graph's replays repeat that number, by which of these it is. A ProxyOp
is known by the communicator, both ranks, the channel, its operation's function and sequence number,
and by which of these it is; sends and receives have no sequence number, so there counting is all
there is. Where counting cannot be right, nothing is matched: the process lost operations, or
recorded a window or a sample of them, or has several communicators without a hash (API v1 to v3).
*/

use crate::ident::{Hash, Map};
use crate::parallel::fold;
use crate::scene::Scene;
use ncclscope_operations::windows::is_windowed;
use ncclscope_operations::{EventId, Operation, Parent, Timeline};
use ncclscope_trace::record::step_flags;
use ncclscope_trace::{Detail, EventKind, Recording};

/// What a process's operations are known by on all ranks.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By the operation's own event.
    pub(crate) collectives: Map<EventId, u64>,
    /// By the ProxyOp's event.
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

/// An event, when it started, and what it shares with others of its rank.
struct Candidate {
    ticks: u64,
    event: EventId,
    hash: Hash,
    /// Sends and receives are counted apart.
    is_send: bool,
    /// The first such event is the first on the other ranks as well, and the others follow.
    is_countable: bool,
}

/// Names for events by their hashes and, for those of one hash, by their order.
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
            // A Send on one side is a Recv on the other.
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
        // One that is alone in the recording is not, where there is nothing else to know it by.
        let is_known = is_countable || operation.seq.is_some();
        let (ticks, is_send) = (event.start.ticks, op.is_send);
        is_known.then_some(Candidate { ticks, event: id, hash, is_send, is_countable })
    }

    /// `None` where the communicator is not known.
    fn communicator(&self, kind: &str, position: usize) -> Option<Hash> {
        let comm = self.timeline.comm(position);
        let is_known = comm.hash != 0 || self.timeline.recording().comms().len() == 1;
        is_known.then(|| Hash::new(kind).number(comm.hash))
    }
}

/// Some events of a kind are not in the recording, though NCCL reported them or would have.
fn is_partial(timeline: &Timeline<'_>, kind: EventKind) -> bool {
    let recording = timeline.recording();
    let (header, kind) = (recording.header(), kind.index());
    let counts = [header.without_memory()[kind], header.overwritten[kind], header.unwritten[kind]];
    recording.lanes().iter().any(|lane| lane.header.lost[kind] != 0)
        || counts.iter().any(|&count| count != 0)
        || is_windowed(recording)
}

/// The network steps that were recorded on both sides.
#[derive(Debug, Default)]
pub struct StepIndex {
    sides: Map<u64, [Option<Side>; 2]>,
    both: Map<u64, Vec<u32>>,
}

#[derive(Debug)]
enum Side {
    /// The numbers of the steps.
    Steps(Vec<u32>),
    /// Two processes, or two steps of one number, match it: which one is right is not known.
    Ambiguous,
}

impl StepIndex {
    /// The steps of all recordings; one alone has none on both sides.
    #[must_use]
    pub fn new(recordings: &[Recording]) -> StepIndex {
        let mut index = StepIndex::default();
        if recordings.len() > 1 {
            let add = |part: &mut StepIndex, recording: &Recording| {
                part.add(&Scene::new(&Timeline::read(recording, true)));
            };
            fold(recordings, add).into_iter().for_each(|part| index.join(part));
        }
        index.finish();
        index
    }

    /// Adds the steps of a process.
    fn add(&mut self, scene: &Scene<'_, '_>) {
        let timeline = scene.timeline();
        for (id, event) in timeline.events() {
            let (Detail::ProxyOp(op), Some(name)) = (event.start.detail, scene.proxy_name(id))
            else {
                continue;
            };
            let mut steps: Vec<u32> = scene
                .steps_of(id)
                .iter()
                .map(|&index| timeline.steps()[index as usize].1)
                .filter(|step| step.has(step_flags::IS_SEND) == op.is_send)
                .map(|step| step.step)
                .collect();
            steps.sort_unstable();
            let all = steps.len();
            steps.dedup();
            let is_clear = steps.len() == all;
            let side = if is_clear { Side::Steps(steps) } else { Side::Ambiguous };
            self.claim(name, usize::from(op.is_send), side);
        }
    }

    fn claim(&mut self, name: u64, way: usize, side: Side) {
        let place = &mut self.sides.entry(name).or_default()[way];
        *place = Some(if place.is_none() { side } else { Side::Ambiguous });
    }

    fn join(&mut self, part: StepIndex) {
        for (name, sides) in part.sides {
            for (way, side) in sides.into_iter().enumerate() {
                if let Some(side) = side {
                    self.claim(name, way, side);
                }
            }
        }
    }

    /// Keeps what both sides have.
    fn finish(&mut self) {
        for (name, sides) in std::mem::take(&mut self.sides) {
            if let [Some(Side::Steps(mut received)), Some(Side::Steps(sent))] = sides {
                received.retain(|step| sent.binary_search(step).is_ok());
                received.shrink_to_fit();
                self.both.insert(name, received);
            }
        }
    }

    /// The steps of a ProxyOp that both sides have, in order.
    #[must_use]
    pub fn steps(&self, name: u64) -> &[u32] {
        self.both.get(&name).map_or(&[], Vec::as_slice)
    }
}
