// SPDX-License-Identifier: Apache-2.0
//! What the network parts of operations show.

use super::*;

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

/// As where a large collective comes after a small one: the links are the same.
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
