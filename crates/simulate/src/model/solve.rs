// SPDX-License-Identifier: Apache-2.0
/*!
The solver: computes when every operation starts and ends on every rank.

**Model.** A rank has a host thread and one GPU stream. The host calls the operations of the rank's
program in order; it runs ahead of the GPU by at most `AHEAD` operations, and waits for operations
that the program marks `sync`. The stream runs them in order. An operation starts on a rank when the
previous one has ended, the computation before it is done, and its kernel is launched. When it ends
depends on all ranks that take part and on the network between them: [`super::collective`] and
[`super::flow`] compute that, step by step, from the starts of all members.

**No event queue.** Each time is a maximum of other times plus a constant, and no time depends on a
later one of its own rank. So the solver does not simulate in time order. It keeps a work list of
ranks and takes each as far as its inputs are known:

1. The host of a rank calls operations ([`Solver::call`]) until it needs an end that is not known
   yet: of a `sync` operation, or of the one `AHEAD` before.
2. If the end of the current operation of its stream is known, the stream begins the next one
   ([`Solver::begin`]), which fixes its start.
3. A collective whose last member has begun is solved: the ends of all members are now known, and
   these ranks go back onto the work list. A send is solved with its receive; they are matched by
   their order between two ranks. An operation of several sends and receives ends when its last one
   does.

Each operation is solved exactly once, so the cost is linear in operations plus network steps, and
the order in which ranks are taken does not change any time: a simulation is reproducible.
(Operations of one connection share state, [`Connections`]; they are ordered by the streams.)

**Never.** A fault makes times [`NEVER`], the largest value. It propagates by itself through maxima
and saturating sums: what waits for something that never happens never happens either. A dead GPU,
for example, never starts its kernels, and all that depends on them ends `NEVER`.

**Deadlock.** What does not come out by itself is an operation that some members never *begin*,
because they called something different, or because ranks wait for each other. Then the work list
is empty while operations are open. [`Solver::decide_one`] decides one of them and continues: it is
solved with the missing members at `NEVER`, so that the other members send what they can, and show
where they are stuck, as real ranks do. *Which* one matters: if *A* waits for *B*, and *B* waits in
another operation for *C*, then deciding *A*'s first would say that *B* never comes, although it
does if *C*'s operation ends somehow. So [`Solver::cause`] starts at the operation that has waited
longest, and follows missing members to the operations that they wait in, until it reaches one whose
missing members wait for nothing, or returns to one that it has passed: a cycle, a true deadlock, in
which any choice is right.
*/

use super::collective::{Connections, Fabric, Member, Outcome, RingRole};
use super::conditions::Conditions;
use super::program::{Call, Coll, Cut, Op, Transfer};
use crate::layout::Layout;
use crate::scenario::Machine;
use crate::time::{NEVER, Time, before};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of operations by which a host runs ahead of its GPU.
const AHEAD: usize = 48;
/// Time from the call to the launch of the kernel, ns.
const LAUNCH_NS: u64 = 6_000;

/// The times of an operation of a rank's program.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpTimes {
    /// When it was called.
    pub(crate) issued: Time,
    /// When NCCL had launched and enqueued it.
    pub(crate) enqueued: Time,
    /// When the stream started and completed it.
    pub(crate) start: Time,
    pub(crate) end: Time,
    /// Its transfers: (index in [`Solution::outcomes`], the rank's member index there). One for a
    /// collective, else one for each send or receive.
    pub(crate) parts: Vec<(u32, u32)>,
}

/// The times of a whole job.
#[derive(Debug)]
pub(crate) struct Solution {
    pub(crate) ranks: Vec<Vec<OpTimes>>,
    pub(crate) outcomes: Vec<Outcome>,
}

impl Solution {
    /// Some operation never ended or never began.
    pub(crate) fn is_stuck(&self) -> bool {
        self.ranks.iter().any(|ops| ops.last().is_some_and(|op| op.end == NEVER))
    }

