// SPDX-License-Identifier: Apache-2.0
/*!
Which communicators of a process belong to the same rank.

A process may have several ranks: JAX runs eight GPUs in one. Each is in communicators of its own,
and one of them may wait for another. The devices of the communicators tell them apart, and where
these are unknown the ranks in the largest communicator do.
*/

use crate::reader::Recording;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A process in a communicator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LocalMember<'a> {
    /// The communicator's hash; 0 unknown.
    pub hash: u64,
    /// The communicator's name; empty without one.
    pub name: &'a str,
    /// Its rank there; -1 unknown.
    pub rank: i32,
    /// Ranks of the communicator.
    pub nranks: u32,
    /// The GPU, if the plugin knew it.
    pub device: Option<u32>,
}

/// A number for each member, the same for those of one rank. `None` for a process of one rank.
#[must_use]
pub fn local_ranks(members: &[LocalMember<'_>]) -> Option<Vec<u32>> {
    let mut ranks: HashMap<(u64, &str), i32> = HashMap::new();
    let has_several = members.iter().any(|member| {
        let first = ranks.entry((member.hash, member.name)).or_insert(member.rank);
        *first != member.rank
    });
    if !has_several {
        return None;
    }
    let most = members.iter().map(|member| member.nranks).max();
    let of_most = members.iter().filter(|member| Some(member.nranks) == most);
    let of_most: BTreeSet<i32> = of_most.map(|member| member.rank).collect();
    let worlds: BTreeMap<i32, u32> = of_most.into_iter().zip(0..).collect();
    let number = |member: &LocalMember<'_>| {
        member.device.or_else(|| worlds.get(&member.rank).copied()).unwrap_or_default()
    };
    Some(members.iter().map(number).collect())
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
        let one = [member(1, 4, 8, Some(0)), member(2, 0, 2, Some(0))];
        assert_eq!(local_ranks(&one), None, "a process of one rank");
    }
}
