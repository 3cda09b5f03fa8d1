// SPDX-License-Identifier: Apache-2.0
/*!
The kernels of one operation: rings, chains and trees of [`Flow`]s.

In a ring each GPU sends in step `i` what it received in step `i - 1`; in a chain (Broadcast) it
sends what it received in the same step; in a tree inner ranks wait for their children on the way
up, and for their parent on the way down. A GPU reads a step only when it can also pass it on, as
NCCL's `recvReduceSend` does, so a stop of one rank spreads to all others.
*/

use super::conditions::Conditions;
use super::flow::{Flow, FlowEnd, FlowParams};
use crate::scenario::Machine;
use crate::time::{NEVER, Time, before, scaled};
use std::collections::HashMap;

/// GPU time per step besides copying, ns.
const TOUCH_NS: u64 = 900;
/// Bytes that one channel copies in a nanosecond.
const COPY_BYTES: u64 = 60;
/// Time from the last step to the end of the kernel, ns.
const TAIL_NS: u64 = 1_500;

/// The role of a rank in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingRole {
    /// Sends what it received in the previous step; first its own data.
    Rotate,
    /// Passes on what it receives in the same step.
    Relay,
    /// Only sends.
    Source,
    /// Only receives.
    Sink,
}

/// One rank's view of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    /// Rank of the job.
    pub(crate) rank: u32,
    pub(crate) host: u32,
    pub(crate) part: RingRole,
    /// Steps in each direction.
    pub(crate) steps: u32,
    /// Bytes per step.
    pub(crate) bytes: u64,
    /// When NCCL enqueued it: its proxy operations begin then, or when the previous ones on the
    /// same connection are complete.
    pub(crate) enqueued: Time,
    /// The time at which its kernel starts.
    pub(crate) start: Time,
    /// Channels that it uses.
    pub(crate) channels: u8,
    /// Channels that find a free SM.
    pub(crate) room: usize,
    /// The end of its kernel is never reported.
    pub(crate) lost_end: bool,
    /// Slowdown factor of its GPU.
    pub(crate) slower: f64,
}

/// The kernel times and the network flows of an operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Start and end of each channel's kernel, for each member.
    pub(crate) kernels: Vec<Vec<(Time, Time)>>,
    /// The flows between hosts.
    pub(crate) flows: Vec<Flow>,
}

impl Outcome {
    /// When a member's kernel has ended on all channels.
    pub(crate) fn end(&self, member: usize) -> Time {
        self.kernels[member].iter().map(|kernel| kernel.1).max().unwrap_or(NEVER)
    }
}

/// When the latest operation on each connection is complete, at the sender and at the receiver: the
/// next one begins then. The key is communicator, sender, receiver and channel.
pub(crate) type Connections = HashMap<(usize, u32, u32, u8), (Time, Time)>;

/// The inputs for solving one operation.
#[derive(Debug)]
pub(crate) struct Fabric<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) conditions: &'a Conditions,
    pub(crate) connections: &'a mut Connections,
    /// Index of the communicator.
    pub(crate) group: usize,
    pub(crate) channels: u8,
    /// How much slower all of its data moves.
    pub(crate) slower: f64,
}

