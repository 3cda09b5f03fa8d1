// SPDX-License-Identifier: Apache-2.0
//! The numbers of operations whose records do not arrive in the order of their starts.

use super::*;

/// Several threads enqueue on one communicator, and their lanes are read one after the other.
#[test]
fn operations_are_numbered_in_the_order_of_their_starts() {
    let mut rank = Rank::new();
    for _ in 0..3 {
        rank.whole();
    }
    assert_eq!(rank.look(), []);
    let begin = rank.now;
    let facts = Coll { func: StrId(1), count: 9, channels: 2, ..Coll::default() };
    let enqueue = |rank: &mut Rank, lane: usize, at: u64| {
        let starts = rank.now;
        rank.now = begin + at * MS;
        let op = rank.start(lane, Handle::NULL, Detail::Coll(facts));
        rank.stop(lane, op);
        rank.now = starts.max(rank.now);
        op
    };
    let even: Vec<Handle> = [2, 4, 6].map(|at| enqueue(&mut rank, API, at)).to_vec();
    let odd: Vec<Handle> = [1, 3, 5].map(|at| enqueue(&mut rank, PROXY + 1, at)).to_vec();
    rank.kernel(odd[0], 0);
    let of = |ops: &[OpView], handle| ops.iter().find(|op| op.handle == handle).unwrap().number;
    let open = rank.look();
    assert_eq!([0, 1, 2].map(|at| of(&open, odd[at])), [4, 6, 8]);
    assert_eq!([0, 1, 2].map(|at| of(&open, even[at])), [5, 7, 9]);
    assert_eq!((rank.comm().oldest_coll, rank.comm().started, rank.comm().colls), (Some(4), 4, 9));
    // One that is read after others were numbered takes its place, too.
    let late = enqueue(&mut rank, PROXY + 2, 0);
    let open = rank.look();
    assert_eq!([late, odd[0], even[2]].map(|handle| of(&open, handle)), [4, 5, 10]);
}
