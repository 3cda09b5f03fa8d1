// SPDX-License-Identifier: Apache-2.0
//! Processes with several ranks: JAX runs eight GPUs in one process. Each rank counts as a process
//! of its own, because one of them may wait for another.

use super::snapshot::{Member, Snapshot};
use ncclscope_trace::local_ranks::{LocalMember, local_ranks};
use std::collections::BTreeMap;

/// Splits a process into one snapshot per rank. The recording does not say to which rank a thread
/// or the call that has not returned belongs, so that none of several ranks gets them.
pub(super) fn split(snapshot: Snapshot) -> Vec<Snapshot> {
    let places = snapshot.comms.iter().map(|member| LocalMember {
        hash: member.hash,
        name: &member.name,
        rank: member.rank.cast_signed(),
        nranks: member.nranks,
        device: member.device,
    });
    let Some(numbers) = local_ranks(&places.collect::<Vec<_>>()) else { return vec![snapshot] };
    let Snapshot { comms, .. } = snapshot;
    let whole = Snapshot { comms: Vec::new(), entered: None, threads: Vec::new(), ..snapshot };
    let mut ranks: BTreeMap<u32, Vec<Member>> = BTreeMap::new();
    for (number, member) in numbers.into_iter().zip(comms) {
        ranks.entry(number).or_default().push(member);
    }
    let one = |members: Vec<Member>| {
        let world = members.iter().max_by_key(|member| member.nranks);
        let rank = world.map_or(whole.rank, |member| member.rank);
        Snapshot { rank, comms: members, ..whole.clone() }
    };
    ranks.into_values().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(hash: u64, rank: u32, nranks: u32, device: Option<u32>) -> Member {
        Member { hash, rank, nranks, device, ..Member::default() }
    }

    fn ranks(comms: Vec<Member>) -> Vec<(u32, Vec<u64>)> {
        let all = split(Snapshot { comms, rank: 9, ..Snapshot::default() });
        let hashes = |one: &Snapshot| one.comms.iter().map(|member| member.hash).collect();
        all.iter().map(|one| (one.rank, hashes(one))).collect()
    }

    #[test]
    fn each_rank_has_its_own_communicators() {
        let known =
            |device| [member(1, 4 + device, 8, Some(device)), member(2, 0, 2, Some(device))];
        let two = known(0).into_iter().chain(known(1)).collect();
        assert_eq!(ranks(two), [(4, vec![1, 2]), (5, vec![1, 2])]);
        let unknown = vec![member(1, 2, 4, None), member(1, 3, 4, None)];
        assert_eq!(ranks(unknown), [(2, vec![1]), (3, vec![1])]);
        let one = vec![member(1, 4, 8, Some(0)), member(2, 0, 2, Some(0))];
        assert_eq!(ranks(one), [(9, vec![1, 2])], "a process of one rank keeps its own");
    }
}
