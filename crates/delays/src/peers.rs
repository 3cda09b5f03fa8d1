// SPDX-License-Identifier: Apache-2.0
/*!
The weights that moments would have at their peers.

The peers of an arrival are those of other ranks that do the same in that step: the same functions
(and sizes, but for sends and receives), in the same order within each role. The peers of an end are
the same operations of other communicators with the same role, in the same step. What a moment would
weigh is the median of its peers.
*/

use crate::graph::{Graph, Kind, Node, Operation};
use ncclscope_operations::stats::median;
use ncclscope_statistics::median_of_others;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What is replaced.
#[derive(Clone, Copy, Debug)]
pub enum Unit<'a> {
    /// The own work of these ranks.
    Work(&'a BTreeSet<u32>),
    /// The own work of these ranks, and the transfers of the operations that they take part in.
    Ranks(&'a BTreeSet<u32>),
    /// The transfers from this step on, at what they were before.
    Since(u32),
    /// The transfers of a link of which no other communicator has the same.
    Link(&'a Quicker),
}

/// The transfers of a link, and how quick they would be.
#[derive(Clone, PartialEq, Debug)]
pub struct Quicker {
    /// The ranks at its ends: all operations of one of them use it.
    pub ranks: BTreeSet<u32>,
    /// The communicators that use it.
    pub comms: BTreeSet<u32>,
    /// The step from which on it is slow.
    pub since: u32,
    /// How many times as quick it would be.
    pub factor: f64,
}

/// Weights with those of a unit replaced.
#[derive(Clone, PartialEq, Debug)]
pub struct Replaced {
    /// The weights of all moments, ns.
    pub weights: Vec<f64>,
    /// Whether any work of the unit has peers.
    pub has_work: bool,
    /// Whether any transfers of the unit have peers.
    pub has_transfers: bool,
    /// The unit has no peers, and its weights are what a measured factor makes of them.
    pub is_guess: bool,
}

/// Comparable moments, in groups.
#[derive(Debug)]
pub struct Peers {
    /// The arrivals, by group.
    arrivals: Vec<Vec<u32>>,
    /// The operations, by group, each with its ends.
    operations: Vec<Vec<(u32, Vec<u32>)>>,
    /// What each rank does in each step, by the place of both ([`Graph::place`]): equal numbers for
    /// the same functions in the same order within each role.
    pub(crate) programs: HashMap<usize, u64>,
}

impl Peers {
    /// The peers in a graph.
    #[must_use]
    pub fn of(graph: &Graph) -> Peers {
        let (arrivals, programs) = arrivals(graph);
        Peers { arrivals, operations: operations(graph), programs }
    }

    /// These weights of all moments, but those of a unit are the median of their peers outside of
    /// it. Moments without such peers keep their weight.
    #[must_use]
    pub fn weights(&self, graph: &Graph, unit: Unit<'_>, weights: &[f64]) -> Replaced {
        let mut weights = weights.to_vec();
        let (has_work, has_transfers) = match unit {
            Unit::Work(ranks) => (self.replace_work(graph, ranks, &mut weights), false),
            Unit::Since(step) => (false, replace_since(graph, step, &mut weights)),
            Unit::Link(link) => (false, self.quicken(graph, link, &mut weights)),
            Unit::Ranks(ranks) => (
                self.replace_work(graph, ranks, &mut weights),
                self.replace_transfers(graph, ranks, &mut weights),
            ),
        };
        let is_guess = matches!(unit, Unit::Link(_));
        Replaced { weights, has_work, has_transfers, is_guess }
    }

    /// What each moment would weigh at its peers, ns: the median of the moments of other ranks, and
    /// of other communicators. NaN where there are none.
    #[must_use]
    pub fn references(&self, graph: &Graph) -> Vec<f64> {
        let mut references = vec![f64::NAN; graph.weights.len()];
        for group in &self.arrivals {
            let weights: Vec<f64> = group.iter().map(|&at| graph.weights[at as usize]).collect();
            for (&at, reference) in group.iter().zip(medians_of_others(&weights)) {
                references[at as usize] = reference;
            }
        }
        for group in &self.operations {
            let usual = group.iter().map(|(_, ends)| usual(graph, ends).unwrap_or(f64::NAN));
            let others = medians_of_others(&usual.collect::<Vec<_>>());
            for ((_, ends), reference) in group.iter().zip(others) {
                ends.iter().for_each(|&at| references[at as usize] = reference);
            }
        }
        references
    }

    /// Replaces the work of ranks; true if some has peers.
    fn replace_work(&self, graph: &Graph, ranks: &BTreeSet<u32>, weights: &mut [f64]) -> bool {
        let mut has_peers = false;
        for group in &self.arrivals {
            let is_of = |at: &u32| ranks.contains(&graph.nodes[*at as usize].rank);
            let (inside, outside): (Vec<u32>, Vec<u32>) = group.iter().partition(|at| is_of(at));
            if inside.is_empty() {
                continue;
            }
            let Some(usual) = usual(graph, &outside) else { continue };
            has_peers = true;
            inside.iter().for_each(|&at| weights[at as usize] = usual);
        }
        has_peers || replace_stage(graph, ranks, weights)
    }

    /// Replaces the transfers of operations that a rank takes part in, where those of others are
    /// quicker; true if some have peers.
    fn replace_transfers(&self, graph: &Graph, ranks: &BTreeSet<u32>, weights: &mut [f64]) -> bool {
        let is_of = |op: u32| graph.has_member(op, ranks);
        let mut has_peers = false;
        for group in self.operations.iter().filter(|group| group.len() > 1) {
            let (inside, outside): (Vec<_>, Vec<_>) = group.iter().partition(|(op, _)| is_of(*op));
            let mut others: Vec<f64> =
                outside.iter().filter_map(|(_, ends)| usual(graph, ends)).collect();
            let Some(reference) = median(&mut others) else { continue };
            has_peers |= !inside.is_empty();
            for &at in inside.iter().flat_map(|(_, ends)| ends) {
                let weight = &mut weights[at as usize];
                *weight = weight.min(reference);
            }
        }
        has_peers
    }

    /// Operations that use a link and have no peers take as long as if it alone kept them.
    /// False if there are none.
    fn quicken(&self, graph: &Graph, link: &Quicker, weights: &mut [f64]) -> bool {
        let has_end = |op: u32| graph.has_member(op, &link.ranks);
        let uses = |op: u32| {
            let operation = &graph.operations[op as usize];
            operation.step >= link.since && link.comms.contains(&operation.comm)
        };
        let mut has_any = false;
        let alone = self.operations.iter().filter(|group| group.iter().all(|(op, _)| has_end(*op)));
        for (_, ends) in alone.flatten().filter(|(op, _)| uses(*op)) {
            has_any |= !ends.is_empty();
            ends.iter().for_each(|&at| weights[at as usize] /= link.factor.max(1.0));
        }
        has_any
    }
}

/// Ranks without peers outside work for as long as those of other programs, in the mean of all
/// steps: the stages of a pipeline. False if there are no other ranks.
fn replace_stage(graph: &Graph, ranks: &BTreeSet<u32>, weights: &mut [f64]) -> bool {
    let is_work = |node: &Node| node.kind == Kind::Arrival && node.has_before();
    let mut own = vec![0.0; graph.ranks];
    for (node, weight) in graph.nodes.iter().zip(&graph.weights).filter(|(node, _)| is_work(node)) {
        own[node.rank as usize] += weight;
    }
    let usual = |is_inside: bool| {
        let ranks = (0..).zip(&own).filter(|(rank, _)| ranks.contains(rank) == is_inside);
        median(&mut ranks.map(|(_, own)| *own).collect::<Vec<_>>())
    };
    let Some((inside, outside)) = usual(true).zip(usual(false)) else { return false };
    let factor = if inside > 0.0 { (outside / inside).min(1.0) } else { 1.0 };
    let of_ranks = |node: &Node| is_work(node) && ranks.contains(&node.rank);
    for (_, weight) in graph.nodes.iter().zip(weights).filter(|(node, _)| of_ranks(node)) {
        *weight *= factor;
    }
    true
}

/// From a step on, an operation of a communicator takes as long as before that step. False if there
/// was none before.
fn replace_since(graph: &Graph, step: u32, weights: &mut [f64]) -> bool {
    let is_end = |node: &Node| node.kind == Kind::End;
    let of = |node: &Node| {
        let operation = &graph.operations[node.op as usize];
        (operation.step, (operation.comm, operation.kind, node.rank))
    };
    let mut before: HashMap<(u32, u32, u32), Vec<f64>> = HashMap::new();
    for (node, weight) in graph.nodes.iter().zip(&graph.weights).filter(|(node, _)| is_end(node)) {
        let (at, operation) = of(node);
        if at < step {
            before.entry(operation).or_default().push(*weight);
        }
    }
    let usual = before.into_iter().filter_map(|(of, mut all)| Some((of, median(&mut all)?)));
    let usual: HashMap<_, f64> = usual.collect();
    for (node, weight) in graph.nodes.iter().zip(weights).filter(|(node, _)| is_end(node)) {
        let (at, operation) = of(node);
        if let (true, Some(usual)) = (at >= step, usual.get(&operation)) {
            *weight = weight.min(*usual);
        }
    }
    !usual.is_empty()
}

/// The median weight of some moments.
fn usual(graph: &Graph, nodes: &[u32]) -> Option<f64> {
    median(&mut nodes.iter().map(|&at| graph.weights[at as usize]).collect::<Vec<_>>())
}

/// For each value the median of all other values; NaN for a single one.
pub(crate) fn medians_of_others(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let others = |&value: &f64| match sorted.len() {
        1 => f64::NAN,
        _ => median_of_others(&sorted, value),
    };
    values.iter().map(others).collect()
}

/// Groups of values with the same key, in the order of the keys.
fn grouped<K: Ord, V>(mut all: Vec<(K, V)>) -> Vec<Vec<V>> {
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let mut groups: Vec<Vec<V>> = Vec::new();
    let mut last: Option<K> = None;
    for (key, value) in all {
        match groups.last_mut() {
            Some(group) if last.as_ref() == Some(&key) => group.push(value),
            _ => groups.push(vec![value]),
        }
        last = Some(key);
    }
    groups
}

/// The arrivals of ranks with the same program in a step, by their place among those of a role, and
/// these programs.
fn arrivals(graph: &Graph) -> (Vec<Vec<u32>>, HashMap<usize, u64>) {
    // Of each rank and step, its operations of each role: their number, and a hash of their order.
    let mut orders: HashMap<usize, BTreeMap<u32, (u32, u64)>> = HashMap::new();
    let mut places = Vec::new();
    for (node, at) in graph.nodes.iter().zip(0..) {
        if node.kind == Kind::Arrival {
            let &Operation { step, role, function, .. } = &graph.operations[node.op as usize];
            let of_rank = orders.entry(graph.place(node)).or_default();
            let (count, order) = of_rank.entry(role).or_default();
            places.push((step, role, *count, graph.place(node), at));
            *count += 1;
            *order = mixed(*order, function.into());
        }
    }
    let program = |of_rank: &BTreeMap<u32, (u32, u64)>| {
        of_rank.values().fold(0, |program, (_, order)| mixed(program, *order))
    };
    let programs: HashMap<usize, u64> =
        orders.iter().map(|(of, of_rank)| (*of, program(of_rank))).collect();
    let keyed = places.into_iter().map(|(step, role, number, place, at)| {
        let program = programs.get(&place).copied().unwrap_or_default();
        ((step, program, role, number), at)
    });
    (grouped(keyed.collect()), programs)
}

/// The n-th operations of a kind in a step, of all communicators.
fn operations(graph: &Graph) -> Vec<Vec<(u32, Vec<u32>)>> {
    // In the order of their first arrivals, because that in the input may be any.
    let (mut order, mut ends) = (Vec::new(), vec![Vec::new(); graph.operations.len()]);
    let mut has_begun = vec![false; graph.operations.len()];
    for (node, at) in graph.nodes.iter().zip(0..) {
        if !std::mem::replace(&mut has_begun[node.op as usize], true) {
            order.push(node.op);
        }
        if node.kind == Kind::End {
            ends[node.op as usize].push(at);
        }
    }
    let mut counts: HashMap<(u32, u32, u32, u32), u32> = HashMap::new();
    let keyed = order.into_iter().map(|op| {
        let operation = &graph.operations[op as usize];
        // The sends and receives of each rank are operations of their own.
        let rank = operation.parts.first().map_or(0, |part| part.rank);
        let rank = if operation.parts.len() > 1 { u32::MAX } else { rank };
        let of = (operation.comm, rank, operation.kind, operation.step);
        let count = counts.entry(of).or_default();
        *count += 1;
        let ends = std::mem::take(&mut ends[op as usize]);
        ((operation.step, operation.kind, *count), (op, ends))
    });
    grouped(keyed.collect())
}

/// A hash of a sequence, with one more element.
fn mixed(hash: u64, next: u64) -> u64 {
    (hash ^ next.wrapping_add(0x9e37_79b9_7f4a_7c15))
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        .rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Part;

    /// Five steps of `ranks` ranks in one communicator; a rank works for so long, and all transfer
    /// for 1 ms; in ms.
    fn graph(ranks: u32, work: impl Fn(u32, u32) -> f64, kind: impl Fn(u32) -> u32) -> Graph {
        let mut now = 0.0;
        let mut all = Vec::new();
        for step in 0..5 {
            let arrivals: Vec<f64> = (0..ranks).map(|rank| now + 1e6 * work(step, rank)).collect();
            now = arrivals.iter().copied().fold(now, f64::max) + 1e6;
            let own = (0..ranks).zip(&arrivals).map(|(rank, &arrival)| Operation {
                kind: 1 + kind(rank),
                function: 1 + kind(rank),
                comm: 1 + rank,
                step,
                parts: vec![Part { rank, arrival: arrival - 5e5, end: arrival - 4e5 }],
                ..Operation::default()
            });
            all.extend(own);
            let part = |(rank, &arrival)| Part { rank, arrival, end: now };
            let parts = (0..ranks).zip(&arrivals).map(part).collect();
            all.push(Operation { step, parts, ..Operation::default() });
        }
        Graph::of(all, ranks as usize, 5, false)
    }

    /// By how much the last four steps are shorter if these ranks are like their peers, ms.
    fn gain(graph: &Graph, unit: Unit<'_>) -> f64 {
        let last = |weights: &[f64]| {
            let ends = graph.replay(weights);
            (ends[4] - ends[0]) / 1e6
        };
        let replaced = Peers::of(graph).weights(graph, unit, graph.weights());
        last(graph.weights()) - last(&replaced.weights)
    }

    #[test]
    fn a_slow_rank_costs_what_it_works_longer_than_the_rank_after_it() {
        let graph = graph(3, |_, rank| [10.0, 30.0, 12.0][rank as usize], |_| 0);
        let of = |ranks: &[u32]| gain(&graph, Unit::Ranks(&ranks.iter().copied().collect()));
        assert!((of(&[1]) - 4.0 * 18.0).abs() < 0.1, "{}", of(&[1]));
        assert!(of(&[0]).abs() < 0.1 && of(&[2]).abs() < 0.1, "nothing waits for them");
    }

    /// A stage does other operations than the other stage.
    #[test]
    fn a_stage_is_compared_with_the_other_stages() {
        let graph = graph(4, |_, rank| if rank < 2 { 10.0 } else { 15.0 }, |rank| rank / 2);
        let cost = gain(&graph, Unit::Ranks(&[2, 3].into()));
        assert!((cost - 4.0 * 5.0).abs() < 1.0, "{cost}");
    }

    #[test]
    fn since_a_change_operations_take_longer() {
        let mut graph = graph(2, |_, _| 10.0, |_| 0);
        for (node, weight) in graph.nodes.iter().zip(&mut graph.weights) {
            let operation = &graph.operations[node.op as usize];
            if node.kind == Kind::End && operation.kind == 0 && operation.step >= 3 {
                *weight += 2e6;
            }
        }
        let cost = gain(&graph, Unit::Since(3));
        assert!((cost - 2.0 * 2.0).abs() < 0.01, "{cost}");
        let first = Peers::of(&graph).weights(&graph, Unit::Since(0), graph.weights());
        assert!(!first.has_transfers, "nothing before");
    }

    #[test]
    fn the_median_of_others_leaves_a_value_out() {
        assert_eq!(medians_of_others(&[1.0, 9.0]), [9.0, 1.0]);
        assert_eq!(medians_of_others(&[5.0, 1.0, 9.0]), [5.0, 7.0, 3.0]);
        assert_eq!(medians_of_others(&[4.0, 1.0, 3.0, 2.0]), [2.0, 3.0, 2.0, 3.0]);
        assert!(medians_of_others(&[1.0])[0].is_nan() && medians_of_others(&[]).is_empty());
    }
}
