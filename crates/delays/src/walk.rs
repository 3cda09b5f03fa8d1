// SPDX-License-Identifier: Apache-2.0
//! From a wait back to the moments that it waited for.

use crate::graph::{Graph, Kind, NONE};

/// The time from a rank's arrival at an operation until all were there that it waits for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wait {
    /// The rank that waits.
    pub rank: u32,
    /// Index of the step.
    pub step: u32,
    /// Its arrival, ns on the job's clock.
    pub from: f64,
    /// When the last one arrived, ns on the job's clock.
    pub to: f64,
    /// The moment at which it ends.
    ready: u32,
}

/// What took a stretch of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A rank's own work.
    Work {
        /// The rank.
        rank: u32,
    },
    /// The transfers of an operation.
    Transfer {
        /// Index of its communicator.
        comm: u32,
        /// The rank for which they ended last.
        rank: u32,
    },
}

/// A stretch of a wait, and the moment whose weight fills it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Charge {
    /// What took it.
    pub source: Source,
    /// The moment's place in [`Graph::weights`].
    pub moment: usize,
    /// The part within the moment's reference, ns.
    pub usual: f64,
    /// The part above the moment's reference, ns.
    pub excess: f64,
}

impl Graph {
    /// All waits that are longer than the error of the clocks.
    pub fn waits(&self) -> impl Iterator<Item = Wait> + '_ {
        let ends = self.nodes.iter().filter(|node| node.kind == Kind::End);
        ends.filter_map(|end| {
            let operation = &self.operations[end.op as usize];
            let [ready, arrival] = end.before;
            let (from, to) = (self.time(arrival), self.time(ready));
            let wait = Wait { rank: end.rank, step: operation.step, from, to, ready };
            (to - from > operation.error).then_some(wait)
        })
    }

    /// Charges all of a wait, from its end back to its begin. `references` are the weights that the
    /// moments would have at their peers, ns; NaN where that is unknown, so that all of the weight
    /// is usual.
    pub fn walk(&self, wait: &Wait, references: &[f64], charge: &mut impl FnMut(&Charge)) {
        let (mut at, mut to) = (wait.ready, wait.to);
        while to > wait.from && at != NONE {
            let moment = at as usize;
            let node = &self.nodes[moment];
            let begin = self.times[moment] - self.weights[moment];
            let from = begin.max(wait.from);
            if from < to {
                let usual_until = (begin + references[moment]).clamp(from, to);
                // A reference that is not a number leaves nothing above it.
                let usual_until = if usual_until.is_nan() { to } else { usual_until };
                let (usual, excess) = (usual_until - from, to - usual_until);
                let source = match node.kind {
                    Kind::Arrival | Kind::Ready => Source::Work { rank: node.rank },
                    Kind::End => Source::Transfer {
                        comm: self.operations[node.op as usize].comm,
                        rank: node.rank,
                    },
                };
                charge(&Charge { source, moment, usual, excess });
                to = from;
            }
            let [a, b] = node.before;
            at = if b != NONE && (a == NONE || self.time(b) > self.time(a)) { b } else { a };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Operation, Part};

    /// Times in ms.
    fn operation(parts: &[(u32, f64, f64)], partners: &[u32]) -> Operation {
        let part = |&(rank, arrival, end): &(u32, f64, f64)| Part {
            rank,
            arrival: arrival * 1e6,
            end: end * 1e6,
        };
        let parts = parts.iter().map(part).collect();
        Operation { parts, partners: partners.to_vec(), ..Operation::default() }
    }

    /// The excess and usual parts of all waits in ms, by rank.
    fn charged(graph: &Graph, references: &[f64]) -> Vec<[f64; 2]> {
        let mut sums = vec![[0.0; 2]; graph.ranks];
        for wait in graph.waits() {
            graph.walk(&wait, references, &mut |charge| {
                let (Source::Work { rank } | Source::Transfer { rank, .. }) = charge.source;
                sums[rank as usize][0] += charge.excess / 1e6;
                sums[rank as usize][1] += charge.usual / 1e6;
            });
        }
        sums
    }

    fn rounded(sums: &[[f64; 2]]) -> Vec<[f64; 2]> {
        sums.iter().map(|sum| sum.map(|ms| (ms * 10.0).round() / 10.0)).collect()
    }

    /// Rank 2 waits for 1 from 10 to 60 ms; 1 waited for 0 until 50, and then worked until 60.
    fn chain() -> Graph {
        let first = [operation(&[(0, 50.0, 51.0)], &[1]), operation(&[(1, 5.0, 51.0)], &[0])];
        let second = [operation(&[(1, 60.0, 61.0)], &[3]), operation(&[(2, 10.0, 61.0)], &[2])];
        Graph::of([first, second].concat(), 3, 1, true)
    }

    #[test]
    fn a_wait_is_charged_to_those_that_the_last_arriver_waited_for() {
        let graph = chain();
        let unknown = vec![f64::NAN; graph.weights().len()];
        let sums = charged(&graph, &unknown);
        let waiting: f64 = graph.waits().map(|wait| (wait.to - wait.from) / 1e6).sum();
        assert!((waiting - 95.0).abs() < 1e-9, "{waiting}");
        assert_eq!(rounded(&sums), [[0.0, 85.0], [0.0, 10.0], [0.0, 0.0]]);
    }

    #[test]
    fn what_exceeds_the_reference_is_excess() {
        let graph = chain();
        // Rank 0 would have arrived at 20 ms if it were like its peers.
        let references: Vec<f64> =
            (graph.nodes.iter()).map(|node| if node.rank == 0 { 20e6 } else { f64::NAN }).collect();
        let sums = charged(&graph, &references);
        // Waits from 5 to 50 and from 10 to 50 ms lead to it.
        assert_eq!(rounded(&sums)[0], [60.0, 25.0]);
    }
}
