// SPDX-License-Identifier: Apache-2.0
//! Kernel events that belong to other kernels.

use super::*;

/// NCCL 2.28 then takes the kernels of later operations for done before they start.
#[test]
fn after_a_send_to_itself_no_kernel_event_shows_an_end() {
    for (version, peer, shows) in [(22_809, 1, true), (22_809, 0, false), (23_102, 0, true)] {
        let mut rank = Rank::new();
        let comm = Comm { index: 0, rank: 0, ranks: 2, ticks: 1, ..Comm::default() };
        rank.tracker.comm(&Comm { nccl_version: version, ..comm });
        let with_kernel = |rank: &mut Rank| {
            let op = rank.coll();
            let kernels = [rank.kernel(op, 0), rank.kernel(op, 1)];
            kernels.into_iter().for_each(|kernel| rank.stop(PROXY, kernel));
        };
        with_kernel(&mut rank);
        assert!(rank.look().is_empty() && rank.comm().has_ends, "{version} {peer}");
        rank.sends([peer]);
        with_kernel(&mut rank);
        rank.look();
        assert_eq!(rank.comm().has_kernels, shows, "{version} {peer}");
        assert_eq!(rank.comm().has_ends, shows, "{version} {peer}");
        let late = rank.coll();
        let waits = rank.look().iter().any(|op| op.handle == late);
        assert_eq!(waits, shows, "{version} {peer}: a kernel that may come");
    }
}