impl Fabric<'_> {
    /// Starts a flow between two members.
    fn open(&self, from: &Member, to: &Member, channel: u8, bytes: u64) -> Flow {
        let is_network = from.host != to.host;
        let key = (self.group, from.rank, to.rank, channel);
        let (sent, received) = self.connections.get(&key).copied().unwrap_or((0, 0));
        let end = |member: &Member, done: Time| FlowEnd {
            rank: member.rank,
            steps: if channel < member.channels { member.steps } else { 0 },
            begin: member.enqueued.saturating_add(4_000).max(done),
        };
        let (from, to) = (end(from, sent), end(to, received));
        let share = self.channels;
        let link = FlowParams { from, to, channel, share, is_network, bytes, slower: self.slower };
        Flow::new(&link, self.machine, self.conditions)
    }

    /// Keeps the recorded part of a finished flow.
    fn close(&mut self, flow: Flow, outcome: &mut Outcome) {
        if !flow.is_network {
            return;
        }
        let flow = flow.finish();
        let key = (self.group, flow.from.rank, flow.to.rank, flow.channel);
        self.connections.insert(key, (flow.sent(), flow.received()));
        outcome.flows.push(flow);
    }

    fn kernel_start(&self, member: &Member, channel: u8) -> Time {
        let runs = channel < member.channels && usize::from(channel) < member.room;
        let start = if runs { member.start } else { NEVER };
        before(start, self.conditions.of(member.rank).gpu)
    }

    fn kernel_end(&self, member: &Member, last: Time) -> Time {
        let end = if member.lost_end { NEVER } else { last.saturating_add(TAIL_NS) };
        before(end, self.conditions.of(member.rank).gpu)
    }

    /// Solves a ring or a chain over all members.
    pub(crate) fn ring(&mut self, members: &[Member]) -> Outcome {
        let mut outcome = Outcome { kernels: vec![Vec::new(); members.len()], flows: Vec::new() };
        for channel in 0..self.channels {
            self.ring_channel(members, channel, &mut outcome);
        }
        outcome
    }

    fn ring_channel(&mut self, members: &[Member], channel: u8, outcome: &mut Outcome) {
        let count = members.len();
        let starts: Vec<Time> = members.iter().map(|m| self.kernel_start(m, channel)).collect();
        let mut flows: Vec<Flow> = (0..count)
            .map(|at| {
                let (from, to) = (&members[at], &members[(at + 1) % count]);
                self.open(from, to, channel, from.bytes.max(to.bytes))
            })
            .collect();
        // The latest time at which each GPU read data and filled a buffer.
        let (mut read, mut filled) = (starts.clone(), starts.clone());
        let most = members.iter().map(|member| member.steps).max().unwrap_or(0) as usize;
        for step in 0..most {
            let arrivals = self.ring_step(members, &mut flows, step, (&mut read, &mut filled));
            for (at, arrives) in arrivals.into_iter().enumerate() {
                let before_it = (at + count - 1) % count;
                let out = self.next_credit(&members[at], &flows[at], step);
                let ready = arrives.max(read[at]).max(out).saturating_add(copy_ns(&members[at]));
                if self.receives(&members[at], &members[before_it], step) {
                    read[at] = flows[before_it].consume(step, ready, self.conditions);
                }
            }
            for (at, _) in members.iter().enumerate().filter(|(_, m)| m.part == RingRole::Relay) {
                // The members fill a buffer as they read.
                filled[at] = read[at];
            }
        }
        for (at, member) in members.iter().enumerate() {
            let end = self.kernel_end(member, read[at].max(filled[at]));
            if channel < member.channels {
                outcome.kernels[at].push((starts[at], end));
            }
        }
        for (at, flow) in flows.into_iter().enumerate() {
            // A chain's ends have one neighbour.
            if members[at].part != RingRole::Sink
                && members[(at + 1) % count].part != RingRole::Source
            {
                self.close(flow, outcome);
            }
        }
    }

    /// Lets all GPUs that do not wait for this step's data fill its buffers. Returns when each
    /// receiver can read the data.
    fn ring_step(
        &self,
        members: &[Member],
        flows: &mut [Flow],
        step: usize,
        (read, filled): (&mut [Time], &mut [Time]),
    ) -> Vec<Time> {
        let count = members.len();
        let has_source = members.iter().any(|member| member.part == RingRole::Source);
        let mut arrivals = vec![NEVER; count];
        for at in 0..count {
            let member = &members[at];
            let is_led = has_source && member.part == RingRole::Relay;
            if is_led || member.part == RingRole::Sink {
                continue;
            }
            // A relay without data to pass on still executes the step, but never fills the buffer.
            let mut fill = NEVER;
            if step < member.steps as usize && member.part != RingRole::Relay {
                let data = if step == 0 { 0 } else { read[at] };
                let data = if member.part == RingRole::Source { 0 } else { data };
                let credit = flows[at].credit(step, self.conditions);
                // Data that is passed on was copied when it was read.
                let is_own = step == 0 || member.part == RingRole::Source;
                let copy = if is_own { copy_ns(member) } else { TOUCH_NS };
                fill = filled[at].max(data).max(credit).saturating_add(copy);
                filled[at] = before(fill, self.conditions.of(member.rank).gpu);
            }
            arrivals[(at + 1) % count] = flows[at].produce(fill, self.conditions);
        }
        if has_source {
            self.chain_step(members, flows, step, (read, &mut arrivals));
        }
        arrivals
    }

    /// The ranks behind a source pass the step on one after the other.
    fn chain_step(
        &self,
        members: &[Member],
        flows: &mut [Flow],
        step: usize,
        (read, arrivals): (&mut [Time], &mut [Time]),
    ) {
        let count = members.len();
        let first = members.iter().position(|m| m.part == RingRole::Source).unwrap_or(0);
        for next in 1..count {
            let at = (first + next) % count;
            if members[at].part != RingRole::Relay {
                continue;
            }
            let fill = if step < members[at].steps as usize {
                let credit = flows[at].credit(step, self.conditions);
                arrivals[at].max(read[at]).max(credit).saturating_add(copy_ns(&members[at]))
            } else {
                NEVER
            };
            arrivals[(at + 1) % count] = flows[at].produce(fill, self.conditions);
        }
    }

    /// When the buffer in which the data read in `step` is passed on is free.
    fn next_credit(&self, member: &Member, out: &Flow, step: usize) -> Time {
        let index = match member.part {
            RingRole::Rotate => step + 1,
            RingRole::Relay => step,
            RingRole::Source | RingRole::Sink => return 0,
        };
        if index < member.steps as usize { out.credit(index, self.conditions) } else { 0 }
    }

    fn receives(&self, member: &Member, previous: &Member, step: usize) -> bool {
        member.part != RingRole::Source
            && previous.part != RingRole::Sink
            && step < member.steps as usize
    }

    /// A flow from one member to another; `data` is when each step is ready to be sent. Returns
    /// when each step is read at the other end, and when the last one was filled.
    fn one_way(
        &mut self,
        (from, to, channel): (&Member, &Member, u8),
        (mut filled, mut read): (Time, Time),
        data: &[Time],
        outcome: &mut Outcome,
    ) -> (Vec<Time>, Time) {
        let mut flow = self.open(from, to, channel, from.bytes);
        let mut reads = Vec::with_capacity(data.len());
        for (step, &data) in data.iter().enumerate() {
            let credit = flow.credit(step, self.conditions);
            let fill = filled.max(data).max(credit).saturating_add(copy_ns(from));
            let given = before(fill, self.conditions.of(from.rank).gpu);
            let arrives = flow.produce(given, self.conditions);
            let taken = arrives.max(read).saturating_add(copy_ns(to));
            read = flow.consume(step, taken, self.conditions);
            reads.push(read);
            // The two ends may expect different numbers of steps.
            if step < from.steps as usize {
                filled = given;
            }
        }
        self.close(flow, outcome);
        (reads, filled)
    }

    /// Solves a send and its receive: one flow with a kernel at each end.
    pub(crate) fn transfer(&mut self, from: &Member, to: &Member) -> Outcome {
        let mut outcome = Outcome { kernels: vec![Vec::new(); 2], flows: Vec::new() };
        let data = vec![0; from.steps.max(to.steps) as usize];
        for channel in 0..self.channels {
            let starts = [from, to].map(|m| self.kernel_start(m, channel));
            let way = (from, to, channel);
            let (reads, filled) = self.one_way(way, starts.into(), &data, &mut outcome);
            let read = reads.last().copied().unwrap_or(NEVER);
            for (at, (member, last)) in [(from, filled), (to, read)].into_iter().enumerate() {
                outcome.kernels[at].push((starts[at], self.kernel_end(member, last)));
            }
        }
        outcome
    }

    /// Solves a tree: a chain in each host, and a binary tree between the first ranks of the hosts.
    /// Odd channels have the hosts in reverse order, so that the leaves of one tree are inner nodes
    /// of the other.
    pub(crate) fn tree(&mut self, members: &[Member]) -> Outcome {
        let mut outcome = Outcome { kernels: vec![Vec::new(); members.len()], flows: Vec::new() };
        for channel in 0..self.channels {
            let parents = parents(members, channel % 2 == 1);
            self.tree_channel(members, channel, &parents, &mut outcome);
        }
        outcome
    }

    fn tree_channel(
        &mut self,
        members: &[Member],
        channel: u8,
        parents: &[(usize, Option<usize>)],
        outcome: &mut Outcome,
    ) {
        let starts: Vec<Time> = members.iter().map(|m| self.kernel_start(m, channel)).collect();
        let steps = members.iter().map(|member| member.steps).max().unwrap_or(0) as usize;
        let mut last = starts.clone();
        // Up: a rank later in `parents` is nearer to the leaves.
        let mut ready = vec![vec![0; steps]; members.len()];
        for &(at, parent) in parents.iter().rev() {
            let Some(parent) = parent else { continue };
            let way = (&members[at], &members[parent], channel);
            let begins = (starts[at], starts[parent]);
            let (reads, filled) = self.one_way(way, begins, &ready[at], outcome);
            later_of(&mut ready[parent], &reads);
            last[at] = last[at].max(filled);
        }
        // Down, with the data that the root has reduced.
        for &(at, parent) in parents {
            let Some(parent) = parent else { continue };
            let way = (&members[parent], &members[at], channel);
            let begins = (starts[parent], starts[at]);
            let (reads, filled) = self.one_way(way, begins, &ready[parent], outcome);
            later_of(&mut ready[at], &reads);
            last[at] = last[at].max(reads.last().copied().unwrap_or(0));
            last[parent] = last[parent].max(filled);
        }
        for (at, member) in members.iter().enumerate() {
            outcome.kernels[at].push((starts[at], self.kernel_end(member, last[at])));
        }
    }
}

