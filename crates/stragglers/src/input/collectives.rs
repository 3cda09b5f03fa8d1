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
use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    shapes: HashMap<(StrId, StrId, Option<u8>), Arc<str>>,
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
        (algo, proto, channels): (StrId, StrId, Option<u8>),
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

    /// Removes all collectives, sorted by communicator, function and number.
    pub(super) fn take(&mut self) -> Vec<(CollId, (Kind, Vec<PlacedPart>))> {
        let mut all: Vec<_> = std::mem::take(&mut self.0).into_iter().collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        all
    }
}
