// SPDX-License-Identifier: Apache-2.0
/*!
The JSON output of NCCL's RAS (`ncclras -f json`, since NCCL 2.28): which ranks of each communicator
respond, which are missing or dead, and how often each function was launched.

RAS counts launches, not completions: it supplements other inputs, and alone shows which ranks do
not answer, and which have launched less than others. In a running job ranks are a few launches
apart at any moment, so that one output makes suspects at most. Two outputs show who advances in
between.

From NCCL 2.29 on RAS also prints events about processes (`monitor.rs`), which supplement its
outputs and other inputs.

NCCL 2.28.7 and 2.28.9 leave out a comma where a rank is missing, and print a superfluous one
elsewhere; both are put right.
*/

mod fill;
mod finder;
pub(super) mod monitor;
mod notes;
mod output;
mod status;
pub(super) mod text;
mod time;
mod watched;
mod world;

pub use output::Ras;

use super::json;
use crate::diagnosis::Diagnosis;
use crate::job::{Communicator, Job, NoEnd, Process, ProcessStatus, Stop, Vector};
use finder::MemberFinder;
use ncclscope_findings::{Doubt, Evidence, FindingClass};
use output::{Key, Member};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

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

/// The source of a job that is read from RAS alone.
const SOURCE: &str = "NCCL RAS";

/// Reads an answer of RAS in either form; `None` if it is something else.
#[must_use]
pub fn read(answer: &[u8]) -> Option<Ras> {
    if answer.starts_with(text::BEGINNING) {
        return Some(text::read(&String::from_utf8_lossy(answer)));
    }
    let value = parse(answer).ok()?;
    is_ras(&value).then(|| Ras::new(&value))
}

impl Ras {
    /// The job from RAS alone: launches count as enqueued operations, and completions are unknown.
    /// In less than `hang` an operation may take its time.
    #[must_use]
    pub fn job(&self, hang: Duration) -> Job {
        if self.comms.is_empty() && self.monitor.is_some() {
            return self.unranked_job();
        }
        let mut job = Job { source: SOURCE.into(), is_dump: true, ..Job::default() };
        let mut places: BTreeMap<Key<'_>, u32> = BTreeMap::new();
        let world = self.world();
        for (comm, (name, _, members)) in self.comms.iter().enumerate() {
            for member in members {
                let at = *places.entry(member.key(name)).or_insert_with(|| add_process(&mut job));
                let process = &mut job.processes[at as usize];
                if Some(comm) == world {
                    process.rank = Some(member.rank);
                }
                let answers = self.describe(name, member, process, hang);
                if answers && member.is_missing && !member.is_elsewhere() {
                    process.status = ProcessStatus::Silent;
                }
            }
        }
        if world.is_none() && !self.comms.is_empty() {
            world::number(&mut job, &places);
        }
        for (name, size, members) in &self.comms {
            let place = |member: &Member| places.get(&member.key(name)).copied().unwrap_or(0);
            job.comms.push(communicator(name, *size, members, place));
        }
        self.add_idle(&mut job, &places);
        job.notes.extend(self.notes.iter().cloned());
        job.notes.extend(self.errors());
        job.notes.extend(self.statuses());
        job.notes.extend(self.progress());
        job.notes.push(
            "RAS counts only launches: it does not show what is stuck in a kernel or in the network"
                .into(),
        );
        job
    }

    /// For how long at least a process has launched nothing, if it was in the same communicators
    /// before, and no rank waits for the launch of another: what it launched last may not have
    /// ended.
    fn add_idle(&self, job: &mut Job, places: &BTreeMap<Key<'_>, u32>) {
        job.processes.iter_mut().for_each(|process| process.no_end = NoEnd::Launches);
        let mut vectors = job.comms.iter().flat_map(|comm| &comm.vectors);
        let apart = self.apart.filter(|_| !vectors.any(Vector::is_inside));
        let Some(apart) = apart.and_then(|it| u64::try_from(it.as_nanos()).ok()) else { return };
        let mut is_idle = vec![true; job.processes.len()];
        for (name, _, members) in &self.comms {
            for member in members.iter().filter(|member| !member.is_elsewhere()) {
                let still = self.advances(name, member) == Some(false);
                let idle =
                    places.get(&member.key(name)).and_then(|&at| is_idle.get_mut(at as usize));
                idle.into_iter().for_each(|idle| *idle &= still);
            }
        }
        for (process, _) in job.processes.iter_mut().zip(is_idle).filter(|(_, is_idle)| *is_idle) {
            process.idle_ns = Some(apart);
        }
    }

