// SPDX-License-Identifier: Apache-2.0
/*!
Ranks that called something else than the others (H2).

The calls that are still known are compared number by number; where they no longer are, the rolling
hashes at equal numbers. The larger part counts as right, whatever its ranks; of two equal parts
neither does. Counts are compared only where the function wants them equal.
*/

use crate::job::{Call, Communicator, Job, Kind, Vector};
use std::collections::{BTreeMap, HashMap};

/// Members that differ from the larger part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Desync {
    /// The communicator.
    pub(crate) comm: u32,
    /// The first number at which they differ, or how many operations the differing hashes cover.
    pub(crate) index: u64,
    /// Whether `index` is exact.
    pub(crate) is_exact: bool,
    /// Groups of members (positions in [`Communicator::vectors`]) with what they called: smallest
    /// group first.
    pub(crate) groups: Vec<(Vec<u32>, Option<Call>)>,
    /// Members that are held for wrong.
    pub(crate) accused: Vec<u32>,
}

/// Every communicator whose members did not call the same. It need not hang for that: results may
/// be wrong instead. In a dump, whose names and sizes are an application's, ranks must wait.
pub(crate) fn find(job: &Job) -> Vec<Desync> {
    let comms = job.comms.iter().zip(0u32..);
    let waited = comms.filter(|(comm, _)| {
        comm.kind == Kind::Collectives
            && (!job.is_dump || comm.vectors.iter().any(Vector::is_inside))
    });
    waited.filter_map(|(comm, index)| in_comm(comm, index)).collect()
}

fn in_comm(comm: &Communicator, index: u32) -> Option<Desync> {
    let by_calls = first_difference(comm);
    let by_hash = by_hash(comm);
    let (at, is_exact, mut groups) = match (by_calls, by_hash) {
        (Some((at, groups)), _) => (at, true, groups),
        (None, Some((at, groups))) => (at, false, groups),
        (None, None) => return None,
    };
    groups.sort_by_key(|(members, _)| (members.len(), members.first().copied()));
    let (last, others) = groups.split_last()?;
    let is_tie = others.last().is_some_and(|(members, _)| members.len() == last.0.len());
    let wrong = if is_tie { &groups[..] } else { others };
    let mut accused: Vec<u32> = wrong.iter().flat_map(|(members, _)| members.clone()).collect();
    accused.sort_unstable();
    Some(Desync { comm: index, index: at, is_exact, groups, accused })
}

type Groups = Vec<(Vec<u32>, Option<Call>)>;

/// What is compared of a call.
type Key<'a> = (&'a str, &'a str, Option<u64>, Option<i32>);

fn key(call: &Call) -> Key<'_> {
    (&call.func, &call.datatype, call.count, call.root)
}

fn first_difference(comm: &Communicator) -> Option<(u64, Groups)> {
    let mut seen: BTreeMap<u64, (u32, &Call)> = BTreeMap::new();
    let mut first: Option<u64> = None;
    for (&member, calls) in &comm.calls {
        for (&at, call) in calls.range(..first.unwrap_or(u64::MAX)) {
            let (_, other) = seen.entry(at).or_insert((member, call));
            if key(other) != key(call) {
                first = Some(at);
                break;
            }
        }
    }
    let at = first?;
    let mut groups: Vec<(Vec<u32>, Option<Call>)> = Vec::new();
    for (&member, calls) in &comm.calls {
        let Some(call) = calls.get(&at) else { continue };
        let same = |(_, other): &&mut (Vec<u32>, Option<Call>)| {
            other.as_ref().is_some_and(|other| key(other) == key(call))
        };
        match groups.iter_mut().find(same) {
            Some((members, _)) => members.push(member),
            None => groups.push((vec![member], Some(call.clone()))),
        }
    }
    Some((at, groups))
}

fn by_hash(comm: &Communicator) -> Option<(u64, Groups)> {
    let mut first: HashMap<u64, u64> = HashMap::new();
    let mut lowest: Option<u64> = None;
    for &(_, at, hash) in &comm.hashes {
        if *first.entry(at).or_insert(hash) != hash && lowest.is_none_or(|lowest| at < lowest) {
            lowest = Some(at);
        }
    }
    let at = lowest?;
    let mut groups: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for &(member, _, hash) in comm.hashes.iter().filter(|(_, other, _)| *other == at) {
        groups.entry(hash).or_default().push(member);
    }
    Some((at, groups.into_values().map(|members| (members, None)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(func: &str, count: u64) -> Call {
        Call { func: func.into(), count: Some(count), ..Call::default() }
    }

    fn comm(calls: &[&[Call]]) -> Communicator {
        let vectors =
            calls.iter().map(|calls| Vector { enqueued: calls.len() as u64, ..Vector::default() });
        let numbered = |calls: &&[Call]| (1..).zip(calls.iter().cloned()).collect();
        Communicator {
            vectors: vectors.collect(),
            calls: (0..).zip(calls.iter().map(numbered)).collect(),
            ..Communicator::default()
        }
    }

    fn found(comm: Communicator) -> Vec<Desync> {
        find(&Job { comms: vec![comm], ..Job::default() })
    }

    #[test]
    fn the_smaller_part_is_accused_also_if_it_is_first_or_ahead() {
        let right = [call("AllReduce", 8), call("AllGather", 8)];
        let wrong = [call("AllReduce", 8), call("AllReduce", 8), call("AllGather", 8)];
        let desync = &found(comm(&[&wrong, &right, &right]))[0];
        assert_eq!((desync.index, desync.is_exact), (2, true));
        assert_eq!(desync.accused, [0]);
        // One against one: nobody is right.
        assert_eq!(found(comm(&[&wrong, &right]))[0].accused, [0, 1]);
    }

    #[test]
    fn being_behind_is_no_difference() {
        let calls = [call("AllReduce", 8), call("AllReduce", 8)];
        assert_eq!(found(comm(&[&calls, &calls[..1], &calls])), []);
    }

    #[test]
    fn hashes_tell_where_calls_are_no_longer_known() {
        let calls: [&[Call]; 3] = [&[], &[], &[]];
        let mut comm = comm(&calls);
        comm.vectors[0].enqueued = 200;
        comm.hashes = vec![(0, 128, 1), (1, 128, 2), (2, 128, 1), (0, 64, 7), (1, 64, 7)];
        let desync = &found(comm)[0];
        assert_eq!((desync.index, desync.is_exact, &desync.accused[..]), (128, false, &[1][..]));
    }
}
