// SPDX-License-Identifier: Apache-2.0
/*!
The wait graph: which process waits for which, and which do not wait.

**What a wait is.** A communicator's collectives are numbered, and the *n*-th is the same on all
members. A member is *in* operation *k* when NCCL has enqueued *k* and it is not complete, while
*k - 1* is. It *waits* when that has lasted for the age limit, or when the input was made because of
a hang. Operation *k* needs all members, so a member in *k* waits for each member that has not come
to *k*. Sends and receives have no common number: those of each ordered pair of ranks are counted as
a communicator of two members of their own.

**Nodes.** Each process is a node. So is, for each communicator in which a member waits,

- each operation that a member is in, or was in last (a *front*);
- and one node *inside* where all members are in the same operation, or where all that are not
  through with it are. Then no member of the communicator is late, and the cause lies elsewhere or
  in the operation itself.

**Edges.** An edge leads from what is held up to what holds it up. A waiting process leads to the
node of the highest front below its own. That node leads to the members that stand there, and to the
node of the next lower front. So a process reaches all members behind it, with one edge for each
member and one for each front, where one edge for each pair would be quadratic: 131,072 ranks wait
in one communicator. A process in the lowest front leads to *inside*, which leads to those members
only that something else holds up: an older operation in another communicator, or a kernel that runs
there while this one has not started. A process that is in several operations has an edge from each,
but not from one whose kernel is queued while another one's runs: that one only waits for its turn.
A process that is known to have called something else (H2, found before) has no edges there, and all
others of the communicator lead to it, because their numbers no longer mean the same.

**Roots.** A path along edges asks "and why does that one not come?". It ends in a strongly
connected component that no edge leaves. There are four sorts:

- a process alone, which waits for nothing: it is *late*. It never called, or the call is stuck;
- a process alone in an operation that its peers finished: *unfinished*. Its own GPU holds it up;
- a node *inside*, alone: the operation does not end although all that it needs are in it. Kernels
  and transfers say why;
- several processes: a *circle*. One that is unfinished, or called something else, explains it. If
  there is none it is a deadlock, or a pair of sends and receives that do not match.

A root is *confirmed* when its own counts convict it, which needs its own input. A root whose
counters still move is slow, not stuck: it is noted and no verdict. What was in flight in a process
when it died counts as not issued, since it is what the others wait for.

**Silence.** A rank without input shows nothing: it may be dead, late, or wait like the others. No
edge leads to it, because that would be a guess. A communicator whose seen members all wait in one
operation is explained by its silent members only where nothing seen explains it: no member is held
up elsewhere and no confirmed cause is in the operation. That is a *suspicion*. For the same reason
"most did not finish what some did" accuses no GPU where members are silent
([`Search::is_silence`]), and an operation that most members are in may be *inside* although silent
ones may not have entered. A process that *had* input and stopped giving it is another matter: its
last counts hold, and three missed heartbeats make it gone.

Nothing is said here about *why* (that is `classify` and `triage`).
*/

use crate::graph::Graph;
use crate::job::{Communicator, Job, Kind, Life, Vector};
use ncclscope_operations::function::is_rooted;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

/// A process in an operation of a communicator, by positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wait {
    pub(crate) process: u32,
    pub(crate) comm: u32,
    pub(crate) member: u32,
}

/// Processes that wait for one another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Circle {
    /// Their operations.
    pub(crate) waits: Vec<Wait>,
    /// Pairs that send and receive without which there would be no circle; all that are part of it
    /// where no single one is such.
    pub(crate) pairs: Vec<u32>,
}

/// What stands at the end of the waits.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Processes that others wait for and that do not wait.
    pub(crate) late: Vec<u32>,
    /// Processes that did not finish what peers finished and do not wait; with where.
    pub(crate) unfinished: Vec<(u32, Vec<Wait>)>,
    /// Communicators all of whose members are in the same operation, or all that are not through
    /// with it; and those members.
    pub(crate) inside: Vec<(u32, Vec<u32>)>,
    /// Processes that wait for one another in a circle, with the operations.
    pub(crate) circles: Vec<Circle>,
    /// Processes without input that would explain the waits of a communicator: (process, comm).
    pub(crate) silent: Vec<(u32, u32)>,
    /// Causes that are at work elsewhere: slow, not stuck.
    pub(crate) moving: Vec<u32>,
    /// Everything that waits.
    pub(crate) waits: Vec<Wait>,
    reversed: Graph,
    inside_nodes: Vec<u32>,
}

