// SPDX-License-Identifier: Apache-2.0
/*!
The wait graph: which process waits for which, and where the waits end.

**What a wait is.** A communicator's collectives are numbered, and the *n*-th is the same on all
members. A member is *in* operation *k* when NCCL has enqueued *k*, or connects to other ranks for
it, and *k* is not complete while the one before is. It *waits* when that has lasted for the age
limit, or when the input was written because of a hang. Operation *k* needs all members, so a member
in *k* waits for each member that has not entered *k*. Sends and receives have no common number:
those of each ordered pair of ranks form a communicator of their own with two members. While NCCL
connects for sends and receives, their peers are not known: such a call is a communicator of the
caller and all members that it may wait for ([`CommKind::Call`]). If these are several, each that
waits for nothing is a *possible* root.

**Nodes.** Each process is a node. So is, for each communicator in which a member waits,

- each operation that a member is in, or was in last (a *front*);
- one node *inside*, if all members are in the same operation, or all members that have not finished
  it are. Then no member of the communicator is late: the cause is elsewhere, or in the operation
  itself.

**Edges.** An edge leads from a waiting node to what it waits for. A waiting process leads to the
node of the highest front below its own. That node leads to the members that stand there, and to the
node of the next lower front. So a process reaches all members behind it, with one edge for each
member and one for each front, where one edge for each pair would be quadratic: 131,072 ranks wait
in one communicator. A process in the lowest front leads to *inside*, which leads only to those
members that something else holds up: an older operation in another communicator, a kernel that
runs there while this one has not started, or a send or receive of the same kernel that is not met.
A process that is in several operations has an edge from each, except from an operation whose kernel
is queued behind another one's: that one only waits for its turn; and except from a met send or
receive whose kernel another one holds up. A process that called something
different (H2, found by `desync`) has no edges in that
communicator, and all other members lead to it, because their operation numbers no longer mean the
same.

Without kernel events a member may show nothing of its latest operation, neither a part that runs
nor its end. It has not finished that operation then, and it does not wait; with members that wait
in the operation it may be *inside*.

**Roots.** Each edge of a path asks "and why does that one not come?". The path ends in a strongly
connected component that no edge leaves. There are four kinds:

- one process that waits for nothing: it is *late*. It never called, or its call does not return;
- one process in an operation that its peers finished: *unfinished*. Its own GPU holds it up;
- one node *inside*: the operation does not end although all members are in it. Kernels and
  transfers show why;
- several processes: a *cycle*. A process in it that is unfinished, or called something different,
  explains it. Otherwise it is a deadlock, or a pair of sends and receives that do not match.

A root is *confirmed* when its own counts prove it, which needs its own input. A root whose counters
still advance is slow, not stuck: it becomes a note, not a verdict, unless others have waited for it
for longer than work elsewhere excuses ([`SearchParams::excused_ns`]). An operation that was in
flight in a process when it died counts as not issued, since the others wait for it.

**Silence.** A rank without input may be dead, late, or wait like the others. No edge leads to it,
because that would be a guess. If all members with input wait in one operation, the silent members
explain that only if nothing else does: no member is held up elsewhere, and no confirmed cause is in
the operation. They are then *suspects*. For the same reason "most did not finish what some did"
accuses no GPU where members are silent ([`GraphSearch::may_be_silent_fault`]), and an operation
that most members are in may be *inside* although silent ones may not have entered. A process whose
input *stopped* is a different case: its last counts hold, and after three missed heartbeats it
counts as gone.

This module does **not** say why a root does not progress: that is `classify` and `stuck_operation`.
*/

use crate::graph::Graph;
use crate::job::{CommKind, Communicator, InFlightOp, Job, Vector};
use ncclscope_operations::function::is_rooted;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// A process in an operation of a communicator; all are positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wait {
    pub(crate) process: u32,
    pub(crate) comm: u32,
    pub(crate) member: u32,
}

