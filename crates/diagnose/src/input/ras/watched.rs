// SPDX-License-Identifier: Apache-2.0
//! What the events of RAS say about the processes of a job: evidence of verdicts about these, and a
//! suspicion where RAS has given a process up and nothing else names it.

use super::monitor::{Monitor, Peer, Place};
use super::output::Ras;
use crate::diagnosis::Diagnosis;
use crate::gone;
use crate::job::{Job, Process, ProcessStatus, Stop};
use crate::words;
use ncclscope_findings::{Doubt, Evidence, Finding, FindingClass};
use ncclscope_operations::human::{count, if_one};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of processes that are named, of each kind.
const NAMED: usize = 8;
/// How RAS reports a process that it has given up.
const GIVEN_UP: ProcessStatus = ProcessStatus::Stopped(Stop::Unanswering);
/// Evidence about a process that RAS gave up after its last output.
const UNSEEN: &str =
    "that is later than all outputs of STATUS: who has waited for it since is not visible";

/// A process that RAS has given up.
struct Dead<'a> {
    place: &'a Place,
    peer: &'a Peer,
    /// Its position among the processes of the job, if known.
    process: Option<u32>,
    /// It was given up after the latest output of STATUS.
    is_later: bool,
}

impl Ras {
    /// Without any output of STATUS.
    pub(crate) fn of_events(monitor: Monitor) -> Ras {
        Ras { monitor: Some(monitor), ..Ras::default() }
    }

    /// Adds events. What a member had launched before RAS gave it up counts as all that it did.
    pub(crate) fn watched(mut self, monitor: Monitor) -> Ras {
        let peers = monitor.peers();
        let is_of_most = is_of_most(&peers);
        for member in self.comms.iter_mut().flat_map(|(_, _, members)| members) {
            let place = member.pid.map(|pid| (member.host.clone(), pid));
            let peer = place.and_then(|place| peers.get(&place));
            let dead = peer.and_then(|peer| peer.dead.as_deref());
            let is_later = dead.is_some_and(|dead| is_later(dead, &self.time));
            member.is_dead_later = is_later && !is_of_most;
        }
        Ras { monitor: Some(monitor), ..self }
    }

    /// The job from events alone: they name processes, not ranks.
    pub(super) fn unranked_job(&self) -> Job {
        let peers = self.monitor.as_ref().map(Monitor::peers).unwrap_or_default();
        let dead = peers.values().filter(|peer| peer.dead.is_some()).count();
        let silent = peers.values().filter(|peer| peer.is_silent()).count();
        let notes = vec![
            format!(
                "RAS's MONITOR names {}: {dead} considered dead, {silent} more without an answer \
                 at the end",
                count(peers.len(), "process")
            ),
            "MONITOR names processes, not ranks, and no operations: give what `ncclras -f json` \
             prints as well"
                .to_owned(),
        ];
        Job { source: "NCCL RAS MONITOR".into(), is_dump: true, notes, ..Job::default() }
    }

    /// Adds what the events show.
    pub(super) fn add_events(&self, diagnosis: &mut Diagnosis, job: &Job) {
        let Some(monitor) = &self.monitor else { return };
        let peers = monitor.peers();
        let finder = Finder::of(job, &peers);
        let dead = peers.iter().filter(|(_, peer)| peer.dead.is_some());
        let has_status = !self.comms.is_empty();
        let dead = dead.map(|(place, peer)| {
            let is_later = is_later(peer.dead.as_deref().unwrap_or_default(), &self.time);
            Dead { place, peer, process: finder.find(place), is_later: is_later && has_status }
        });
        let (of_verdicts, others): (Vec<_>, Vec<_>) =
            dead.partition(|dead| add_evidence(dead, diagnosis, job));
        let (at_fault, told): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|dead| self.may_be_at_fault(dead, job));
        let is_most = of_verdicts.is_empty() && is_of_most(&peers);
        if is_most {
            diagnosis.notes.push(most(&peers));
        } else if !at_fault.is_empty() {
            diagnosis.findings.push(verdict(&at_fault, job));
        }
        let told = told.iter().filter(|_| !is_most);
        let told = told.map(|dead| {
            let text = "and the other input does not show that it stands still";
            format!("RAS's MONITOR: {}: {}; {text}", dead.who(job), dead.peer.text())
        });
        diagnosis.notes.extend(told.take(NAMED));
        let silent = peers.iter().filter(|(_, peer)| peer.is_silent() || peer.back.is_some());
        let silent = silent
            .filter(|(_, peer)| peer.dead.is_none())
            .map(|(place, peer)| format!("RAS's MONITOR: {}: {}", named(place, peer), peer.text()));
        diagnosis.notes.extend(silent.take(NAMED));
    }

    /// False if a later output of STATUS shows that the process answers, or other input that it
    /// goes on or ended in order.
    fn may_be_at_fault(&self, dead: &Dead<'_>, job: &Job) -> bool {
        if !self.comms.is_empty() && (dead.process.is_none() || !dead.is_later) {
            return false;
        }
        let status = dead.process.map(|at| job.processes[at as usize].status);
        status.is_none_or(|status| !matches!(status, ProcessStatus::Running | ProcessStatus::Ended))
    }
}