/// What is not to be judged by the counts.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// (communicator, process) pairs that are known to have called something else.
    pub(crate) accused: BTreeSet<(u32, u32)>,
    /// Ages below this are no waits, ns.
    pub(crate) hang_ns: u64,
}

/// How the members of a communicator stand to each other.
#[derive(Debug, Default)]
struct Standing {
    /// The operations that members are in, ascending.
    fronts: Vec<u64>,
    /// The latest operation that a member finished.
    finished: u64,
    /// Members that wait.
    waiting: Vec<u32>,
    /// First of its nodes: one for each of `fronts`, in their order.
    first_node: u32,
    /// The node of the operation that all members are in.
    inside: Option<u32>,
    /// See [`Search::is_silence`].
    is_silence: bool,
}

struct Search<'a> {
    job: &'a Job,
    given: &'a Given,
    /// Sends and receives in call order count like others: nothing better explains the waits.
    trust_sequences: bool,
    standings: Vec<Standing>,
    waits: Vec<Wait>,
    unfinished: BTreeMap<u32, Vec<Wait>>,
    edges: Vec<(u32, u32)>,
    nodes: u32,
}

/// Finds the causes.
pub(crate) fn find(job: &Job, given: &Given) -> Findings {
    let found = Search::new(job, given, false).run();
    let is_empty = found.late.is_empty()
        && found.unfinished.is_empty()
        && found.inside.is_empty()
        && found.circles.is_empty()
        && found.silent.is_empty();
    let has_sequences = job.comms.iter().any(|comm| comm.kind == Kind::Sequence);
    if is_empty && has_sequences { Search::new(job, given, true).run() } else { found }
}

fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl<'a> Search<'a> {
    fn new(job: &'a Job, given: &'a Given, trust_sequences: bool) -> Search<'a> {
        Search {
            job,
            given,
            trust_sequences,
            standings: Vec::new(),
            waits: Vec::new(),
            unfinished: BTreeMap::new(),
            edges: Vec::new(),
            nodes: number(job.processes.len()),
        }
    }

    fn run(mut self) -> Findings {
        self.stand();
        self.waits.sort_unstable();
        for at in 0..self.waits.len() {
            self.follow(self.waits[at]);
        }
        for comm in 0..self.standings.len() {
            self.link(comm);
        }
        self.conclude()
    }

    fn is_hard(&self, comm: &Communicator) -> bool {
        comm.kind != Kind::Sequence || self.trust_sequences
    }

    fn is_old(&self, vector: &Vector) -> bool {
        self.job.is_dump || vector.age_ns.is_some_and(|age| age >= self.given.hang_ns)
    }

    fn stand(&mut self) {
        for (index, comm) in self.job.comms.iter().enumerate() {
            let mut standing = Standing::default();
            if self.is_hard(comm) {
                let waits = |v: &Vector| v.is_inside() && self.is_old(v) && !self.job.is_gone(v);
                let waiting = comm.vectors.iter().zip(0..).filter(|(v, _)| waits(v));
                standing.waiting = waiting.map(|(_, at)| at).collect();
            }
            if !standing.waiting.is_empty() {
                standing.fronts = comm.vectors.iter().map(|v| self.job.front(v)).collect();
                standing.fronts.sort_unstable();
                standing.fronts.dedup();
                standing.finished = comm.vectors.iter().map(|v| v.done).max().unwrap_or(0);
                standing.is_silence = self.is_silence(comm, &standing);
                standing.first_node = self.nodes;
                self.nodes += number(standing.fronts.len());
                if self.is_one_operation(comm, &standing) || self.is_rest(comm, &standing) {
                    standing.inside = Some(self.nodes);
                    self.nodes += 1;
                }
                for &member in &standing.waiting {
                    let process = comm.vectors[member as usize].process;
                    self.waits.push(Wait { process, comm: number(index), member });
                }
            }
            self.standings.push(standing);
        }
    }

    /// All known members are in the same operation, and none of them only just came.
    fn is_one_operation(&self, comm: &Communicator, standing: &Standing) -> bool {
        let all_in = standing.waiting.len() == comm.vectors.len();
        match comm.kind {
            // A send may be over before its receive is.
            Kind::Pair if comm.vectors.iter().any(|v| self.job.is_gone(v)) => false,
            Kind::Pair => standing.fronts.len() == 1 || comm.vectors.iter().all(is_posted(comm)),
            _ => all_in && standing.fronts.len() == 1 && standing.finished < standing.fronts[0],
        }
    }

    /// Some are through with an operation that the rest is in, which need not be the rest's fault:
    /// not every function makes all members wait for all, and data may have passed some by. So it
    /// is where functions are such, transfers tell more, or the rest is the larger part.
    fn is_rest(&self, comm: &Communicator, standing: &Standing) -> bool {
        let lowest = standing.fronts[0];
        let in_lowest = |v: &Vector| self.job.front(v) == lowest && v.done < lowest;
        let rest = || comm.vectors.iter().zip(0u32..).filter(|(v, _)| in_lowest(v));
        let flights = || rest().filter_map(|(_, at)| comm.flights.get(&at));
        comm.kind == Kind::Collectives
            && standing.finished >= lowest
            && rest().all(|(vector, _)| vector.is_inside() && !self.job.is_gone(vector))
            && (2 * rest().count() + usize::from(!comm.silent.is_empty()) > comm.vectors.len()
                || flights().any(|flight| {
                    is_rooted(&flight.call.func)
                        || flight.transfers.iter().any(|l| l.reached.is_some())
                }))
    }

    /// Most known members of the communicator did not finish what some did, and others gave no
    /// input: the cause may be one of those.
    fn is_silence(&self, comm: &Communicator, standing: &Standing) -> bool {
        let is_behind = |v: &&Vector| v.front() == standing.fronts[0];
        !comm.silent.is_empty()
            && 2 * comm.vectors.iter().filter(is_behind).count() >= comm.vectors.len()
    }

    /// The members that are in the operation of the communicator's own node.
    fn rest(&self, index: usize) -> impl Iterator<Item = Wait> {
        let (comm, standing) = (&self.job.comms[index], &self.standings[index]);
        let lowest = standing.fronts.first().copied().unwrap_or(0);
        standing.waiting.iter().filter_map(move |&member| {
            let vector = &comm.vectors[member as usize];
            let is_in = comm.kind == Kind::Pair || vector.front() == lowest;
            is_in.then_some(Wait { process: vector.process, comm: number(index), member })
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

    /// Adds where a process that waits is led to.
    fn follow(&mut self, wait: Wait) {
        let vector = self.vector(wait);
        let (comm, process) = (wait.comm, wait.process);
        if self.given.accused.contains(&(comm, process)) {
            return;
        }
        let is_elsewhere =
            |other: &Wait| *other != wait && self.vector(*other).has_started() == Some(true);
        let others = self.waits_of(process);
        if vector.has_started() == Some(false) && others.iter().any(is_elsewhere) {
            return;
        }
        let accused = self.given.accused.range((comm, 0)..(comm + 1, 0));
        let accused: Vec<(u32, u32)> = accused.map(|&(_, to)| (process, to)).collect();
        if !accused.is_empty() {
            self.edges.extend(accused);
            return;
        }
        let standing = &self.standings[comm as usize];
        let front = vector.front();
        let below = standing.fronts.partition_point(|&other| other < front);
        let is_pair = self.job.comms[comm as usize].kind == Kind::Pair;
        if let Some(node) = standing.inside.filter(|_| below == 0 || is_pair) {
            self.edges.push((process, node));
        } else if below > 0 {
            self.edges.push((process, standing.first_node + number(below) - 1));
        } else if standing.finished >= front && !standing.is_silence {
            self.unfinished.entry(process).or_default().push(wait);
        }
    }

    /// Adds what a communicator's own nodes lead to.
    fn link(&mut self, index: usize) {
        let standing = &self.standings[index];
        if standing.waiting.is_empty() {
            return;
        }
        let vectors = &self.job.comms[index].vectors;
        if let Some(node) = standing.inside {
            let held: Vec<(u32, u32)> = self
                .rest(index)
                .filter(|&wait| self.elsewhere(wait).next().is_some())
                .map(|wait| (node, wait.process))
                .collect();
            self.edges.extend(held);
        }
        let standing = &self.standings[index];
        let first = standing.first_node;
        for vector in vectors {
            let at = standing.fronts.partition_point(|&front| front < self.job.front(vector));
            self.edges.push((first + number(at), vector.process));
        }
        let chain = (1..number(standing.fronts.len())).map(|at| (first + at, first + at - 1));
        self.edges.extend(chain);
    }

    /// The other operations that really hold up a process which is in this one.
    fn elsewhere(&self, here: Wait) -> impl Iterator<Item = Wait> {
        let vector = self.vector(here);
        self.waits_of(here.process).iter().copied().filter(move |&other| {
            let there = self.vector(other);
            other.comm != here.comm
                && match (vector.has_started(), there.has_started()) {
                    (Some(true), _) => false,
                    (Some(false), Some(true)) => true,
                    _ => is_older(there, vector),
                }
        })
    }

    fn conclude(self) -> Findings {
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
        let processes = number(self.job.processes.len());
        let mut found = Findings::default();
        let mut circles: Vec<(usize, Vec<u32>)> = Vec::new();
        for process in 0..processes {
            let here = components[process as usize] as usize;
            if leads_on[here] {
                continue;
            }
            if members[here] > 1 {
                match circles.iter_mut().find(|(component, _)| *component == here) {
                    Some((_, circle)) => circle.push(process),
                    None => circles.push((here, vec![process])),
                }
            } else if let Some(waits) = self.unfinished.get(&process) {
                found.unfinished.push((process, waits.clone()));
            } else if is_waited[here] {
                self.judge_late(process, &mut found);
            }
        }
        for (_, circle) in circles {
            self.judge_circle(&circle, &graph, &components, &mut found);
        }
        let weak = self.weakly_held(&found);
        for (index, standing) in self.standings.iter().enumerate() {
            let Some(node) = standing.inside else { continue };
            let of_it = (number(index), 0)..(number(index) + 1, 0);
            if self.given.accused.range(of_it).next().is_some() {
                continue;
            }
            let here = components[node as usize] as usize;
            let is_end = !leads_on[here] && members[here] == 1;
            self.judge_inside(index, is_end, &weak, &mut found);
        }
        let reversed: Vec<(u32, u32)> = self.edges.iter().map(|&(from, to)| (to, from)).collect();
        found.reversed = Graph::new(self.nodes as usize, &reversed);
        found.inside_nodes = self.standings.iter().map(|s| s.inside.unwrap_or(u32::MAX)).collect();
        found.waits = self.waits;
        found
    }

    fn judge_late(&self, process: u32, found: &mut Findings) {
        let is_accused = self.given.accused.iter().any(|&(_, accused)| accused == process);
        let one = &self.job.processes[process as usize];
        match one.is_moving && one.life == Life::Running {
            _ if is_accused => {}
            true => found.moving.push(process),
            false => found.late.push(process),
        }
    }

    /// A circle is explained by a member that did not finish what its peers finished, or that
    /// called something else.
    fn judge_circle(
        &self,
        circle: &[u32],
        graph: &Graph,
        components: &[u32],
        found: &mut Findings,
    ) {
        let accused: HashSet<u32> = self.given.accused.iter().map(|&(_, p)| p).collect();
        let unfinished = circle.iter().filter_map(|p| Some((*p, self.unfinished.get(p)?.clone())));
        let unfinished: Vec<(u32, Vec<Wait>)> = unfinished.collect();
        if !unfinished.is_empty() {
            found.unfinished.extend(unfinished);
        } else if !circle.iter().any(|process| accused.contains(process)) {
            let here = components[circle[0] as usize];
            let nodes = (0..self.nodes).filter(|&node| components[node as usize] == here).collect();
            found.circles.push(self.circle(circle, graph, &nodes));
        }
    }

    /// The nodes of a communicator.
    fn nodes_of(&self, comm: u32) -> Range<u32> {
        let standing = &self.standings[comm as usize];
        let nodes = number(standing.fronts.len()) + u32::from(standing.inside.is_some());
        standing.first_node..standing.first_node + nodes
    }

    /// Whatever waits for a member of a circle may be part of it through waits of others. A pair
    /// that every circle leads through is what closes it.
    fn circle(&self, members: &[u32], graph: &Graph, nodes: &HashSet<u32>) -> Circle {
        let is_of = |comm: u32, nodes: &HashSet<u32>| {
            self.nodes_of(comm).into_iter().find(|node| nodes.contains(node))
        };
        let waits = members.iter().flat_map(|&process| self.waits_of(process)).copied();
        let mut waits: Vec<Wait> = waits.filter(|w| is_of(w.comm, nodes).is_some()).collect();
        let is_pair = |wait: &&Wait| self.job.comms[wait.comm as usize].kind == Kind::Pair;
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
            return Circle { waits, pairs: pairs.into_iter().collect() };
        };
        let way = way_through(first);
        waits.retain(|wait| way.contains(&wait.process) && is_of(wait.comm, &way).is_some());
        Circle { waits, pairs: closing }
    }

    /// All known members are in one operation: its members without input explain that, unless
    /// something else does.
    fn judge_inside(&self, index: usize, is_end: bool, weak: &[Option<u64>], found: &mut Findings) {
        let comm = &self.job.comms[index];
        let members: Vec<Wait> = self.rest(index).collect();
        let is_weakly_held = members.iter().any(|&wait| {
            let here = self.vector(wait);
            weak[wait.process as usize]
                .is_some_and(|age| here.born_ns.is_none_or(|mine| age >= mine))
                && here.has_started() != Some(true)
        });
        if is_weakly_held {
            return;
        }
        for &silent in &comm.silent {
            let clears = |wait: Wait| !self.job.comms[wait.comm as usize].silent.contains(&silent);
            let is_clear = members.iter().any(|&wait| self.elsewhere(wait).any(clears));
            if !is_clear {
                found.silent.push((silent, number(index)));
            }
        }
        if is_end {
            let members = members.iter().map(|wait| wait.member).collect();
            found.inside.push((number(index), members));
        }
    }

    /// Processes that a send or receive explains, with the age of that: the other side is held up.
    fn weakly_held(&self, found: &Findings) -> Vec<Option<u64>> {
        let mut weak = vec![None; self.job.processes.len()];
        if self.trust_sequences {
            return weak;
        }
        let mut is_held = vec![false; self.job.processes.len()];
        let unfinished = found.unfinished.iter().map(|(process, _)| process);
        let causes = found.late.iter().chain(&found.moving).chain(unfinished);
        causes.for_each(|&process| is_held[process as usize] = true);
        for &(from, _) in &self.edges {
            // Those of operations that all members are in lead nowhere by themselves.
            let leads = |wait: &Wait| self.standings[wait.comm as usize].inside.is_none();
            if let Some(held) = is_held.get_mut(from as usize) {
                *held |= self.waits_of(from).iter().any(leads);
            }
        }
        let sequences: Vec<&Communicator> =
            self.job.comms.iter().filter(|comm| comm.kind == Kind::Sequence).collect();
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
            has_changed |= self.spread(&weak, &mut is_held);
            if !has_changed {
                return weak;
            }
        }
    }

    /// A member of an operation in which another member is held up is held up too.
    fn spread(&self, weak: &[Option<u64>], is_held: &mut [bool]) -> bool {
        let mut has_changed = false;
        for (comm, standing) in self.job.comms.iter().zip(&self.standings) {
            let processes = || standing.waiting.iter().map(|&at| comm.vectors[at as usize].process);
            if standing.inside.is_some() && processes().any(|p| weak[p as usize].is_some()) {
                for process in processes() {
                    has_changed |= !std::mem::replace(&mut is_held[process as usize], true);
                }
            }
        }
        has_changed
    }
}

