// SPDX-License-Identifier: Apache-2.0
//! The moments of a job in the order of time, with what each waits for, and their replay.

use ncclscope_limits::clocks::RESOLUTION;
use std::collections::BTreeSet;

/// One member's part in an operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Part {
    /// Index of the rank.
    pub rank: u32,
    /// When it arrived, ns on the job's clock.
    pub arrival: f64,
    /// When it ended for this rank, ns on the job's clock.
    pub end: f64,
}

/// A collective with its members, or the sends and receives of one rank.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Operation {
    /// Operations of one kind are comparable: role, function and size.
    pub kind: u32,
    /// What a rank does: the kind, of sends and receives whatever their size. A rank that gets more
    /// data than other ranks has the same program.
    pub function: u32,
    /// Number of the role of its communicator. The order of a rank's operations is that of its
    /// program only within a role: those of several roles may overtake one another.
    pub role: u32,
    /// Index of its communicator.
    pub comm: u32,
    /// Index of its step.
    pub step: u32,
    /// The recorded members.
    pub parts: Vec<Part>,
    /// Indices of the operations at the other ends of sends and receives, for whose arrival it
    /// waits, too.
    pub partners: Vec<u32>,
    /// Waits up to this length are within the error of the clocks, ns.
    pub error: f64,
}

/// What a moment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A rank arrives at an operation, after work of its own.
    Arrival,
    /// All that have arrived so far; without a weight.
    Ready,
    /// An operation ends for a rank, after its transfers.
    End,
}

/// No moment.
pub(crate) const NONE: u32 = u32::MAX;

/// A moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) rank: u32,
    pub(crate) op: u32,
    /// The moments that it waits for; the second one is the arrival of its rank: of an end at the
    /// same operation, of an arrival at the operation before.
    pub(crate) before: [u32; 2],
}

impl Node {
    /// The latest of the moments that it waits for, ns; 0 if there is none.
    fn earliest(&self, times: &[f64]) -> f64 {
        let [a, b] = self.before.map(|at| times.get(at as usize).copied());
        match (a, b) {
            (Some(a), Some(b)) => a.max(b),
            _ => a.or(b).unwrap_or(0.0),
        }
    }

    /// True if it waits for another moment: what a rank did before its first one is unknown.
    pub(crate) fn has_before(&self) -> bool {
        self.before != [NONE; 2]
    }
}

/// When each step ends, ns; NaN for a step without operations.
pub type StepEnds = Vec<f64>;

/// The moments of a job, each after those that it waits for.
#[derive(Debug, Default)]
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    /// The part of the time of each moment that it caused itself, ns.
    pub(crate) weights: Vec<f64>,
    /// When each moment was, ns.
    pub(crate) times: Vec<f64>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) ranks: usize,
    pub(crate) steps: usize,
    /// Times begin anew in each step.
    pub(crate) restarts: bool,
}

/// A moment to be added.
struct Event {
    time: f64,
    kind: Kind,
    op: u32,
    part: u32,
}

impl Graph {
    /// The graph of these operations. `restarts`: the times of each step begin at 0.
    #[must_use]
    pub fn of(operations: Vec<Operation>, ranks: usize, steps: usize, restarts: bool) -> Graph {
        let mut graph = Graph { operations, ranks, steps, restarts, ..Graph::default() };
        let events = graph.events();
        graph.reserve(events.len());
        let mut building = Building::new(&graph);
        let mut step = None;
        for event in events {
            let of_event = graph.operations[event.op as usize].step;
            if restarts && step != Some(of_event) {
                building.last_end.fill(NONE);
                building.last_arrival.fill(NONE);
                step = Some(of_event);
            }
            building.add(&mut graph, &event);
        }
        graph
    }

    /// True if one of these ranks takes part in an operation, or is at its other end.
    #[must_use]
    pub fn has_member(&self, op: u32, ranks: &BTreeSet<u32>) -> bool {
        let operation = &self.operations[op as usize];
        let is_of = |op: &Operation| op.parts.iter().any(|part| ranks.contains(&part.rank));
        let mut partners = operation.partners.iter();
        is_of(operation) || partners.any(|&at| is_of(&self.operations[at as usize]))
    }

    /// The weights, ns: what [`Graph::replay`] takes, with some of them replaced.
    #[must_use]
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// These weights with all moments at their references, ns, as [`Peers::references`] gives them:
    /// work as long as that of peers, transfers no longer. Moments without a reference keep theirs.
    ///
    /// [`Peers::references`]: crate::Peers::references
    #[must_use]
    pub fn at_references(&self, weights: &[f64], references: &[f64]) -> Vec<f64> {
        let moments = self.nodes.iter().zip(weights).zip(references);
        let at_reference = |((node, &weight), &reference): ((&Node, &f64), &f64)| match node.kind {
            _ if reference.is_nan() => weight,
            Kind::Arrival | Kind::Ready => reference,
            Kind::End => weight.min(reference),
        };
        moments.map(at_reference).collect()
    }

