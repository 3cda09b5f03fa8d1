// SPDX-License-Identifier: Apache-2.0
//! Sums how long the others waited for each rank, over all rows of operations.

use crate::schema::{LastRank, LateRank, OperationRow, RankRow, RoleRow};
use crate::summary::comm_names;
use ncclscope_operations::stats::to_f64;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A rank in the job; if it is unknown, a communicator and the rank in it.
type Who<'a> = (Option<u32>, Option<(&'a str, i32)>);

/// The ranks that others waited for, the one that they waited longest for first. In a healthy job
/// ranks wait for one another, too: which of them is slow, the answer says.
pub(crate) fn late_ranks(
    operations: &[OperationRow],
    ranks: &[RankRow],
    roles: &[RoleRow],
) -> Vec<LateRank> {
    let judged: f64 = roles.iter().filter_map(|row| row.judged_ns).map(to_f64).sum();
    let share = |ns: u64| to_f64(ns) / judged;
    let mut waited: BTreeMap<Who<'_>, u64> = BTreeMap::new();
    for row in operations {
        for LastRank { rank, comm_rank, waiting_ns, .. } in &row.last {
            let member = rank.is_none().then_some((&*row.comm, *comm_rank));
            let sum = waited.entry((*rank, member)).or_default();
            *sum = sum.saturating_add(*waiting_ns);
        }
    }
    waited.retain(|_, ns| judged > 0.0 && *ns > 0);
    let names = comm_names(ranks);
    let late = |((rank, member), waiting_ns): (Who<'_>, u64)| LateRank {
        rank,
        comm: member.map(|(comm, _)| comm.to_owned()),
        comm_name: member.and_then(|(comm, _)| names.get(comm)).map(|name| (*name).to_owned()),
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
