// SPDX-License-Identifier: Apache-2.0
//! From root causes to verdicts: the class of each, its evidence, and one verdict for causes that
//! belong together.

use crate::desync::Desync;
use crate::job::{Call, CommKind, Communicator, Job, ProcessStatus, Vector};
use crate::stuck_operation::{self, Cause};
use crate::verdict::{Evidence, Op, Verdict};
use crate::wait_graph::{Wait, WaitCycle, WaitRoots};
use crate::words;
use ncclscope_findings::rank::{Pending, Thread};
use ncclscope_findings::{Confidence, FindingClass};
use ncclscope_operations::stats::to_f64;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The most evidence lines of a verdict; the rest is counted.
const MAX_EVIDENCE: usize = 16;

/// A communicator in which others wait for a process: its own member, and the one that has waited
/// longest.
#[derive(Clone, Copy, Debug)]
struct LongestWait {
    comm: u32,
    own: u32,
    waiter: u32,
}

/// Makes verdicts of the roots of the wait graph.
pub(crate) struct Classifier<'a> {
    job: &'a Job,
    wait_roots: &'a WaitRoots,
    /// By process at fault.
    longest_wait: HashMap<u32, LongestWait>,
    /// Processes whose proxy thread does not progress, with the communicator that shows it.
    stalled: BTreeMap<u32, (u32, Cause)>,
    /// Processes in a call that NCCL has not enqueued: communicator and member.
    pending_calls: HashMap<u32, (u32, u32)>,
    /// Processes that exited while in an operation.
    exited_inside: BTreeSet<u32>,
}