    /// Adds what RAS shows of a member to its process. False if the process does not answer.
    fn describe(&self, comm: &str, member: &Member, process: &mut Process, hang: Duration) -> bool {
        if member.is_named() {
            process.host.get_or_insert_with(|| member.host.clone());
        }
        process.pid = process.pid.or(member.pid);
        self.judge(comm, member, process, hang);
        let is_gone = member.is_dead || member.is_silent || member.is_dead_later;
        if is_gone {
            process.status = ProcessStatus::Stopped(Stop::Unanswering);
            // NCCL itself has waited a minute.
            process.doubts.retain(|_| !member.is_dead);
        }
        if member.is_dead_later && !process.doubts.contains(&Doubt::EndedBefore) {
            process.doubts.push(Doubt::EndedBefore);
        }
        !is_gone
    }

    /// Whether a member's process advances, or why what it has launched may not show a hang. In
    /// less than `hang` an operation may take its time.
    fn judge(&self, comm: &str, member: &Member, process: &mut Process, hang: Duration) {
        let short = self.apart.filter(|apart| *apart < hang);
        let doubt = match (self.advances(comm, member), short) {
            (Some(advances), _) if advances => {
                process.is_moving = true;
                return;
            }
            // A text names only communicators whose ranks differ: before, they did not.
            (None, _) if self.is_text && self.before.is_some() && !member.is_missing => {
                process.is_moving = true;
                return;
            }
            (None, _) if self.before.is_some() => Doubt::NotBefore,
            (None, _) => Doubt::OneOutput,
            (Some(_), Some(apart)) => {
                Doubt::ShortlyApart(u64::try_from(apart.as_nanos()).unwrap_or(u64::MAX))
            }
            (Some(_), None) => return,
        };
        if !process.doubts.contains(&doubt) {
            process.doubts.push(doubt);
        }
    }

    /// What two outputs show, or that there is one.
    fn progress(&self) -> Option<String> {
        let all = self.comms.iter().flat_map(|(name, _, members)| {
            members.iter().filter_map(move |member| self.advances(name, member))
        });
        let all: Vec<bool> = all.collect();
        let still = all.iter().filter(|advances| !**advances).count();
        match (&self.before, all.len(), still) {
            (None, ..) => Some(Doubt::OneOutput.text() + ": give two, some seconds apart"),
            (_, 0, _) => None,
            (_, _, 0) => Some("all ranks have launched operations between the two outputs".into()),
            (_, all, still) => Some(format!(
                "{still} of {all} ranks of communicators have launched nothing between the two \
                 outputs"
            )),
        }
    }

    /// Adds what RAS shows about the ranks at fault to the evidence.
    pub fn add_to(&self, diagnosis: &mut Diagnosis, job: &Job) {
        let processes = job.processes.iter().filter_map(|one| Some((one.rank?, one)));
        let processes: HashMap<u32, &Process> = processes.collect();
        let finder = MemberFinder::new(self, job);
        for finding in &mut diagnosis.findings {
            // Where no other input shows that the operations of other ranks have ended.
            if finding.class == FindingClass::HostStuck && job.source == SOURCE {
                finding.doubts.push(Doubt::EndsNotShown);
            }
            for &rank in &finding.root_ranks {
                let found = processes.get(&rank).and_then(|process| finder.find(process));
                if let Some(text) = found.and_then(|member| member.text()) {
                    finding.evidence.push(Evidence::of(finding.class, rank, text));
                }
            }
        }
        let missing = self.comms.iter().flat_map(|(name, _, members)| {
            members.iter().filter(|m| m.is_missing).map(move |m| (name, m))
        });
        for (name, member) in missing {
            let who = member.named(name);
            diagnosis.notes.push(match (member.is_elsewhere(), member.is_dead) {
                (true, _) => format!("RAS: {who} answers, and has left it or not created it yet"),
                (false, true) => format!("RAS considers {who} dead"),
                (false, false) => format!("RAS considers {who} missing"),
            });
        }
        self.add_events(diagnosis, job);
    }
}

