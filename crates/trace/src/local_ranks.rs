// SPDX-License-Identifier: Apache-2.0
/*!
Which communicators of a process belong to the same rank.

A process may have several ranks: JAX runs eight GPUs in one. Each is in communicators of its own,
and one of them may wait for another. The devices of the communicators distinguish the ranks. If
devices are unknown, or several ranks share one (which NCCL permits from 2.30.3 on,
`NCCL_MULTI_RANK_GPU_ENABLE`), the ranks in the largest communicator do.
*/

use crate::reader::Recording;
use std::collections::{BTreeMap, BTreeSet};

/// A process in a communicator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LocalMember<'a> {
    /// The communicator's hash; 0 if unknown.
    pub hash: u64,
    /// The communicator's name; empty without one.
    pub name: &'a str,
    /// Its communicator rank; -1 if unknown.
    pub rank: i32,
    /// Ranks of the communicator.
    pub nranks: u32,
    /// The GPU, if the plugin knew it.
    pub device: Option<u32>,
}

/// Numbers the ranks of a process: returns one number for each member, equal for members of one
/// rank. `None` if the process has one rank.
#[must_use]
pub fn local_ranks(members: &[LocalMember<'_>]) -> Option<Vec<u32>> {
    // Most processes have one rank and few communicators.
    let mut ranks: BTreeMap<(u64, &str), i32> = BTreeMap::new();
    let mut has_several = false;
    for &LocalMember { hash, name, rank, .. } in members {
        has_several |= *ranks.entry((hash, name)).or_insert(rank) != rank;
    }
    if !has_several {
        return None;
    }
    let mut on_device: BTreeMap<(u64, &str, Option<u32>), i32> = BTreeMap::new();
    let mut shared = BTreeSet::new();
    for &LocalMember { hash, name, rank, device, .. } in members {
        if *on_device.entry((hash, name, device)).or_insert(rank) != rank {
            shared.insert(device);
        }
    }
    let most = members.iter().map(|member| member.nranks).max();
    let of_most = members.iter().filter(|member| Some(member.nranks) == most);
    let worlds: BTreeSet<(Option<u32>, i32)> =
        of_most.map(|member| (member.device, member.rank)).collect();
    // On a device of one rank, a member belongs to that rank. On a shared device its own
    // communicator rank decides, if the largest communicator has it there.
    let place = |member: &LocalMember<'_>| {
        let LocalMember { device, rank, .. } = *member;
        let is_of_world = shared.contains(&device) && worlds.contains(&(device, rank));
        let mut here = worlds.range((device, i32::MIN)..=(device, i32::MAX));
        (device, if is_of_world { rank } else { here.next().map_or(-1, |&(_, rank)| rank) })
    };
    let places: BTreeSet<_> = members.iter().map(place).collect();
    let numbers: BTreeMap<_, u32> = places.into_iter().zip(0..).collect();
    Some(members.iter().map(|member| numbers[&place(member)]).collect())
}

impl Recording {
    /// [`local_ranks`] of its communicators, in their order.
    #[must_use]
    pub fn local_ranks(&self) -> Option<Vec<u32>> {
        let members = self.comms().iter().map(|comm| LocalMember {
            hash: comm.hash,
            name: comm.name.as_deref().unwrap_or_default(),
            rank: comm.rank,
            nranks: comm.ranks,
            device: self.comm_device(comm.index).map(|device| device.index),
        });
        local_ranks(&members.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_its_own_communicators() {
        let member = |hash, rank, nranks, device| LocalMember {
            hash,
            rank,
            nranks,
            device,
            ..LocalMember::default()
        };
        let known = |device| {
            let rank = i32::try_from(device).unwrap();
            [member(1, 4 + rank, 8, Some(device)), member(2, 0, 2, Some(device))]
        };
        assert_eq!(local_ranks(&[known(0), known(1)].concat()), Some(vec![0, 0, 1, 1]));
        let unknown = [member(1, 2, 4, None), member(1, 3, 4, None)];
        assert_eq!(local_ranks(&unknown), Some(vec![0, 1]));
        let shared = [
            member(1, 4, 8, Some(0)),
            member(1, 5, 8, Some(0)),
            member(1, 6, 8, Some(1)),
            member(2, 5, 6, Some(0)),
            member(3, 0, 2, Some(1)),
        ];
        assert_eq!(local_ranks(&shared), Some(vec![0, 1, 2, 1, 2]), "two ranks on a device");
        let one = [member(1, 4, 8, Some(0)), member(2, 0, 2, Some(0))];
        assert_eq!(local_ranks(&one), None, "a process of one rank");
    }
}