impl<'a> Classifier<'a> {
    pub(crate) fn new(job: &'a Job, wait_roots: &'a WaitRoots) -> Classifier<'a> {
        let mut this = Classifier {
            job,
            wait_roots,
            longest_wait: HashMap::new(),
            stalled: BTreeMap::new(),
            pending_calls: HashMap::new(),
            exited_inside: BTreeSet::new(),
        };
        let causes: BTreeSet<u32> = wait_roots
            .late
            .iter()
            .chain(wait_roots.unfinished.iter().map(|(p, _)| p))
            .copied()
            .collect();
        let mut comms: Vec<u32> = wait_roots.waits.iter().map(|wait| wait.comm).collect();
        comms.sort_unstable();
        comms.dedup();
        for comm in comms {
            this.note_longest_wait(comm, &causes);
        }
        this.note_stalled();
        for (comm, index) in job.comms.iter().zip(0u32..) {
            for (vector, member) in comm.vectors.iter().zip(0u32..) {
                if vector.api > vector.enqueued && causes.contains(&vector.process) {
                    this.pending_calls.insert(vector.process, (index, member));
                }
                let status = job.processes[vector.process as usize].status;
                if status == ProcessStatus::Ended && vector.is_inside() {
                    this.exited_inside.insert(vector.process);
                }
            }
        }
        this
    }

    fn note_stalled(&mut self) {
        // Looked up once for a communicator: most of its members wait.
        let mut awaited: HashMap<u32, BTreeSet<i32>> = HashMap::new();
        for wait in &self.wait_roots.waits {
            let comm = self.comm(wait.comm);
            let awaited =
                awaited.entry(wait.comm).or_insert_with(|| stuck_operation::awaited_ranks(comm));
            if !self.stalled.contains_key(&wait.process)
                && let Some(cause) =
                    stuck_operation::proxy_stalled(self.job, comm, wait.member as usize, awaited)
            {
                self.stalled.insert(wait.process, (wait.comm, cause));
            }
        }
    }

    /// Notes, for each process at fault, the communicator in which a rank has waited longest for
    /// it.
    fn note_longest_wait(&mut self, index: u32, causes: &BTreeSet<u32>) {
        let comm = &self.job.comms[index as usize];
        let is_in = |v: &Vector| v.is_inside() && !self.job.is_gone(v);
        let inside = || comm.vectors.iter().zip(0u32..).filter(|(v, _)| is_in(v));
        let oldest = inside().max_by_key(|(v, at)| (v.front(), v.age_ns, u32::MAX - at));
        let Some((oldest, waiter)) = oldest else { return };
        for (vector, own) in comm.vectors.iter().zip(0u32..) {
            // Few processes are at fault, and the rest of this loop looks at all members.
            if !causes.contains(&vector.process) {
                continue;
            }
            let is_behind = self.job.front(vector) < oldest.front()
                || vector.is_inside() && comm.vectors.iter().any(|v| v.done >= vector.front());
            if !is_behind {
                continue;
            }
            let new = LongestWait { comm: index, own, waiter };
            let age = |longest: &LongestWait| {
                let comm = &self.job.comms[longest.comm as usize];
                (comm.kind == CommKind::Collectives, comm.vectors[longest.waiter as usize].age_ns)
            };
            let known = self.longest_wait.get(&vector.process);
            if known.is_none_or(|known| age(known) < age(&new)) {
                self.longest_wait.insert(vector.process, new);
            }
        }
    }

    pub(crate) fn verdicts(&self, desyncs: &[Desync]) -> Vec<Verdict> {
        let mut verdicts: Vec<Verdict> =
            desyncs.iter().map(|one| self.desync_verdict(one)).collect();
        let mut groups: BTreeMap<(FindingClass, Confidence), Vec<u32>> = BTreeMap::new();
        for &process in &self.wait_roots.late {
            groups
                .entry((self.class_of_late(process), Confidence::Confirmed))
                .or_default()
                .push(process);
        }
        let mut causes: Vec<(Option<u32>, Cause)> = Vec::new();
        for (process, waits) in &self.wait_roots.unfinished {
            match self.cause_of_unfinished(*process, waits) {
                Some(found) => causes.push(found),
                None => groups
                    .entry((FindingClass::GpuDead, Confidence::Confirmed))
                    .or_default()
                    .push(*process),
            }
        }
        for ((class, confidence), processes) in groups {
            verdicts.push(self.verdict_by_counts(class, confidence, processes));
        }
        for &(comm, ref members) in &self.wait_roots.inside {
            let vectors = members.iter().map(|&at| &self.comm(comm).vectors[at as usize]);
            let stalled = vectors.filter_map(|v| Some(self.stalled.get(&v.process)?.1.clone()));
            let mut found: Vec<Cause> = stalled.collect();
            // A member without input may be the reason why transfers have not begun.
            if !self.comm(comm).silent.is_empty() {
                found.clear();
            }
            if found.is_empty() {
                found = stuck_operation::causes_inside(self.job, self.comm(comm), members);
            }
            causes.extend(found.into_iter().map(|cause| (Some(comm), cause)));
        }
        verdicts.extend(self.silent_verdict(self.suspects(&causes)));
        verdicts.extend(self.verdicts_inside(causes));
        verdicts.extend(self.wait_roots.cycles.iter().map(|cycle| self.cycle_verdict(cycle)));
        verdicts
    }

    fn comm(&self, index: u32) -> &'a Communicator {
        &self.job.comms[index as usize]
    }

    fn call(&self, comm: &'a Communicator, member: u32, index: u64) -> Option<&'a Call> {
        let flight = comm.flights.get(&member).map(|flight| &flight.call);
        let called = || comm.calls.get(&member).and_then(|calls| calls.get(&index));
        flight.filter(|call| !call.func.is_empty()).or_else(called)
    }

    fn op(&self, comm: &'a Communicator, member: u32) -> Op {
        let index = comm.vectors[member as usize].front();
        let call = self.call(comm, member, index).cloned().unwrap_or_default();
        Op { index, func: call.func, datatype: call.datatype, size: call.size }
    }

    /// Why a process that waits for nothing is late.
    fn class_of_late(&self, process: u32) -> FindingClass {
        let one = &self.job.processes[process as usize];
        let is_mismatch = |longest: &LongestWait| {
            let comm = self.comm(longest.comm);
            let by = &comm.vectors[longest.waiter as usize];
            comm.kind == CommKind::Pair && self.has_moved_on(process, by)
        };
        match one.status {
            ProcessStatus::Dead => FindingClass::ProcessGone,
            _ if one.entered.is_some() || self.pending_calls.contains_key(&process) => {
                FindingClass::CallNotEnqueued
            }
            _ if self.longest_wait.get(&process).is_some_and(is_mismatch) => {
                FindingClass::P2pMismatch
            }
            ProcessStatus::Ended => FindingClass::ProcessGone,
            _ => FindingClass::HostStuck,
        }
    }

    /// The process called NCCL after the other one began to wait, but not for this transfer; or it
    /// exited without it.
    fn has_moved_on(&self, process: u32, by: &Vector) -> bool {
        let one = &self.job.processes[process as usize];
        let other = &self.job.processes[by.process as usize];
        let is_later = one.host == other.host
            && matches!((one.idle_ns, by.age_ns), (Some(idle), Some(age)) if idle < age);
        is_later || one.status == ProcessStatus::Ended && !self.exited_inside.contains(&process)
    }

    fn cause_of_unfinished(&self, process: u32, waits: &[Wait]) -> Option<(Option<u32>, Cause)> {
        if let Some((comm, cause)) = self.stalled.get(&process) {
            return Some((Some(*comm), cause.clone()));
        }
        waits.iter().find_map(|wait| {
            let cause = stuck_operation::cause_at_one(
                self.job,
                self.comm(wait.comm),
                wait.member as usize,
            )?;
            Some((Some(wait.comm), cause))
        })
    }

    /// One verdict about processes whose own counts show that they are at fault.
    fn verdict_by_counts(
        &self,
        class: FindingClass,
        confidence: Confidence,
        processes: Vec<u32>,
    ) -> Verdict {
        let mut evidence = Vec::new();
        for &process in &processes {
            if let Some(longest) = self.longest_wait.get(&process) {
                evidence.extend(self.evidence_lines(class, process, *longest));
            }
        }
        let victims = self.wait_roots.victims(&processes, &[]);
        let first = processes.iter().find_map(|process| self.longest_wait.get(process)).copied();
        let mut verdict = self.verdict(class, confidence, &processes, evidence, victims);
        if let Some(longest) = first {
            let comm = self.comm(longest.comm);
            verdict.comm = Some(comm.name.clone());
            verdict.op = Some(self.op(comm, longest.waiter));
            verdict.age_s = self.age_s(&comm.vectors[longest.waiter as usize]);
        }
        verdict.alternatives = match class {
            FindingClass::HostStuck => {
                vec!["it computes, or waits for something outside NCCL".into()]
            }
            FindingClass::GpuDead => {
                vec!["an NCCL kernel never started there, and its peers did not need it".into()]
            }
            FindingClass::P2pMismatch => {
                vec!["it is stuck outside NCCL before its side of the transfer".into()]
            }
            _ => Vec::new(),
        };
        verdict
    }

    fn age_s(&self, vector: &Vector) -> Option<f64> {
        vector.age_ns.filter(|_| !self.job.is_dump).map(|age| to_f64(age) / 1e9)
    }

    /// The evidence that one process is at fault.
    fn evidence_lines(
        &self,
        class: FindingClass,
        process: u32,
        longest: LongestWait,
    ) -> Vec<Evidence> {
        let comm = self.comm(longest.comm);
        let (own, by) =
            (&comm.vectors[longest.own as usize], &comm.vectors[longest.waiter as usize]);
        let (rank, who) = (self.job.rank(process), words::rank(self.job, process));
        let index = by.front();
        let mut line = Evidence::of(
            class,
            rank,
            format!(
                "{who} in {}: {}; {} waits in {}{} ({})",
                words::comm(comm),
                words::counts(own),
                words::rank(self.job, by.process),
                words::op(index, self.call(comm, longest.waiter, index)),
                words::since(self.job, by.age_ns),
                words::counts(by),
            ),
        );
        line.peer = Some(self.job.rank(by.process));
        let mut lines = vec![line];
        let mut add = |text: String| lines.push(Evidence::of(class, rank, text));
        let one = &self.job.processes[process as usize];
        match class {
            FindingClass::ProcessGone if one.status == ProcessStatus::Ended => {
                add(format!("{who} exited normally"))
            }
            FindingClass::ProcessGone => add(format!("{who} has written no record since")),
            FindingClass::CallNotEnqueued => add(self.pending_text(process)),
            FindingClass::HostStuck | FindingClass::P2pMismatch => {
                if let Some(idle) = one.idle_ns {
                    add(format!("{who} last called NCCL {} ago", words::duration(idle)));
                }
                let api = one.threads.iter().filter(|thread| thread.is_api);
                for Thread { tid, state, place, .. } in api.map(|thread| &thread.thread) {
                    let place = if place.is_empty() { "user code" } else { place };
                    let state = if *state == 0 { '?' } else { char::from(*state) };
                    add(format!("{who}: thread {tid} is in state {state}, in {place}"));
                }
            }
            _ => {}
        }
        for report in one.reports.iter().take(2) {
            add(format!("its own watchdog: {report}"));
        }
        lines
    }

    /// The state of the call that has not returned.
    fn pending_text(&self, process: u32) -> String {
        let who = words::rank(self.job, process);
        let entered = self.job.processes[process as usize].entered;
        let place = entered.unwrap_or(Pending::Inside).text();
        let called =
            self.pending_calls.get(&process).map_or_else(String::new, |&(index, member)| {
                let comm = self.comm(index);
                let counts = words::counts(&comm.vectors[member as usize]);
                format!("; {}: {counts}", words::comm(comm))
            });
        format!("{who}: {place}{called}")
    }

    fn verdict(
        &self,
        class: FindingClass,
        confidence: Confidence,
        processes: &[u32],
        mut evidence: Vec<Evidence>,
        victims: usize,
    ) -> Verdict {
        let mut root_ranks: Vec<u32> =
            processes.iter().filter_map(|&p| self.job.known_rank(p)).collect();
        root_ranks.sort_unstable();
        root_ranks.dedup();
        if evidence.len() > MAX_EVIDENCE {
            let more = evidence.len() - MAX_EVIDENCE;
            evidence.truncate(MAX_EVIDENCE);
            let text = format!("and {more} more lines of this kind");
            let rule = class.code();
            evidence.push(Evidence { rule, rank: None, peer: None, channel: None, text });
        }
        let who = match root_ranks.as_slice() {
            [] if class == FindingClass::ProcessGone => "an unknown rank".to_owned(),
            [] => "all members".to_owned(),
            [_] => words::rank(self.job, processes[0]),
            many => format!("ranks {}", words::ranks(many)),
        };
        let has_ended = |&p: &u32| {
            self.job.processes.get(p as usize).is_some_and(|one| one.status == ProcessStatus::Ended)
        };
        let meaning = match class {
            FindingClass::ProcessGone
                if !processes.is_empty() && processes.iter().all(has_ended) =>
            {
                "gone: the process exited"
            }
            _ => class.title(),
        };
        Verdict {
            class,
            title: format!("{who}: {meaning}"),
            confidence,
            root_ranks,
            edge: None,
            comm: None,
            op: None,
            age_s: None,
            victims,
            evidence,
            alternatives: Vec::new(),
        }
    }

    /// Verdicts for causes inside operations: one process may hold up several communicators.
    fn verdicts_inside(&self, mut causes: Vec<(Option<u32>, Cause)>) -> Vec<Verdict> {
        merge_paths_of_one_rank(&mut causes);
        let mut verdicts: Vec<MergedCause> = Vec::new();
        for (comm, cause) in causes {
            let same = verdicts.iter_mut().find(|(_, other, ..)| {
                other.class == cause.class
                    && other.confidence == cause.confidence
                    && other.edge == cause.edge
            });
            match same {
                Some((_, other, roots, comms)) => {
                    roots.extend(&cause.roots);
                    comms.extend(comm);
                    other.evidence.extend(cause.evidence);
                }
                None => {
                    let roots = cause.roots.iter().copied().collect();
                    verdicts.push((comm, cause, roots, comm.into_iter().collect()));
                }
            }
        }
        // Several causes may have the same evidence.
        for (_, cause, ..) in &mut verdicts {
            let mut seen = HashSet::new();
            cause.evidence.retain(|line| seen.insert(line.clone()));
        }
        let make = |(comm, cause, roots, comms): MergedCause| {
            let roots: Vec<u32> = roots.into_iter().collect();
            let victims = self.wait_roots.victims(&roots, &comms);
            let mut verdict =
                self.verdict(cause.class, cause.confidence, &roots, cause.evidence, victims);
            verdict.edge = cause.edge.map(|(from, to)| [self.job.rank(from), self.job.rank(to)]);
            verdict.alternatives = cause.alternatives;
            if let Some(comm) = comm.map(|comm| self.comm(comm)) {
                verdict.comm = Some(comm.name.clone());
                let oldest = comm.vectors.iter().zip(0u32..).max_by_key(|(v, _)| v.age_ns);
                verdict.op = oldest.map(|(_, at)| self.op(comm, at));
                verdict.age_s = oldest.and_then(|(v, _)| self.age_s(v));
            }
            verdict
        };
        merge_same_ranks(verdicts).into_iter().map(make).collect()
    }

    fn cycle_verdict(&self, cycle: &WaitCycle) -> Verdict {
        let WaitCycle { waits, pairs } = cycle;
        let class =
            if pairs.is_empty() { FindingClass::Deadlock } else { FindingClass::P2pMismatch };
        let is_issued = |wait: &Wait| {
            let comm = self.comm(wait.comm);
            let front = comm.vectors[wait.member as usize].front();
            comm.vectors.iter().all(|v| v.enqueued >= front && v.started.is_none())
        };
        // All calls were made, in different orders: that is harmless on independent streams.
        let is_weak = waits.iter().all(is_issued);
        let (mut processes, mut edge): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        let mut evidence = Vec::new();
        for wait in waits {
            let comm = self.comm(wait.comm);
            let vector = &comm.vectors[wait.member as usize];
            if pairs.contains(&wait.comm) {
                processes.extend(comm.vectors.iter().map(|v| v.process));
                edge = comm.vectors.iter().map(|v| self.job.rank(v.process)).collect();
            } else if class == FindingClass::Deadlock {
                processes.push(wait.process);
            }
            let index = vector.front();
            evidence.push(Evidence::of(
                class,
                self.job.rank(wait.process),
                format!(
                    "{} waits in {} of {} ({})",
                    words::rank(self.job, wait.process),
                    words::op(index, self.call(comm, wait.member, index)),
                    words::comm(comm),
                    words::counts(vector),
                ),
            ));
        }
        processes.sort_unstable();
        processes.dedup();
        let confidence = if is_weak { Confidence::Suspect } else { Confidence::Confirmed };
        let victims = self.wait_roots.victims(&processes, &[]);
        let mut verdict = self.verdict(class, confidence, &processes, evidence, victims);
        verdict.edge = <[u32; 2]>::try_from(edge).ok();
        if let Some(wait) = waits.first() {
            let comm = self.comm(wait.comm);
            verdict.comm = Some(comm.name.clone());
            verdict.op = Some(self.op(comm, wait.member));
            verdict.age_s = self.age_s(&comm.vectors[wait.member as usize]);
        }
        verdict
    }

    fn desync_verdict(&self, desync: &Desync) -> Verdict {
        let comm = self.comm(desync.comm);
        let class = if comm.kind == CommKind::Pair {
            FindingClass::P2pMismatch
        } else {
            FindingClass::CallMismatch
        };
        let mut evidence = Vec::new();
        for (members, call) in &desync.groups {
            let process = |&at: &u32| comm.vectors[at as usize].process;
            let mut ranks: Vec<u32> = members.iter().map(|at| self.job.rank(process(at))).collect();
            ranks.sort_unstable();
            let rank = ranks.first().copied().unwrap_or(0);
            let what = match call {
                Some(call) => {
                    let count =
                        call.count.map_or_else(String::new, |count| format!(", count {count}"));
                    let root = call.root.map_or_else(String::new, |root| format!(", root {root}"));
                    match class {
                        FindingClass::P2pMismatch => format!("{} of {}", call.func, call.size),
                        _ => format!("{} {}{count}{root}", call.func, call.datatype),
                    }
                }
                None => "a different call".into(),
            };
            let up_to = if desync.is_exact { "call" } else { "up to call" };
            let are = if ranks.len() == 1 { "rank" } else { "ranks" };
            let text =
                format!("{are} {}: {up_to} {} is {what}", words::ranks(&ranks), desync.index);
            evidence.push(Evidence::of(class, rank, text));
        }
        let process = |&at: &u32| comm.vectors[at as usize].process;
        let processes: Vec<u32> = desync.accused.iter().map(process).collect();
        let victims = self.wait_roots.victims(&processes, &[]);
        let confidence = Confidence::Confirmed;
        let mut verdict = self.verdict(class, confidence, &processes, evidence, victims);
        verdict.comm = Some(comm.name.clone());
        let call = desync.groups.first().and_then(|(_, call)| call.clone()).unwrap_or_default();
        let index = desync.index;
        verdict.op = Some(Op { index, func: call.func, datatype: call.datatype, size: call.size });
        verdict
    }

    /// Processes without input that may explain the waits of a communicator, where no confirmed
    /// cause in the operation does.
    fn suspects(&self, causes: &[(Option<u32>, Cause)]) -> Vec<(u32, u32)> {
        let sure = causes.iter().filter(|(_, cause)| cause.confidence == Confidence::Confirmed);
        let explained: BTreeSet<u32> = sure.filter_map(|(comm, _)| *comm).collect();
        let mut suspects = self.wait_roots.silent.clone();
        suspects.retain(|(_, comm)| !explained.contains(comm));
        suspects
    }

    fn silent_verdict(&self, suspects: Vec<(u32, u32)>) -> Option<Verdict> {
        let silent: BTreeSet<u32> = suspects.iter().map(|(silent, _)| *silent).collect();
        let mut evidence = Vec::new();
        let mut comms: Vec<u32> = Vec::new();
        for &process in &silent {
            let of = suspects.iter().filter(|(other, _)| *other == process);
            // One communicator is enough evidence: the smallest, where it is most likely.
            let least = of.map(|(_, comm)| *comm).min_by_key(|&comm| self.comm(comm).nranks)?;
            let comm = self.comm(least);
            comms.push(least);
            let waiter = comm.vectors.iter().find(|v| v.is_inside());
            let front = waiter.map_or(0, Vector::front);
            let text = format!(
                "there is no input from {}; all members of {} with input wait in operation {front}",
                words::rank(self.job, process),
                words::comm(comm),
            );
            evidence.push(Evidence::of(FindingClass::ProcessGone, self.job.rank(process), text));
        }
        if silent.is_empty() {
            return None;
        }
        let processes: Vec<u32> = silent.into_iter().collect();
        let victims = self.wait_roots.victims(&[], &comms);
        let confidence = Confidence::Suspect;
        let mut verdict =
            self.verdict(FindingClass::ProcessGone, confidence, &processes, evidence, victims);
        let comm = self.comm(comms[0]);
        verdict.comm = Some(comm.name.clone());
        let waiter = comm.vectors.iter().zip(0u32..).find(|(v, _)| v.is_inside());
        verdict.op = waiter.map(|(_, at)| self.op(comm, at));
        verdict.alternatives =
            vec!["only its input is missing, and it waits like the others".into()];
        Some(verdict)
    }
}