/// Processes that wait for each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitCycle {
    pub(crate) waits: Vec<Wait>,
    /// Send/receive pairs (communicators) that close the cycle: without any one of them there would
    /// be no cycle. If no single pair closes it, all pairs that are part of it.
    pub(crate) pairs: Vec<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct WaitRoots {
    /// Processes that others wait for and that wait for nothing.
    pub(crate) late: Vec<u32>,
    /// Processes that have not finished an operation that peers finished, with those operations.
    pub(crate) unfinished: Vec<(u32, Vec<Wait>)>,
    /// Communicators with an operation that all members are in, or all that have not finished it,
    /// and those members.
    pub(crate) inside: Vec<(u32, Vec<u32>)>,
    pub(crate) cycles: Vec<WaitCycle>,
    /// Processes without input that would explain the waits of a communicator: (process,
    /// communicator).
    pub(crate) silent: Vec<(u32, u32)>,
    /// Late processes whose counters still advance, and for which others have not waited for long:
    /// slow, not stuck.
    pub(crate) moving: Vec<u32>,
    /// Late processes that are awaited only by calls that name no peer.
    pub(crate) possible: Vec<u32>,
    /// All waits, sorted.
    pub(crate) waits: Vec<Wait>,
    reversed: Graph,
    inside_nodes: Vec<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct SearchParams {
    /// (Communicator, process) pairs that made a different call, so that their numbers have no
    /// meaning.
    pub(crate) accused: BTreeSet<(u32, u32)>,
    /// The age from which an operation in flight counts as a wait, ns.
    pub(crate) hang_ns: u64,
    /// The age of a wait from which a rank that goes on elsewhere counts as late, ns.
    pub(crate) excused_ns: u64,
}

/// The relative progress of a communicator's members, and the communicator's nodes.
#[derive(Debug, Default)]
struct CommProgress {
    /// The distinct fronts ([`Vector::front`]) of its members, ascending.
    fronts: Vec<u64>,
    /// The latest operation that a member finished.
    finished: u64,
    waiting: Vec<u32>,
    /// The first node of the communicator; there is one for each of `fronts`, in order.
    first_node: u32,
    /// The node of the operation that all members are in, if there is one.
    inside: Option<u32>,
    /// The node with edges to the members that made a different call, if there are any.
    accused: Option<u32>,
    may_be_silent_fault: bool,
}

struct GraphSearch<'a> {
    job: &'a Job,
    params: &'a SearchParams,
    /// Also trust the numbers of sends and receives in call order ([`CommKind::Sequence`]), which
    /// are usually right, because nothing else explains the waits.
    trust_sequences: bool,
    comm_progress: Vec<CommProgress>,
    waits: Vec<Wait>,
    unfinished: BTreeMap<u32, Vec<Wait>>,
    /// Processes in an operation that members without input may hold up.
    may_wait_for_silent: BTreeSet<u32>,
    edges: Vec<(u32, u32)>,
    nodes: u32,
    /// The processes of [`SearchParams::accused`].
    accused: HashSet<u32>,
}

/// Builds the graph and finds its roots.
pub(crate) fn find(job: &Job, params: &SearchParams) -> WaitRoots {
    let found = GraphSearch::new(job, params, false).run();
    let is_empty = found.late.is_empty()
        && found.unfinished.is_empty()
        && found.inside.is_empty()
        && found.cycles.is_empty()
        && found.silent.is_empty()
        && found.possible.is_empty();
    let has_sequences = job.comms.iter().any(|comm| comm.kind == CommKind::Sequence);
    if is_empty && has_sequences { GraphSearch::new(job, params, true).run() } else { found }
}