/// Adds a process to a job; returns its position.
fn add_process(job: &mut Job) -> u32 {
    job.processes.push(Process::default());
    u32::try_from(job.processes.len() - 1).unwrap_or(u32::MAX)
}

/// A communicator of a job, whose members' processes are at `place`. Launches count as enqueued
/// operations.
fn communicator(
    name: &str,
    size: u32,
    members: &[Member],
    place: impl Fn(&Member) -> u32,
) -> Communicator {
    let mut comm = Communicator { name: name.into(), nranks: size, ..Communicator::default() };
    for member in members.iter().filter(|member| !member.is_elsewhere()) {
        match member.is_missing {
            true => comm.silent.push(place(member)),
            false => comm.vectors.push(launched(place(member), member, member.launched)),
        }
    }
    // A rank with more launches waits for those with fewer; launches show nothing more. If a rank
    // does not answer, those with fewest may wait for it in their last operation.
    let least = comm.vectors.iter().map(|v| v.enqueued).min().unwrap_or(0);
    let least = least.saturating_sub(u64::from(!comm.silent.is_empty()));
    for vector in &mut comm.vectors {
        vector.done = least.min(vector.enqueued);
    }
    // If none waits for the launch of another, whether the last operation has ended is not visible.
    let is_level = comm.vectors.iter().all(|vector| vector.done == vector.enqueued);
    comm.vectors.iter_mut().for_each(|vector| vector.is_blind = is_level);
    comm.hashes = hashes(members);
    comm
}

/// The progress of a member whose process has this position, and whose last operation this number.
fn launched(process: u32, member: &Member, number: u64) -> Vector {
    let (rank, api, enqueued) = (member.rank, number, number);
    Vector { process, rank, api, enqueued, is_of_launches: true, ..Vector::default() }
}

/// A hash of the functions' counts of members whose launches cannot be the beginning of one
/// sequence, and of those that have launched most: each is ahead of the other in some function.
fn hashes(members: &[Member]) -> Vec<(u32, u64, u64)> {
    let present: Vec<&Member> = members.iter().filter(|member| !member.is_missing).collect();
    let Some(front) = present.iter().max_by_key(|member| member.launched) else {
        return Vec::new();
    };
    let is_behind = |member: &&Member| {
        let of_front = |func: &String| front.counts.get(func).copied().unwrap_or(0);
        member.counts.iter().all(|(func, count)| *count <= of_front(func))
    };
    let Some(least) = present.iter().filter(|it| !is_behind(it)).map(|it| it.launched).min() else {
        return Vec::new();
    };
    let hash = |(member, at): (&&Member, u32)| (at, least, u64::from(is_behind(member)));
    let reach = |(member, _): &(&&Member, u32)| member.launched >= least;
    present.iter().zip(0u32..).filter(reach).map(hash).collect()
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
        let job = Ras::new(&value).job(Duration::ZERO);
        assert_eq!(job.processes.len(), 3);
        assert_eq!(job.processes[2].status, ProcessStatus::Stopped(Stop::Unanswering));
        let comm = &job.comms[0];
        assert_eq!((comm.vectors[0].enqueued, comm.vectors[0].done), (8, 6));
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
        assert!(added.iter().all(|line| line.text == "NCCL RAS reports error 6 (ncclRemoteError)"));
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
