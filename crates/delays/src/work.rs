// SPDX-License-Identifier: Apache-2.0
//! How long each rank works in each step, and how long its peers do.

use crate::graph::{Graph, Kind};
use crate::peers::{Peers, medians_of_others};
use std::collections::BTreeMap;

/// The own work of the ranks of a job, by step. Times are in ns.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Work {
    ranks: usize,
    /// Step by step; NaN where a rank takes part in no operation.
    own: Vec<f64>,
    /// The own work of its peers: the median of other ranks with the same program.
    usual: Vec<f64>,
    /// Whether these peers do the same as it; if none does, all other ranks are.
    alike: Vec<bool>,
}

impl Work {
    /// The own work between the operations of a graph.
    #[must_use]
    pub fn of(graph: &Graph, peers: &Peers) -> Work {
        let mut own = vec![None; graph.ranks * graph.steps];
        for (node, weight) in graph.nodes.iter().zip(&graph.weights) {
            if node.kind == Kind::Arrival {
                let own: &mut Option<f64> = &mut own[graph.place(node)];
                // What a rank did before its first moment is unknown, and so is its work in that
                // step; where times begin anew in each step, in none.
                let unknown = if graph.restarts { 0.0 } else { f64::NAN };
                let work = if node.has_before() { *weight } else { unknown };
                *own = Some(own.unwrap_or_default() + work);
            }
        }
        let own = own.into_iter().map(|own| own.unwrap_or(f64::NAN)).collect();
        Work::among(own, graph.ranks, |at| peers.programs.get(&at).copied().unwrap_or_default())
    }

    /// The own work that the input lists: (rank, step, ns). All ranks are peers.
    pub fn listed(
        list: impl Iterator<Item = (usize, usize, f64)>,
        ranks: usize,
        steps: usize,
    ) -> Work {
        let mut own = vec![f64::NAN; ranks * steps];
        for (rank, step, work) in list {
            let own = &mut own[step * ranks + rank];
            *own = if own.is_nan() { work } else { *own + work };
        }
        Work::among(own, ranks, |_| 0)
    }

    /// The own work of a rank in a step.
    #[must_use]
    pub fn own(&self, rank: usize, step: usize) -> f64 {
        self.own[step * self.ranks + rank]
    }

    /// By how much a rank works longer than its peers in a step; NaN if one of both is unknown.
    #[must_use]
    pub fn excess(&self, rank: usize, step: usize) -> f64 {
        let at = step * self.ranks + rank;
        self.own[at] - self.usual[at]
    }

    /// Whether other ranks do the same as this one in most of the steps in which its work is known.
    #[must_use]
    pub fn has_peers(&self, rank: usize) -> bool {
        let known = (rank..self.own.len()).step_by(self.ranks.max(1));
        let known: Vec<usize> = known.filter(|&at| !self.own[at].is_nan()).collect();
        2 * known.iter().filter(|&&at| self.alike[at]).count() >= known.len()
    }

    /// Ranks without another rank of their program have all ranks as peers.
    fn among(own: Vec<f64>, ranks: usize, program: impl Fn(usize) -> u64) -> Work {
        let (mut usual, mut alike) = (vec![f64::NAN; own.len()], vec![false; own.len()]);
        for (first, of_step) in (0..).step_by(ranks.max(1)).zip(own.chunks(ranks.max(1))) {
            let known: Vec<usize> =
                (0..of_step.len()).filter(|&at| !of_step[at].is_nan()).collect();
            let mut programs: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
            for &rank in &known {
                programs.entry(program(first + rank)).or_default().push(rank);
            }
            let of_all =
                medians_of_others(&known.iter().map(|&at| of_step[at]).collect::<Vec<_>>());
            for (&rank, of_all) in known.iter().zip(of_all) {
                usual[first + rank] = of_all;
            }
            for members in programs.values().filter(|members| members.len() > 1) {
                let values: Vec<f64> = members.iter().map(|&at| of_step[at]).collect();
                for (&rank, of_peers) in members.iter().zip(medians_of_others(&values)) {
                    (usual[first + rank], alike[first + rank]) = (of_peers, true);
                }
            }
        }
        Work { ranks, own, usual, alike }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_compared_with_those_of_their_program() {
        let own = vec![1.0, 2.0, 10.0, 13.0, f64::NAN, 7.0];
        let work = Work::among(own, 6, |at| [0, 0, 1, 1, 1, 2][at]);
        let excess: Vec<f64> = (0..6).map(|rank| work.excess(rank, 0)).collect();
        assert_eq!(excess[..4], [-1.0, 1.0, -3.0, 3.0]);
        assert!(excess[4].is_nan(), "it takes part in nothing");
        assert_eq!([0, 3, 5].map(|rank| work.has_peers(rank)), [true, true, false]);
        assert_eq!(excess[5], 7.0 - 6.0, "alone with its program: all others are its peers");
    }

    #[test]
    fn listed_work_is_added_up() {
        let list = [(0, 1, 5.0), (1, 1, 2.0), (0, 1, 1.0)];
        let work = Work::listed(list.into_iter(), 2, 2);
        assert_eq!((work.own(0, 1), work.excess(0, 1), work.excess(1, 1)), (6.0, 4.0, -4.0));
        assert!(work.own(0, 0).is_nan());
    }
}
