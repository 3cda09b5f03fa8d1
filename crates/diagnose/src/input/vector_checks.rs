// SPDX-License-Identifier: Apache-2.0
/*!
Which vectors of a table can be true.

A damaged or forged table can hold any numbers. Vectors with numbers that no process can have
counted are left out, so that no verdict depends on them and no text shows them.
*/

use crate::missing::MAX_RANKS;
use ncclscope_trace::progress::progress_flags as partial;
use ncclscope_trace::vectors::{OpenTransfer, Table, Vector};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

/// The rank of a process that does not know its rank in the communicator.
const UNKNOWN: u32 = u32::MAX;

/// Removes vectors that contradict themselves, and those whose transfers do.
/// Returns the number of these vectors.
pub(super) fn keep_possible(table: &mut Table) -> usize {
    let mut doubtful: BTreeSet<u32> = BTreeSet::new();
    for transfer in &table.transfers {
        let of = table.vectors.get(transfer.vector as usize);
        if !of.is_some_and(|vector| is_of(vector, transfer)) {
            doubtful.insert(transfer.vector);
        }
    }
    let all = table.vectors.len();
    let mut at = 0;
    table.retain(|vector| {
        let is_doubtful = doubtful.contains(&at);
        at += 1;
        !is_doubtful && is_possible(vector)
    });
    all - table.vectors.len()
}

/// True if the rank of a vector can have such a transfer.
fn is_of(vector: &Vector, transfer: &OpenTransfer) -> bool {
    let &OpenTransfer { peer, steps, posted, ready, transmitted, done, reached, .. } = transfer;
    let is_member = u32::try_from(peer)
        .is_ok_and(|peer| peer != vector.rank && (vector.nranks == 0 || peer < vector.nranks));
    let counts = [posted, ready, transmitted, done];
    is_member && reached <= Some(3) && counts.into_iter().all(|count| count <= steps)
}

fn is_possible(vector: &Vector) -> bool {
    let &Vector { process, rank, nranks, enqueued, started, done, .. } = vector;
    let is_member = |rank: u32| nranks == 0 || rank < nranks;
    let sees_kernels = vector.flags & u32::from(partial::NO_KERNEL) == 0;
    process < MAX_RANKS
        && nranks <= MAX_RANKS
        && (rank == UNKNOWN || is_member(rank))
        && done <= enqueued
        && (started <= enqueued || !sees_kernels)
        && vector.p2p_done <= vector.p2p_enqueued
}

/// Keeps one vector for each process in each communicator, the most advanced one; there are two if
/// an agent was queried twice. Returns the number of removed vectors.
///
/// Without a hash (API v1 to v3), a process may be in several communicators that look the same;
/// then none of them is kept.
pub(super) fn keep_one_of_each(table: &mut Table) -> usize {
    let vectors = &table.vectors;
    let all = vectors.len();
    let mut kept: HashMap<(u64, u32, u64, u64), usize> = HashMap::with_capacity(all);
    let mut is_left_out = vec![false; all];
    for (at, vector) in vectors.iter().enumerate() {
        match kept.entry((vector.job, vector.process, vector.origin, vector.comm)) {
            Entry::Vacant(free) => {
                free.insert(at);
            }
            Entry::Occupied(mut known) => {
                let other = *known.get();
                let reach = |v: &Vector| (v.done, v.enqueued, v.age_ms);
                let is_further = reach(vector) > reach(&vectors[other]);
                is_left_out[if is_further { other } else { at }] = true;
                is_left_out[at] |= vector.comm == 0;
                is_left_out[other] |= vector.comm == 0;
                if is_further {
                    known.insert(at);
                }
            }
        }
    }
    let mut left_out = is_left_out.into_iter();
    table.retain(|_| left_out.next() != Some(true));
    all - table.vectors.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second rank of four, which waits for the fifth collective.
    fn vector() -> Vector {
        Vector {
            comm: 7,
            process: 1,
            rank: 1,
            nranks: 4,
            api: 5,
            enqueued: 5,
            started: 5,
            done: 4,
            age_ms: 60_000,
            ..Vector::default()
        }
    }

    fn table(vectors: Vec<Vector>) -> Table {
        Table { vectors, ..Table::default() }
    }

    #[test]
    fn what_no_process_can_have_counted_is_left_out() {
        let of = vector();
        let possible = [
            of,
            Vector { nranks: 0, rank: 900, ..of },
            Vector { rank: UNKNOWN, ..of },
            Vector { started: 9, flags: partial::NO_KERNEL.into(), ..of },
            Vector { api: 0, ..of },
        ];
        let impossible = [
            Vector { process: u32::MAX, ..of },
            Vector { nranks: u32::MAX, ..of },
            Vector { rank: 4, ..of },
            Vector { done: 6, ..of },
            Vector { started: 6, ..of },
            Vector { p2p_done: 1, ..of },
        ];
        let mut all = table([&possible[..], &impossible].concat());
        assert_eq!(keep_possible(&mut all), impossible.len());
        assert_eq!(all.vectors, possible);
        let (steps, posted) = (8, 8);
        let fits = OpenTransfer { peer: 3, steps, posted, ..OpenTransfer::default() };
        let wrong = [
            OpenTransfer { peer: 1, ..fits },
            OpenTransfer { peer: 4, ..fits },
            OpenTransfer { peer: -1, ..fits },
            OpenTransfer { done: 9, ..fits },
            OpenTransfer { reached: Some(4), ..fits },
        ];
        for wrong in wrong {
            let mut all = table(vec![of; 2]);
            all.transfers = vec![fits, OpenTransfer { vector: 1, ..wrong }];
            assert_eq!(keep_possible(&mut all), 1, "{wrong:?}");
            assert_eq!((all.vectors.len(), &all.transfers[..]), (1, &[fits][..]));
        }
    }

    #[test]
    fn a_process_is_in_a_communicator_once() {
        let of = vector();
        let further = Vector { done: 5, ..of };
        let other = Vector { process: 2, rank: 2, ..of };
        for order in [[of, further, other], [further, other, of]] {
            let mut all = table(order.to_vec());
            assert_eq!(keep_one_of_each(&mut all), 1);
            let all = all.vectors;
            assert!(all.contains(&further) && all.contains(&other), "{all:?}");
        }
        let unnamed = vec![Vector { comm: 0, ..of }, other, Vector { comm: 0, ..further }];
        let mut unnamed = table(unnamed);
        assert_eq!(keep_one_of_each(&mut unnamed), 2);
        assert_eq!(unnamed.vectors, [other]);
    }
}
