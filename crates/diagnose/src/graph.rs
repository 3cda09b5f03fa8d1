// SPDX-License-Identifier: Apache-2.0
//! Directed graphs with numbered nodes, and their strongly connected components. Independent of
//! ranks.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};

/// A graph; its edges are sorted by source node.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    first: Vec<u32>,
    targets: Vec<u32>,
}

impl Graph {
    /// The graph of `nodes` nodes with these edges.
    pub(crate) fn new(nodes: usize, edges: &[(u32, u32)]) -> Graph {
        let mut first = vec![0u32; nodes + 1];
        for &(from, _) in edges {
            first[from as usize + 1] += 1;
        }
        for node in 0..nodes {
            first[node + 1] += first[node];
        }
        let mut next = first.clone();
        let mut targets = vec![0; edges.len()];
        for &(from, to) in edges {
            let place = &mut next[from as usize];
            targets[*place as usize] = to;
            *place += 1;
        }
        Graph { first, targets }
    }

    pub(crate) fn len(&self) -> usize {
        self.first.len().saturating_sub(1)
    }

    /// The targets of a node's edges.
    pub(crate) fn from(&self, node: u32) -> &[u32] {
        let (from, to) = (self.first[node as usize], self.first[node as usize + 1]);
        &self.targets[from as usize..to as usize]
    }

    /// The component of each node (Tarjan, without recursion). Components are numbered so that
    /// edges between them lead from higher to lower numbers.
    pub(crate) fn components(&self) -> Vec<u32> {
        const NEW: u32 = u32::MAX;
        let nodes = self.len();
        let (mut index, mut low) = (vec![NEW; nodes], vec![0u32; nodes]);
        let mut component = vec![NEW; nodes];
        let (mut stack, mut path): (Vec<u32>, Vec<(u32, u32)>) = (Vec::new(), Vec::new());
        let (mut counter, mut components) = (0u32, 0u32);
        for start in (0..nodes as u64).filter_map(|node| u32::try_from(node).ok()) {
            if index[start as usize] != NEW {
                continue;
            }
            path.push((start, 0));
            while let Some(&mut (node, ref mut edge)) = path.last_mut() {
                let at = node as usize;
                if *edge == 0 && index[at] == NEW {
                    (index[at], low[at]) = (counter, counter);
                    counter += 1;
                    stack.push(node);
                }
                if let Some(&to) = self.from(node).get(*edge as usize) {
                    *edge += 1;
                    if index[to as usize] == NEW {
                        path.push((to, 0));
                    } else if component[to as usize] == NEW {
                        low[at] = low[at].min(index[to as usize]);
                    }
                    continue;
                }
                path.pop();
                if let Some(&(parent, _)) = path.last() {
                    low[parent as usize] = low[parent as usize].min(low[at]);
                }
                if low[at] == index[at] {
                    while let Some(member) = stack.pop() {
                        component[member as usize] = components;
                        if member == node {
                            break;
                        }
                    }
                    components += 1;
                }
            }
        }
        component
    }

    /// The shortest cycle through a node, starting with that node; empty if there is none.
    pub(crate) fn way_back(&self, start: u32) -> Vec<u32> {
        let mut before: HashMap<u32, u32> = HashMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(node) = queue.pop_front() {
            for &to in self.from(node) {
                if to == start {
                    let mut way = vec![node];
                    while let Some(&last) = way.last().filter(|&&last| last != start) {
                        way.extend(before.get(&last));
                    }
                    way.reverse();
                    return way;
                }
                if let Entry::Vacant(place) = before.entry(to) {
                    place.insert(node);
                    queue.push_back(to);
                }
            }
        }
        Vec::new()
    }

    /// True if there is a cycle among these nodes.
    pub(crate) fn has_circle(&self, nodes: &HashSet<u32>) -> bool {
        let mut into: HashMap<u32, u32> = nodes.iter().map(|&node| (node, 0)).collect();
        for to in nodes.iter().flat_map(|&node| self.from(node)) {
            into.entry(*to).and_modify(|count| *count += 1);
        }
        let mut free: Vec<u32> = nodes.iter().copied().filter(|node| into[node] == 0).collect();
        let mut taken = 0;
        while let Some(node) = free.pop() {
            taken += 1;
            for to in self.from(node) {
                if let Some(count) = into.get_mut(to) {
                    *count -= 1;
                    if *count == 0 {
                        free.push(*to);
                    }
                }
            }
        }
        taken < nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cycles_are_components_and_edges_lead_down() {
        let graph = Graph::new(6, &[(0, 1), (1, 2), (2, 0), (2, 3), (4, 3)]);
        let found = graph.components();
        assert_eq!((found[0], found[1]), (found[1], found[2]));
        assert!(found[0] > found[3] && found[4] > found[3]);
        assert!(found[5] != found[3] && graph.from(5).is_empty());
        assert_eq!(Graph::new(0, &[]).components(), Vec::<u32>::new());
    }

    #[test]
    fn a_long_chain_needs_no_deep_stack() {
        let edges: Vec<(u32, u32)> = (0..200_000).map(|n| (n, n + 1)).collect();
        let found = Graph::new(200_001, &edges).components();
        assert!(found.iter().rev().copied().eq(0..=200_000));
    }

    #[test]
    fn a_circle_has_a_shortest_way_and_may_need_one_node() {
        let graph = Graph::new(6, &[(0, 1), (1, 2), (2, 0), (1, 3), (3, 4), (4, 0), (4, 5)]);
        assert_eq!((graph.way_back(0), graph.way_back(3)), (vec![0, 1, 2], vec![3, 4, 0, 1]));
        assert_eq!(graph.way_back(5), Vec::<u32>::new());
        let without = |node: u32| (0..6).filter(|&other| other != node).collect();
        assert!(graph.has_circle(&without(2)) && graph.has_circle(&without(3)));
        assert!(!graph.has_circle(&without(0)) && !graph.has_circle(&without(1)));
    }

    proptest! {
        #[test]
        fn nodes_share_a_component_if_each_reaches_the_other(
            edges in proptest::collection::vec((0u32..9, 0u32..9), 0..24),
        ) {
            let graph = Graph::new(9, &edges);
            let found = graph.components();
            let mut reach = [[false; 9]; 9];
            for (from, row) in reach.iter_mut().enumerate() {
                row[from] = true;
            }
            for &(from, to) in &edges {
                reach[from as usize][to as usize] = true;
            }
            for via in 0..9 {
                for from in 0..9 {
                    for to in 0..9 {
                        reach[from][to] |= reach[from][via] && reach[via][to];
                    }
                }
            }
            for from in 0..9 {
                for to in 0..9 {
                    let same = reach[from][to] && reach[to][from];
                    prop_assert_eq!(found[from] == found[to], same);
                    prop_assert!(!reach[from][to] || found[from] >= found[to]);
                }
            }
        }
    }
}
