// SPDX-License-Identifier: Apache-2.0
//! Which member RAS shows for a process of another input.

use super::output::{Member, Ras};
use crate::job::{Job, Process};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Members by what identifies their process; `None` if several processes, or several ranks of one,
/// have the same.
type Members<'a, K> = HashMap<K, Option<&'a Member>>;

/// Finds the member that RAS shows for a process of a job. In containers, processes of several
/// hosts have one process id, and RAS and the job may name a host differently.
pub(super) struct MemberFinder<'a> {
    hosts: HashSet<&'a str>,
    by_place: Members<'a, (&'a str, u32)>,
    /// By rank in the communicator of all processes, if it can contain all ranks of the job.
    by_rank: Members<'a, u32>,
    /// By process id, without those that several processes of the job have.
    by_pid: Members<'a, u32>,
}

impl<'a> MemberFinder<'a> {
    pub(super) fn new(ras: &'a Ras, job: &Job) -> MemberFinder<'a> {
        let world = ras.world().filter(|&at| {
            let size = ras.comms[at].1;
            job.processes.iter().all(|one| one.rank.is_none_or(|rank| rank < size))
        });
        let mut pids: HashMap<u32, usize> = HashMap::new();
        for pid in job.processes.iter().filter_map(|process| process.pid) {
            *pids.entry(pid).or_default() += 1;
        }
        let (mut by_place, mut by_rank) = (HashMap::new(), HashMap::new());
        let mut by_pid = HashMap::new();
        for (at, (_, _, members)) in ras.comms.iter().enumerate() {
            for member in members {
                if let Some(pid) = member.pid {
                    note(&mut by_place, (&*member.host, pid), member);
                    note(&mut by_pid, pid, member);
                }
                if Some(at) == world {
                    note(&mut by_rank, member.rank, member);
                }
            }
        }
        by_pid.retain(|pid, _| pids.get(pid).is_none_or(|&processes| processes == 1));
        let members = ras.comms.iter().flat_map(|(_, _, members)| members);
        let hosts = members.map(|member| &*member.host).collect();
        MemberFinder { hosts, by_place, by_rank, by_pid }
    }

    pub(super) fn find(&self, process: &Process) -> Option<&'a Member> {
        let (rank, pid) = (process.rank?, process.pid);
        let host = process.host.as_deref().filter(|&host| self.hosts.contains(host));
        let by_place = host.zip(pid).and_then(|place| *self.by_place.get(&place)?);
        let may_be = |member: &&Member| {
            host.is_none_or(|host| host == member.host)
                && pid.zip(member.pid).is_none_or(|(one, other)| one == other)
        };
        let by_rank = || self.by_rank.get(&rank).copied().flatten().filter(may_be);
        // A process of a host that RAS names is not one of another host.
        let by_pid = || *self.by_pid.get(&pid.filter(|_| host.is_none())?)?;
        by_place.or_else(by_rank).or_else(by_pid)
    }
}

fn note<'a, K: Eq + Hash>(members: &mut Members<'a, K>, key: K, member: &'a Member) {
    let known = members.entry(key).or_insert(Some(member));
    *known = known.filter(|known| known.place() == member.place());
}