/// Both sides have issued the transfer that the receiver is in.
fn is_posted(comm: &Communicator) -> impl Fn(&Vector) -> bool {
    let inside = comm.vectors.iter().filter(|v| v.is_inside());
    let front = inside.map(Vector::front).max().unwrap_or(u64::MAX);
    let is_whole = comm.vectors.len() == 2;
    move |vector| is_whole && vector.enqueued >= front
}

/// One operation was issued before another of the same process; unknown ages may be anything.
fn is_older(this: &Vector, other: &Vector) -> bool {
    match (this.born_ns, other.born_ns) {
        (Some(this), Some(other)) => this > other,
        _ => true,
    }
}

impl Findings {
    /// How many processes wait because of these, through others too.
    pub(crate) fn victims(&self, causes: &[u32], comms: &[u32]) -> usize {
        let mut held = self.held(causes, comms);
        causes.iter().for_each(|&process| held[process as usize] = false);
        let waiting: HashSet<u32> = self.waits.iter().map(|wait| wait.process).collect();
        waiting.into_iter().filter(|&process| held[process as usize]).count()
    }

    /// For each node whether it leads to one of these processes, or to the operation that all
    /// members of one of these communicators are in; they themselves do.
    fn held(&self, causes: &[u32], comms: &[u32]) -> Vec<bool> {
        let nodes = comms.iter().filter_map(|&comm| self.inside_nodes.get(comm as usize));
        let nodes = nodes.copied().filter(|&node| node != u32::MAX);
        let mut held = vec![false; self.reversed.len()];
        let mut is_new = |node: &u32| !std::mem::replace(&mut held[*node as usize], true);
        let mut stack: Vec<u32> = causes.iter().copied().chain(nodes).filter(&mut is_new).collect();
        while let Some(node) = stack.pop() {
            stack.extend(self.reversed.from(node).iter().filter(|&from| is_new(from)));
        }
        held
    }
}
