// SPDX-License-Identifier: Apache-2.0
/*!
Which vectors belong to one job.

Processes that share a communicator belong to one job, and so do processes with the same job number.
A number with two processes of one rank proves nothing: the job has no id, or an earlier launch of
it is still in the table. Then only communicators count.
*/

use crate::graph::Graph;
use ncclscope_trace::vectors::{Vector, vector_flags};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The key of a process: its job, its rank in the job, and its origin.
pub(super) type ProcessKey = (u64, u32, u64);

#[derive(Debug, Default)]
pub(super) struct JobVectors {
    /// Positions of its vectors in the table.
    pub(super) positions: Vec<u32>,
    /// The processes of the job, in order.
    pub(super) processes: Vec<ProcessKey>,
    /// Number of processes that are not silent.
    living: usize,
}

/// Finds the process of a vector; fast if vectors come in the order of the processes.
#[derive(Debug)]
pub(super) struct Finder<'a> {
    keys: &'a [ProcessKey],
    last: usize,
}

impl Finder<'_> {
    pub(super) fn new(keys: &[ProcessKey]) -> Finder<'_> {
        Finder { keys, last: 0 }
    }

    /// Position of a vector's process.
    pub(super) fn find(&mut self, vector: &Vector) -> usize {
        let key = key(vector);
        let near =
            [self.last, self.last + 1].into_iter().find(|&at| self.keys.get(at) == Some(&key));
        self.last = near.unwrap_or_else(|| self.keys.binary_search(&key).unwrap_or(0));
        self.last
    }
}

fn key(vector: &Vector) -> ProcessKey {
    (vector.job, vector.process, vector.origin)
}

/// Splits vectors by job; the job with the most living processes comes first.
pub(super) fn split(all: &[Vector]) -> Vec<JobVectors> {
    let mut keys: Vec<ProcessKey> = all.iter().map(key).collect();
    // A stable sort, which is fast if the keys are almost sorted.
    keys.sort();
    keys.dedup();
    let is_same_rank = |pair: &[ProcessKey]| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1);
    let doubtful: BTreeSet<u64> =
        keys.windows(2).filter(|pair| is_same_rank(pair)).map(|pair| pair[0].0).collect();
    if doubtful.is_empty() && keys.iter().all(|key| key.0 == keys[0].0) {
        let positions = (0u32..).take(all.len()).collect();
        return vec![JobVectors { positions, processes: keys, living: 0 }];
    }
    let component = components(all, &keys, &doubtful);
    let mut jobs: BTreeMap<u32, JobVectors> = BTreeMap::new();
    let mut finder = Finder::new(&keys);
    let mut silent = vec![false; keys.len()];
    for (vector, position) in all.iter().zip(0u32..) {
        let at = finder.find(vector);
        silent[at] |= vector.flags & vector_flags::SILENT != 0;
        jobs.entry(component[at]).or_default().positions.push(position);
    }
    for (at, key) in keys.iter().enumerate() {
        let job = jobs.entry(component[at]).or_default();
        job.processes.push(*key);
        job.living += usize::from(!silent[at]);
    }
    let mut jobs: Vec<JobVectors> = jobs.into_values().collect();
    jobs.sort_by_key(|job| (Reverse((job.living, job.processes.len())), job.processes[0]));
    jobs
}

/// The component of each process: connected by communicators, and by jobs that are not `doubtful`.
fn components(all: &[Vector], keys: &[ProcessKey], doubtful: &BTreeSet<u64>) -> Vec<u32> {
    let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let mut nodes: HashMap<(bool, u64), u32> = HashMap::new();
    let mut edges = Vec::new();
    let mut finder = Finder::new(keys);
    for vector in all {
        let process = number(finder.find(vector));
        let job = (!doubtful.contains(&vector.job)).then_some((true, vector.job));
        // Without a hash (API v1 to v3), a communicator cannot be recognised in another process.
        let comm = (vector.comm != 0).then_some((false, vector.comm));
        for key in job.into_iter().chain(comm) {
            let next = number(keys.len() + nodes.len());
            let node = *nodes.entry(key).or_insert(next);
            edges.extend([(process, node), (node, process)]);
        }
    }
    let mut components = Graph::new(keys.len() + nodes.len(), &edges).components();
    components.truncate(keys.len());
    components
}