    /// The time of the last event.
    pub(crate) fn latest(&self) -> Time {
        let times = self.ranks.iter().flatten().flat_map(|op| [op.enqueued, op.end]);
        times.filter(|&time| time != NEVER).max().unwrap_or(0)
    }
}

/// A send or a receive that waits for its other side.
#[derive(Clone, Copy, Debug)]
struct UnmatchedTransfer {
    op: usize,
    part: usize,
    transfer: Transfer,
}

/// Communicator, sender and receiver.
type PairKey = (usize, u32, u32);

/// The unmatched sends and receives from one rank to another, in order.
type UnmatchedTransfers =
    BTreeMap<PairKey, (VecDeque<UnmatchedTransfer>, VecDeque<UnmatchedTransfer>)>;

/// An operation in which ranks wait for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OpenOperation {
    /// A collective: its communicator and its number there.
    Coll((usize, usize)),
    /// A send, or a receive.
    Pair(PairKey),
}

#[derive(Debug)]
struct Solver<'a> {
    layout: &'a Layout,
    machine: &'a Machine,
    conditions: &'a Conditions,
    programs: &'a [Vec<Op>],
    ranks: Vec<Vec<OpTimes>>,
    outcomes: Vec<Outcome>,
    /// Number of operations that the stream of each rank has begun.
    begun: Vec<usize>,
    /// Number of operations that the host of each rank has called.
    called: Vec<usize>,
    /// Whether the end of the current operation of each rank's stream is known.
    free: Vec<bool>,
    /// Number of collectives begun, by communicator and member.
    counts: Vec<Vec<usize>>,
    /// The (member, operation)s that wait in a collective, by (communicator, number).
    open: BTreeMap<(usize, usize), Vec<(usize, usize)>>,
    pairs: UnmatchedTransfers,
    /// For each rank: the unsolved transfers of its current group, and the latest end of the
    /// others.
    unsolved: Vec<(usize, Time)>,
    connections: Connections,
    /// Ranks that may be able to continue.
    ready: VecDeque<u32>,
}

/// Computes all times of a job.
pub(crate) fn solve(
    layout: &Layout,
    machine: &Machine,
    conditions: &Conditions,
    programs: &[Vec<Op>],
) -> Solution {
    let count = layout.ranks as usize;
    let mut solver = Solver {
        layout,
        machine,
        conditions,
        programs,
        ranks: programs.iter().map(|ops| vec![OpTimes::default(); ops.len()]).collect(),
        outcomes: Vec::new(),
        begun: vec![0; count],
        called: vec![0; count],
        free: vec![true; count],
        counts: layout.groups.iter().map(|group| vec![0; group.members.len()]).collect(),
        open: BTreeMap::new(),
        pairs: BTreeMap::new(),
        unsolved: vec![(0, 0); count],
        connections: Connections::new(),
        ready: (0..layout.ranks).collect(),
    };
    loop {
        while let Some(rank) = solver.ready.pop_front() {
            solver.advance(rank);
        }
        if !solver.decide_one() {
            break;
        }
    }
    Solution { ranks: solver.ranks, outcomes: solver.outcomes }
}

