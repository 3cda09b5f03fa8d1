// SPDX-License-Identifier: Apache-2.0
//! The job's ranks of the members of communicators.

use crate::schema::{OpenOperation, OperationRow, PeerRow, RankRow};
use std::collections::HashMap;

/// The job's rank of each member, by communicator and rank in it.
///
/// The launcher tells a process its rank. Where it did not, or where the process has several ranks,
/// the rank in the largest communicator counts: of the process, and of the device where a process
/// has several.
#[derive(Debug, Default)]
pub(crate) struct JobRanks {
    by_member: HashMap<String, HashMap<i32, u32>>,
}

impl JobRanks {
    /// The ranks of the members in `rows`, each with the number of its process; `told` is what
    /// the launchers gave them.
    pub(crate) fn of(rows: &[(usize, RankRow)], told: &[Option<u32>]) -> JobRanks {
        let members = || rows.iter().filter(|(_, row)| row.comm.is_some());
        let largest = members().max_by_key(|(_, row)| row.nranks);
        let world = largest.and_then(|(_, row)| row.comm.as_deref());
        // By process, and by device where the process has several ranks.
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

    /// The job's rank of a member. Of one without a recording it is known where the ranks of the
    /// communicator are those of the job.
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
            if let Some(last) = &mut row.last_rank {
                last.rank = self.get(Some(&row.comm), Some(last.comm_rank));
            }
        }
        for row in peers {
            row.src = self.get(Some(&row.comm), Some(row.comm_src));
            row.dst = self.get(Some(&row.comm), Some(row.comm_dst));
        }
    }
}
