// SPDX-License-Identifier: Apache-2.0
//! Makes verdicts from root causes: the class of each and its evidence. Causes that belong together
//! get one verdict.

mod calls;
mod cycle;
mod differs;

use crate::desync::Desync;
use crate::diagnosis;
use crate::gone;
use crate::job::{
    Call, CommKind, Communicator, InFlightOp, Job, Process, ProcessStatus, Vector, how_stopped,
};
use crate::merge_causes;
use crate::settings::Differs;
use crate::stuck_operation::{self, At, Cause};
use crate::wait_graph::{Wait, WaitRoots};
use crate::{doubts, setup, words};
use ncclscope_findings::rank::Pending;
use ncclscope_findings::{CommId, Doubt, Evidence, Finding, FindingClass, How, Op};
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Maximum number of evidence lines of a verdict; further ones are only counted.
const MAX_EVIDENCE: usize = 16;

/// The communicator in which a rank has waited longest for a process: the members (positions) of
/// that process and of the rank.
#[derive(Clone, Copy, Debug)]
struct LongestWait {
    comm: u32,
    own: u32,
    waiter: u32,
}

/// A group of late processes that make one finding: the class, whether they are only suspected, and
/// whether each of them is only possible.
type Group = (FindingClass, bool, bool);

/// Makes findings from the roots of the wait graph.
pub(crate) struct Classifier<'a> {
    job: &'a Job,
    /// The age from which an operation in flight counts as a wait, ns.
    hang_ns: u64,
    wait_roots: &'a WaitRoots,
    /// The longest wait for each process at fault.
    longest_wait: HashMap<u32, LongestWait>,
    /// Processes whose call or proxy thread makes no progress, with the communicator that shows it.
    stalled: BTreeMap<u32, (u32, Cause)>,
    /// Processes with a call that NCCL has not enqueued: (communicator, member).
    pending_calls: HashMap<u32, (u32, u32)>,
    /// Processes that exited in order while in an operation.
    exited_inside: BTreeSet<u32>,
    /// [`Communicator::unseen_calls`] of each communicator.
    unseen_calls: Vec<u64>,
}