/// True if an event is later than an output with this time. One without a time counts as later.
fn is_later(event: &str, output: &str) -> bool {
    output.contains(' ') && event >= output
}

/// True if most processes that the events name are dead: then it is likelier that the process that
/// printed the events was stopped or cut off.
fn is_of_most(peers: &BTreeMap<Place, Peer>) -> bool {
    let dead = peers.values().filter(|peer| peer.dead.is_some()).count();
    (1..dead).contains(&(peers.len() - dead))
}

/// A note in place of a verdict about most processes.
fn most(peers: &BTreeMap<Place, Peer>) -> String {
    let alive = peers.iter().filter(|(_, peer)| peer.dead.is_none());
    let alive: Vec<String> = alive.take(NAMED).map(|(place, peer)| named(place, peer)).collect();
    let dead = peers.values().filter_map(|peer| peer.dead.as_deref());
    format!(
        "RAS's MONITOR considers {} of {} dead since {}, but not {}: perhaps {}",
        peers.values().filter(|peer| peer.dead.is_some()).count(),
        count(peers.len(), "process"),
        dead.min().unwrap_or_default(),
        alive.join(", "),
        Doubt::ObserverCutOff.text()
    )
}

/// Adds evidence to the verdicts about the rank of a dead process; false if there are none.
fn add_evidence(dead: &Dead<'_>, diagnosis: &mut Diagnosis, job: &Job) -> bool {
    let Some(rank) = dead.process.and_then(|at| job.known_rank(at)) else { return false };
    let about = diagnosis.findings.iter_mut().filter(|one| one.root_ranks.contains(&rank));
    let mut is_any = false;
    for finding in about {
        let text = format!("NCCL RAS MONITOR: {}: {}", dead.who(job), dead.peer.text());
        finding.evidence.push(Evidence::of(finding.class, rank, text));
        if dead.is_later {
            finding.evidence.push(Evidence::about(finding.class, UNSEEN.into()));
        }
        is_any = true;
    }
    is_any
}

/// The verdict about processes that RAS has given up, and that no other verdict names.
fn verdict(dead: &[Dead<'_>], job: &Job) -> Finding {
    let class = FindingClass::ProcessGone;
    let who = match dead {
        [one] => one.who(job),
        many => {
            let hosts: BTreeSet<&str> = many.iter().map(|dead| &*dead.place.0).collect();
            let more = hosts.len().saturating_sub(NAMED);
            let named: Vec<&str> = hosts.into_iter().take(NAMED).collect();
            let more = if more > 0 { format!(" and {more} more hosts") } else { String::new() };
            format!("{} on {}{more}", count(many.len(), "process"), named.join(", "))
        }
    };
    let rank = |dead: &Dead<'_>| job.processes[dead.process? as usize].rank;
    let mut root_ranks: Vec<u32> = dead.iter().filter_map(rank).collect();
    root_ranks.sort_unstable();
    let evidence = dead.iter().take(NAMED).map(|one| Evidence {
        rank: rank(one),
        ..Evidence::about(class, format!("RAS's MONITOR: {}: {}", one.who(job), one.peer.text()))
    });
    let mut evidence: Vec<Evidence> = evidence.collect();
    if let more @ 1.. = dead.len().saturating_sub(NAMED) {
        evidence.push(Evidence::about(class, format!("{} likewise", count(more, "more process"))));
    }
    if dead.iter().any(|dead| dead.is_later) {
        evidence.push(Evidence::about(class, UNSEEN.into()));
    }
    Finding {
        subject: Some(who),
        how: gone::how(job, GIVEN_UP),
        unknown_roots: dead.len() - root_ranks.len(),
        advice: gone::advice(job, GIVEN_UP).unwrap_or_default(),
        evidence,
        doubts: vec![Doubt::EndedBefore, Doubt::ObserverCutOff],
        ..Finding::new(class, root_ranks)
    }
}

impl Dead<'_> {
    fn who(&self, job: &Job) -> String {
        let rank = self.process.filter(|&at| job.processes[at as usize].rank.is_some());
        rank.map_or_else(|| named(self.place, self.peer), |at| words::rank(job, at))
    }
}