/// GPU time for a step, ns.
fn copy_ns(member: &Member) -> u64 {
    scaled(TOUCH_NS + member.bytes / COPY_BYTES, member.slower)
}

/// Replaces each time by the later of two.
fn later_of(times: &mut [Time], others: &[Time]) {
    for (time, &other) in times.iter_mut().zip(others) {
        *time = (*time).max(other);
    }
}

/// Each member with its parent, parents first.
fn parents(members: &[Member], mirrored: bool) -> Vec<(usize, Option<usize>)> {
    let mut heads: Vec<usize> = Vec::new();
    let mut chain = Vec::new();
    for (at, member) in members.iter().enumerate() {
        match heads.last() {
            Some(&head) if members[head].host == member.host => chain.push((at, Some(at - 1))),
            _ => heads.push(at),
        }
    }
    if mirrored {
        heads.reverse();
    }
    let between = heads.iter().enumerate().map(|(at, &head)| {
        let parent = at.checked_sub(1).map(|before| heads[before / 2]);
        (head, parent)
    });
    let mut all: Vec<_> = between.collect();
    all.extend(chain);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::flow::StepTimes;

    const RANKS: u32 = 4;

    /// Each rank on its own host; all enter at 1 ms.
    fn members(part: impl Fn(u32) -> RingRole, steps: u32) -> Vec<Member> {
        let member = |rank| Member {
            rank,
            host: rank,
            part: part(rank),
            steps,
            bytes: 1 << 20,
            enqueued: 1_000_000,
            start: 1_000_000,
            channels: 1,
            room: usize::MAX,
            lost_end: false,
            slower: 1.0,
        };
        (0..RANKS).map(member).collect()
    }

    fn play(conditions: &Conditions, run: impl FnOnce(&mut Fabric<'_>) -> Outcome) -> Outcome {
        let (machine, mut connections) = (Machine::default(), Connections::new());
        let connections = &mut connections;
        let (group, channels, slower) = (0, 1, 1.0);
        run(&mut Fabric { machine: &machine, conditions, connections, group, channels, slower })
    }

    fn ring(conditions: &Conditions, steps: u32) -> Outcome {
        play(conditions, |fabric| fabric.ring(&members(|_| RingRole::Rotate, steps)))
    }

    fn flow(outcome: &Outcome, from: u32) -> &Flow {
        outcome.flows.iter().find(|flow| flow.from.rank == from).unwrap()
    }

    /// How many steps reached each state.
    fn reached(flow: &Flow) -> ([usize; 4], [usize; 5]) {
        let count = |of: &dyn Fn(&StepTimes) -> Time| {
            flow.steps.iter().filter(|step| of(step) != NEVER).count()
        };
        let send = [0, 1, 2, 3].map(|at| count(&|step| step.send[at]));
        (send, [0, 1, 2, 3, 4].map(|at| count(&|step| step.recv[at])))
    }

    #[test]
    fn a_ring_ends_everywhere_and_its_states_are_in_order() {
        let outcome = ring(&Conditions::new(RANKS), 30);
        assert_eq!(outcome.flows.len(), 4);
        for (at, flow) in outcome.flows.iter().enumerate() {
            assert!(outcome.end(at) < 100_000_000);
            assert_eq!(reached(flow), ([30; 4], [30; 5]));
            for (index, step) in flow.steps.iter().enumerate() {
                assert!(step.send.is_sorted() && step.recv.is_sorted());
                // At most eight steps are in flight, and nothing arrives before it was sent and
                // posted.
                let old = index.checked_sub(8).map(|old| flow.steps[old]);
                assert!(old.is_none_or(|old| old.send[3] <= step.send[0]));
                assert!(old.is_none_or(|old| old.recv[4] <= step.recv[0]));
                assert!(step.send[2] < step.recv[2] && step.recv[1] < step.send[2]);
            }
        }
    }

    #[test]
    fn a_dead_link_stops_the_ring_and_shows_where_it_is() {
        let mut conditions = Conditions::new(RANKS);
        let stop = 2_000_000;
        conditions.paths.entry((1, 2)).or_default().stop = stop;
        let outcome = ring(&conditions, 30);
        assert!((0..4).all(|member| outcome.end(member) == NEVER));
        let (send, recv) = reached(flow(&outcome, 1));
        assert!(send[2] > send[3] && send[3] < 30, "{send:?}");
        assert_eq!((recv[2], recv[4]), (send[3], send[3]));
        assert!(recv[1] > recv[2], "the receiver has posted: {recv:?}");
        // No other rank has data in transit.
        for from in [0, 2, 3] {
            let (send, recv) = reached(flow(&outcome, from));
            assert_eq!(send[2], send[3], "{from}");
            assert_eq!(recv[2], recv[3], "{from}");
        }
    }

    #[test]
    fn a_rank_that_never_comes_holds_all_and_its_peer_waits_for_it() {
        let mut all = members(|_| RingRole::Rotate, 30);
        (all[2].start, all[2].enqueued) = (NEVER, NEVER);
        let outcome = play(&Conditions::new(RANKS), |fabric| fabric.ring(&all));
        assert!((0..4).all(|member| outcome.end(member) == NEVER));
        // Its predecessor has data, but no free buffer at the receiver.
        let (send, recv) = reached(flow(&outcome, 1));
        assert_eq!((send[1] > 0, send[2], recv[0]), (true, 0, 0));
        assert_eq!(reached(flow(&outcome, 2)).0, [0; 4]);
    }

    #[test]
    fn chains_and_trees_end_everywhere() {
        let part = |rank| match rank {
            1 => RingRole::Source,
            0 => RingRole::Sink,
            _ => RingRole::Relay,
        };
        let conditions = Conditions::new(RANKS);
        let chain = play(&conditions, |fabric| fabric.ring(&members(part, 12)));
        assert_eq!(chain.flows.len(), 3);
        let tree = play(&conditions, |fabric| fabric.tree(&members(|_| RingRole::Rotate, 4)));
        assert_eq!(tree.flows.len(), 6);
        for outcome in [chain, tree] {
            assert!((0..4).all(|member| outcome.end(member) < 100_000_000));
        }
    }
}
