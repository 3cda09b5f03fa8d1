// SPDX-License-Identifier: Apache-2.0
/*!
Collectives by what all of their ranks call them.

A process names the function, algorithm and protocol of each operation by number, and each process
may have other numbers. [`OwnCollectives`] looks each of them up once for each process, since a job
has millions of operations with a dozen names. [`Collectives`] joins what all processes have.
*/

use super::comm_id::CommKey;
use crate::model::Part;
use ncclscope_trace::StrId;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A part, its step, whether its start is that of its kernel, and whether its end is known.
pub(super) type PlacedPart = (Part, Option<i64>, bool, bool);

/// A collective: communicator, function, number, and position among those with the same number.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CollId {
    pub(super) comm: CommKey,
    pub(super) func: Arc<str>,
    seq: u64,
    nth: usize,
}

/// The properties of a collective that are the same on all ranks.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub(super) bytes: Option<u64>,
    /// Members of the communicator.
    pub(super) members: u32,
    /// Algorithm, protocol and channels.
    pub(super) shape: Arc<str>,
}

/// The part of one process in a collective.
pub(super) type OwnPart = (CollId, Kind, PlacedPart);

/// Assigns ids to the collectives of a process.
#[derive(Debug, Default)]
pub(super) struct OwnCollectives {
    /// How often a rank of a communicator has executed a function with one sequence number.
    seen: HashMap<(CommKey, i32, Arc<str>, u64), usize>,
    /// Names of functions by their string numbers in the process.
    funcs: HashMap<StrId, Arc<str>>,
    shapes: HashMap<(StrId, StrId, Option<u16>), Arc<str>>,
}

impl OwnCollectives {
    /// The id of the next collective with this number of `rank`. Replays of a CUDA graph repeat
    /// numbers. `func` is the function's string number in the recording and its name.
    pub(super) fn next(
        &mut self,
        (comm, rank): (CommKey, i32),
        (number, name): (StrId, &str),
        seq: u64,
    ) -> CollId {
        let func = self.funcs.entry(number).or_insert_with(|| name.into());
        let seen = self.seen.entry((comm, rank, Arc::clone(func), seq)).or_default();
        let id = CollId { comm, func: Arc::clone(func), seq, nth: *seen };
        *seen += 1;
        id
    }

    /// The shape for this algorithm, protocol (string numbers in the recording) and number of
    /// channels.
    pub(super) fn shape(
        &mut self,
        (algo, proto, channels): (StrId, StrId, Option<u16>),
        text: impl FnOnce() -> String,
    ) -> Arc<str> {
        Arc::clone(self.shapes.entry((algo, proto, channels)).or_insert_with(|| text().into()))
    }
}

/// The collectives of all processes that were added.
#[derive(Debug, Default)]
pub(super) struct Collectives(HashMap<CollId, (Kind, Vec<PlacedPart>)>);

impl Collectives {
    /// Adds the collectives of a process.
    pub(super) fn add(&mut self, own: Vec<OwnPart>) {
        for (id, kind, part) in own {
            match self.0.entry(id) {
                Entry::Occupied(mut known) => known.get_mut().1.push(part),
                Entry::Vacant(new) => drop(new.insert((kind, vec![part]))),
            }
        }
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &PlacedPart> {
        self.0.values().flat_map(|(_, parts)| parts)
    }

    /// Removes the collectives whose number repeats, and returns how many parts they had. Where
    /// recordings begin at different times, replays of the same position are not the same one.
    pub(super) fn remove_replays(&mut self) -> usize {
        let key = |id: &CollId| (id.comm, Arc::clone(&id.func), id.seq);
        let repeated: HashSet<_> = self.0.keys().filter(|id| id.nth > 0).map(key).collect();
        let mut parts = 0;
        self.0.retain(|id, (_, of)| {
            let is_repeated = repeated.contains(&key(id));
            parts += if is_repeated { of.len() } else { 0 };
            !is_repeated
        });
        parts
    }

    /// Removes all collectives, sorted by communicator, function and number.
    pub(super) fn take(&mut self) -> Vec<(CollId, (Kind, Vec<PlacedPart>))> {
        let mut all: Vec<_> = std::mem::take(&mut self.0).into_iter().collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rank 0 has four replays of collective 5, rank 1 only the last one; and both have 6.
    #[test]
    fn replays_are_not_joined_where_recordings_begin_at_different_times() {
        let comm = CommKey::default();
        let kind = Kind { bytes: None, members: 2, shape: "".into() };
        let mut all = Collectives::default();
        for (rank, numbers) in [(0, &[5, 5, 5, 5, 6][..]), (1, &[5, 6][..])] {
            let mut own = OwnCollectives::default();
            let worker = usize::try_from(rank).unwrap();
            let part = (Part { worker, start: 0.0, end: 1.0 }, None, true, true);
            let next = |seq: &u64| {
                let id = own.next((comm, rank), (StrId::NONE, "AllReduce"), *seq);
                (id, kind.clone(), part)
            };
            all.add(numbers.iter().map(next).collect());
        }
        assert_eq!(all.remove_replays(), 5);
        let left = all.take();
        assert_eq!(
            left.iter().map(|(id, (_, of))| (id.seq, of.len())).collect::<Vec<_>>(),
            [(6, 2)]
        );
    }
}