fn to_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl<'a> GraphSearch<'a> {
    fn new(job: &'a Job, params: &'a SearchParams, trust_sequences: bool) -> GraphSearch<'a> {
        GraphSearch {
            job,
            params,
            trust_sequences,
            comm_progress: Vec::new(),
            waits: Vec::new(),
            unfinished: BTreeMap::new(),
            may_wait_for_silent: BTreeSet::new(),
            edges: Vec::new(),
            nodes: to_u32(job.processes.len()),
            accused: params.accused.iter().map(|&(_, process)| process).collect(),
        }
    }

    fn run(mut self) -> WaitRoots {
        self.collect_waits();
        self.waits.sort_unstable();
        for at in 0..self.waits.len() {
            self.add_wait_edges(self.waits[at]);
        }
        for comm in 0..self.comm_progress.len() {
            self.add_comm_edges(comm);
        }
        self.find_roots()
    }

    fn has_reliable_numbers(&self, comm: &Communicator) -> bool {
        comm.kind != CommKind::Sequence || self.trust_sequences
    }

    fn is_over_age_limit(&self, vector: &Vector) -> bool {
        self.job.counts_any_age() || vector.age_ns.is_some_and(|age| age >= self.params.hang_ns)
    }

    fn collect_waits(&mut self) {
        for (index, comm) in self.job.comms.iter().enumerate() {
            let mut progress = CommProgress::default();
            if self.has_reliable_numbers(comm) {
                let waits =
                    |v: &Vector| v.is_inside() && self.is_over_age_limit(v) && !self.job.is_gone(v);
                let waiting = comm.vectors.iter().zip(0..).filter(|(v, _)| waits(v));
                progress.waiting = waiting.map(|(_, at)| at).collect();
            }
            if !progress.waiting.is_empty() {
                progress.fronts = comm.vectors.iter().map(|v| self.job.front(v)).collect();
                progress.fronts.sort_unstable();
                progress.fronts.dedup();
                progress.finished = comm.finished().max().unwrap_or(0);
                progress.may_be_silent_fault = self.may_be_silent_fault(comm, &progress);
                progress.first_node = self.nodes;
                self.nodes += to_u32(progress.fronts.len());
                if self.is_one_operation(comm, &progress)
                    || self.is_remainder_inside(comm, &progress)
                {
                    progress.inside = Some(self.nodes);
                    self.nodes += 1;
                }
                if self.accused_in(to_u32(index)).next().is_some() {
                    progress.accused = Some(self.nodes);
                    self.nodes += 1;
                }
                for &member in &progress.waiting {
                    let process = comm.vectors[member as usize].process;
                    self.waits.push(Wait { process, comm: to_u32(index), member });
                }
            }
            self.comm_progress.push(progress);
        }
    }

    /// The processes of a communicator's members that made a different call.
    fn accused_in(&self, comm: u32) -> impl Iterator<Item = u32> {
        self.params.accused.range((comm, 0)..=(comm, u32::MAX)).map(|&(_, process)| process)
    }

    /// True if all known members wait in the same operation, or may do so because the input shows
    /// no part of their latest one.
    fn is_one_operation(&self, comm: &Communicator, progress: &CommProgress) -> bool {
        let unseen = comm.vectors.iter().filter(|v| self.job.shows_no_part(v)).count();
        let all_in = progress.waiting.len() + unseen == comm.vectors.len();
        match comm.kind {
            // A send may complete before its receive.
            CommKind::Pair if comm.vectors.iter().any(|v| self.job.is_gone(v)) => false,
            CommKind::Pair => {
                progress.fronts.len() == 1 || comm.vectors.iter().all(is_posted(comm))
            }
            _ => all_in && progress.fronts.len() == 1 && progress.finished < progress.fronts[0],
        }
    }

    /// True if some members have finished an operation that the rest is in, and the rest need not
    /// be at fault: with one-way functions not every member waits for all others, and data may have
    /// bypassed some members. Assumed if the function is one-way, if transfers show more, if the
    /// rest is the larger part, or if it is several GPUs of a host, which pass on their data.
    fn is_remainder_inside(&self, comm: &Communicator, progress: &CommProgress) -> bool {
        let lowest = progress.fronts[0];
        let in_lowest = |v: &Vector| self.job.front(v) == lowest && v.done < lowest;
        let rest = || comm.vectors.iter().zip(0u32..).filter(|(v, _)| in_lowest(v));
        let flights = || rest().filter_map(|(_, at)| comm.flights.get(&at));
        let shows_nothing = |it: &InFlightOp| it.transfers.is_empty() && !it.may_be_over();
        let is_between_gpus = || {
            rest().count() > 1 && self.job.is_within_a_host(comm) && flights().all(shows_nothing)
        };
        comm.kind == CommKind::Collectives
            && progress.finished >= lowest
            && rest().all(|(vector, _)| vector.is_inside() && !self.job.is_gone(vector))
            && (2 * rest().count() + usize::from(!comm.silent.is_empty()) > comm.vectors.len()
                || is_between_gpus()
                || flights().any(|flight| {
                    is_rooted(&flight.call.func)
                        || flight.transfers.iter().any(|l| l.reached.is_some())
                }))
    }

    /// True if most known members have not finished what some have finished, and other members have
    /// no input: one of the latter may be the cause.
    fn may_be_silent_fault(&self, comm: &Communicator, progress: &CommProgress) -> bool {
        let is_behind = |v: &&Vector| v.front() == progress.fronts[0];
        !comm.silent.is_empty()
            && 2 * comm.vectors.iter().filter(is_behind).count() >= comm.vectors.len()
    }

    /// The members in the operation of the node *inside*.
    fn inside_members(&self, index: usize) -> impl Iterator<Item = Wait> {
        let (comm, progress) = (&self.job.comms[index], &self.comm_progress[index]);
        let lowest = progress.fronts.first().copied().unwrap_or(0);
        progress.waiting.iter().filter_map(move |&member| {
            let vector = &comm.vectors[member as usize];
            let is_in = comm.kind == CommKind::Pair || vector.front() == lowest;
            is_in.then_some(Wait { process: vector.process, comm: to_u32(index), member })
        })
    }

    fn vector(&self, wait: Wait) -> &'a Vector {
        &self.job.comms[wait.comm as usize].vectors[wait.member as usize]
    }

    fn waits_of(&self, process: u32) -> &[Wait] {
        let from = self.waits.partition_point(|wait| wait.process < process);
        let to = self.waits.partition_point(|wait| wait.process <= process);
        &self.waits[from..to]
    }

    fn add_wait_edges(&mut self, wait: Wait) {
        let vector = self.vector(wait);
        let (comm, process) = (wait.comm, wait.process);
        if self.params.accused.contains(&(comm, process)) {
            return;
        }
        let is_elsewhere =
            |other: &Wait| *other != wait && self.vector(*other).has_started() == Some(true);
        let others = self.waits_of(process);
        if vector.has_started() == Some(false) && others.iter().any(is_elsewhere) {
            return;
        }
        // Its kernel waits for the other side of another send or receive.
        let is_beside = |other: &Wait| is_elsewhere(other) && self.is_beside(wait, *other);
        if vector.has_started() == Some(true) && others.iter().any(is_beside) {
            return;
        }
        let progress = &self.comm_progress[comm as usize];
        if let Some(node) = progress.accused {
            self.edges.push((process, node));
            return;
        }
        let front = vector.front();
        let below = progress.fronts.partition_point(|&other| other < front);
        let is_pair = self.job.comms[comm as usize].kind == CommKind::Pair;
        if let Some(node) = progress.inside.filter(|_| below == 0 || is_pair) {
            self.edges.push((process, node));
        } else if below > 0 {
            self.edges.push((process, progress.first_node + to_u32(below) - 1));
        } else if progress.finished >= front {
            if progress.may_be_silent_fault {
                self.may_wait_for_silent.insert(process);
            } else {
                self.unfinished.entry(process).or_default().push(wait);
            }
        }
    }

    fn add_comm_edges(&mut self, index: usize) {
        let progress = &self.comm_progress[index];
        if progress.waiting.is_empty() {
            return;
        }
        let vectors = &self.job.comms[index].vectors;
        if let Some(node) = progress.inside {
            let held: Vec<(u32, u32)> = self
                .inside_members(index)
                .filter(|&wait| self.held_by(wait).next().is_some())
                .map(|wait| (node, wait.process))
                .collect();
            self.edges.extend(held);
        }
        let progress = &self.comm_progress[index];
        if let Some(node) = progress.accused {
            let accused: Vec<(u32, u32)> =
                self.accused_in(to_u32(index)).map(|process| (node, process)).collect();
            self.edges.extend(accused);
        }
        let progress = &self.comm_progress[index];
        let first = progress.first_node;
        let highest = progress.waiting.iter().map(|&at| vectors[at as usize].front()).max();
        for vector in vectors {
            let front = self.job.front(vector);
            // No member waits for members that have come as far as itself.
            if Some(front) < highest {
                let at = progress.fronts.partition_point(|&other| other < front);
                self.edges.push((first + to_u32(at), vector.process));
            }
        }
        let chain = (1..to_u32(progress.fronts.len())).map(|at| (first + at, first + at - 1));
        self.edges.extend(chain);
    }

    /// The other operations by which a process in this one is held up.
    fn held_by(&self, here: Wait) -> impl Iterator<Item = Wait> {
        let vector = self.vector(here);
        self.waits_of(here.process).iter().copied().filter(move |&other| {
            let there = self.vector(other);
            other.comm != here.comm
                && match (vector.has_started(), there.has_started()) {
                    (Some(true), Some(true)) => self.is_beside(here, other),
                    (Some(true), _) => false,
                    (Some(false), Some(true)) => true,
                    _ => is_older(there, vector),
                }
        })
    }

    /// True if the other send or receive runs in the same kernel as this one, because those of a
    /// communicator run one after another, and is not met, as this one is. A kernel that has ended
    /// is an earlier one, whose data is still in the network.
    fn is_beside(&self, here: Wait, other: Wait) -> bool {
        let parent = |wait: Wait| self.job.comms[wait.comm as usize].parent;
        let flight = self.job.comms[here.comm as usize].flights.get(&here.member);
        parent(here).is_some()
            && parent(here) == parent(other)
            && !flight.is_some_and(InFlightOp::is_in_network)
            && self.is_met(here)
            && !self.is_met(other)
    }

    /// False if the other side of this send or receive has not issued it, or has not started it.
    fn is_met(&self, wait: Wait) -> bool {
        let front = self.vector(wait).front();
        let is_queued = |side: &Vector| {
            let is_other = side.process != wait.process;
            is_other && side.done < front && side.started.is_some_and(|started| started < front)
        };
        let comm = wait.comm as usize;
        self.comm_progress[comm].inside.is_some()
            && !self.job.comms[comm].vectors.iter().any(is_queued)
    }

    /// Sorts the components without outgoing edges into the four kinds of roots.
    fn find_roots(mut self) -> WaitRoots {
        let graph = Graph::new(self.nodes as usize, &self.edges);
        let components = graph.components();
        let count = components.iter().max().map_or(0, |&last| last as usize + 1);
        let (mut leads_on, mut is_waited) = (vec![false; count], vec![false; count]);
        let mut members = vec![0u32; count];
        for node in 0..self.nodes {
            let here = components[node as usize] as usize;
            members[here] += 1;
            for &to in graph.from(node) {
                let there = components[to as usize] as usize;
                is_waited[there] = true;
                leads_on[here] |= there != here;
            }
        }
        let processes = to_u32(self.job.processes.len());
        let mut found = WaitRoots::default();
        let mut cycles: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let overdue = self.overdue();
        for process in 0..processes {
            let here = components[process as usize] as usize;
            if leads_on[here] {
                continue;
            }
            if members[here] > 1 {
                cycles.entry(components[process as usize]).or_default().push(process);
            } else if let Some(waits) = self.unfinished.get(&process) {
                found.unfinished.push((process, waits.clone()));
            } else if is_waited[here] && !self.may_wait_for_silent.contains(&process) {
                self.add_late(process, &overdue, &mut found);
            }
        }
        self.add_cycles(&cycles, &graph, &components, &mut found);
        let weak = self.weakly_held(&found);
        for (index, progress) in self.comm_progress.iter().enumerate() {
            let Some(node) = progress.inside else { continue };
            if progress.accused.is_some() {
                continue;
            }
            let here = components[node as usize] as usize;
            let is_end = !leads_on[here] && members[here] == 1;
            self.add_inside(index, is_end, &weak, &mut found);
        }
        let reversed: Vec<(u32, u32)> = self.edges.iter().map(|&(from, to)| (to, from)).collect();
        found.reversed = Graph::new(self.nodes as usize, &reversed);
        found.inside_nodes =
            self.comm_progress.iter().map(|s| s.inside.unwrap_or(u32::MAX)).collect();
        found.waits = std::mem::take(&mut self.waits);
        self.separate_possible(&mut found);
        found
    }

    /// Processes for which a member of a communicator has waited for longer than work elsewhere
    /// excuses.
    fn overdue(&self) -> HashSet<u32> {
        let most = self.params.excused_ns;
        let mut overdue = HashSet::new();
        for (comm, progress) in self.job.comms.iter().zip(&self.comm_progress) {
            let is_long = |&at: &u32| comm.vectors[at as usize].age_ns >= Some(most);
            let long = progress.waiting.iter().filter(|at| is_long(at));
            let Some(front) = long.map(|&at| comm.vectors[at as usize].front()).max() else {
                continue;
            };
            let is_late = |v: &&Vector| self.job.front(v) < front;
            overdue.extend(comm.vectors.iter().filter(is_late).map(|v| v.process));
        }
        overdue
    }

    /// Removes from the late processes those that are awaited only by calls of which several
    /// members may be the peer. Also where only one of these waits for nothing, the peer may be one
    /// that waits, and their calls may not match. A call that a certain root explains needs no such
    /// process.
    fn separate_possible(&self, found: &mut WaitRoots) {
        let free: BTreeSet<u32> = found.late.iter().chain(&found.moving).copied().collect();
        let mut sure: BTreeSet<u32> = BTreeSet::new();
        let mut unsure: Vec<(u32, Vec<u32>)> = Vec::new();
        for (comm, progress) in self.job.comms.iter().zip(&self.comm_progress) {
            let is_awaited = |v: &&Vector| Some(&self.job.front(v)) < progress.fronts.last();
            let awaited = comm.vectors.iter().filter(is_awaited).map(|v| v.process);
            let awaited: Vec<u32> = awaited.filter(|process| free.contains(process)).collect();
            match comm.vectors.first() {
                _ if progress.waiting.is_empty() => {}
                Some(caller) if comm.kind == CommKind::Call && comm.vectors.len() > 2 => {
                    unsure.push((caller.process, awaited));
                }
                _ => sure.extend(awaited),
            }
        }
        if unsure.is_empty() {
            return;
        }
        let accused = |process: &u32| self.accused.contains(process);
        found.late.retain(|late| sure.contains(late) || accused(late));
        let unfinished = found.unfinished.iter().map(|(process, _)| *process);
        let cycles = found.cycles.iter().flat_map(|cycle| &cycle.waits).map(|wait| wait.process);
        let causes = found.late.iter().copied().chain(unfinished).chain(cycles);
        let inside: Vec<u32> = found.inside.iter().map(|(comm, _)| *comm).collect();
        let explained = found.held_nodes(&causes.collect::<Vec<u32>>(), &inside);
        let open = unsure.into_iter().filter(|(caller, _)| !explained.contains(caller));
        let possible: BTreeSet<u32> = open.flat_map(|(_, awaited)| awaited).collect();
        let is_moving = |process: &u32| found.moving.contains(process);
        found.possible = possible.into_iter().filter(|process| !is_moving(process)).collect();
    }

    fn add_late(&self, process: u32, overdue: &HashSet<u32>, found: &mut WaitRoots) {
        match self.job.processes[process as usize].goes_on() && !overdue.contains(&process) {
            _ if self.accused.contains(&process) => {}
            true => found.moving.push(process),
            false => found.late.push(process),
        }
    }

    /// Adds the explanation of each component with several nodes, given as its processes, in the
    /// order of their first processes.
    fn add_cycles(
        &self,
        cycles: &BTreeMap<u32, Vec<u32>>,
        graph: &Graph,
        components: &[u32],
        found: &mut WaitRoots,
    ) {
        let mut nodes: HashMap<u32, HashSet<u32>> = HashMap::new();
        for (&component, node) in components.iter().zip(0u32..) {
            if cycles.contains_key(&component) {
                nodes.entry(component).or_default().insert(node);
            }
        }
        let mut cycles: Vec<(&u32, &Vec<u32>)> = cycles.iter().collect();
        cycles.sort_by_key(|(_, processes)| processes.first());
        for (component, cycle) in cycles {
            if let Some(nodes) = nodes.get(component) {
                self.add_cycle(cycle, graph, nodes, found);
            }
        }
    }

    /// Adds the root of a cycle: a member that did not finish what its peers finished, or that made
    /// a different call; if there is none, the cycle itself.
    fn add_cycle(&self, cycle: &[u32], graph: &Graph, nodes: &HashSet<u32>, found: &mut WaitRoots) {
        let unfinished = cycle.iter().filter_map(|p| Some((*p, self.unfinished.get(p)?.clone())));
        let unfinished: Vec<(u32, Vec<Wait>)> = unfinished.collect();
        if !unfinished.is_empty() {
            found.unfinished.extend(unfinished);
        } else if !cycle.iter().any(|process| self.accused.contains(process)) {
            found.cycles.push(self.reduce_cycle(cycle, graph, nodes));
        }
    }

    fn nodes_of(&self, comm: u32) -> Range<u32> {
        let progress = &self.comm_progress[comm as usize];
        let more = u32::from(progress.inside.is_some()) + u32::from(progress.accused.is_some());
        let nodes = to_u32(progress.fronts.len()) + more;
        progress.first_node..progress.first_node + nodes
    }

    /// Reduces a component to the cycle that explains it. The component may contain several cycles,
    /// and processes on none. A send/receive pair without which the component has no cycle closes
    /// all its cycles; the result is the shortest cycle through that pair. Without such a pair the
    /// whole component is reported.
    fn reduce_cycle(&self, members: &[u32], graph: &Graph, nodes: &HashSet<u32>) -> WaitCycle {
        let is_of = |comm: u32, nodes: &HashSet<u32>| {
            self.nodes_of(comm).into_iter().find(|node| nodes.contains(node))
        };
        let waits = members.iter().flat_map(|&process| self.waits_of(process)).copied();
        let mut waits: Vec<Wait> = waits.filter(|w| is_of(w.comm, nodes).is_some()).collect();
        let is_pair = |wait: &&Wait| self.job.comms[wait.comm as usize].kind == CommKind::Pair;
        let pairs: BTreeSet<u32> = waits.iter().filter(is_pair).map(|wait| wait.comm).collect();
        let way_through = |comm: u32| -> HashSet<u32> {
            let way = is_of(comm, nodes).map(|node| graph.way_back(node));
            way.into_iter().flatten().collect()
        };
        let way = pairs.first().map(|&pair| way_through(pair)).unwrap_or_default();
        let closes = |&&pair: &&u32| {
            let own = self.nodes_of(pair);
            is_of(pair, &way).is_some()
                && !graph.has_circle(&nodes.iter().copied().filter(|n| !own.contains(n)).collect())
        };
        let closing: Vec<u32> = pairs.iter().filter(closes).copied().collect();
        let Some(&first) = closing.first() else {
            return WaitCycle { waits, pairs: pairs.into_iter().collect() };
        };
        let way = way_through(first);
        waits.retain(|wait| way.contains(&wait.process) && is_of(wait.comm, &way).is_some());
        WaitCycle { waits, pairs: closing }
    }

    /// Handles a communicator whose known members are all in one operation: members without input
    /// explain that, unless something else does. If the operation is itself a root, it becomes a
    /// cause.
    fn add_inside(&self, index: usize, is_end: bool, weak: &[Option<u64>], found: &mut WaitRoots) {
        let comm = &self.job.comms[index];
        let members: Vec<Wait> = self.inside_members(index).collect();
        let is_weakly_held = members.iter().any(|&wait| {
            let here = self.vector(wait);
            weak[wait.process as usize]
                .is_some_and(|age| here.born_ns.is_none_or(|mine| age >= mine))
                && here.has_started() != Some(true)
        });
        if is_weakly_held {
            return;
        }
        found
            .silent
            .extend(self.unexplained_silent(comm, &members).map(|one| (one, to_u32(index))));
        if is_end {
            let members = members.iter().map(|wait| wait.member).collect();
            found.inside.push((to_u32(index), members));
        }
    }

    /// The members without input that would explain a communicator's waits: those that are also
    /// without input in each operation that holds up one of its members.
    fn unexplained_silent<'b>(
        &self,
        comm: &'b Communicator,
        members: &[Wait],
    ) -> impl Iterator<Item = u32> + use<'b> {
        let mut holders: BTreeSet<u32> = BTreeSet::new();
        if !comm.silent.is_empty() {
            let waits = members.iter().flat_map(|&wait| self.held_by(wait));
            holders.extend(waits.map(|wait| wait.comm));
        }
        let mut absent: HashMap<u32, usize> = HashMap::new();
        for &holder in &holders {
            let silent: BTreeSet<u32> =
                self.job.comms[holder as usize].silent.iter().copied().collect();
            silent.into_iter().for_each(|one| *absent.entry(one).or_default() += 1);
        }
        let holders = holders.len();
        comm.silent
            .iter()
            .copied()
            .filter(move |one| absent.get(one).copied().unwrap_or(0) == holders)
    }

    /// Processes that wait in a send or receive in call order ([`CommKind::Sequence`]) whose other
    /// side is held up, with the age of that wait. Such a wait is weak evidence: it adds no edge,
    /// but an operation whose member it explains is not reported as *inside*. The set grows until
    /// nothing changes, because a process that is held up holds up others.
    fn weakly_held(&self, found: &WaitRoots) -> Vec<Option<u64>> {
        let mut weak = vec![None; self.job.processes.len()];
        if self.trust_sequences {
            return weak;
        }
        let mut is_held = vec![false; self.job.processes.len()];
        let unfinished = found.unfinished.iter().map(|(process, _)| process);
        let causes = found.late.iter().chain(&found.moving).chain(unfinished).chain(&self.accused);
        causes.for_each(|&process| is_held[process as usize] = true);
        for &(from, _) in &self.edges {
            // A node *inside* has no outgoing edges of its own.
            let leads = |wait: &Wait| self.comm_progress[wait.comm as usize].inside.is_none();
            if let Some(held) = is_held.get_mut(from as usize) {
                *held |= self.waits_of(from).iter().any(leads);
            }
        }
        let sequences: Vec<&Communicator> =
            self.job.comms.iter().filter(|comm| comm.kind == CommKind::Sequence).collect();
        loop {
            let mut has_changed = false;
            for comm in &sequences {
                for (at, vector) in comm.vectors.iter().enumerate().filter(|(_, v)| v.is_inside()) {
                    let holds = |(other, peer): (usize, &Vector)| {
                        other != at
                            && peer.front() <= vector.front()
                            && is_held[peer.process as usize]
                    };
                    let process = vector.process as usize;
                    if weak[process].is_none() && comm.vectors.iter().enumerate().any(holds) {
                        weak[process] = Some(vector.born_ns.unwrap_or(u64::MAX));
                        is_held[process] = true;
                        has_changed = true;
                    }
                }
            }
            has_changed |= self.spread_to_members(&weak, &mut is_held);
            if !has_changed {
                return weak;
            }
        }
    }

    /// Marks all members of an operation as held up if one of them is. True if that changed
    /// anything.
    fn spread_to_members(&self, weak: &[Option<u64>], is_held: &mut [bool]) -> bool {
        let mut has_changed = false;
        for (comm, progress) in self.job.comms.iter().zip(&self.comm_progress) {
            let processes = || progress.waiting.iter().map(|&at| comm.vectors[at as usize].process);
            if progress.inside.is_some() && processes().any(|p| weak[p as usize].is_some()) {
                for process in processes() {
                    has_changed |= !std::mem::replace(&mut is_held[process as usize], true);
                }
            }
        }
        has_changed
    }
}

