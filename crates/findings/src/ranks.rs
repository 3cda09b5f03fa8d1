// SPDX-License-Identifier: Apache-2.0
//! Phrases about ranks.

use ncclscope_operations::human;
use std::collections::BTreeSet;

/// Maximum number of hosts that are named with ranks.
const HOSTS: usize = 4;
/// Maximum number of ranges of ranks that are named.
pub(crate) const RANGES: usize = 12;

/// Text such as `rank 1`, or `ranks 1-2, 5-8 and 3 more`.
#[must_use]
pub fn ranks(of: &[u32]) -> String {
    format!("{} {}", human::if_one(of.len(), "rank", "ranks"), numbers(of))
}

/// Text such as `1-2, 5-8 and 3 more`.
#[must_use]
pub fn numbers(of: &[u32]) -> String {
    human::list_of_ranges(&human::ranges(of.iter().copied()), RANGES)
}

/// Text such as `rank 9 (node-1, pid 77)`, as far as known.
#[must_use]
pub fn placed_rank(rank: u32, host: Option<&str>, pid: Option<u32>) -> String {
    match (host, pid) {
        (Some(host), Some(pid)) => format!("rank {rank} ({host}, pid {pid})"),
        (Some(host), None) => format!("rank {rank} ({host})"),
        _ => format!("rank {rank}"),
    }
}

/// Text such as `ranks 1, 9 (node-0, node-1)`, with the hosts if they are known and few.
#[must_use]
pub fn placed_ranks<'a>(of: &[u32], hosts: impl Iterator<Item = Option<&'a str>>) -> String {
    let hosts: Option<BTreeSet<&str>> = hosts.collect();
    match hosts {
        Some(hosts) if !hosts.is_empty() && hosts.len() <= HOSTS => {
            format!("{} ({})", ranks(of), hosts.into_iter().collect::<Vec<_>>().join(", "))
        }
        _ => ranks(of),
    }
}
