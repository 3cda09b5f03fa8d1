// SPDX-License-Identifier: Apache-2.0
//! Sums how long the others waited for each rank, over all rows of operations.

use crate::schema::{LastRank, LateRank, OperationRow, RankRow, RoleRow};
use ncclscope_operations::stats::to_f64;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Minimum share of the time in NCCL for which a rank counts as late.
const LATE: f64 = 0.02;

/// A rank in the job; if it is unknown, a communicator and the rank in it.
type Who<'a> = (Option<u32>, Option<(&'a str, i32)>);

/// The late ranks, the one that the others waited longest for first.
pub(crate) fn late_ranks(
    operations: &[OperationRow],
    ranks: &[RankRow],
    roles: &[RoleRow],
) -> Vec<LateRank> {
    let in_nccl: f64 = roles.iter().filter_map(|row| row.in_nccl_ns).map(to_f64).sum();
    // Each rank's waiting is estimated, so that the sum may exceed the time by a little.
    let share = |ns: u64| (to_f64(ns) / in_nccl).min(1.0);
    let mut waited: BTreeMap<Who<'_>, u64> = BTreeMap::new();
    for row in operations {
        for LastRank { rank, comm_rank, waiting_ns, .. } in &row.last {
            let member = rank.is_none().then_some((&*row.comm, *comm_rank));
            let sum = waited.entry((*rank, member)).or_default();
            *sum = sum.saturating_add(*waiting_ns);
        }
    }
    // Without time in NCCL the share is no number, and no rank is late.
    waited.retain(|_, ns| share(*ns) >= LATE);
    let late = |((rank, member), waiting_ns): (Who<'_>, u64)| LateRank {
        rank,
        comm: member.map(|(comm, _)| comm.to_owned()),
        comm_rank: member.map(|(_, rank)| rank),
        host: host(ranks, rank, member),
        waiting_ns,
        share: share(waiting_ns),
    };
    let mut late: Vec<LateRank> = waited.into_iter().map(late).collect();
    late.sort_by_key(|rank| Reverse(rank.waiting_ns));
    late
}

fn host(ranks: &[RankRow], rank: Option<u32>, member: Option<(&str, i32)>) -> Option<String> {
    let is_same = |row: &&RankRow| match member {
        Some((comm, rank)) => row.comm.as_deref() == Some(comm) && row.comm_rank == Some(rank),
        None => row.rank == rank,
    };
    ranks.iter().find(is_same).map(|row| row.host.clone())
}
