// SPDX-License-Identifier: Apache-2.0
//! Finds the rank in the job of the members of communicators.

use crate::schema::{OpenOperation, OperationRow, PeerRow, RankRow};
use std::collections::HashMap;

/// The rank in the job of each member, by communicator and communicator rank.
///
/// It is the rank that the launcher gave the process. If there is none, or the process has several
/// ranks, it is the process's rank in the largest communicator; with several ranks, that of the
/// same device.
#[derive(Debug, Default)]
pub(crate) struct JobRanks {
    by_member: HashMap<String, HashMap<i32, u32>>,
}

impl JobRanks {
    /// The ranks of the members in `rows`, each with the index of its process; `told` has the
    /// launchers' ranks by process.
    pub(crate) fn of(rows: &[(usize, RankRow)], told: &[Option<u32>]) -> JobRanks {
        let members = || rows.iter().filter(|(_, row)| row.comm.is_some());
        let largest = members().max_by_key(|(_, row)| row.nranks);
        let world = largest.and_then(|(_, row)| row.comm.as_deref());
        // Ranks in the largest communicator, by process and, for processes with several ranks, by
        // device.
        let mut in_world = HashMap::new();
        for (process, row) in members().filter(|(_, row)| row.comm.as_deref() == world) {
            if let Some(rank) = row.comm_rank.and_then(|rank| u32::try_from(rank).ok()) {
                in_world.insert((*process, None), rank);
                in_world.insert((*process, row.device), rank);
            }
        }
        let mut ranks = JobRanks::default();
        for (process, row) in members() {
            let (Some(comm), Some(member)) = (&row.comm, row.comm_rank) else { continue };
            let in_world = |device| in_world.get(&(*process, device)).copied();
            let own = u32::try_from(member).ok().filter(|_| row.comm.as_deref() == world);
            let rank = told[*process].or(own).or_else(|| in_world(row.device));
            if let Some(rank) = rank.or_else(|| in_world(None)) {
                ranks.by_member.entry(comm.clone()).or_default().insert(member, rank);
            }
        }
        ranks
    }

    /// The rank in the job of a member. For a member without a recording it is known only if all
    /// known ranks of the communicator equal those in the job.
    pub(crate) fn get(&self, comm: Option<&str>, member: Option<i32>) -> Option<u32> {
        let (members, member) = (self.by_member.get(comm?)?, member?);
        let is_same = || members.iter().all(|(&member, &rank)| u32::try_from(member) == Ok(rank));
        let known = members.get(&member).copied();
        known.or_else(|| u32::try_from(member).ok().filter(|_| is_same()))
    }

    pub(crate) fn fill(
        &self,
        ranks: &mut [RankRow],
        open: &mut [OpenOperation],
        operations: &mut [OperationRow],
        peers: &mut [PeerRow],
    ) {
        for row in ranks {
            row.rank = self.get(row.comm.as_deref(), row.comm_rank);
        }
        for row in open {
            row.rank = self.get(row.comm.as_deref(), row.comm_rank);
            row.peer = self.get(row.comm.as_deref(), row.comm_peer);
        }
        for row in operations {
            for last in row.last_rank.iter_mut().chain(&mut row.last) {
                last.rank = self.get(Some(&row.comm), Some(last.comm_rank));
            }
        }
        for row in peers {
            row.src = self.get(Some(&row.comm), Some(row.comm_src));
            row.dst = self.get(Some(&row.comm), Some(row.comm_dst));
        }
    }
}
