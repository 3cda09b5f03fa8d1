// SPDX-License-Identifier: Apache-2.0
//! From causes to verdicts: the class of each, its evidence, and one verdict for what belongs
//! together.

use crate::desync::Desync;
use crate::hang::{Circle, Findings, Wait};
use crate::job::{Call, Communicator, Job, Kind, Life, Vector};
use crate::triage::{self, Cause};
use crate::verdict::{Evidence, Op, Verdict};
use crate::words;
use ncclscope_findings::rank::{Pending, Thread};
use ncclscope_findings::{Confidence, FindingClass};
use ncclscope_operations::stats::to_f64;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Evidence lines of a verdict at most; the rest is counted.
const LINES: usize = 16;

/// Where others wait for a process: the vector of it, and that of who has waited longest.
#[derive(Clone, Copy, Debug)]
struct Waited {
    comm: u32,
    own: u32,
    by: u32,
}

/// Makes verdicts of what the search found.
pub(crate) struct Classifier<'a> {
    job: &'a Job,
    findings: &'a Findings,
    /// For each cause, where others wait for it.
    waited: HashMap<u32, Waited>,
    /// Processes whose proxy thread makes no progress, with the communicator that shows it.
    stalled: BTreeMap<u32, (u32, Cause)>,
    /// Processes that are in a call which NCCL has not enqueued: communicator and member.
    called: HashMap<u32, (u32, u32)>,
    /// Processes that came to their end in an operation that did not.
    left: BTreeSet<u32>,
}

