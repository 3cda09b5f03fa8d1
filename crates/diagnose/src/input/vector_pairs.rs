// SPDX-License-Identifier: Apache-2.0
/*!
Sends and receives of a table of vectors, by their transfers.

A table counts the sends and receives in flight of a member, without their peers. If no collective
of the member is in flight on the communicator, its open transfers are theirs, and name the peers.
They also exist while the kernel waits for its turn: it is seen to run once its GPU has taken data,
or given data that was sent on. A pair of ranks is known if the kernel of one end runs, and the
other end is in it too, or has none in flight any more: data that has moved needs both. What the
first end waits for in the latter case is not known, because the other one may have moved less data.
A rank hides the sends and receives whose kernel is not seen to run.
*/

use super::vector_transfers::{first_of_each, ns, transfer};
use crate::job::{CommKind, Communicator, InFlightOp, Job, Vector};
use ncclscope_trace::progress::progress_flags::{NO_END, NO_KERNEL};
use ncclscope_trace::vectors::{self, OpenTransfer};
use std::collections::{BTreeMap, HashMap};

/// A pair: position of its communicator, and its sender and receiver there.
type Key = (usize, u32, u32);

/// The end of a pair that shows its transfers.
#[derive(Debug)]
struct Side<'a> {
    process: u32,
    rank: u32,
    born_ms: u32,
    sees_kernels: bool,
    transfers: Vec<&'a OpenTransfer>,
}

/// The pairs of a job.
#[derive(Debug, Default)]
pub(super) struct Pairs<'a> {
    /// The sending and the receiving end of each pair.
    sides: BTreeMap<Key, [Option<Side<'a>>; 2]>,
    /// Process, and sends and receives in flight, of members that have any: by communicator and
    /// rank.
    open: BTreeMap<(usize, u32), (u32, u32)>,
}

impl<'a> Pairs<'a> {
    /// Notes the transfers of a vector.
    pub(super) fn note(
        &mut self,
        comm: usize,
        process: u32,
        vector: &vectors::Vector,
        transfers: &'a [OpenTransfer],
    ) {
        let open = vector.p2p_enqueued.saturating_sub(vector.p2p_done);
        if open == 0 {
            return;
        }
        self.open.insert((comm, vector.rank), (process, open));
        if vector.done < vector.enqueued && vector.flags & u32::from(NO_END) == 0 {
            return;
        }
        let sees_kernels = vector.flags & u32::from(NO_KERNEL) == 0;
        for one in first_of_each(transfers) {
            let Ok(peer) = u32::try_from(one.peer) else { continue };
            let key = if one.is_send { (vector.rank, peer) } else { (peer, vector.rank) };
            let sides = self.sides.entry((comm, key.0, key.1)).or_default();
            let (rank, born_ms) = (vector.rank, vector.born_ms);
            let new = || Side { process, rank, born_ms, sees_kernels, transfers: Vec::new() };
            sides[usize::from(!one.is_send)].get_or_insert_with(new).transfers.push(one);
        }
    }

    /// Adds the known pairs to the job, and marks the processes that hide sends or receives.
    pub(super) fn add_to(mut self, job: &mut Job) {
        self.sides.retain(|&(comm, src, dst), sides| match sides {
            [Some(one), Some(two)] => runs(one) || runs(two),
            [Some(one), None] => can_end(one) && !self.open.contains_key(&(comm, dst)),
            [None, Some(one)] => can_end(one) && !self.open.contains_key(&(comm, src)),
            [None, None] => false,
        });
        let mut members: HashMap<usize, HashMap<u32, u32>> = HashMap::new();
        for (key, sides) in self.sides {
            for side in sides.iter().flatten().filter(|side| runs(side)) {
                if let Some((_, hidden)) = self.open.get_mut(&(key.0, side.rank)) {
                    *hidden = hidden.saturating_sub(1);
                }
            }
            let members = members.entry(key.0).or_insert_with(|| {
                job.comms[key.0].vectors.iter().map(|v| (v.rank, v.process)).collect()
            });
            let over = [key.1, key.2].map(|rank| members.get(&rank).copied());
            job.comms.push(pair(job, key, sides, over));
        }
        for (process, _) in self.open.into_values().filter(|(_, hidden)| *hidden > 0) {
            job.processes[process as usize].hides_p2p = true;
        }
    }
}

/// True if its GPU has given data that was sent on, or has taken data, so that its kernel runs.
fn runs(side: &Side<'_>) -> bool {
    let moved = |it: &OpenTransfer| if it.is_send { it.transmitted } else { it.done };
    side.transfers.iter().any(|it| moved(it) > 0)
}

/// True if its kernel runs, and it waits for nothing of the other end.
fn can_end(side: &Side<'_>) -> bool {
    runs(side) && !side.transfers.iter().any(|&it| transfer(it).waits_for_peer())
}

/// The pair; `over` has the processes of both ends. An end without transfers has none in flight.
fn pair(
    job: &Job,
    (comm, src, dst): Key,
    sides: [Option<Side<'_>>; 2],
    over: [Option<u32>; 2],
) -> Communicator {
    let parent = &job.comms[comm];
    let process = |at: usize| sides[at].as_ref().map(|side| side.process).or(over[at]);
    let name = match [process(0), process(1)].map(|one| one.and_then(|one| job.known_rank(one))) {
        [Some(src), Some(dst)] => format!("rank {src} to rank {dst} of {}", parent.name),
        _ => format!("its rank {src} to its rank {dst} of {}", parent.name),
    };
    let changed: HashMap<u32, Option<u64>> =
        parent.vectors.iter().map(|vector| (vector.process, vector.changed_ns)).collect();
    let mut pair = Communicator {
        name,
        kind: CommKind::Pair,
        parent: u32::try_from(comm).ok(),
        nranks: 2,
        ..Communicator::default()
    };
    for ((side, over), rank) in sides.into_iter().zip(over).zip([src, dst]) {
        let one = Vector { rank, api: 1, enqueued: 1, ..Vector::default() };
        if let Some(side) = side {
            let process = side.process;
            let position = u32::try_from(pair.vectors.len()).unwrap_or(u32::MAX);
            pair.vectors.push(Vector {
                process,
                started: side.sees_kernels.then_some(u64::from(runs(&side))),
                rank: side.rank,
                age_ns: side.transfers.iter().map(|it| ns(it.still_ms)).min(),
                born_ns: Some(ns(side.born_ms)),
                changed_ns: changed.get(&process).copied().flatten(),
                ..one
            });
            let transfers = side.transfers.into_iter().map(transfer).collect();
            pair.flights.insert(position, InFlightOp { transfers, ..InFlightOp::default() });
        } else if let Some(process) = over {
            let changed_ns = changed.get(&process).copied().flatten();
            pair.vectors.push(Vector { process, done: 1, changed_ns, ..one });
        }
    }
    pair
}