impl Solver<'_> {
    /// Advances a rank as far as its inputs are known.
    fn advance(&mut self, rank: u32) {
        let at = rank as usize;
        loop {
            let called = self.call(rank);
            let next = self.begun[at];
            let may_begin = self.free[at] && next < self.called[at];
            if may_begin {
                self.begin(rank, next);
            } else if !called {
                return;
            }
        }
    }

    /// The host calls the next operation. False if the time is not known yet.
    fn call(&mut self, rank: u32) -> bool {
        let at = rank as usize;
        let (index, ops) = (self.called[at], &self.programs[at]);
        let Some(op) = ops.get(index) else { return false };
        // The ends of operations before the stream's current one are known.
        let known = if self.free[at] { self.begun[at] } else { self.begun[at].saturating_sub(1) };
        let mut from = 0;
        if let Some(last) = index.checked_sub(1) {
            from = self.ranks[at][last].enqueued;
            if ops[last].sync {
                if last >= known {
                    return false;
                }
                from = from.max(self.ranks[at][last].end);
            }
        }
        if let Some(behind) = index.checked_sub(AHEAD) {
            if behind >= known {
                return false;
            }
            from = from.max(self.ranks[at][behind].end);
        }
        let stop = self.conditions.of(rank).host;
        let issued = from.saturating_add(op.host_ns).saturating_add(self.machine.call_ns);
        let issued = before(issued, stop);
        let parts = match &op.call {
            Call::Coll(_) => 1,
            Call::Transfers(transfers) => transfers.len() as u64,
        };
        let launched = issued.saturating_add(LAUNCH_NS + 1_000 * parts);
        let launched = if op.stuck_launch { NEVER } else { launched };
        let done = &mut self.ranks[at][index];
        (done.issued, done.enqueued) = (issued, before(launched, stop));
        self.called[at] += 1;
        true
    }

    /// The stream begins an operation.
    fn begin(&mut self, rank: u32, index: usize) {
        let at = rank as usize;
        let op = &self.programs[at][index];
        let free = index.checked_sub(1).map_or(0, |last| self.ranks[at][last].end);
        let computed = free.saturating_add(op.compute_ns);
        let start = computed.max(self.ranks[at][index].enqueued.saturating_add(2_000));
        self.ranks[at][index].start = before(start, self.conditions.of(rank).gpu);
        self.begun[at] += 1;
        self.free[at] = false;
        let member = self.layout.groups[op.group].position(rank).unwrap_or(0);
        match &op.call {
            Call::Coll(_) => {
                let number = self.counts[op.group][member];
                self.counts[op.group][member] += 1;
                let key = (op.group, number);
                let waiting = self.open.entry(key).or_default();
                waiting.push((member, index));
                if waiting.len() == self.layout.groups[op.group].members.len() {
                    self.collective(key);
                }
            }
            Call::Transfers(transfers) => self.transfers(rank, index, transfers),
        }
    }

    /// Solves a collective. Members that have not begun it by now never do.
    fn collective(&mut self, key: (usize, usize)) {
        let Some(mut waiting) = self.open.remove(&key) else { return };
        waiting.sort_unstable();
        let layout = self.layout;
        let group = &layout.groups[key.0];
        let size = u32::try_from(group.members.len()).unwrap_or(u32::MAX);
        let found: Vec<(usize, Option<usize>)> = (0..group.members.len())
            .map(|member| {
                let at = waiting.binary_search_by_key(&member, |w| w.0).ok();
                (member, at.map(|at| waiting[at].1))
            })
            .collect();
        let calls: Vec<Option<Coll>> = found
            .iter()
            .map(|&(member, index)| self.coll_of(group.members[member], index?))
            .collect();
        let Some(usual) = calls.iter().flatten().next().copied() else { return };
        let slower = self.conditions.function(usual.func);
        let members: Vec<Member> = found
            .iter()
            .zip(&calls)
            .map(|(&(member, index), call)| {
                let cut = call.unwrap_or(usual).cut(size);
                let part = call.unwrap_or(usual).part(u32::try_from(member).unwrap_or(0), size);
                let member = self.member(group.members[member], index, (part, cut));
                Member { slower: member.slower * slower, ..member }
            })
            .collect();
        let tree = calls.iter().flatten().all(|call| call.tree);
        let channels = calls.iter().flatten().map(|call| call.cut(size).channels).max();
        let mut fabric = Fabric { slower, ..self.fabric(key.0, channels.unwrap_or(1)) };
        let outcome = if tree { fabric.tree(&members) } else { fabric.ring(&members) };
        let number = u32::try_from(self.outcomes.len()).unwrap_or(u32::MAX);
        for &(member, index) in &waiting {
            let rank = group.members[member];
            let done = &mut self.ranks[rank as usize][index];
            done.end = outcome.end(member);
            done.parts = vec![(number, u32::try_from(member).unwrap_or(0))];
            self.free[rank as usize] = true;
            self.ready.push_back(rank);
        }
        self.outcomes.push(outcome);
    }

    fn coll_of(&self, rank: u32, index: usize) -> Option<Coll> {
        match self.programs[rank as usize][index].call {
            Call::Coll(coll) => Some(coll),
            Call::Transfers(_) => None,
        }
    }

    /// A rank's part in an operation; without an index it never begins it.
    fn member(&self, rank: u32, index: Option<usize>, (part, cut): (RingRole, Cut)) -> Member {
        let done = index.map(|index| &self.ranks[rank as usize][index]);
        let key = (rank, index.unwrap_or(usize::MAX));
        Member {
            rank,
            host: self.layout.host(rank),
            part,
            steps: cut.steps,
            bytes: cut.bytes,
            channels: cut.channels,
            enqueued: done.map_or(NEVER, |done| done.enqueued),
            start: done.map_or(NEVER, |done| done.start),
            room: self.conditions.channels.get(&key).copied().unwrap_or(usize::MAX),
            lost_end: self.conditions.lost_ends.contains_key(&key),
            slower: self.conditions.copy[rank as usize],
        }
    }

    fn fabric(&mut self, group: usize, channels: u8) -> Fabric<'_> {
        Fabric {
            machine: self.machine,
            conditions: self.conditions,
            connections: &mut self.connections,
            group,
            channels,
            slower: 1.0,
        }
    }

    /// Matches the sends and receives of a group with those of the other sides, by their order.
    fn transfers(&mut self, rank: u32, index: usize, transfers: &[Transfer]) {
        let group = self.programs[rank as usize][index].group;
        self.unsolved[rank as usize] = (transfers.len(), 0);
        self.ranks[rank as usize][index].parts = vec![(u32::MAX, 0); transfers.len()];
        for (part, &transfer) in transfers.iter().enumerate() {
            let peer = self.layout.groups[group].members[transfer.peer as usize];
            let side = UnmatchedTransfer { op: index, part, transfer };
            let (from, to) = if transfer.is_send { (rank, peer) } else { (peer, rank) };
            let queues = self.pairs.entry((group, from, to)).or_default();
            if transfer.is_send {
                queues.0.push_back(side)
            } else {
                queues.1.push_back(side)
            }
            if !queues.0.is_empty() && !queues.1.is_empty() {
                let sides = (queues.0.pop_front(), queues.1.pop_front());
                self.transfer((group, from, to), sides);
            }
        }
    }

    /// Solves a send and its receive, one of which may be missing.
    fn transfer(
        &mut self,
        pair: PairKey,
        (send, recv): (Option<UnmatchedTransfer>, Option<UnmatchedTransfer>),
    ) {
        let (group, from, to) = pair;
        let Some(either) = send.or(recv) else { return };
        let member = |rank: u32, side: Option<UnmatchedTransfer>| {
            let cut = side.unwrap_or(either).transfer.cut();
            self.member(rank, side.map(|side| side.op), (RingRole::Rotate, cut))
        };
        let (sender, receiver) = (member(from, send), member(to, recv));
        let outcome = self.fabric(group, 1).transfer(&sender, &receiver);
        let number = u32::try_from(self.outcomes.len()).unwrap_or(u32::MAX);
        for (end, (rank, side)) in [(from, send), (to, recv)].into_iter().enumerate() {
            let Some(side) = side else { continue };
            let at = rank as usize;
            let done = &mut self.ranks[at][side.op];
            done.parts[side.part] = (number, u32::try_from(end).unwrap_or(0));
            let unsolved = &mut self.unsolved[at];
            unsolved.0 = unsolved.0.saturating_sub(1);
            unsolved.1 = unsolved.1.max(outcome.end(end));
            if unsolved.0 == 0 {
                done.end = unsolved.1;
                self.free[at] = true;
                self.ready.push_back(rank);
            }
        }
        self.outcomes.push(outcome);
    }

    /// Called when no rank can continue: solves one operation without its missing members. False if
    /// no operation is open.
    fn decide_one(&mut self) -> bool {
        let Some(oldest) = self.oldest() else { return false };
        match self.cause(oldest) {
            OpenOperation::Coll(key) => self.collective(key),
            OpenOperation::Pair(pair) => {
                let queues = self.pairs.entry(pair).or_default();
                let sides = (queues.0.pop_front(), queues.1.pop_front());
                self.transfer(pair, sides);
            }
        }
        true
    }

    /// The operation that has waited longest.
    fn oldest(&self) -> Option<OpenOperation> {
        let first = |key: &(usize, usize), waiting: &Vec<(usize, usize)>| {
            let members = &self.layout.groups[key.0].members;
            let starts = waiting.iter().map(|w| self.ranks[members[w.0] as usize][w.1].start);
            starts.min().unwrap_or(NEVER)
        };
        let oldest = self.open.iter().map(|(key, waiting)| (first(key, waiting), *key)).min();
        let pair = || self.pairs.iter().find(|(_, q)| !q.0.is_empty() || !q.1.is_empty());
        oldest
            .map(|(_, key)| OpenOperation::Coll(key))
            .or_else(|| pair().map(|(&pair, _)| OpenOperation::Pair(pair)))
    }

    /// The operation to decide first: follows missing members to the operations in which they wait.
    /// In a cycle, this is the operation that closes it.
    fn cause(&self, first: OpenOperation) -> OpenOperation {
        let (mut at, mut seen) = (first, BTreeSet::new());
        while seen.insert(at) {
            let missing = self.missing(at);
            let Some(next) = missing.into_iter().find_map(|rank| self.wait_of(rank)) else { break };
            at = next;
        }
        at
    }

    /// The ranks that have not begun the operation.
    fn missing(&self, wait: OpenOperation) -> Vec<u32> {
        match wait {
            OpenOperation::Coll(key) => {
                let all = &self.layout.groups[key.0].members;
                let mut is_here = vec![false; all.len()];
                self.open.get(&key).into_iter().flatten().for_each(|w| is_here[w.0] = true);
                let missing = all.iter().zip(is_here).filter(|(_, is_here)| !is_here);
                missing.map(|(&rank, _)| rank).collect()
            }
            OpenOperation::Pair(pair) => {
                let lacks_send = self.pairs.get(&pair).is_some_and(|queues| queues.0.is_empty());
                vec![if lacks_send { pair.1 } else { pair.2 }]
            }
        }
    }

    /// The operation that a rank waits in.
    fn wait_of(&self, rank: u32) -> Option<OpenOperation> {
        let at = rank as usize;
        let index = self.begun[at].checked_sub(1).filter(|_| !self.free[at])?;
        let op = &self.programs[at][index];
        let group = &self.layout.groups[op.group];
        match &op.call {
            Call::Coll(_) => {
                let number = self.counts[op.group][group.position(rank)?].checked_sub(1)?;
                Some(OpenOperation::Coll((op.group, number)))
            }
            Call::Transfers(transfers) => {
                let parts = transfers.iter().zip(&self.ranks[at][index].parts);
                let (open, _) = parts.into_iter().find(|(_, part)| part.0 == u32::MAX)?;
                let peer = group.members[open.peer as usize];
                let (from, to) = if open.is_send { (rank, peer) } else { (peer, rank) };
                Some(OpenOperation::Pair((op.group, from, to)))
            }
        }
    }
}