/// True if both sides have issued the transfer that the receiver is in.
fn is_posted(comm: &Communicator) -> impl Fn(&Vector) -> bool {
    let inside = comm.vectors.iter().filter(|v| v.is_inside());
    let front = inside.map(Vector::front).max().unwrap_or(u64::MAX);
    let is_whole = comm.vectors.len() == 2;
    move |vector| is_whole && vector.enqueued >= front
}

/// True if `this` was issued before `other` in the same process; an unknown age counts as older.
fn is_older(this: &Vector, other: &Vector) -> bool {
    match (this.born_ns, other.born_ns) {
        (Some(this), Some(other)) => this > other,
        _ => true,
    }
}

impl WaitRoots {
    /// Number of processes that wait for these causes, directly or through others.
    pub(crate) fn victims(&self, causes: &[u32], comms: &[u32]) -> usize {
        let held = self.held_nodes(causes, comms);
        let causes: HashSet<u32> = causes.iter().copied().collect();
        let waits = |process| {
            let at = self.waits.partition_point(|wait| wait.process < process);
            self.waits.get(at).is_some_and(|wait| wait.process == process)
        };
        held.difference(&causes).filter(|&&node| waits(node)).count()
    }

    /// The nodes with a path to one of these processes, or to the node *inside* of one of these
    /// communicators. They may be few among many.
    fn held_nodes(&self, causes: &[u32], comms: &[u32]) -> HashSet<u32> {
        let nodes = comms.iter().filter_map(|&comm| self.inside_nodes.get(comm as usize));
        let nodes = nodes.copied().filter(|&node| node != u32::MAX);
        let mut held: HashSet<u32> = causes.iter().copied().chain(nodes).collect();
        let mut stack: Vec<u32> = held.iter().copied().collect();
        while let Some(node) = stack.pop() {
            let new = self.reversed.from(node).iter().filter(|&&from| held.insert(from));
            stack.extend(new);
        }
        held
    }
}
