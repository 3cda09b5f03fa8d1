// SPDX-License-Identifier: Apache-2.0
//! Ranks that have no other input, from RAS: the recordings of one node and RAS make a whole job.
//!
//! RAS counts the collectives that NCCL launched on a communicator. An input that numbers the
//! operations of a communicator from its beginning, and without sends and receives, has the same
//! numbers; else they are some apart. The ranks that both have show by how many.

use super::output::{Key, Member, Ras};
use super::{add_process, launched};
use crate::job::{CommKind, Communicator, Job, ProcessStatus, Vector};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

impl Ras {
    /// Adds to the communicators of a job what RAS shows of ranks without input. `hang` as in
    /// [`Ras::job`].
    pub fn fill(&self, job: &mut Job, hang: Duration) {
        let world = self.world().map(|at| &*self.comms[at].0);
        let mut places = Places::of(job);
        let (mut untold, mut unmatched) = (Vec::new(), Vec::new());
        let mut comms: Vec<_> = self.comms.iter().collect();
        comms.sort_by_key(|(_, size, _)| std::cmp::Reverse(*size));
        for (name, _, members) in comms {
            let Some(hash) = hash_of(name) else { continue };
            let is_same = |comm: &Communicator| {
                comm.kind == CommKind::Collectives && hash_of(&comm.name) == Some(hash)
            };
            let Some(at) = job.comms.iter().position(is_same) else {
                unmatched.push(name.as_str());
                continue;
            };
            let Some(shift) = shift(&job.comms[at], members) else {
                untold.push(name.as_str());
                continue;
            };
            let there: HashSet<u32> = job.comms[at].vectors.iter().map(|it| it.rank).collect();
            let done = job.comms[at].vectors.iter().map(|it| it.done).max().unwrap_or(0);
            let (mut silent, mut vectors) = (Vec::new(), Vec::new());
            for member in members.iter().filter(|member| !there.contains(&member.rank)) {
                let rank = (Some(&**name) == world).then_some(member.rank);
                let at = places.find(job, name, member, rank);
                let process = &mut job.processes[at as usize];
                self.describe(name, member, process, hang);
                if process.status == ProcessStatus::Silent && !member.is_missing {
                    process.status = ProcessStatus::Running;
                }
                if member.is_missing {
                    silent.push(at);
                } else {
                    let vector = launched(at, member, member.launched.saturating_add_signed(shift));
                    vectors.push(Vector { done: done.min(vector.enqueued), ..vector });
                }
            }
            replace(&mut job.comms[at], silent, vectors);
        }
        let has_hashes = job.comms.iter().any(|comm| hash_of(&comm.name).is_some());
        if !unmatched.is_empty() && has_hashes {
            job.notes.push(format!(
                "RAS shows communicators that the input does not have ({}, such as {}): the input \
                 is of one part of the job, or of another job. They are not judged here, but by \
                 `diagnose --ras` without other inputs",
                unmatched.len(),
                unmatched[0]
            ));
        }
        if !untold.is_empty() {
            job.notes.push(format!(
                "RAS counts the operations of {} otherwise than the input: what it shows of ranks \
                 without input is not used",
                untold.join(", ")
            ));
        }
    }
}

/// Adds members to a communicator, in place of its ranks without input.
fn replace(comm: &mut Communicator, silent: Vec<u32>, vectors: Vec<Vector>) {
    let known: HashSet<u32> =
        silent.iter().copied().chain(vectors.iter().map(|it| it.process)).collect();
    comm.silent.retain(|process| !known.contains(process));
    comm.silent.extend(silent);
    comm.vectors.extend(vectors);
    // The first are placeholders of ranks that RAS shows.
    let excess = (comm.silent.len() + comm.vectors.len()).saturating_sub(comm.nranks as usize);
    comm.silent.drain(..excess.min(comm.silent.len()));
}

/// Where the processes of RAS's members are among those of a job.
struct Places<'a> {
    by_key: BTreeMap<Key<'a>, u32>,
    /// Those with input, by host and process id.
    by_pid: HashMap<(String, u32), u32>,
    /// Those without input, by rank in the job.
    silent: HashMap<u32, u32>,
}

impl<'a> Places<'a> {
    fn of(job: &Job) -> Places<'a> {
        let all = || job.processes.iter().zip(0u32..);
        let by_pid = all().filter_map(|(one, at)| Some(((one.host.clone()?, one.pid?), at)));
        let silent = all().filter(|(one, _)| one.status == ProcessStatus::Silent);
        Places {
            by_key: BTreeMap::new(),
            by_pid: by_pid.collect(),
            silent: silent.filter_map(|(one, at)| Some((one.rank?, at))).collect(),
        }
    }

    /// The process of a member; `rank` is that in the job, if known. A new one if the job has none.
    fn find(&mut self, job: &mut Job, comm: &'a str, member: &'a Member, rank: Option<u32>) -> u32 {
        let by_pid = || self.by_pid.get(&(member.host.clone(), member.pid?)).copied();
        let known = by_pid().or_else(|| self.silent.get(&rank?).copied());
        *self.by_key.entry(member.key(comm)).or_insert_with(|| {
            known.unwrap_or_else(|| {
                let new = add_process(job);
                job.processes[new as usize].rank = rank;
                new
            })
        })
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
