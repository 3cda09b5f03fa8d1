// SPDX-License-Identifier: Apache-2.0
//! Counts of the client's work so far, by kind: submitted to streams, and added to graphs as nodes.
//! The additional work that a profiler causes is the difference between two runs.

use crate::work::Kind;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds that are counted, in the order of [`cpucuda_counts`].
pub const KINDS: [(Kind, &str); 8] = [
    (Kind::Kernel, "kernel"),
    (Kind::Host, "host"),
    (Kind::MemOp, "memop"),
    (Kind::RecordEvent, "record"),
    (Kind::WaitEvent, "wait"),
    (Kind::Memcpy, "copy"),
    (Kind::Memset, "set"),
    (Kind::Graph, "graph"),
];

/// Counts for streams, then for graph nodes.
static COUNTS: [[AtomicU64; KINDS.len()]; 2] =
    [const { [const { AtomicU64::new(0) }; KINDS.len()] }; 2];

fn add(to: usize, kind: Kind) {
    if let Some(at) = KINDS.iter().position(|(known, _)| *known == kind) {
        COUNTS[to][at].fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts work submitted to a stream.
pub(crate) fn submitted(kind: Kind) {
    add(0, kind);
}

/// Counts a node added to a graph.
pub(crate) fn node(kind: Kind) {
    add(1, kind);
}

/// Writes the counts of work in streams and then of nodes in graphs, each in the order of
/// [`KINDS`], as far as there is room for; returns how many there are.
///
/// # Safety
/// `out` must have room for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cpucuda_counts(out: *mut u64, count: usize) -> usize {
    let all: Vec<u64> = COUNTS.iter().flatten().map(|c| c.load(Ordering::Relaxed)).collect();
    let given = count.min(all.len());
    // SAFETY: the caller offers room for `count` numbers, and both ranges are apart.
    unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), out, given) };
    all.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Action, Graph};
    use crate::stream::{NON_BLOCKING, Stream};
    use crate::work::Work;
    use std::sync::Arc;

    fn counts() -> Vec<u64> {
        let mut all = vec![0; 2 * KINDS.len()];
        // SAFETY: the array has this size.
        assert_eq!(unsafe { cpucuda_counts(all.as_mut_ptr(), all.len()) }, all.len());
        all
    }

    #[test]
    fn work_and_nodes_are_counted_apart() {
        // Other tests may add to them at the same time.
        let before = counts();
        let stream = Arc::new(Stream::new(0, NON_BLOCKING, 0));
        stream.submit(Work::new(Kind::Memset, || ()));
        let graph = Graph::create();
        graph.add(Action::Work(Work::new(Kind::Memset, || ())), &[]).unwrap();
        graph.add(Action::Work(Work::new(Kind::Memset, || ())), &[]).unwrap();
        stream.synchronize();
        let more = counts().iter().zip(&before).map(|(a, b)| a - b).collect::<Vec<_>>();
        let set = KINDS.iter().position(|(kind, _)| *kind == Kind::Memset).unwrap();
        assert!(more[set] >= 1 && more[KINDS.len() + set] >= 2, "{more:?}");
    }
}
