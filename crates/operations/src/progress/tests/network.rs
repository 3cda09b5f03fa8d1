// SPDX-License-Identifier: Apache-2.0
//! What the network parts of operations show.

use super::*;

/// A collective from this root, with or without a network part.
fn rooted(rank: &mut Rank, root: i32, is_networked: bool) -> Handle {
    let coll = Coll { func: StrId(2), root, count: 9, channels: 2, ..Coll::default() };
    let op = rank.start(API, Handle::NULL, Detail::Coll(coll));
    rank.stop(API, op);
    if is_networked {
        let proxy = rank.proxy(op, true);
        rank.step(proxy, 0);
        rank.stop(PROXY, proxy);
    }
    op
}

/// The last rank of a ring forwards nothing, and with another root another rank is the last.
#[test]
fn another_root_may_need_no_network() {
    let mut rank = Rank::new();
    rooted(&mut rank, 0, true);
    assert_eq!(rank.look(), []);
    rooted(&mut rank, 2, false);
    assert_eq!(rank.look(), [], "it may be over");
    let stuck = rooted(&mut rank, 0, false);
    assert_eq!(rank.look()[0].handle, stuck, "that of this root has a network part");
}

/// For example, NCCL spreads the collectives of a group over channels, which cross the network at
/// other ranks.
#[test]
fn what_was_over_without_the_network_once_is_not_expected_to_use_it() {
    let mut rank = Rank::new();
    for is_networked in [true, false, true] {
        rooted(&mut rank, 0, is_networked);
    }
    rank.now += 5 * HZ;
    rank.look();
    rooted(&mut rank, 0, false);
    assert_eq!(rank.look(), [], "nothing shows that it is not over");
}

/// PXN: the owner of the first two is one communicator, that of the third another process.
#[test]
fn work_for_other_processes_is_told_by_owner_and_since_its_latest_change() {
    let mut rank = Rank::new();
    let send = |rank: &mut Rank, pid| {
        let detail =
            ProxyOp { is_send: true, peer: 1, steps: 4, foreign: true, pid, ..ProxyOp::default() };
        let proxy = rank.start(PROXY, Handle::NULL, Detail::ProxyOp(detail));
        rank.step(proxy, 0);
        proxy
    };
    let (first, second) = (send(&mut rank, 8), send(&mut rank, 8));
    let other = send(&mut rank, 9);
    assert_eq!(rank.look(), [], "no operation of this process");
    let owners = |rank: &Rank| -> Vec<(u32, usize, bool)> {
        let all = rank.tracker.foreign().into_iter();
        all.map(|work| (work.owner.pid, work.ops.len(), work.is_first)).collect()
    };
    assert_eq!(owners(&rank), [(8, 2, true), (9, 1, true)]);
    rank.stop(PROXY, first);
    let end = rank.now;
    rank.look();
    assert_eq!(owners(&rank), [(8, 1, false), (9, 1, true)]);
    let [work, _] = <[_; 2]>::try_from(rank.tracker.foreign()).unwrap();
    assert_eq!((work.ops[0].handle, work.since), (second, end), "since the end before it");
    rank.look_with(&|handle| handle != other && handle != second);
    assert_eq!(owners(&rank), [], "their slots are free, whether or not a record said so");
}

#[test]
fn without_kernels_the_network_tells() {
    let mut rank = Rank::new();
    let op = rank.coll();
    let proxy = rank.proxy(op, false);
    rank.proxy(op, true);
    assert_eq!(rank.look(), [], "NCCL starts some that never move");
    rank.step(proxy, 0);
    let open = rank.look();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].proxies.len(), 1, "the other one is of another link");
    assert_eq!((open[0].proxies[0].done, open[0].proxies[0].steps), (1, 4));
    rank.stop(PROXY, proxy);
    assert_eq!(rank.look(), []);
    let stuck = rank.coll();
    assert_eq!(rank.look()[0].handle, stuck, "such a collective has a network part");
    assert!(rank.tracker.in_flight()[0].awaits_network);
}

/// A ProxyOp moves and stops after the lanes were read for a look, so that its records come later.
#[test]
fn a_network_part_that_ends_during_a_look_is_one() {
    let mut rank = Rank::new();
    rooted(&mut rank, 0, true);
    assert_eq!(rank.look(), []);
    let op = rooted(&mut rank, 0, false);
    let proxy = rank.proxy(op, true);
    assert_eq!(rank.look_with(&|handle| handle != proxy), []);
    rank.step(proxy, 0);
    rank.stop(PROXY, proxy);
    assert_eq!(rank.look(), []);
    let stuck = rooted(&mut rank, 0, false);
    assert_eq!(rank.look()[0].handle, stuck, "they still have a network part");
}

/// For example, a large collective follows a small one: both use the same links.
#[test]
fn a_protocol_says_nothing_of_the_network() {
    let mut rank = Rank::new();
    let op = rank.coll();
    let proxy = rank.proxy(op, false);
    rank.step(proxy, 0);
    rank.stop(PROXY, proxy);
    assert_eq!(rank.look(), []);
    let stuck = rank.coll_of(StrId(7));
    assert_eq!(rank.look()[0].handle, stuck);
    assert!(rank.tracker.in_flight()[0].awaits_network);
}

#[test]
fn an_early_stop_with_a_network_part_ends_with_that() {
    let mut rank = Rank::new();
    rank.whole();
    rank.tracker.string(StrId(9), "TREE");
    let led = rank.led(StrId(9));
    let proxy = rank.proxy(led, true);
    rank.step(proxy, 0);
    let behind = rank.coll();
    assert_eq!(rank.look()[0].handle, led, "its network part is open");
    rank.stop(PROXY, proxy);
    assert_eq!(rank.look()[0].handle, behind);
}
