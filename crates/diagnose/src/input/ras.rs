// SPDX-License-Identifier: Apache-2.0
/*!
The JSON output of NCCL's RAS (`ncclras -f json`, since NCCL 2.28): which ranks of each communicator
respond, which are missing or dead, and how often each function was launched.

RAS counts launches, not completions: it supplements other inputs, and alone shows little more than
which ranks are missing. NCCL 2.28 prints a superfluous comma, which is ignored.
*/

use super::json;
use super::older::MOST;
use crate::job::{Communicator, Job, Process, ProcessStatus, Vector};
use crate::verdict::{Diagnosis, Evidence};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;

/// One rank of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Member {
    rank: u32,
    host: String,
    pid: Option<u32>,
    device: Option<u64>,
    launched: u64,
    is_missing: bool,
    is_dead: bool,
    error: u64,
}

/// The output of RAS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ras {
    comms: Vec<(String, u32, Vec<Member>)>,
}

/// True if `value` is RAS's output.
#[must_use]
pub fn is_ras(value: &Value) -> bool {
    value["communicators"].is_array() && value["nccl_version"].is_string()
}

/// Parses JSON of a dump, and accepts commas before closing brackets.
///
/// # Errors
/// A sentence with the position, or that the limits were exceeded.
pub fn parse(bytes: &[u8]) -> Result<Value, String> {
    json::parse(bytes, json::Keep::Dump)
}

fn number(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

impl Ras {
    /// Reads the parsed output of RAS.
    #[must_use]
    pub fn new(value: &Value) -> Ras {
        let mut comms = Vec::new();
        for comm in value["communicators"].as_array().into_iter().flatten() {
            let name = comm["hash"].as_str().unwrap_or("unknown").to_owned();
            let here = comm["ranks"].as_array().into_iter().flatten();
            let missing = comm["missing_ranks"].as_array().into_iter().flatten();
            let mut members: Vec<Member> = here.filter_map(|rank| member(rank, false)).collect();
            members.extend(missing.filter_map(|rank| member(rank, true)));
            members.sort_by_key(|member| member.rank);
            comms.push((name, number(&comm["size"]).unwrap_or(0), members));
        }
        Ras { comms }
    }

    /// The job from RAS alone: launches count as enqueued operations, and completions are unknown.
    #[must_use]
    pub fn job(&self) -> Job {
        let mut job = Job { source: "NCCL RAS".into(), is_dump: true, ..Job::default() };
        let mut places: BTreeMap<(String, Option<u32>, Option<u64>), u32> = BTreeMap::new();
        let widest = self.comms.iter().map(|(_, size, _)| *size).max().unwrap_or(0);
        for (_, size, member) in
            self.comms.iter().flat_map(|(n, s, m)| m.iter().map(move |m| (n, *s, m)))
        {
            let key = (member.host.clone(), member.pid, member.device);
            let at = *places.entry(key).or_insert_with(|| {
                job.processes.push(Process::default());
                u32::try_from(job.processes.len() - 1).unwrap_or(u32::MAX)
            });
            let process = &mut job.processes[at as usize];
            process.host = Some(member.host.clone());
            process.pid = member.pid;
            if size == widest {
                process.rank = Some(member.rank);
            }
            if member.is_dead || member.is_missing {
                process.status =
                    if member.is_dead { ProcessStatus::Dead } else { ProcessStatus::Silent };
            }
        }
        for (name, size, members) in &self.comms {
            let mut comm =
                Communicator { name: name.clone(), nranks: *size, ..Communicator::default() };
            for member in members {
                let key = (member.host.clone(), member.pid, member.device);
                let process = places.get(&key).copied().unwrap_or(0);
                if member.is_missing {
                    comm.silent.push(process);
                } else {
                    comm.vectors.push(launched(process, member));
                }
            }
            // A rank with more launches waits for those with fewer; launches show nothing more.
            let least = comm.vectors.iter().map(|v| v.enqueued).min().unwrap_or(0);
            for vector in &mut comm.vectors {
                vector.done = least.min(vector.enqueued);
            }
            job.comms.push(comm);
        }
        job.notes.push(
            "RAS counts only launches: it does not show what is stuck in a kernel or in the network"
                .into(),
        );
        job
    }

    /// Adds what RAS shows about the ranks at fault to the evidence.
    pub fn add_to(&self, diagnosis: &mut Diagnosis, job: &Job) {
        let processes = job.processes.iter().filter_map(|one| Some((one.rank?, one)));
        let processes: HashMap<u32, &Process> = processes.collect();
        let finder = MemberFinder::new(self, job);
        for verdict in &mut diagnosis.findings {
            for &rank in &verdict.root_ranks {
                let found = processes.get(&rank).and_then(|process| finder.find(process));
                if let Some(text) = found.and_then(|member| member.text()) {
                    verdict.evidence.push(Evidence::of(verdict.class, rank, text));
                }
            }
        }
        let missing = self.comms.iter().flat_map(|(name, _, members)| {
            members.iter().filter(|m| m.is_missing).map(move |m| (name, m))
        });
        for (name, member) in missing {
            let what = if member.is_dead { "dead" } else { "missing" };
            let pid = member.pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
            diagnosis.notes.push(format!(
                "RAS considers rank {} of communicator {name} ({}{pid}) {what}",
                member.rank, member.host
            ));
        }
    }
}

/// Members by what identifies their process; `None` if several processes, or several ranks of one,
/// have the same.
type Members<'a, K> = HashMap<K, Option<&'a Member>>;

/// Finds the member that RAS shows for a process of a job. In containers, processes of several
/// hosts have one process id, and RAS and the job may name a host differently.
struct MemberFinder<'a> {
    hosts: HashSet<&'a str>,
    by_place: Members<'a, (&'a str, u32)>,
    /// By rank in the widest communicator, if it can contain all ranks of the job.
    by_rank: Members<'a, u32>,
    /// By process id, without those that several processes of the job have.
    by_pid: Members<'a, u32>,
}