    /// When each step ends if the moments have these weights.
    #[must_use]
    pub fn replay(&self, weights: &[f64]) -> StepEnds {
        let mut times = vec![0.0; self.nodes.len()];
        let mut ends = vec![f64::NAN; self.steps];
        for (at, (node, weight)) in self.nodes.iter().zip(weights).enumerate() {
            let time = node.earliest(&times) + weight;
            times[at] = time;
            if node.kind == Kind::End {
                let end = &mut ends[self.operations[node.op as usize].step as usize];
                *end = end.max(time);
            }
        }
        ends
    }

    /// How long each step lasts, from the end of the one before; of the first, and of those after
    /// one without operations, nothing is known.
    #[must_use]
    pub fn durations(&self, ends: &StepEnds) -> Vec<f64> {
        if self.restarts {
            return ends.clone();
        }
        let before = std::iter::once(f64::NAN).chain(ends.iter().copied());
        ends.iter().zip(before).map(|(end, before)| end - before).collect()
    }

    /// All arrivals and ends in the order of time, ends before arrivals of the same time.
    fn events(&self) -> Vec<Event> {
        let parts = self.operations.iter().map(|operation| operation.parts.len());
        let mut events = Vec::with_capacity(2 * parts.sum::<usize>());
        for (operation, op) in self.operations.iter().zip(0..) {
            for (of_rank, part) in operation.parts.iter().zip(0..) {
                let end = (of_rank.end - RESOLUTION).max(of_rank.arrival + 1.0);
                events.push(Event { time: of_rank.arrival, kind: Kind::Arrival, op, part });
                events.push(Event { time: end, kind: Kind::End, op, part });
            }
        }
        let step = |event: &Event| match self.restarts {
            true => self.operations[event.op as usize].step,
            false => 0,
        };
        let kind = |event: &Event| self.operations[event.op as usize].kind;
        events.sort_unstable_by(|a, b| {
            let by_step = step(a).cmp(&step(b));
            let by_time = by_step.then(a.time.total_cmp(&b.time));
            let by_kind = by_time.then((a.kind == Kind::Arrival).cmp(&(b.kind == Kind::Arrival)));
            // What begins at the same time does so in the same order in all ranks.
            by_kind.then(kind(a).cmp(&kind(b))).then(a.op.cmp(&b.op))
        });
        events
    }

    /// Where the rank and step of a moment are in lists of all ranks, step by step.
    pub(crate) fn place(&self, node: &Node) -> usize {
        self.operations[node.op as usize].step as usize * self.ranks + node.rank as usize
    }

    /// When a moment was, ns; 0 for none.
    pub(crate) fn time(&self, node: u32) -> f64 {
        self.times.get(node as usize).copied().unwrap_or(0.0)
    }

    /// Makes room for so many arrivals and ends, and for the moments at which all have arrived.
    fn reserve(&mut self, events: usize) {
        let ready = |op: &Operation| op.parts.len().max(1) - 1 + op.partners.len();
        let moments = events + self.operations.iter().map(ready).sum::<usize>();
        self.weights.reserve_exact(moments);
        self.nodes.reserve_exact(moments);
        self.times.reserve_exact(moments);
    }

    fn push(&mut self, node: Node, time: f64) -> u32 {
        self.weights.push(time - node.earliest(&self.times));
        self.nodes.push(node);
        self.times.push(time);
        u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
    }
}

/// What is known while moments are added.
struct Building {
    /// The last end of each rank.
    last_end: Vec<u32>,
    /// The last arrival of each rank. Operations of a rank may overlap, and its work in between is
    /// that of one of them only.
    last_arrival: Vec<u32>,
    /// The moment at which all were there that have arrived at each operation so far.
    ready: Vec<u32>,
    /// The arrival of each part; those of an operation begin at its index in `first_part`.
    arrivals: Vec<u32>,
    first_part: Vec<usize>,
}

impl Building {
    fn new(graph: &Graph) -> Building {
        let mut first_part = Vec::with_capacity(graph.operations.len());
        let mut parts = 0;
        for operation in &graph.operations {
            first_part.push(parts);
            parts += operation.parts.len();
        }
        Building {
            last_end: vec![NONE; graph.ranks],
            last_arrival: vec![NONE; graph.ranks],
            ready: vec![NONE; graph.operations.len()],
            arrivals: vec![NONE; parts],
            first_part,
        }
    }