/// `process 4711 on 10.0.0.7 (GPUs 0, 1)`.
fn named((host, pid): &Place, peer: &Peer) -> String {
    let gpus: Vec<String> = peer.gpus.iter().map(u32::to_string).collect();
    let gpus = match &gpus[..] {
        [] => String::new(),
        some => format!(" ({} {})", if_one(some.len(), "GPU", "GPUs"), some.join(", ")),
    };
    format!("process {pid} on {host}{gpus}")
}

impl Peer {
    fn is_silent(&self) -> bool {
        self.silent.is_some() && self.dead.is_none()
    }

    /// What the events show, in their order.
    fn text(&self) -> String {
        let facts = [
            (&self.back, "it answered again at"),
            (&self.closed, "a connection to it was closed at"),
            (&self.silent, "no answer at"),
            (&self.dead, "considered dead at"),
        ];
        let told = facts.into_iter().filter_map(|(time, what)| Some((time.as_ref()?, what)));
        told.map(|(time, what)| format!("{what} {time}")).collect::<Vec<_>>().join(", ")
    }
}

/// Finds the processes of a job by host and process id; RAS may name a host otherwise than the job.
struct Finder<'a> {
    by_place: BTreeMap<(&'a str, u32), u32>,
    /// `None` if several have it.
    by_pid: BTreeMap<u32, Option<u32>>,
    hosts: BTreeSet<&'a str>,
}

impl<'a> Finder<'a> {
    fn of(job: &'a Job, peers: &BTreeMap<Place, Peer>) -> Finder<'a> {
        let mut finder =
            Finder { by_place: BTreeMap::new(), by_pid: BTreeMap::new(), hosts: BTreeSet::new() };
        for (Process { host, pid, .. }, at) in job.processes.iter().zip(0..) {
            finder.hosts.extend(host.as_deref());
            let Some(pid) = *pid else { continue };
            finder.by_place.extend(host.as_deref().map(|host| ((host, pid), at)));
            finder.by_pid.entry(pid).and_modify(|known| *known = None).or_insert(Some(at));
        }
        let mut pids = BTreeSet::new();
        for (_, pid) in peers.keys().filter(|(_, pid)| !pids.insert(*pid)) {
            finder.by_pid.remove(pid);
        }
        // Events from later on do not show whether another host has a process with the same id.
        if !finder.by_pid.keys().all(|pid| pids.contains(pid)) {
            finder.by_pid.clear();
        }
        finder
    }

    fn find(&self, (host, pid): &Place) -> Option<u32> {
        let by_place = self.by_place.get(&(host.as_str(), *pid)).copied();
        let by_pid = || *self.by_pid.get(pid).filter(|_| !self.hosts.contains(&**host))?;
        by_place.or_else(by_pid)
    }
}

#[cfg(test)]
mod tests {
    use super::super::monitor;
    use super::*;

    /// Where the process with id 7 of host `b` is among processes with these hosts and ids.
    fn found(events: &[(&str, &str, u32)], has: [(&str, u32); 2]) -> Option<u32> {
        let line = |(name, host, pid): &(&str, &str, u32)| {
            format!(
                "[2026-11-29 19:47:31] PEER_{name}: Process {pid} on node {host} managing GPU 0\n"
            )
        };
        let (events, damage) =
            monitor::read(events.iter().map(line).collect::<String>().as_bytes());
        assert_eq!(damage, None);
        let process = |(host, pid): (&str, u32)| Process {
            host: Some(host.to_owned()),
            pid: Some(pid),
            ..Process::default()
        };
        let job = Job { processes: has.into_iter().map(process).collect(), ..Job::default() };
        Finder::of(&job, &events.peers()).find(&("b".into(), 7))
    }

    #[test]
    fn a_process_id_alone_names_a_process_only_if_all_are_known() {
        let all = [("NEW", "a", 6), ("NEW", "b", 7), ("DEAD", "b", 7)];
        assert_eq!(found(&all, [("a", 6), ("b", 7)]), Some(1), "the host tells");
        assert_eq!(found(&all, [("node-a", 6), ("node-b", 7)]), Some(1), "the id tells");
        assert_eq!(found(&all, [("a", 6), ("c", 8)]), None);
        assert_eq!(found(&all, [("b", 6), ("c", 7)]), None, "it is of another host");
        let late = &all[2..];
        assert_eq!(found(late, [("node-a", 6), ("node-b", 7)]), None, "another host may have it");
        let same = [("NEW", "a", 7), ("DEAD", "b", 7)];
        assert_eq!(found(&same, [("node-a", 7), ("node-b", 7)]), None);
    }
}