impl<'a> Classifier<'a> {
    pub(crate) fn new(job: &'a Job, findings: &'a Findings) -> Classifier<'a> {
        let mut this = Classifier {
            job,
            findings,
            waited: HashMap::new(),
            stalled: BTreeMap::new(),
            called: HashMap::new(),
            left: BTreeSet::new(),
        };
        let causes: BTreeSet<u32> = findings
            .late
            .iter()
            .chain(findings.unfinished.iter().map(|(p, _)| p))
            .copied()
            .collect();
        let mut comms: Vec<u32> = findings.waits.iter().map(|wait| wait.comm).collect();
        comms.sort_unstable();
        comms.dedup();
        for comm in comms {
            this.note_waited(comm, &causes);
        }
        this.note_stalled();
        for (comm, index) in job.comms.iter().zip(0u32..) {
            for (vector, member) in comm.vectors.iter().zip(0u32..) {
                if vector.api > vector.enqueued && causes.contains(&vector.process) {
                    this.called.insert(vector.process, (index, member));
                }
                let life = job.processes[vector.process as usize].life;
                if life == Life::Ended && vector.is_inside() {
                    this.left.insert(vector.process);
                }
            }
        }
        this
    }

    /// Keeps the processes whose proxy thread is stalled.
    fn note_stalled(&mut self) {
        // Of all members together: most of them wait.
        let mut awaited: HashMap<u32, BTreeSet<i32>> = HashMap::new();
        for wait in &self.findings.waits {
            let comm = self.comm(wait.comm);
            let awaited = awaited.entry(wait.comm).or_insert_with(|| triage::awaited(comm));
            if !self.stalled.contains_key(&wait.process)
                && let Some(cause) = triage::stalled(self.job, comm, wait.member as usize, awaited)
            {
                self.stalled.insert(wait.process, (wait.comm, cause));
            }
        }
    }

    /// Keeps, for each cause, the communicator in which a rank has waited longest for it.
    fn note_waited(&mut self, index: u32, causes: &BTreeSet<u32>) {
        let comm = &self.job.comms[index as usize];
        let is_in = |v: &Vector| v.is_inside() && !self.job.is_gone(v);
        let inside = || comm.vectors.iter().zip(0u32..).filter(|(v, _)| is_in(v));
        let oldest = inside().max_by_key(|(v, at)| (v.front(), v.age_ns, u32::MAX - at));
        let Some((waiter, by)) = oldest else { return };
        for (vector, own) in comm.vectors.iter().zip(0u32..) {
            // Causes are few; what follows looks at all members.
            if !causes.contains(&vector.process) {
                continue;
            }
            let is_behind = self.job.front(vector) < waiter.front()
                || vector.is_inside() && comm.vectors.iter().any(|v| v.done >= vector.front());
            if !is_behind {
                continue;
            }
            let new = Waited { comm: index, own, by };
            let age = |waited: &Waited| {
                let comm = &self.job.comms[waited.comm as usize];
                (comm.kind == Kind::Collectives, comm.vectors[waited.by as usize].age_ns)
            };
            let known = self.waited.get(&vector.process);
            if known.is_none_or(|known| age(known) < age(&new)) {
                self.waited.insert(vector.process, new);
            }
        }
    }

    /// All verdicts.
    pub(crate) fn verdicts(&self, desyncs: &[Desync]) -> Vec<Verdict> {
        let mut verdicts: Vec<Verdict> = desyncs.iter().map(|one| self.desync(one)).collect();
        let mut groups: BTreeMap<(FindingClass, Confidence), Vec<u32>> = BTreeMap::new();
        for &process in &self.findings.late {
            groups.entry((self.late(process), Confidence::Confirmed)).or_default().push(process);
        }
        let mut causes: Vec<(Option<u32>, Cause)> = Vec::new();
        for (process, waits) in &self.findings.unfinished {
            match self.alone(*process, waits) {
                Some(found) => causes.push(found),
                None => groups
                    .entry((FindingClass::GpuDead, Confidence::Confirmed))
                    .or_default()
                    .push(*process),
            }
        }
        for ((class, confidence), processes) in groups {
            verdicts.push(self.counted(class, confidence, processes));
        }
        for &(comm, ref members) in &self.findings.inside {
            let vectors = members.iter().map(|&at| &self.comm(comm).vectors[at as usize]);
            let stalled = vectors.filter_map(|v| Some(self.stalled.get(&v.process)?.1.clone()));
            let mut found: Vec<Cause> = stalled.collect();
            // Transfers may not have begun because of members without input.
            if !self.comm(comm).silent.is_empty() {
                found.clear();
            }
            if found.is_empty() {
                found = triage::inside(self.job, self.comm(comm), members);
            }
            causes.extend(found.into_iter().map(|cause| (Some(comm), cause)));
        }
        verdicts.extend(self.silent(self.suspects(&causes)));
        verdicts.extend(self.merged(causes));
        verdicts.extend(self.findings.circles.iter().map(|circle| self.circle(circle)));
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

    /// Why a process that does not wait is behind.
    fn late(&self, process: u32) -> FindingClass {
        let one = &self.job.processes[process as usize];
        let is_mismatch = |waited: &Waited| {
            let comm = self.comm(waited.comm);
            let by = &comm.vectors[waited.by as usize];
            comm.kind == Kind::Pair && self.has_moved_on(process, by)
        };
        match one.life {
            Life::Dead => FindingClass::ProcessGone,
            _ if one.entered.is_some() || self.called.contains_key(&process) => {
                FindingClass::CallNotEnqueued
            }
            _ if self.waited.get(&process).is_some_and(is_mismatch) => FindingClass::P2pMismatch,
            Life::Ended => FindingClass::ProcessGone,
            _ => FindingClass::HostStuck,
        }
    }

    /// The process called NCCL after the other one began to wait, but not for this transfer; or it
    /// came to its end without it.
    fn has_moved_on(&self, process: u32, by: &Vector) -> bool {
        let one = &self.job.processes[process as usize];
        let other = &self.job.processes[by.process as usize];
        let is_later = one.host == other.host
            && matches!((one.idle_ns, by.age_ns), (Some(idle), Some(age)) if idle < age);
        is_later || one.life == Life::Ended && !self.left.contains(&process)
    }

    fn alone(&self, process: u32, waits: &[Wait]) -> Option<(Option<u32>, Cause)> {
        if let Some((comm, cause)) = self.stalled.get(&process) {
            return Some((Some(*comm), cause.clone()));
        }
        waits.iter().find_map(|wait| {
            let cause = triage::alone(self.job, self.comm(wait.comm), wait.member as usize)?;
            Some((Some(wait.comm), cause))
        })
    }

    /// One verdict about processes that the counts convict.
    fn counted(&self, class: FindingClass, confidence: Confidence, processes: Vec<u32>) -> Verdict {
        let mut evidence = Vec::new();
        for &process in &processes {
            if let Some(waited) = self.waited.get(&process) {
                evidence.extend(self.lines(class, process, *waited));
            }
        }
        let victims = self.findings.victims(&processes, &[]);
        let first = processes.iter().find_map(|process| self.waited.get(process)).copied();
        let mut verdict = self.verdict(class, confidence, &processes, evidence, victims);
        if let Some(waited) = first {
            let comm = self.comm(waited.comm);
            verdict.comm = Some(comm.name.clone());
            verdict.op = Some(self.op(comm, waited.by));
            verdict.age_s = self.age_s(&comm.vectors[waited.by as usize]);
        }
        verdict.alternatives = match class {
            FindingClass::HostStuck => {
                vec!["it waits in something that NCCL does not see, or computes".into()]
            }
            FindingClass::GpuDead => vec![
                "a kernel of NCCL was never started there, and its peers did not need it".into(),
            ],
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

    /// The evidence against one process.
    fn lines(&self, class: FindingClass, process: u32, waited: Waited) -> Vec<Evidence> {
        let comm = self.comm(waited.comm);
        let (own, by) = (&comm.vectors[waited.own as usize], &comm.vectors[waited.by as usize]);
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
                words::op(index, self.call(comm, waited.by, index)),
                words::since(self.job, by.age_ns),
                words::counts(by),
            ),
        );
        line.peer = Some(self.job.rank(by.process));
        let mut lines = vec![line];
        let mut add = |text: String| lines.push(Evidence::of(class, rank, text));
        let one = &self.job.processes[process as usize];
        match class {
            FindingClass::ProcessGone if one.life == Life::Ended => {
                add(format!("{who} ended in order"))
            }
            FindingClass::ProcessGone => add(format!("{who} has given no sign of life since")),
            FindingClass::CallNotEnqueued => add(self.entered(process)),
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

    /// Where the call is that did not come back.
    fn entered(&self, process: u32) -> String {
        let who = words::rank(self.job, process);
        let entered = self.job.processes[process as usize].entered;
        let place = entered.unwrap_or(Pending::Inside).text();
        let called = self.called.get(&process).map_or_else(String::new, |&(index, member)| {
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
        if evidence.len() > LINES {
            let more = evidence.len() - LINES;
            evidence.truncate(LINES);
            let text = format!("and {more} lines more of the same kind");
            let rule = class.code();
            evidence.push(Evidence { rule, rank: None, peer: None, channel: None, text });
        }
        let who = match root_ranks.as_slice() {
            [] if class == FindingClass::ProcessGone => "a rank of unknown number".to_owned(),
            [] => "all members".to_owned(),
            [_] => words::rank(self.job, processes[0]),
            many => format!("ranks {}", words::ranks(many)),
        };
        let has_ended = |&p: &u32| {
            self.job.processes.get(p as usize).is_some_and(|one| one.life == Life::Ended)
        };
        let meaning = match class {
            FindingClass::ProcessGone
                if !processes.is_empty() && processes.iter().all(has_ended) =>
            {
                "gone: the process ended"
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

    /// Causes inside operations: one process may hold up several communicators.
    fn merged(&self, mut causes: Vec<(Option<u32>, Cause)>) -> Vec<Verdict> {
        one_interface(&mut causes);
        let mut verdicts: Vec<Merged> = Vec::new();
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
        // Several causes may rest on the same line.
        for (_, cause, ..) in &mut verdicts {
            let mut seen = HashSet::new();
            cause.evidence.retain(|line| seen.insert(line.clone()));
        }
        let make = |(comm, cause, roots, comms): Merged| {
            let roots: Vec<u32> = roots.into_iter().collect();
            let victims = self.findings.victims(&roots, &comms);
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
        by_roots(verdicts).into_iter().map(make).collect()
    }

    fn circle(&self, circle: &Circle) -> Verdict {
        let Circle { waits: circle, pairs } = circle;
        let class =
            if pairs.is_empty() { FindingClass::Deadlock } else { FindingClass::P2pMismatch };
        let is_issued = |wait: &Wait| {
            let comm = self.comm(wait.comm);
            let front = comm.vectors[wait.member as usize].front();
            comm.vectors.iter().all(|v| v.enqueued >= front && v.started.is_none())
        };
        // All issued, and only the order of their calls differs: streams may still be independent.
        let is_weak = circle.iter().all(is_issued);
        let (mut processes, mut edge): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        let mut evidence = Vec::new();
        for wait in circle {
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
        let victims = self.findings.victims(&processes, &[]);
        let mut verdict = self.verdict(class, confidence, &processes, evidence, victims);
        verdict.edge = <[u32; 2]>::try_from(edge).ok();
        if let Some(wait) = circle.first() {
            let comm = self.comm(wait.comm);
            verdict.comm = Some(comm.name.clone());
            verdict.op = Some(self.op(comm, wait.member));
            verdict.age_s = self.age_s(&comm.vectors[wait.member as usize]);
        }
        verdict
    }

    fn desync(&self, desync: &Desync) -> Verdict {
        let comm = self.comm(desync.comm);
        let class = if comm.kind == Kind::Pair {
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
                None => "calls of their own".into(),
            };
            let up_to = if desync.is_exact { "call" } else { "up to call" };
            let are = if ranks.len() == 1 { "rank" } else { "ranks" };
            let text =
                format!("{are} {}: {up_to} {} is {what}", words::ranks(&ranks), desync.index);
            evidence.push(Evidence::of(class, rank, text));
        }
        let process = |&at: &u32| comm.vectors[at as usize].process;
        let processes: Vec<u32> = desync.accused.iter().map(process).collect();
        let victims = self.findings.victims(&processes, &[]);
        let confidence = Confidence::Confirmed;
        let mut verdict = self.verdict(class, confidence, &processes, evidence, victims);
        verdict.comm = Some(comm.name.clone());
        let call = desync.groups.first().and_then(|(_, call)| call.clone()).unwrap_or_default();
        let index = desync.index;
        verdict.op = Some(Op { index, func: call.func, datatype: call.datatype, size: call.size });
        verdict
    }

    /// Processes without input that explain what no cause in the operation itself does, with
    /// communicators.
    fn suspects(&self, causes: &[(Option<u32>, Cause)]) -> Vec<(u32, u32)> {
        let sure = causes.iter().filter(|(_, cause)| cause.confidence == Confidence::Confirmed);
        let explained: BTreeSet<u32> = sure.filter_map(|(comm, _)| *comm).collect();
        let mut suspects = self.findings.silent.clone();
        suspects.retain(|(_, comm)| !explained.contains(comm));
        suspects
    }

    fn silent(&self, suspects: Vec<(u32, u32)>) -> Option<Verdict> {
        let silent: BTreeSet<u32> = suspects.iter().map(|(silent, _)| *silent).collect();
        let mut evidence = Vec::new();
        let mut comms: Vec<u32> = Vec::new();
        for &process in &silent {
            let of = suspects.iter().filter(|(other, _)| *other == process);
            // One communicator says enough: the smallest, where it is most likely.
            let least = of.map(|(_, comm)| *comm).min_by_key(|&comm| self.comm(comm).nranks)?;
            let comm = self.comm(least);
            comms.push(least);
            let waiter = comm.vectors.iter().find(|v| v.is_inside());
            let front = waiter.map_or(0, Vector::front);
            let text = format!(
                "there is no input of {}; all others of {} that gave any wait in operation {front}",
                words::rank(self.job, process),
                words::comm(comm),
            );
            evidence.push(Evidence::of(FindingClass::ProcessGone, self.job.rank(process), text));
        }
        if silent.is_empty() {
            return None;
        }
        let processes: Vec<u32> = silent.into_iter().collect();
        let victims = self.findings.victims(&[], &comms);
        let confidence = Confidence::Suspect;
        let mut verdict =
            self.verdict(FindingClass::ProcessGone, confidence, &processes, evidence, victims);
        let comm = self.comm(comms[0]);
        verdict.comm = Some(comm.name.clone());
        let waiter = comm.vectors.iter().zip(0u32..).find(|(v, _)| v.is_inside());
        verdict.op = waiter.map(|(_, at)| self.op(comm, at));
        verdict.alternatives =
            vec!["only its input is missing, and it waits as the others do".into()];
        Some(verdict)
    }
}

/// A cause with where it was seen first, its processes, and all communicators that it holds up.
type Merged = (Option<u32>, Cause, BTreeSet<u32>, Vec<u32>);

/// One verdict where the same ranks are the cause by several paths, which then are in the evidence.
fn by_roots(verdicts: Vec<Merged>) -> Vec<Merged> {
    let mut merged: Vec<Merged> = Vec::new();
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

/// Paths that share one rank, with different ones at the other end, are that rank's interface.
fn one_interface(causes: &mut [(Option<u32>, Cause)]) {
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