    fn add(&mut self, graph: &mut Graph, event: &Event) {
        let op = event.op;
        let rank = graph.operations[op as usize].parts[event.part as usize].rank;
        let last = [self.last_end[rank as usize], self.last_arrival[rank as usize]];
        let part = self.first_part[op as usize] + event.part as usize;
        if event.kind == Kind::End {
            let before = [self.ready[op as usize], self.arrivals[part]];
            let node = Node { kind: Kind::End, rank, op, before };
            self.last_end[rank as usize] = graph.push(node, event.time);
            return;
        }
        let node = Node { kind: Kind::Arrival, rank, op, before: last };
        let arrival = graph.push(node, event.time);
        self.arrivals[part] = arrival;
        self.last_arrival[rank as usize] = arrival;
        self.arrived(graph, op, arrival);
        for at in 0..graph.operations[op as usize].partners.len() {
            let partner = graph.operations[op as usize].partners[at];
            self.arrived(graph, partner, arrival);
        }
    }

    /// Notes an arrival for which an operation waits.
    fn arrived(&mut self, graph: &mut Graph, op: u32, arrival: u32) {
        let before = self.ready[op as usize];
        self.ready[op as usize] = match before {
            NONE => arrival,
            _ => {
                let rank = graph.nodes[arrival as usize].rank;
                let node = Node { kind: Kind::Ready, rank, op, before: [before, arrival] };
                graph.push(node, graph.time(before).max(graph.time(arrival)))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times in ms; an end is noted 1 us earlier.
    fn part(rank: u32, arrival: f64, end: f64) -> Part {
        Part { rank, arrival: arrival * 1e6, end: end * 1e6 + RESOLUTION }
    }

    /// In ms.
    fn ms(ns: impl IntoIterator<Item = f64>) -> Vec<f64> {
        ns.into_iter().map(|ns| ns / 1e6).collect()
    }

    fn weights_of(graph: &Graph, kind: Kind) -> impl Iterator<Item = f64> {
        let nodes = graph.nodes.iter().zip(graph.weights());
        nodes.filter(move |(node, _)| node.kind == kind).map(|(_, weight)| *weight)
    }

    fn operation(step: u32, parts: Vec<Part>) -> Operation {
        Operation { step, parts, ..Operation::default() }
    }

    /// Two ranks, two steps; rank 1 works for longer.
    fn two() -> Graph {
        let first = operation(0, vec![part(0, 10.0, 40.0), part(1, 30.0, 41.0)]);
        let second = operation(1, vec![part(0, 50.0, 90.0), part(1, 80.0, 91.0)]);
        Graph::of(vec![first, second], 2, 2, false)
    }

    #[test]
    fn the_weights_give_the_run_again() {
        let graph = two();
        assert_eq!(ms(graph.replay(graph.weights())), [41.0, 91.0]);
        assert_eq!(ms(weights_of(&graph, Kind::Arrival)), [10.0, 30.0, 10.0, 39.0]);
    }

    #[test]
    fn without_the_work_of_the_late_rank_steps_are_shorter() {
        let graph = two();
        let weights: Vec<f64> = graph
            .nodes
            .iter()
            .zip(graph.weights())
            .map(|(node, &weight)| match (node.kind, node.rank) {
                (Kind::Arrival, 1) => 10.0 * 1e6,
                _ => weight,
            })
            .collect();
        let ends = graph.replay(&weights);
        assert_eq!(ms(graph.durations(&ends).into_iter().skip(1)), [21.0]);
        assert_eq!(ms(ends), [21.0, 42.0]);
    }

    /// The GPU's times of the end and of the next start are each off by up to 1 us.
    #[test]
    fn a_start_that_seems_earlier_than_the_end_before_it_waits_for_it() {
        let end = 40.0;
        let first = operation(0, vec![part(0, 10.0, 12.0)]);
        let second = operation(0, vec![part(0, 12.0, end)]);
        let third = operation(0, vec![part(0, end - 0.0019 + RESOLUTION / 1e6, 50.0)]);
        let graph = Graph::of(vec![first, second, third], 1, 1, false);
        let work = ms(weights_of(&graph, Kind::Arrival));
        assert!(work[2] < 0.01, "{work:?}");
    }

    /// The proxy notes the end of a send 30 us after the GPU has begun the next operation.
    #[test]
    fn work_before_overlapping_operations_counts_once() {
        let first = operation(0, vec![part(0, 0.0, 10.0)]);
        let send = operation(0, vec![part(0, 30.0, 40.03)]);
        let next = operation(0, vec![part(0, 40.0, 50.0)]);
        let graph = Graph::of(vec![first, send, next], 1, 1, false);
        assert_eq!(ms(weights_of(&graph, Kind::Arrival)), [0.0, 20.0, 10.0]);
        assert_eq!(ms(graph.replay(graph.weights())), [50.0]);
    }

    #[test]
    fn a_send_waits_for_the_receive() {
        let send = Operation { partners: vec![1], ..operation(0, vec![part(0, 10.0, 60.0)]) };
        let receive = Operation { partners: vec![0], ..operation(0, vec![part(1, 50.0, 60.0)]) };
        let graph = Graph::of(vec![send, receive], 2, 1, false);
        assert_eq!(ms(weights_of(&graph, Kind::End)), [10.0, 10.0]);
    }
}