impl<'a> MemberFinder<'a> {
    fn new(ras: &'a Ras, job: &Job) -> MemberFinder<'a> {
        let widest = ras.comms.iter().map(|(_, size, _)| *size).max().unwrap_or(0);
        let is_job_wide = job.processes.iter().all(|one| one.rank.is_none_or(|it| it < widest));
        let mut pids: HashMap<u32, usize> = HashMap::new();
        for pid in job.processes.iter().filter_map(|process| process.pid) {
            *pids.entry(pid).or_default() += 1;
        }
        let (mut by_place, mut by_rank) = (HashMap::new(), HashMap::new());
        let mut by_pid = HashMap::new();
        for (_, size, members) in &ras.comms {
            for member in members {
                if let Some(pid) = member.pid {
                    note(&mut by_place, (&*member.host, pid), member);
                    note(&mut by_pid, pid, member);
                }
                if is_job_wide && *size == widest {
                    note(&mut by_rank, member.rank, member);
                }
            }
        }
        by_pid.retain(|pid, _| pids.get(pid).is_none_or(|&processes| processes == 1));
        let members = ras.comms.iter().flat_map(|(_, _, members)| members);
        let hosts = members.map(|member| &*member.host).collect();
        MemberFinder { hosts, by_place, by_rank, by_pid }
    }

    fn find(&self, process: &Process) -> Option<&'a Member> {
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

fn launched(process: u32, member: &Member) -> Vector {
    Vector {
        process,
        rank: member.rank,
        api: member.launched,
        enqueued: member.launched,
        ..Vector::default()
    }
}

fn member(value: &Value, is_missing: bool) -> Option<Member> {
    let counts = value["collective_counts"].as_object().into_iter().flatten();
    Some(Member {
        rank: number(&value["rank"])?,
        host: value["host"].as_str().unwrap_or("unknown").to_owned(),
        pid: number(&value["pid"]),
        device: value["cuda_dev"].as_u64(),
        launched: counts
            .filter_map(|(_, count)| count.as_u64())
            .fold(0, u64::saturating_add)
            .min(MOST),
        is_missing,
        is_dead: value["status"]["considered_dead"] == true,
        error: value["status"]["async_error"].as_u64().unwrap_or(0),
    })
}

impl Member {
    fn place(&self) -> (&str, Option<u32>, Option<u64>) {
        (&self.host, self.pid, self.device)
    }

    fn text(&self) -> Option<String> {
        if self.is_missing {
            let what = if self.is_dead { "dead" } else { "missing" };
            return Some(format!("NCCL RAS considers it {what}"));
        }
        (self.error != 0).then(|| format!("NCCL RAS: its async error is {}", self.error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Options, diagnose};

    const OUTPUT: &str = r#"{
      "nccl_version": "2.28.9", "timestamp": "now", "communicators_count": 1,
      "communicators": [{
        "hash": "0xabc", "size": 3, "ranks_count": 2, "missing_ranks_count": 1,
        "ranks": [
          {"rank": 0, "host": "a", "pid": 10, "cuda_dev": 0,
           "status": {"async_error": 0}, "collective_counts": {"AllReduce": 7, "Broadcast": 1,}},
          {"rank": 1, "host": "a,]", "pid": 11, "cuda_dev": 1,
           "status": {"async_error": 6}, "collective_counts": {"AllReduce": 6, "Broadcast": 1}},
        ],
        "missing_ranks": [
          {"rank": 2, "host": "b", "pid": 12, "cuda_dev": 0,
           "status": {"unresponsive": true, "considered_dead": true}}]
      }]}"#;

    #[test]
    fn counts_and_missing_ranks_are_read_past_stray_commas() {
        let value = parse(OUTPUT.as_bytes()).unwrap();
        assert!(is_ras(&value));
        assert_eq!(value["communicators"][0]["ranks"][1]["host"], "a,]");
        let job = Ras::new(&value).job();
        assert_eq!(job.processes.len(), 3);
        assert_eq!(job.processes[2].status, ProcessStatus::Dead);
        let comm = &job.comms[0];
        assert_eq!((comm.vectors[0].enqueued, comm.vectors[0].done), (8, 7));
        assert_eq!(comm.silent, [2]);
    }

    /// What RAS adds about rank 1 of a job of two, of which it shows two processes with these hosts
    /// and process ids, the second with an error; the job has these hosts and process ids.
    fn added(of: u32, shown: [(&str, u32); 2], has: [(&str, u32); 2]) -> bool {
        let rank = |((host, pid), rank): ((&str, u32), u32)| {
            serde_json::json!({"rank": rank, "host": host, "pid": pid, "cuda_dev": 0,
                "status": {"async_error": 6 * rank}})
        };
        let ranks: Vec<Value> = shown.into_iter().zip(0..).map(rank).collect();
        let comm = serde_json::json!({"hash": "0xabc", "size": 2, "ranks": ranks});
        let ras = Ras::new(&serde_json::json!({"communicators": [comm]}));
        let process = |((host, pid), rank): ((&str, u32), u32)| Process {
            rank: Some(rank),
            host: Some(host.to_owned()),
            pid: Some(pid),
            ..Process::default()
        };
        let processes = has.into_iter().zip(of..).map(process).collect();
        let vector = |rank: u32| Vector {
            process: rank,
            rank,
            enqueued: u64::from(rank == 0),
            ..Vector::default()
        };
        let comm =
            Communicator { nranks: 2, vectors: vec![vector(0), vector(1)], ..Default::default() };
        let job = Job { processes, comms: vec![comm], is_dump: true, ..Job::default() };
        let mut found = diagnose(&job, &Options::default());
        let before = found.findings[0].evidence.len();
        assert_eq!(found.findings[0].root_ranks, [of + 1]);
        ras.add_to(&mut found, &job);
        let added = &found.findings[0].evidence[before..];
        assert!(added.iter().all(|line| line.text == "NCCL RAS: its async error is 6"));
        !added.is_empty()
    }

    #[test]
    fn a_process_id_that_several_hosts_have_is_not_enough() {
        let same = [("a", 7), ("b", 7)];
        assert!(added(0, same, same), "the host tells");
        assert!(!added(0, same, [("b", 7), ("a", 7)]), "this is the other rank, without an error");
        assert!(added(0, same, [("10.0.0.1", 7), ("10.0.0.2", 7)]), "the rank tells");
        // Ranks 2 and 3 are not those of RAS's communicator.
        assert!(!added(2, same, [("10.0.0.1", 7), ("10.0.0.2", 7)]), "nothing tells");
        assert!(!added(2, [("a", 6), ("b", 7)], [("10.0.0.1", 7), ("10.0.0.2", 7)]));
        assert!(added(2, [("a", 6), ("b", 7)], [("10.0.0.1", 6), ("10.0.0.2", 7)]), "the id tells");
        assert!(!added(0, [("a", 6), ("b", 7)], [("a", 6), ("a", 7)]), "it is of another host");
        assert!(!added(0, [("a", 6), ("b", 7)], [("c", 6), ("d", 8)]), "it has another id");
    }
}