impl<'a> Classifier<'a> {
    pub(crate) fn new((job, hang_ns): At<'a>, wait_roots: &'a WaitRoots) -> Classifier<'a> {
        let mut this = Classifier {
            job,
            hang_ns,
            wait_roots,
            longest_wait: HashMap::new(),
            stalled: BTreeMap::new(),
            pending_calls: HashMap::new(),
            exited_inside: BTreeSet::new(),
            unseen_calls: job.comms.iter().map(Communicator::unseen_calls).collect(),
        };
        let causes: BTreeSet<u32> = wait_roots
            .late
            .iter()
            .chain(&wait_roots.possible)
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
            let unseen = this.unseen_calls[index as usize];
            for (vector, member) in comm.vectors.iter().zip(0u32..) {
                if vector.not_enqueued() > unseen && causes.contains(&vector.process) {
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
        // What holds up a call may be an operation that was given before it.
        let is_given = |wait: &&Wait| {
            !self.comm(wait.comm).flights.get(&wait.member).is_some_and(InFlightOp::is_not_given)
        };
        let given = self.wait_roots.waits.iter().filter(is_given);
        let given: BTreeSet<u32> = given.map(|wait| wait.process).collect();
        // Computed once per communicator, because most of its members wait.
        let mut awaited: HashMap<u32, BTreeSet<i32>> = HashMap::new();
        for wait in &self.wait_roots.waits {
            let comm = self.comm(wait.comm);
            let awaited =
                awaited.entry(wait.comm).or_insert_with(|| stuck_operation::awaited_ranks(comm));
            if self.stalled.contains_key(&wait.process) {
                continue;
            }
            let (at, member) = (self.at(), wait.member as usize);
            let is_first = !given.contains(&wait.process);
            let call = is_first.then(|| stuck_operation::not_given(at, comm, member)).flatten();
            let cause = call.or_else(|| stuck_operation::proxy_stalled(at, comm, member, awaited));
            if let Some(cause) = cause {
                self.stalled.insert(wait.process, (wait.comm, cause));
            }
        }
    }

    /// Stores, for each process at fault, the communicator in which a rank has waited longest for
    /// it.
    fn note_longest_wait(&mut self, index: u32, causes: &BTreeSet<u32>) {
        let comm = &self.job.comms[index as usize];
        let is_in = |v: &Vector| v.is_inside() && !self.job.is_gone(v);
        let inside = || comm.vectors.iter().zip(0u32..).filter(|(v, _)| is_in(v));
        let oldest = inside().max_by_key(|(v, at)| (v.front(), v.age_ns, u32::MAX - at));
        let Some((oldest, waiter)) = oldest else { return };
        let finished = comm.finished().max();
        for (vector, own) in comm.vectors.iter().zip(0u32..) {
            // Checked first, because few processes are at fault and the rest of the loop looks at
            // all members.
            if !causes.contains(&vector.process) {
                continue;
            }
            let is_behind = self.job.front(vector) < oldest.front()
                || vector.is_inside() && finished >= Some(vector.front());
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

    /// The verdicts: those about calls first, then those about settings.
    pub(crate) fn verdicts(&self, desyncs: &[Desync], differs: &[Differs]) -> Vec<Finding> {
        let of_calls = desyncs.iter().map(|one| self.desync_verdict(one));
        let mut verdicts: Vec<Finding> =
            of_calls.chain(differs.iter().map(|one| self.differs_verdict(one))).collect();
        // Data that does not fit explains all that happens inside the operation.
        let explained = differs.iter().filter(|one| one.is_stuck);
        let explained: BTreeSet<u32> = explained.map(|one| one.comm).collect();
        let mut groups: BTreeMap<Group, Vec<u32>> = BTreeMap::new();
        let held = self.in_sequences();
        for &process in &self.wait_roots.late {
            let (class, is_suspect) = (self.class_of_late(process), self.may_come(process, &held));
            groups.entry((class, is_suspect, false)).or_default().push(process);
        }
        for &process in &self.wait_roots.possible {
            groups.entry((self.class_of_late(process), true, true)).or_default().push(process);
        }
        let mut causes: Vec<Cause> = Vec::new();
        for (process, waits) in &self.wait_roots.unfinished {
            if waits.iter().all(|wait| explained.contains(&wait.comm)) {
                continue;
            }
            match self.cause_of_unfinished(*process, waits) {
                Some(found) => causes.push(found),
                None => {
                    let is_unsure = |wait| self.is_within_a_host(wait) || self.may_be_over(wait);
                    let key = (FindingClass::GpuDead, waits.iter().all(is_unsure), false);
                    groups.entry(key).or_default().push(*process);
                }
            }
        }
        for (group, processes) in groups {
            verdicts.push(self.verdict_by_counts(group, &processes, &held));
        }
        let stalled: BTreeSet<u32> = self.stalled.keys().copied().collect();
        let inside = self.wait_roots.inside.iter().filter(|(comm, _)| !explained.contains(comm));
        for &(comm, ref members) in inside {
            let vectors = members.iter().map(|&at| &self.comm(comm).vectors[at as usize]);
            let of_threads = vectors.filter_map(|v| Some(self.stalled.get(&v.process)?.1.clone()));
            let mut found: Vec<Cause> = of_threads.collect();
            // A member without input may be the reason that no transfers have begun.
            if !self.comm(comm).silent.is_empty() {
                found.clear();
            }
            if found.is_empty() {
                found = stuck_operation::causes_inside(self.at(), self.comm(comm), members);
            } else {
                let (job, of) = (self.at(), self.comm(comm));
                found.extend(stuck_operation::causes_beside(job, of, members, &stalled));
            }
            causes.extend(found.into_iter().map(|cause| cause.seen_in(comm)));
        }
        verdicts.extend(self.stopped_verdict(&verdicts));
        verdicts.extend(self.silent_verdict(self.suspects(&causes)));
        verdicts.extend(self.verdicts_inside(causes));
        verdicts.extend(self.wait_roots.cycles.iter().map(|cycle| self.cycle_verdict(cycle)));
        verdicts
    }

    /// A damaged or old recording makes only the finding about its own rank doubtful. One that goes
    /// on elsewhere may still come, and one in a send or receive (`held`) may wait there.
    fn may_come(&self, process: u32, held: &HashSet<u32>) -> bool {
        let one = &self.job.processes[process as usize];
        !one.doubts.is_empty() || one.goes_on() || held.contains(&process)
    }

    /// Processes in a send or receive in call order ([`CommKind::Sequence`]), which the wait graph
    /// does not follow if it finds a root without.
    fn in_sequences(&self) -> HashSet<u32> {
        let sequences = self.job.comms.iter().filter(|comm| comm.kind == CommKind::Sequence);
        let inside = sequences.flat_map(|comm| comm.vectors.iter().filter(|v| v.is_inside()));
        inside.map(|vector| vector.process).collect()
    }

    const fn at(&self) -> At<'a> {
        (self.job, self.hang_ns)
    }

    fn comm(&self, index: u32) -> &'a Communicator {
        &self.job.comms[index as usize]
    }

    /// How far a member of a communicator is, as text.
    fn counts_text(&self, index: u32, vector: &Vector) -> String {
        words::counts_of(self.comm(index), self.unseen_calls[index as usize], vector)
    }

    fn call(&self, comm: &'a Communicator, member: u32, index: u64) -> Option<&'a Call> {
        let flight = comm.flights.get(&member).map(|flight| &flight.call);
        let called =
            || comm.calls.get(&member).and_then(|calls| calls.get(&index)).map(|call| &**call);
        flight.filter(|call| !call.func.is_empty()).or_else(called)
    }

    fn op(&self, comm: &'a Communicator, member: u32) -> Op {
        let vector = &comm.vectors[member as usize];
        let call = self.call(comm, member, vector.front()).cloned().unwrap_or_default();
        diagnosis::op(comm.number(vector), call)
    }

    /// The class of a process that is late although it waits for nothing.
    fn class_of_late(&self, process: u32) -> FindingClass {
        let one = &self.job.processes[process as usize];
        let is_mismatch = |longest: &LongestWait| {
            let comm = self.comm(longest.comm);
            let by = &comm.vectors[longest.waiter as usize];
            comm.kind == CommKind::Pair && self.has_moved_on(process, by)
        };
        match one.status {
            ProcessStatus::Dead | ProcessStatus::Stopped(_) => FindingClass::ProcessGone,
            _ if one.entered.is_some() || self.pending_calls.contains_key(&process) => {
                FindingClass::CallNotEnqueued
            }
            _ if self.longest_wait.get(&process).is_some_and(is_mismatch) => {
                FindingClass::P2pMismatch
            }
            ProcessStatus::Ended => FindingClass::ProcessGone,
            _ if one.setup.is_some() => FindingClass::CommSetup,
            _ => FindingClass::HostStuck,
        }
    }

    /// True if the process called NCCL after `by` began to wait, but not for this transfer, or
    /// exited without it.
    fn has_moved_on(&self, process: u32, by: &Vector) -> bool {
        let one = &self.job.processes[process as usize];
        let other = &self.job.processes[by.process as usize];
        let is_later = one.host == other.host
            && matches!((one.idle_ns, by.age_ns), (Some(idle), Some(age)) if idle < age);
        is_later || one.status == ProcessStatus::Ended && !self.exited_inside.contains(&process)
    }

    fn cause_of_unfinished(&self, process: u32, waits: &[Wait]) -> Option<Cause> {
        if let Some((comm, cause)) = self.stalled.get(&process) {
            return Some(cause.clone().seen_in(*comm));
        }
        type Find = fn(At<'_>, &Communicator, usize) -> Option<Cause>;
        let at = |wait: &Wait, of: Find| {
            let cause = of(self.at(), self.comm(wait.comm), wait.member as usize)?;
            Some(cause.seen_in(wait.comm))
        };
        let inside = waits.iter().find_map(|wait| at(wait, stuck_operation::cause_at_one));
        // One kernel that runs on may hold up the others.
        let are_over = waits.iter().all(|wait| self.may_be_over(wait));
        let next = || waits.iter().find_map(|wait| at(wait, stuck_operation::next_not_started));
        inside.or_else(|| are_over.then(next).flatten())
    }

    /// True if the operation runs inside one host without recorded transfers (NVLink or shared
    /// memory); over a network it would have transfers.
    fn is_within_a_host(&self, wait: &Wait) -> bool {
        let comm = self.comm(wait.comm);
        let flight = comm.flights.get(&wait.member);
        let has_transfers = flight.is_some_and(|flight| !flight.transfers.is_empty());
        self.job.is_within_a_host(comm) && !has_transfers
    }

    fn may_be_over(&self, wait: &Wait) -> bool {
        self.comm(wait.comm).flights.get(&wait.member).is_some_and(InFlightOp::may_be_over)
    }

    /// One finding about processes whose own counts show that they are at fault.
    fn verdict_by_counts(
        &self,
        (class, is_suspect, are_possible): Group,
        processes: &[u32],
        held: &HashSet<u32>,
    ) -> Finding {
        let mut evidence = Vec::new();
        for process in processes {
            if let Some(longest) = self.longest_wait.get(process) {
                evidence.extend(self.evidence_lines(class, *process, *longest));
            }
        }
        let victims = self.wait_roots.victims(processes, &[]);
        let first = processes.iter().find_map(|process| self.longest_wait.get(process)).copied();
        let mut finding = self.finding(class, processes, evidence, victims);
        if let Some(longest) = first {
            let comm = self.comm(longest.comm);
            self.locate(&mut finding, comm);
            finding.op = Some(self.op(comm, longest.waiter));
            let by = &comm.vectors[longest.waiter as usize];
            finding.age_ns = self.age_ns(by);
            let own = &comm.vectors[longest.own as usize];
            if processes.len() == 1 {
                let fewer = gone::fewer_calls(self.job, comm, own, by);
                finding.detail = fewer.map(|fewer| format!("it {fewer}"));
            }
        }
        if class == FindingClass::GpuDead {
            finding.doubts = self.doubts_about_gpus(processes, is_suspect);
        } else {
            finding.doubts = self.doubts_about_late(class, processes, held);
            doubts::of_cited_ranks(&mut finding, &doubts::of_processes(self.job, processes));
        }
        if are_possible {
            let ranks: Vec<u32> =
                self.wait_roots.possible.iter().map(|&one| self.job.rank(one)).collect();
            finding.doubts.extend((ranks.len() > 1).then_some(Doubt::OneOf(ranks)));
            finding.doubts.push(Doubt::OtherCause(FindingClass::P2pMismatch));
        }
        finding
    }

    /// What else explains that processes did not come.
    fn doubts_about_late(
        &self,
        class: FindingClass,
        processes: &[u32],
        held: &HashSet<u32>,
    ) -> Vec<Doubt> {
        let has = |is_it: fn(&Process) -> bool| {
            processes.iter().any(|&process| is_it(&self.job.processes[process as usize]))
        };
        let is_stuck = class == FindingClass::HostStuck;
        let (is_mismatch, are_late) = (class == FindingClass::P2pMismatch, self.go_on(processes));
        let all = [
            (has(Process::goes_on), Doubt::StillCalls),
            (processes.iter().any(|process| held.contains(process)), Doubt::InSequence),
            (is_stuck && !are_late, Doubt::Computes),
            (is_stuck && !are_late && has(|one| one.hides_calls), Doubt::ConnectsUnseen),
            (is_mismatch, Doubt::StuckBefore),
        ];
        all.into_iter().filter_map(|(is_so, doubt)| is_so.then_some(doubt)).collect()
    }

    /// What else explains that GPUs did not finish what their peers finished.
    fn doubts_about_gpus(&self, processes: &[u32], is_suspect: bool) -> Vec<Doubt> {
        let of = |process: &u32| self.wait_roots.unfinished.iter().find(|(p, _)| p == process);
        let waits = || processes.iter().filter_map(of).flat_map(|(_, waits)| waits);
        let unseen = is_suspect.then(|| self.unseen_path(waits()));
        let may_be_over = waits().any(|wait| self.may_be_over(wait));
        let over = if is_suspect { Doubt::MayBeOver } else { Doubt::SomeMayBeOver };
        let blocked = may_be_over.then_some(over);
        unseen.into_iter().chain([Doubt::NeverStarted]).chain(blocked).collect()
    }

    /// The data did not reach the GPU that did not finish an operation.
    fn unseen_path<'b>(&self, waits: impl Iterator<Item = &'b Wait>) -> Doubt {
        let within = waits.filter(|wait| self.is_within_a_host(wait));
        let members = within.flat_map(|wait| &self.comm(wait.comm).vectors);
        let ranks: BTreeSet<u32> = members.map(|v| self.job.rank(v.process)).collect();
        Doubt::PathNotSeen(ranks.into_iter().collect())
    }

    /// The ranks of these processes, ascending.
    fn job_ranks(&self, processes: &[u32]) -> Vec<u32> {
        let mut ranks: Vec<u32> = processes.iter().map(|&one| self.job.rank(one)).collect();
        ranks.sort_unstable();
        ranks
    }

    fn go_on(&self, processes: &[u32]) -> bool {
        processes.iter().all(|&process| self.job.processes[process as usize].goes_on())
    }

    /// True if they have destroyed or aborted the communicator in which others wait for them.
    fn have_left(&self, processes: &[u32]) -> bool {
        processes.iter().all(|process| {
            let longest = self.longest_wait.get(process);
            longest.is_some_and(|of| self.comm(of.comm).vectors[of.own as usize].has_left)
        })
    }

    fn age_ns(&self, vector: &Vector) -> Option<u64> {
        vector.age_ns.filter(|_| !self.job.is_dump)
    }

    /// Sets the communicator in which the others wait.
    fn locate(&self, finding: &mut Finding, comm: &Communicator) {
        let whole = comm.parent.map_or(comm, |parent| self.comm(parent));
        finding.comm = Some(CommId { comm: whole.name.clone(), name: whole.comm_name.clone() });
        finding.role.clone_from(&whole.role);
        finding.comm_texts = vec![comm.name.clone()];
    }

    /// The evidence lines that show that a process is at fault.
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
        let waits = format!(
            "{} waits in {}{}",
            words::rank(self.job, by.process),
            words::op(comm.number(by), self.call(comm, longest.waiter, by.front())),
            words::since(self.job, by.age_ns),
        );
        let text = match comm.kind {
            CommKind::Call => {
                let comm = words::comm(comm);
                let only = if self.wait_roots.possible.len() > 1 { "" } else { "only " };
                format!(
                    "{waits} of {comm}; NCCL does not report the peer; of the possible peers, \
                     {only}{who} is not itself waiting"
                )
            }
            _ => format!(
                "{who} in {}: {}; {waits} ({})",
                words::comm(comm),
                self.counts_text(longest.comm, own),
                self.counts_text(longest.comm, by),
            ),
        };
        let mut line = Evidence::of(class, rank, text);
        line.peer = Some(self.job.rank(by.process));
        if comm.kind != CommKind::Call {
            line.figures = own.counts();
        }
        line.figures.extend(self.age_ns(by).map(|age| ("waited_ns", to_f64(age))));
        let mut lines = vec![line];
        let line = |text: String| Evidence::of(class, rank, text);
        let mut add = |line: Evidence| lines.push(line);
        let one = &self.job.processes[process as usize];
        match class {
            FindingClass::ProcessGone => {
                add(line(format!("{who} {}", gone::evidence(self.job, comm, own, by))));
            }
            FindingClass::CallNotEnqueued => add(line(self.pending_text(process))),
            FindingClass::HostStuck | FindingClass::P2pMismatch => {
                if let Some(idle) = one.idle_ns {
                    let text = format!("{who} last called NCCL {} ago", words::duration(idle));
                    add(line(text).with([("idle_ns", to_f64(idle))]));
                }
                let api = one.threads.iter().filter(|thread| thread.role.enqueues());
                api.for_each(|thread| add(line(words::place(&who, &thread.thread))));
            }
            FindingClass::CommSetup => add(line(setup::text(self.job, process))),
            _ => {}
        }
        for report in one.reports.iter().take(2) {
            add(line(format!("its own watchdog: {report}")));
        }
        lines
    }

    /// A text about the call that has not returned.
    fn pending_text(&self, process: u32) -> String {
        let who = words::rank(self.job, process);
        let entered = self.job.processes[process as usize].entered;
        let place = entered.unwrap_or(Pending::Inside).text();
        let called =
            self.pending_calls.get(&process).map_or_else(String::new, |&(index, member)| {
                let comm = self.comm(index);
                let counts = self.counts_text(index, &comm.vectors[member as usize]);
                format!("; {}: {counts}", words::comm(comm))
            });
        format!("{who}: {place}{called}")
    }

    fn finding(
        &self,
        class: FindingClass,
        processes: &[u32],
        mut evidence: Vec<Evidence>,
        victims: usize,
    ) -> Finding {
        let known = processes.iter().filter_map(|&process| self.job.known_rank(process));
        let known: Vec<u32> = known.collect();
        let unknown_roots = processes.len() - known.len();
        let mut root_ranks = known;
        root_ranks.sort_unstable();
        root_ranks.dedup();
        if evidence.len() > MAX_EVIDENCE {
            let more = evidence.len() - MAX_EVIDENCE;
            evidence.truncate(MAX_EVIDENCE);
            let text = format!("and {} of this kind", human::count(more, "more line"));
            evidence.push(Evidence::about(class, text));
        }
        let status =
            gone::common_status(self.job, processes).filter(|_| class == FindingClass::ProcessGone);
        let how = match (class, status) {
            (_, Some(status)) => gone::how(self.job, status),
            (FindingClass::HostStuck, None) if self.go_on(processes) => How::Elsewhere,
            (FindingClass::HostStuck, None) if self.have_left(processes) => How::Left,
            _ => How::OfClass,
        };
        let advice = status.and_then(|status| gone::advice(self.job, status));
        Finding {
            how,
            advice: advice.unwrap_or_else(|| class.advice()),
            unknown_roots,
            victims,
            evidence,
            ..Finding::new(class, root_ranks)
        }
    }

    /// Findings for causes inside operations. One process may hold up several communicators.
    fn verdicts_inside(&self, causes: Vec<Cause>) -> Vec<Finding> {
        let make = |cause: Cause| {
            let roots: Vec<u32> = cause.roots.into_iter().collect();
            let victims = self.wait_roots.victims(&roots, &cause.comms);
            let mut finding = self.finding(cause.class, &roots, cause.evidence, victims);
            finding.edge = cause.edge.map(|(from, to)| [self.job.rank(from), self.job.rank(to)]);
            (finding.detail, finding.doubts) = (cause.detail, cause.doubts);
            if let Some(&comm) = cause.comms.first() {
                let comm = self.comm(comm);
                self.locate(&mut finding, comm);
                let oldest = comm.vectors.iter().zip(0u32..).max_by_key(|(v, _)| v.age_ns);
                finding.op = oldest.map(|(_, at)| self.op(comm, at));
                finding.age_ns = oldest.and_then(|(v, _)| self.age_ns(v));
            }
            finding
        };
        let comms: BTreeSet<u32> = causes.iter().flat_map(|cause| &cause.comms).copied().collect();
        let moved = comms.into_iter().map(|comm| self.comm(comm));
        let moved = moved.flat_map(|comm| stuck_operation::moved_links(self.at(), comm)).collect();
        merge_causes::merge(self.job, causes, &moved).into_iter().map(make).collect()
    }

    fn desync_verdict(&self, desync: &Desync) -> Finding {
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
                    let count = match (call.count, &call.more_counts[..]) {
                        (Some(count), []) => format!(", count {count}"),
                        (_, [_, ..]) => format!(", sizes {}", call.size),
                        (None, []) => String::new(),
                    };
                    let root = call.root.map_or_else(String::new, |root| format!(", root {root}"));
                    match class {
                        FindingClass::P2pMismatch => format!("{} of {}", call.func, call.size),
                        _ => format!("{} {}{count}{root}", call.func, call.datatype),
                    }
                }
                None => "a different call".into(),
            };
            let up_to = if desync.is_exact { "call" } else { "up to call" };
            let of = if comm.is_pair() { " of these" } else { "" };
            let ranks = words::named_ranks(&ranks);
            let text = format!("{ranks}: {up_to} {}{of} is {what}", desync.index);
            evidence.push(Evidence::of(class, rank, text));
        }
        let process = |&at: &u32| comm.vectors[at as usize].process;
        let processes: Vec<u32> = desync.accused.iter().map(process).collect();
        let victims = self.wait_roots.victims(&processes, &[]);
        let unknown: Vec<u32> = desync.unknown.iter().map(process).collect();
        let mut finding = self.finding(class, &processes, evidence, victims);
        finding.detail = calls::differing(desync);
        finding.doubts.extend(self.other_side(&unknown));
        self.locate(&mut finding, comm);
        // A pair may hang later than at the first call that does not fit.
        let is_in_it = |(v, _): &(&Vector, u32)| {
            v.is_inside() && (comm.is_pair() || v.front() == desync.index)
        };
        let in_it = || comm.vectors.iter().zip(0u32..).filter(is_in_it);
        finding.age_ns = in_it().filter_map(|(vector, _)| self.age_ns(vector)).max();
        finding.called_ns = desync.called_ns(comm).filter(|_| finding.age_ns.is_none());
        finding.op = Some(in_it().next().filter(|_| comm.is_pair()).map_or_else(
            || {
                let call = desync.groups.first().and_then(|(_, call)| call.clone());
                let call = call.unwrap_or_default();
                diagnosis::op(Some(desync.index), call)
            },
            |(_, at)| self.op(comm, at),
        ));
        finding
    }

    /// Processes whose calls are unknown may show that the others are wrong.
    fn other_side(&self, unknown: &[u32]) -> Option<Doubt> {
        (!unknown.is_empty()).then(|| Doubt::CallsUnknown(self.job_ranks(unknown)))
    }

    /// Processes without input that may explain the waits of a communicator, unless a confirmed
    /// cause inside its operation does: (process, communicator).
    fn suspects(&self, causes: &[Cause]) -> Vec<(u32, u32)> {
        let sure = causes.iter().filter(|cause| !cause.is_suspect());
        let explained: BTreeSet<u32> = sure.flat_map(|cause| &cause.comms).copied().collect();
        let mut suspects = self.wait_roots.silent.clone();
        // A process of which RAS gets no answer has a verdict of its own.
        let has_none = |process: u32| {
            let process = &self.job.processes[process as usize];
            !matches!(process.status, ProcessStatus::Stopped(_))
        };
        suspects.retain(|(process, comm)| !explained.contains(comm) && has_none(*process));
        suspects
    }

    /// A verdict about stopped processes that no other verdict names; if all processes are stopped,
    /// none of them waits.
    fn stopped_verdict(&self, verdicts: &[Finding]) -> Option<Finding> {
        let class = FindingClass::ProcessGone;
        let is_named = |process: u32| {
            let rank = self.job.rank(process);
            let mut of_class = verdicts.iter().filter(|finding| finding.class == class);
            of_class.any(|finding| finding.root_ranks.contains(&rank))
        };
        let all = self.job.processes.iter().zip(0u32..);
        let stopped = all.filter(|(one, _)| matches!(one.status, ProcessStatus::Stopped(_)));
        let stopped: Vec<u32> = stopped.map(|(_, at)| at).filter(|&at| !is_named(at)).collect();
        let line = |&process: &u32| {
            let who = words::rank(self.job, process);
            let by = match self.job.processes[process as usize].status {
                ProcessStatus::Stopped(by) => how_stopped(by),
                _ => "does not run",
            };
            Evidence::of(class, self.job.rank(process), format!("{who} {by}"))
        };
        let evidence: Vec<Evidence> = stopped.iter().map(line).collect();
        let found = || self.finding(class, &stopped, evidence, 0);
        (!stopped.is_empty()).then(found)
    }

    fn silent_verdict(&self, suspects: Vec<(u32, u32)>) -> Option<Finding> {
        // One communicator is enough evidence: for each process the smallest one, in which it is
        // the most likely cause.
        let mut least: BTreeMap<u32, u32> = BTreeMap::new();
        for (process, comm) in suspects {
            let known = least.entry(process).or_insert(comm);
            let size = |comm: u32| (self.comm(comm).nranks, comm);
            if size(comm) < size(*known) {
                *known = comm;
            }
        }
        let class = FindingClass::NotRecorded;
        let mut fronts: HashMap<u32, String> = HashMap::new();
        let mut evidence = Vec::new();
        for (&process, &index) in &least {
            let comm = self.comm(index);
            let front = fronts.entry(index).or_insert_with(|| {
                words::number(comm.first_waiter().and_then(|(vector, _)| comm.number(vector)))
            });
            let (who, whose) = (words::rank(self.job, process), words::comm(comm));
            let text = match self.job.processes[process as usize].status {
                ProcessStatus::Running => format!(
                    "the input from {who} does not show how far it is in {whose}; all members that \
                     are shown wait in {front}"
                ),
                _ => format!(
                    "there is no input from {who}; all members of {whose} with input wait in \
                     {front}"
                ),
            };
            let rank = self.job.known_rank(process);
            evidence.push(Evidence { rank, ..Evidence::about(class, text) });
        }
        let comm = self.comm(*least.values().next()?);
        let processes: Vec<u32> = least.keys().copied().collect();
        let comms: BTreeSet<u32> = least.into_values().collect();
        let victims = self.wait_roots.victims(&[], &comms.into_iter().collect::<Vec<u32>>());
        // Lines about several unknown ranks are alike.
        evidence.dedup();
        let mut finding = self.finding(class, &processes, evidence, victims);
        finding.doubts.push(Doubt::NotRecorded);
        self.locate(&mut finding, comm);
        finding.op = comm.first_waiter().map(|(_, at)| self.op(comm, at));
        finding.age_ns = comm.first_waiter().and_then(|(vector, _)| self.age_ns(vector));
        Some(finding)
    }
}
