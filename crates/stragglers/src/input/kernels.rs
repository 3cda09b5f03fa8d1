// SPDX-License-Identifier: Apache-2.0
//! Collectives from the NCCL kernels of all ranks, whatever tool recorded them.

use crate::model::{Collective, CollectiveClass, EndSync, Job, Part};
use ncclscope_operations::function::{Kind, is_rooted};
use ncclscope_operations::human;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const SEND_RECV: &str = Kind::SendRecv.name();
/// The function of a kernel whose name does not contain it.
pub(super) const UNKNOWN: &str = "unknown";

/// Clocks of hosts that run one job are closer than this, ns: with a clock that is a day off, no
/// certificate and no login of the day is valid.
pub(super) const DAY: i64 = 86_400_000_000_000;

/// Identifies an operation on all ranks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    pub(super) comm: String,
    pub(super) func: &'static str,
    pub(super) bytes: Option<u64>,
    pub(super) seq: Option<u64>,
    /// Position among the operations with the same number; without a number, among all.
    pub(super) nth: usize,
}

/// Adds the operations to the job; `sizes` are those of the communicators.
pub(super) fn build(
    job: &mut Job,
    groups: BTreeMap<Key, Vec<Part>>,
    sizes: &BTreeMap<String, u32>,
) {
    let pairwise = pairwise(&groups);
    let mut left_out = 0;
    for (key, parts) in groups {
        if key.func == SEND_RECV && pairwise.contains(&key.comm) {
            left_out += parts.len();
            continue;
        }
        let members = sizes.get(&key.comm).copied().unwrap_or(0);
        let class =
            CollectiveClass { comm: key.comm, func: key.func.into(), bytes: key.bytes, members };
        let class = Job::intern(&mut job.classes, class);
        job.collectives.push(Collective {
            class,
            shape: 0,
            step: None,
            ends: ends(key.func),
            has_ends: true,
            parts,
        });
    }
    // Without sequence numbers the keys are not in time order.
    job.collectives.sort_by(|a, b| first(a).total_cmp(&first(b)));
    if left_out > 0 {
        job.notes.push(format!(
            "{} ignored: the traces do not contain the other side",
            human::are(left_out, "SendRecv kernel")
        ));
    }
}

/// Whether the kernels of a function end together.
pub(super) fn ends(func: &str) -> EndSync {
    if is_rooted(func) || func == UNKNOWN { EndSync::Apart } else { EndSync::Together }
}

fn first(collective: &Collective) -> f64 {
    collective.parts.iter().map(|part| part.end).fold(f64::MAX, f64::min)
}

/// The communicators whose SendRecv kernels do not run on all members at once.
fn pairwise(groups: &BTreeMap<Key, Vec<Part>>) -> BTreeSet<String> {
    let mut most: BTreeMap<&str, usize> = BTreeMap::new();
    for (key, parts) in groups.iter().filter(|(key, _)| key.func == SEND_RECV) {
        let count = most.entry(&key.comm).or_default();
        *count = parts.len().max(*count);
    }
    let apart = groups.iter().filter(|(key, parts)| {
        let last = parts.iter().map(|part| part.start).fold(f64::MIN, f64::max);
        let over = parts.iter().map(|part| part.end).fold(f64::MAX, f64::min);
        let all = most.get(key.comm.as_str()).copied();
        key.func == SEND_RECV && (last >= over || all != Some(parts.len()))
    });
    apart.map(|(key, _)| key.comm.clone()).collect()
}

/// What communicates beside NCCL, such as `963 kernels of DeepEP`.
pub(super) fn beside<'a>(
    counts: impl Iterator<Item = &'a BTreeMap<&'static str, u64>>,
) -> Option<String> {
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for (of, count) in counts.flatten() {
        *all.entry(of).or_default() += count;
    }
    let count = |count: u64| human::count(usize::try_from(count).unwrap_or(usize::MAX), "kernel");
    let all: Vec<String> = all.iter().map(|(of, n)| format!("{} of {of}", count(*n))).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The numbers below `end` that are no rank, as inclusive ranges.
pub(super) fn gaps(ranks: &BTreeSet<u32>, end: u32) -> Vec<(u32, u32)> {
    let (mut gaps, mut next) = (Vec::new(), 0);
    for rank in ranks.iter().copied().chain([end]) {
        if rank > next {
            gaps.push((next, rank - 1));
        }
        next = next.max(rank.saturating_add(1));
    }
    gaps
}
