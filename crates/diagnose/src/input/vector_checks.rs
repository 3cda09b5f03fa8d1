// SPDX-License-Identifier: Apache-2.0
/*!
Which vectors of a table can be true.

A damaged or forged table can hold any numbers. Vectors with numbers that no process can have
counted are left out, so that no verdict depends on them and no text shows them.
*/

use super::assemble::MAX_RANKS;
use ncclscope_trace::progress::progress_flags as partial;
use ncclscope_trace::vectors::{Vector, vector_flags};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The rank of a process that does not know its rank in the communicator.
const UNKNOWN: u32 = u32::MAX;

/// Removes vectors that contradict themselves, and returns their number.
pub(super) fn keep_possible(vectors: &mut Vec<Vector>) -> usize {
    let all = vectors.len();
    vectors.retain(is_possible);
    all - vectors.len()
}

fn is_possible(vector: &Vector) -> bool {
    let &Vector { process, rank, nranks, enqueued, started, done, peer, .. } = vector;
    let is_member = |rank: u32| nranks == 0 || rank < nranks;
    let sees_kernels = vector.flags & u32::from(partial::NO_KERNEL) == 0;
    let counts_p2p = vector.flags & vector_flags::NO_P2P == 0;
    let has_link = peer >= 0;
    process < MAX_RANKS
        && nranks <= MAX_RANKS
        && (rank == UNKNOWN || is_member(rank))
        && done <= enqueued
        && (started <= enqueued || !sees_kernels)
        && (vector.p2p_done <= vector.p2p_enqueued || !counts_p2p)
        && (!has_link || is_member(peer.cast_unsigned()) && peer.cast_unsigned() != rank)
}

/// Keeps one vector for each process in each communicator, the most advanced one; there are two if
/// an agent was queried twice. Returns the number of removed vectors.
///
/// Without a hash (API v1 to v3), a process may be in several communicators that look the same;
/// then none of them is kept.
pub(super) fn keep_one_of_each(vectors: &mut Vec<Vector>) -> usize {
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
    vectors.retain(|_| left_out.next() != Some(true));
    all - vectors.len()
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
            peer: -1,
            ..Vector::default()
        }
    }

    #[test]
    fn what_no_process_can_have_counted_is_left_out() {
        let of = vector();
        let possible = [
            of,
            Vector { nranks: 0, rank: 900, ..of },
            Vector { rank: UNKNOWN, ..of },
            Vector { peer: 3, ..of },
            Vector { started: 9, flags: partial::NO_KERNEL.into(), ..of },
            Vector { p2p_done: 1, flags: vector_flags::NO_P2P, ..of },
            Vector { api: 0, ..of },
        ];
        let impossible = [
            Vector { process: u32::MAX, ..of },
            Vector { nranks: u32::MAX, ..of },
            Vector { rank: 4, ..of },
            Vector { done: 6, ..of },
            Vector { started: 6, ..of },
            Vector { p2p_done: 1, ..of },
            Vector { peer: 1, ..of },
            Vector { peer: 4, ..of },
        ];
        let mut all = [&possible[..], &impossible].concat();
        assert_eq!(keep_possible(&mut all), impossible.len());
        assert_eq!(all, possible);
    }

    #[test]
    fn a_process_is_in_a_communicator_once() {
        let of = vector();
        let further = Vector { done: 5, ..of };
        let other = Vector { process: 2, rank: 2, ..of };
        for order in [[of, further, other], [further, other, of]] {
            let mut all = order.to_vec();
            assert_eq!(keep_one_of_each(&mut all), 1);
            assert!(all.contains(&further) && all.contains(&other), "{all:?}");
        }
        let mut unnamed = vec![Vector { comm: 0, ..of }, other, Vector { comm: 0, ..further }];
        assert_eq!(keep_one_of_each(&mut unnamed), 2);
        assert_eq!(unnamed, [other]);
    }
}
