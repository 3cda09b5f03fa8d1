// SPDX-License-Identifier: Apache-2.0
/*!
When everything takes place, for all ranks.

A rank has a host, which calls and runs ahead of its GPU, and one stream, on which operations are
done in their order. An operation begins on a rank when its stream is free and it is launched; it is
worked out when all that take part have begun, or cannot. Where nothing more becomes known, a rank
never comes: first to those that no other rank holds up.
*/

use super::collective::{Connections, Fabric, Member, Outcome, Part};
use super::conditions::Conditions;
use super::program::{Call, Coll, Cut, Op, Transfer};
use crate::layout::Layout;
use crate::scenario::Machine;
use crate::time::{NEVER, Time, before};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Operations that a host is ahead of its GPU at most.
const AHEAD: usize = 48;
/// From the call to the launch of the kernel, ns.
const LAUNCH_NS: u64 = 6_000;

/// What became of an operation of a rank's program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    /// When it was called.
    pub(crate) issued: Time,
    /// When NCCL had launched and enqueued it.
    pub(crate) enqueued: Time,
    /// When the stream came to it, and when it was done on the stream.
    pub(crate) start: Time,
    pub(crate) end: Time,
    /// Where to find what it moved: index in [`Solution::outcomes`], and who the rank is in it. One
    /// for a collective, else one for each send or receive.
    pub(crate) parts: Vec<(u32, u32)>,
}

/// What became of the job.
#[derive(Debug)]
pub(crate) struct Solution {
    pub(crate) ranks: Vec<Vec<Done>>,
    pub(crate) outcomes: Vec<Outcome>,
}

impl Solution {
    /// Something never ended, or never began.
    pub(crate) fn is_stuck(&self) -> bool {
        self.ranks.iter().any(|ops| ops.last().is_some_and(|op| op.end == NEVER))
    }

    /// The latest time that anything took place.
    pub(crate) fn latest(&self) -> Time {
        let times = self.ranks.iter().flatten().flat_map(|op| [op.enqueued, op.end]);
        times.filter(|&time| time != NEVER).max().unwrap_or(0)
    }
}

/// A side of a send and receive that waits for the other.
#[derive(Clone, Copy, Debug)]
struct Side {
    op: usize,
    part: usize,
    transfer: Transfer,
}

/// By communicator, sender and receiver.
type Pair = (usize, u32, u32);

/// The sends and receives from one rank to another, in their order: those that wait.
type Pairs = BTreeMap<Pair, (VecDeque<Side>, VecDeque<Side>)>;

/// Something that ranks wait in for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    /// A collective: its communicator, and its number there.
    Coll((usize, usize)),
    /// A send, or a receive.
    Pair(Pair),
}

#[derive(Debug)]
struct Solver<'a> {
    layout: &'a Layout,
    machine: &'a Machine,
    conditions: &'a Conditions,
    programs: &'a [Vec<Op>],
    ranks: Vec<Vec<Done>>,
    outcomes: Vec<Outcome>,
    /// Operations that the stream of a rank has begun.
    begun: Vec<usize>,
    /// Operations that the host has called.
    called: Vec<usize>,
    /// Whether the end of the operation that the stream is at is known.
    free: Vec<bool>,
    /// Collectives begun by communicator and member, and who waits in which.
    counts: Vec<Vec<usize>>,
    open: BTreeMap<(usize, usize), Vec<(usize, usize)>>,
    pairs: Pairs,
    /// Transfers of the group of each rank that are not worked out, and its end so far.
    left: Vec<(usize, Time)>,
    connections: Connections,
    work: VecDeque<u32>,
}

/// Works out what takes place when.
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
        ranks: programs.iter().map(|ops| vec![Done::default(); ops.len()]).collect(),
        outcomes: Vec::new(),
        begun: vec![0; count],
        called: vec![0; count],
        free: vec![true; count],
        counts: layout.groups.iter().map(|group| vec![0; group.members.len()]).collect(),
        open: BTreeMap::new(),
        pairs: BTreeMap::new(),
        left: vec![(0, 0); count],
        connections: Connections::new(),
        work: (0..layout.ranks).collect(),
    };
    loop {
        while let Some(rank) = solver.work.pop_front() {
            solver.advance(rank);
        }
        if !solver.give_up() {
            break;
        }
    }
    Solution { ranks: solver.ranks, outcomes: solver.outcomes }
}

