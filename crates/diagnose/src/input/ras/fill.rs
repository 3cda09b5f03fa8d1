// SPDX-License-Identifier: Apache-2.0
//! Ranks that have no other input, from RAS: the recordings of one node and RAS make a whole job.
//!
//! RAS counts the collectives that NCCL launched on a communicator. An input that numbers the
//! operations of a communicator from its beginning, and without sends and receives, has the same
//! numbers; else they are some apart. The ranks that both have show by how many.

use super::output::{Member, Ras};
use crate::job::{CommKind, Communicator, Job, Process, ProcessStatus, Stop, Vector};
use std::collections::BTreeMap;
use std::time::Duration;

/// A process, as RAS identifies it.
type Place<'a> = (&'a str, Option<u32>, Option<u64>);

impl Ras {
    /// Adds to the communicators of a job what RAS shows of ranks without input. `hang` as in
    /// [`Ras::job`].
    pub fn fill(&self, job: &mut Job, hang: Duration) {
        let mut places: BTreeMap<Place<'_>, u32> = BTreeMap::new();
        let widest = self.comms.iter().map(|(_, size, _)| *size).max().unwrap_or(0);
        let mut untold = Vec::new();
        let mut comms: Vec<_> = self.comms.iter().collect();
        // In the widest one, ranks are those of the job.
        comms.sort_by_key(|(_, size, _)| std::cmp::Reverse(*size));
        for (name, size, members) in comms {
            let same = |comm: &Communicator| {
                comm.kind == CommKind::Collectives && hash_of(&comm.name) == hash_of(name)
            };
            let Some(at) = job.comms.iter().position(same).filter(|_| hash_of(name).is_some())
            else {
                continue;
            };
            let Some(shift) = shift(&job.comms[at], members) else {
                untold.push(name.as_str());
                continue;
            };
            let done = job.comms[at].vectors.iter().map(|vector| vector.done).max().unwrap_or(0);
            let there: Vec<u32> = job.comms[at].vectors.iter().map(|vector| vector.rank).collect();
            let missing = members.iter().filter(|member| !there.contains(&member.rank));
            for member in missing {
                let rank = (*size == widest).then_some(member.rank);
                let process = self.process(job, name, member, rank, &mut places, hang);
                let comm = &mut job.comms[at];
                comm.silent.retain(|silent| *silent != process);
                if member.is_missing {
                    comm.silent.push(process);
                } else {
                    let enqueued = member.launched.saturating_add_signed(shift);
                    let (api, done) = (enqueued, done.min(enqueued));
                    let rank = member.rank;
                    comm.vectors.push(Vector {
                        process,
                        rank,
                        api,
                        enqueued,
                        done,
                        ..Vector::default()
                    });
                }
            }
            let comm = &mut job.comms[at];
            if comm.vectors.len() + comm.silent.len() > comm.nranks as usize {
                // Placeholders of ranks that RAS shows.
                let excess = comm.vectors.len() + comm.silent.len() - comm.nranks as usize;
                let kept = comm.silent.len().saturating_sub(excess);
                comm.silent.reverse();
                comm.silent.truncate(kept);
            }
        }
        if !untold.is_empty() {
            job.notes.push(format!(
                "RAS counts the operations of {} otherwise than the input: what it shows of ranks \
                 without input is not used",
                untold.join(", ")
            ));
        }
    }

    /// The process of a member that has no vector in the job.
    fn process<'a>(
        &self,
        job: &mut Job,
        comm: &str,
        member: &'a Member,
        rank: Option<u32>,
        places: &mut BTreeMap<Place<'a>, u32>,
        hang: Duration,
    ) -> u32 {
        let known = job.processes.iter().position(|one| {
            let is_same = one.pid.is_some() && one.pid == member.pid;
            is_same && one.host.as_deref() == Some(&*member.host)
                || one.status == ProcessStatus::Silent && rank.is_some() && one.rank == rank
        });
        let known = known.and_then(|at| u32::try_from(at).ok());
        let at = places.get(&member.place()).copied().or(known).unwrap_or_else(|| {
            job.processes.push(Process { rank, ..Process::default() });
            u32::try_from(job.processes.len() - 1).unwrap_or(u32::MAX)
        });
        places.insert(member.place(), at);
        let process = &mut job.processes[at as usize];
        process.host.get_or_insert_with(|| member.host.clone());
        process.pid = process.pid.or(member.pid);
        self.judge(comm, member, process, hang);
        process.status = match process.status {
            _ if member.is_dead || member.is_silent => ProcessStatus::Stopped(Stop::Unanswering),
            ProcessStatus::Silent if !member.is_missing => ProcessStatus::Running,
            known => known,
        };
        at
    }
}

/// A communicator's hash, which inputs write with and without `0x` and zeros.
fn hash_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.trim_start_matches("0x"), 16).ok()
}

/// What to add to a member's launches for the number of its last operation in the input; `None` if
/// the ranks that both have do not agree.
fn shift(comm: &Communicator, members: &[Member]) -> Option<i64> {
    let launched: BTreeMap<u32, u64> = members
        .iter()
        .filter(|member| !member.is_missing)
        .map(|member| (member.rank, member.launched))
        .collect();
    let shifts = comm.vectors.iter().filter_map(|vector| {
        let launched = *launched.get(&vector.rank)?;
        Some(i64::try_from(vector.enqueued).ok()? - i64::try_from(launched).ok()?)
    });
    let mut shifts = shifts.collect::<Vec<i64>>();
    shifts.dedup();
    match shifts[..] {
        [shift] => Some(shift),
        _ => None,
    }
}