/// A cause with the communicator that shows it, its processes, and all communicators it holds up.
type MergedCause = (Option<u32>, Cause, BTreeSet<u32>, Vec<u32>);

/// Merges causes with the same class and ranks but different network paths into one; the evidence
/// names the paths.
fn merge_same_ranks(verdicts: Vec<MergedCause>) -> Vec<MergedCause> {
    let mut merged: Vec<MergedCause> = Vec::new();
    for (comm, cause, roots, comms) in verdicts {
        let same = merged.iter_mut().find(|(_, other, of, _)| {
            (other.class, other.confidence) == (cause.class, cause.confidence) && *of == roots
        });
        match same {
            Some((_, other, _, of)) => {
                other.edge = None;
                other.evidence.extend(cause.evidence);
                of.extend(comms);
            }
            None => merged.push((comm, cause, roots, comms)),
        }
    }
    merged
}

/// If several stalled paths share one rank, the cause is the network interface of that rank.
fn merge_paths_of_one_rank(causes: &mut [(Option<u32>, Cause)]) {
    let mut peers: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (from, to) in
        causes.iter().filter(|c| c.1.class == FindingClass::NetworkStalled).filter_map(|c| c.1.edge)
    {
        peers.entry(from).or_default().insert(to);
        peers.entry(to).or_default().insert(from);
    }
    let most = peers.iter().filter(|(_, peers)| peers.len() > 1);
    let Some((&shared, _)) = most.max_by_key(|(_, peers)| peers.len()) else { return };
    for (_, cause) in
        causes.iter_mut().filter(|(_, cause)| cause.class == FindingClass::NetworkStalled)
    {
        if cause.edge.is_some_and(|(from, to)| from == shared || to == shared) {
            cause.roots = vec![shared];
            cause.edge = None;
        }
    }
}