impl Solver<'_> {
    /// Goes on with a rank as far as is known.
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

    /// The host calls the next operation, if it is known when. False if not.
    fn call(&mut self, rank: u32) -> bool {
        let at = rank as usize;
        let (index, ops) = (self.called[at], &self.programs[at]);
        let Some(op) = ops.get(index) else { return false };
        // Ends of operations are known up to the one that the stream is at.
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

    /// The stream comes to an operation.
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

    /// Works out a collective that all have begun who will.
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
        let members: Vec<Member> = found
            .iter()
            .zip(&calls)
            .map(|(&(member, index), call)| {
                let cut = call.unwrap_or(usual).cut(size);
                let part = call.unwrap_or(usual).part(u32::try_from(member).unwrap_or(0), size);
                self.member(group.members[member], index, (part, cut))
            })
            .collect();
        let tree = calls.iter().flatten().all(|call| call.tree);
        let channels = calls.iter().flatten().map(|call| call.cut(size).channels).max();
        let mut fabric = self.fabric(key.0, channels.unwrap_or(1));
        let outcome = if tree { fabric.tree(&members) } else { fabric.ring(&members) };
        let number = u32::try_from(self.outcomes.len()).unwrap_or(u32::MAX);
        for &(member, index) in &waiting {
            let rank = group.members[member];
            let done = &mut self.ranks[rank as usize][index];
            done.end = outcome.end(member);
            done.parts = vec![(number, u32::try_from(member).unwrap_or(0))];
            self.free[rank as usize] = true;
            self.work.push_back(rank);
        }
        self.outcomes.push(outcome);
    }

    fn coll_of(&self, rank: u32, index: usize) -> Option<Coll> {
        match self.programs[rank as usize][index].call {
            Call::Coll(coll) => Some(coll),
            Call::Transfers(_) => None,
        }
    }

    /// A rank's part in an operation; without an index it never begins.
    fn member(&self, rank: u32, index: Option<usize>, (part, cut): (Part, Cut)) -> Member {
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
        }
    }

    /// The sends and receives of a group, each matched with the other side's by their order.
    fn transfers(&mut self, rank: u32, index: usize, transfers: &[Transfer]) {
        let group = self.programs[rank as usize][index].group;
        self.left[rank as usize] = (transfers.len(), 0);
        self.ranks[rank as usize][index].parts = vec![(u32::MAX, 0); transfers.len()];
        for (part, &transfer) in transfers.iter().enumerate() {
            let peer = self.layout.groups[group].members[transfer.peer as usize];
            let side = Side { op: index, part, transfer };
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

    /// Works out a send and its receive, of which one may be missing.
    fn transfer(&mut self, pair: Pair, (send, recv): (Option<Side>, Option<Side>)) {
        let (group, from, to) = pair;
        let Some(either) = send.or(recv) else { return };
        let member = |rank: u32, side: Option<Side>| {
            let cut = side.unwrap_or(either).transfer.cut();
            self.member(rank, side.map(|side| side.op), (Part::Rotate, cut))
        };
        let (sender, receiver) = (member(from, send), member(to, recv));
        let outcome = self.fabric(group, 1).transfer(&sender, &receiver);
        let number = u32::try_from(self.outcomes.len()).unwrap_or(u32::MAX);
        for (end, (rank, side)) in [(from, send), (to, recv)].into_iter().enumerate() {
            let Some(side) = side else { continue };
            let at = rank as usize;
            let done = &mut self.ranks[at][side.op];
            done.parts[side.part] = (number, u32::try_from(end).unwrap_or(0));
            let left = &mut self.left[at];
            left.0 = left.0.saturating_sub(1);
            left.1 = left.1.max(outcome.end(end));
            if left.0 == 0 {
                done.end = left.1;
                self.free[at] = true;
                self.work.push_back(rank);
            }
        }
        self.outcomes.push(outcome);
    }

    /// Nothing more becomes known: something waits for ever. False if nothing waits.
    fn give_up(&mut self) -> bool {
        let Some(oldest) = self.oldest() else { return false };
        match self.cause(oldest) {
            Wait::Coll(key) => self.collective(key),
            Wait::Pair(pair) => {
                let queues = self.pairs.entry(pair).or_default();
                let sides = (queues.0.pop_front(), queues.1.pop_front());
                self.transfer(pair, sides);
            }
        }
        true
    }

    /// What waits for longest.
    fn oldest(&self) -> Option<Wait> {
        let first = |key: &(usize, usize), waiting: &Vec<(usize, usize)>| {
            let members = &self.layout.groups[key.0].members;
            let starts = waiting.iter().map(|w| self.ranks[members[w.0] as usize][w.1].start);
            starts.min().unwrap_or(NEVER)
        };
        let oldest = self.open.iter().map(|(key, waiting)| (first(key, waiting), *key)).min();
        let pair = || self.pairs.iter().find(|(_, q)| !q.0.is_empty() || !q.1.is_empty());
        oldest.map(|(_, key)| Wait::Coll(key)).or_else(|| pair().map(|(&pair, _)| Wait::Pair(pair)))
    }

    /// What comes to nothing first: where those who are missing are themselves, and so on. In a
    /// circle it is whatever closes it.
    fn cause(&self, first: Wait) -> Wait {
        let (mut at, mut seen) = (first, BTreeSet::new());
        while seen.insert(at) {
            let missing = self.missing(at);
            let Some(next) = missing.into_iter().find_map(|rank| self.wait_of(rank)) else { break };
            at = next;
        }
        at
    }

    /// Who has not come.
    fn missing(&self, wait: Wait) -> Vec<u32> {
        match wait {
            Wait::Coll(key) => {
                let all = &self.layout.groups[key.0].members;
                let mut is_here = vec![false; all.len()];
                self.open.get(&key).into_iter().flatten().for_each(|w| is_here[w.0] = true);
                let missing = all.iter().zip(is_here).filter(|(_, is_here)| !is_here);
                missing.map(|(&rank, _)| rank).collect()
            }
            Wait::Pair(pair) => {
                let lacks_send = self.pairs.get(&pair).is_some_and(|queues| queues.0.is_empty());
                vec![if lacks_send { pair.1 } else { pair.2 }]
            }
        }
    }

    /// What a rank waits in.
    fn wait_of(&self, rank: u32) -> Option<Wait> {
        let at = rank as usize;
        let index = self.begun[at].checked_sub(1).filter(|_| !self.free[at])?;
        let op = &self.programs[at][index];
        let group = &self.layout.groups[op.group];
        match &op.call {
            Call::Coll(_) => {
                let number = self.counts[op.group][group.position(rank)?].checked_sub(1)?;
                Some(Wait::Coll((op.group, number)))
            }
            Call::Transfers(transfers) => {
                let parts = transfers.iter().zip(&self.ranks[at][index].parts);
                let (open, _) = parts.into_iter().find(|(_, part)| part.0 == u32::MAX)?;
                let peer = group.members[open.peer as usize];
                let (from, to) = if open.is_send { (rank, peer) } else { (peer, rank) };
                Some(Wait::Pair((op.group, from, to)))
            }
        }
    }
}
