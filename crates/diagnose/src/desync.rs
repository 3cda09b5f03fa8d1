// SPDX-License-Identifier: Apache-2.0
/*!
Ranks that made a different call than the others (H2).

Calls that are still recorded are compared number by number; for older calls, and for members of
which events are missing, the rolling hashes at equal numbers are compared. The largest group of
equal calls counts as right; if the two largest have the same size, none does. Element counts are
compared only where the function requires them to be equal. Of sends and their receives the sizes
are compared if one of them does not end, up to that one: neither side counts as right (H2b). A send
ends when the network's buffers have taken it, and a receive may end with the data of a later send.
So the first pair that differs is the cause, and the sender may be far ahead of it. If no rank
waits, those that have ended are compared, too: NCCL asks for the same count on both sides.
*/

use crate::job::{Call, CommKind, Communicator, Job, Vector};
use ncclscope_operations::human;
use std::collections::{BTreeMap, HashMap};

/// A mismatch between the calls of a communicator's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Desync {
    pub(crate) comm: u32,
    /// Number of the first operation that differs, or number of operations covered by the differing
    /// hashes.
    pub(crate) index: u64,
    pub(crate) is_exact: bool,
    /// Groups of members (positions in [`Communicator::vectors`]) and the call that each group
    /// made: smallest group first.
    pub(crate) groups: Vec<(Vec<u32>, Option<Call>)>,
    /// Members whose call counts as wrong.
    pub(crate) accused: Vec<u32>,
    /// Members whose call is unknown because events are missing, if they are so many that the
    /// majority may be wrong.
    pub(crate) unknown: Vec<u32>,
}

impl Desync {
    /// When the first accused member made its call, ns since 1970; `None` if the input does not
    /// show it.
    pub(crate) fn called_ns(&self, comm: &Communicator) -> Option<u64> {
        let call = |member| comm.calls.get(member)?.get(&self.index)?.called_ns;
        self.accused.iter().filter(|_| self.is_exact).filter_map(call).min()
    }
}

/// Finds all mismatches. A mismatch need not hang: instead the results may be wrong. In a dump,
/// whose names and sizes are the application's, one of these counts only if ranks wait. Sends and
/// receives count only if they have waited for `hang_ns`.
pub(crate) fn find(job: &Job, hang_ns: u64) -> Vec<Desync> {
    let one = |(comm, index): (&Communicator, u32)| match comm.kind {
        CommKind::Collectives => {
            let is_inside = || comm.vectors.iter().any(Vector::is_inside);
            let counts = !job.is_dump || !comm.hashes.is_empty() || is_inside();
            counts.then(|| call_mismatch(job, comm, index)).flatten()
        }
        CommKind::Pair => size_mismatch(comm, index, hang_ns),
        CommKind::Sequence | CommKind::Call => None,
    };
    job.comms.iter().zip(0u32..).filter_map(one).collect()
}

/// Finds the first send and receive with different sizes on a pair, one of which does not end.
fn size_mismatch(comm: &Communicator, index: u32, hang_ns: u64) -> Option<Desync> {
    let is_stuck = |v: &&Vector| v.is_inside() && v.age_ns.is_some_and(|age| age >= hang_ns);
    let last = comm.vectors.iter().filter(is_stuck).map(Vector::front).min()?;
    size_mismatch_up_to(comm, index, last, true)
}

/// Finds a pair of ranks with a send and a receive of different sizes that both ended, so that the
/// results may be wrong. It explains no wait of other ranks.
pub(crate) fn find_ended(job: &Job) -> Option<Desync> {
    let pairs = job.comms.iter().zip(0u32..).filter(|(comm, _)| comm.kind == CommKind::Pair);
    let last = |comm: &Communicator| comm.vectors.iter().map(|vector| vector.done).min();
    pairs.filter_map(|(comm, index)| size_mismatch_up_to(comm, index, last(comm)?, false)).next()
}

fn size_mismatch_up_to(
    comm: &Communicator,
    position: u32,
    last: u64,
    is_stuck: bool,
) -> Option<Desync> {
    let (sends, receives) = (comm.sizes.get(&0)?, comm.sizes.get(&1)?);
    let (index, [sent, received]) = first_other_size(sends, receives, last, is_stuck)?;
    let group = |member: u32, func: &str, bytes: u64| {
        let (size, bytes) = (human::bytes(bytes), Some(bytes));
        (vec![member], Some(Call { func: func.into(), size, bytes, ..Call::default() }))
    };
    Some(Desync {
        comm: position,
        index,
        is_exact: true,
        groups: vec![group(0, "Send", sent), group(1, "Recv", received)],
        accused: vec![0, 1],
        unknown: Vec::new(),
    })
}

/// The first send up to number `last` whose size is not that of its receive: its number, and both
/// sizes. They are given as in [`Communicator::sizes`]. If a number is off by a few, sizes differ
/// that fit: so one of both must be a size that the other side does not have, except of the last
/// one if that is stuck.
pub(crate) fn first_other_size<'a, R>(
    sends: R,
    receives: R,
    last: u64,
    is_stuck: bool,
) -> Option<(u64, [u64; 2])>
where
    R: IntoIterator<Item = &'a (u64, Option<u64>)> + Copy,
{
    let size = |runs: R, number: u64| {
        let before = runs.into_iter().take_while(|(first, _)| *first <= number);
        before.last().and_then(|(_, bytes)| *bytes)
    };
    let has = |runs: R, bytes: u64| runs.into_iter().any(|(_, of)| *of == Some(bytes));
    // A size changes where a run begins, and nowhere else.
    let starts = sends.into_iter().chain(receives).map(|(first, _)| *first);
    let numbers = starts.chain([last]).filter(|&number| number <= last);
    let unfit = numbers.filter_map(|number| {
        let (sent, received) = (size(sends, number)?, size(receives, number)?);
        let is_sure = number == last && is_stuck || !has(receives, sent) || !has(sends, received);
        (sent != received && is_sure).then_some((number, [sent, received]))
    });
    unfit.min()
}

fn call_mismatch(job: &Job, comm: &Communicator, index: u32) -> Option<Desync> {
    let by_calls = first_difference(comm).filter(|(at, groups)| !is_refuted(comm, *at, groups));
    let by_hash = first_hash_difference(comm);
    let (at, is_exact, mut groups) = match (by_calls, by_hash) {
        (Some((at, groups)), _) => (at, true, groups),
        (None, Some((at, groups))) => (at, false, groups),
        (None, None) => return None,
    };
    let mut unknown = join_by_hash(comm, at, &mut groups);
    unknown.retain(|&member| {
        let process = comm.vectors.get(member as usize).map(|vector| vector.process as usize);
        process.and_then(|at| job.processes.get(at)).is_some_and(|process| process.lacks_events)
    });
    groups.sort_by_key(|(members, _)| (members.len(), members.first().copied()));
    let (last, others) = groups.split_last()?;
    let second = others.last().map_or(0, |(members, _)| members.len());
    let is_tie = second == last.0.len();
    let may_turn = second + unknown.len() >= last.0.len();
    let wrong = if is_tie { &groups[..] } else { others };
    let mut accused: Vec<u32> = wrong.iter().flat_map(|(members, _)| members.clone()).collect();
    accused.sort_unstable();
    let unknown = if may_turn { unknown } else { Vec::new() };
    Some(Desync { comm: index, index: at, is_exact, groups, accused, unknown })
}

/// One member of each group of members, if their calls differ before the first known one, or may;
/// then those that are in no group yet, which may decide which group is the larger one.
pub(crate) fn needs_older(comm: &Communicator) -> Option<Vec<u32>> {
    let is_counted = comm.kind == CommKind::Collectives;
    if !is_counted || comm.vectors.iter().any(|vector| vector.is_captured) {
        return None;
    }
    let by_calls = first_difference(comm).filter(|(at, groups)| !is_refuted(comm, *at, groups));
    let by_hash = first_hash_difference(comm);
    // With the first of the known calls, those before it may differ, too.
    let is_first = |at: u64, groups: &CallGroups| {
        let calls = groups.iter().flat_map(|(members, _)| members);
        let mut first = calls.filter_map(|member| comm.calls.get(member)?.keys().next());
        at > 1 && first.any(|&first| first == at)
    };
    let (at, mut groups) = match (by_calls, by_hash) {
        (None, Some(by_hash)) => by_hash,
        (Some((at, _)), Some(by_hash)) if by_hash.0 < at => by_hash,
        (Some((at, groups)), _) if is_first(at, &groups) => (at, groups),
        _ => return None,
    };
    let firsts: Vec<u32> =
        groups.iter().filter_map(|(members, _)| members.first().copied()).collect();
    let others = join_by_hash(comm, at, &mut groups);
    Some(firsts.into_iter().chain(others).collect())
}

/// True if members that differ at call number `at` have the same hash over that and later calls:
/// they made the same calls, and one of them was numbered wrongly.
fn is_refuted(comm: &Communicator, at: u64, groups: &CallGroups) -> bool {
    // The hash is one over API calls, of which captured calls have other numbers.
    if comm.vectors.iter().any(|vector| vector.is_captured) {
        return false;
    }
    let group_of = group_of(groups);
    let mut known: HashMap<(u64, u64), usize> = HashMap::new();
    comm.hashes.iter().filter(|(_, count, _)| *count >= at).any(|&(member, count, hash)| {
        let Some(&group) = group_of.get(&member) else { return false };
        *known.entry((count, hash)).or_insert(group) != group
    })
}

/// The group of each member.
fn group_of(groups: &CallGroups) -> HashMap<u32, usize> {
    groups
        .iter()
        .zip(0..)
        .flat_map(|((members, _), group)| members.iter().map(move |&member| (member, group)))
        .collect()
}

/// Adds each member whose call number `at` is unknown to the group with whose members it shares the
/// hash over that and later calls. Returns the members that reached the call and match no group.
fn join_by_hash(comm: &Communicator, at: u64, groups: &mut CallGroups) -> Vec<u32> {
    let group_of = group_of(groups);
    let reach = |&&(_, count, _): &&(u32, u64, u64)| count >= at;
    let later = || comm.hashes.iter().filter(reach);
    let known = later().filter_map(|&(member, count, hash)| {
        group_of.get(&member).map(|&group| ((count, hash), group))
    });
    let known: HashMap<(u64, u64), usize> = known.collect();
    let mut joined: BTreeMap<u32, Option<usize>> = BTreeMap::new();
    for &(member, count, hash) in later().filter(|(member, ..)| !group_of.contains_key(member)) {
        let group = joined.entry(member).or_default();
        *group = group.or(known.get(&(count, hash)).copied());
    }
    let mut unknown = Vec::new();
    for (member, group) in joined {
        match group.and_then(|group| groups.get_mut(group)) {
            Some((members, _)) => members.push(member),
            None => unknown.push(member),
        }
    }
    groups.iter_mut().for_each(|(members, _)| members.sort_unstable());
    unknown
}

type CallGroups = Vec<(Vec<u32>, Option<Call>)>;

/// The arguments of calls that are compared: function, datatype, counts, root.
type CallKey<'a> = (&'a str, &'a str, Option<u64>, &'a [u64], Option<i32>);

fn call_key(call: &Call) -> CallKey<'_> {
    (&call.func, &call.datatype, call.count, &call.more_counts, call.root)
}

/// The first call that members made differently, of those whose numbers count the same.
fn first_difference(comm: &Communicator) -> Option<(u64, CallGroups)> {
    let is_captured =
        |member: u32| comm.vectors.get(member as usize).is_some_and(|vector| vector.is_captured);
    let of = |captured| difference_of(comm, move |member| is_captured(member) == captured);
    [of(false), of(true)].into_iter().flatten().min_by_key(|(at, _)| *at)
}

fn difference_of(
    comm: &Communicator,
    is_member: impl Fn(u32) -> bool,
) -> Option<(u64, CallGroups)> {
    let members = || comm.calls.iter().filter(|(member, _)| is_member(**member));
    let mut seen: BTreeMap<u64, (u32, &Call)> = BTreeMap::new();
    let mut first: Option<u64> = None;
    for (&member, calls) in members() {
        for (&at, call) in calls.range(..first.unwrap_or(u64::MAX)) {
            let (_, other) = seen.entry(at).or_insert((member, call));
            if call_key(other) != call_key(call) {
                first = Some(at);
                break;
            }
        }
    }
    let at = first?;
    let mut groups: Vec<(Vec<u32>, Option<Call>)> = Vec::new();
    for (&member, calls) in members() {
        let Some(call) = calls.get(&at) else { continue };
        let same = |(_, other): &&mut (Vec<u32>, Option<Call>)| {
            other.as_ref().is_some_and(|other| call_key(other) == call_key(call))
        };
        match groups.iter_mut().find(same) {
            Some((members, _)) => members.push(member),
            None => groups.push((vec![member], Some(Call::clone(call)))),
        }
    }
    Some((at, groups))
}

fn first_hash_difference(comm: &Communicator) -> Option<(u64, CallGroups)> {
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
    use crate::job::Process;
    use std::sync::Arc;

    fn call(func: &str, count: u64) -> Call {
        Call { func: func.into(), count: Some(count), ..Call::default() }
    }

    fn comm(calls: &[&[Call]]) -> Communicator {
        let vectors =
            calls.iter().map(|calls| Vector { enqueued: calls.len() as u64, ..Vector::default() });
        let numbered =
            |calls: &&[Call]| Arc::new((1..).zip(calls.iter().cloned().map(Arc::new)).collect());
        Communicator {
            vectors: vectors.collect(),
            calls: (0..).zip(calls.iter().map(numbered)).collect(),
            ..Communicator::default()
        }
    }

    const HANG_NS: u64 = 30;

    fn found(comm: Communicator) -> Vec<Desync> {
        find(&Job { comms: vec![comm], ..Job::default() }, HANG_NS)
    }

    #[test]
    fn the_smaller_part_is_accused_also_if_it_is_first_or_ahead() {
        let right = [call("AllReduce", 8), call("AllGather", 8)];
        let wrong = [call("AllReduce", 8), call("AllReduce", 8), call("AllGather", 8)];
        let desync = &found(comm(&[&wrong, &right, &right]))[0];
        assert_eq!((desync.index, desync.is_exact), (2, true));
        assert_eq!(desync.accused, [0]);
        // One member against one: there is no majority.
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

    /// The third member, the root of Broadcasts, is so far ahead that it shares no hash.
    #[test]
    fn a_member_of_no_group_is_read_too() {
        let of = |first: u64, name: &str| Arc::new([(first, Arc::new(call(name, 8)))].into());
        let mut comm = comm(&[&[], &[], &[]]);
        comm.calls = [(0, of(37, "Broadcast")), (1, of(37, "AllReduce"))].into();
        comm.calls.insert(2, of(437, "Broadcast"));
        comm.hashes = vec![(0, 64, 1), (1, 64, 2), (2, 448, 3)];
        assert_eq!(needs_older(&comm), Some(vec![0, 1, 2]));
        comm.hashes.push((2, 64, 1));
        assert_eq!(needs_older(&comm), Some(vec![0, 1]), "its group is known");
    }

    #[test]
    fn members_with_the_same_hash_made_the_same_calls() {
        let right = [call("AllReduce", 8), call("AllGather", 8)];
        let mut comm = comm(&[&right, &right, &right]);
        // The calls of the last member are numbered one too low.
        let shifted =
            right.iter().cloned().zip(0..).map(|(call, at)| (at, Arc::new(call))).collect();
        comm.calls.insert(2, Arc::new(shifted));
        assert_eq!(found(comm.clone())[0].accused, [2]);
        comm.hashes = vec![(0, 2, 7), (2, 2, 7)];
        assert_eq!(found(comm.clone()), []);
        // A hash over fewer calls says nothing of the difference.
        comm.hashes = vec![(0, 0, 7), (2, 0, 7)];
        assert_eq!(found(comm)[0].accused, [2]);
    }

    /// Two members replay a graph of the second call: their numbers count what NCCL enqueued, and
    /// NCCL reports nothing of the first call, a Broadcast.
    #[test]
    fn calls_that_are_numbered_otherwise_are_not_compared() {
        let api = [call("Broadcast", 8), call("AllReduce", 8), call("AllGather", 8)];
        let enqueued = [call("AllReduce", 8), call("AllReduce", 8), call("AllReduce", 8)];
        let mut comm = comm(&[&enqueued, &enqueued, &api]);
        comm.vectors[..2].iter_mut().for_each(|vector| vector.is_captured = true);
        assert_eq!(found(comm.clone()), []);
        comm.calls.insert(1, Arc::new((1..).zip(api[1..].iter().cloned().map(Arc::new)).collect()));
        assert_eq!((found(comm.clone())[0].index, &found(comm)[0].accused[..]), (2, &[0, 1][..]));
    }

    #[test]
    fn a_member_without_calls_belongs_to_those_that_have_its_hash() {
        let right = [call("AllReduce", 8), call("AllGather", 8)];
        let wrong = [call("AllReduce", 8), call("AllReduce", 8)];
        let mut comm = comm(&[&wrong, &right, &[], &[]]);
        comm.vectors.iter_mut().for_each(|vector| vector.enqueued = 2);
        comm.calls.retain(|_, calls| !calls.is_empty());
        comm.hashes = vec![(0, 2, 7), (1, 2, 8)];
        let found_with = |hashes: &[(u32, u64, u64)]| {
            let hashes = [&comm.hashes, hashes].concat();
            let processes = vec![Process { lacks_events: true, ..Process::default() }];
            let comms = vec![Communicator { hashes, ..comm.clone() }];
            let job = Job { processes, comms, ..Job::default() };
            let desync = find(&job, HANG_NS).remove(0);
            (desync.accused, desync.unknown)
        };
        assert_eq!(found_with(&[(2, 2, 8), (3, 2, 8)]), (vec![0], vec![]));
        // Two members against one: whatever the fourth called does not change the result, or makes
        // a tie.
        assert_eq!(found_with(&[(2, 2, 8)]), (vec![0], vec![]));
        assert_eq!(found_with(&[(2, 2, 8), (3, 3, 9)]), (vec![0], vec![3]));
        assert_eq!(found_with(&[(2, 3, 8), (3, 3, 8)]), (vec![0, 1], vec![2, 3]));
        assert_eq!(found_with(&[(2, 1, 1), (3, 1, 1)]), (vec![0, 1], vec![]), "not there yet");
    }

    #[test]
    fn a_receive_that_never_ends_and_is_larger_than_its_send_matches_nothing() {
        let sizes = |bytes| vec![(3, Some(bytes)), (4, Some(8))];
        let pair = |sent: u64, received: u64, age: u64| {
            let sender = Vector { enqueued: 4, done: 4, ..Vector::default() };
            let receiver =
                Vector { rank: 1, enqueued: 4, done: 2, age_ns: Some(age), ..Vector::default() };
            Communicator {
                kind: CommKind::Pair,
                vectors: vec![sender, receiver],
                sizes: [(0, sizes(sent)), (1, sizes(received))].into(),
                ..Communicator::default()
            }
        };
        let desync = &found(pair(100, 200, HANG_NS))[0];
        assert_eq!((desync.index, &desync.accused[..]), (3, &[0, 1][..]));
        assert_eq!(found(pair(100, 100, HANG_NS)), []);
        assert_eq!(found(pair(100, 200, HANG_NS - 1)), [], "it may still end");
    }

    /// When a receive waits, its own send has ended before, and the sender is many sends ahead.
    #[test]
    fn receives_that_ended_and_were_larger_than_their_sends_explain_a_later_one() {
        let found_with = |sends: &[(u64, Option<u64>)], receives: &[(u64, Option<u64>)]| {
            let age_ns = Some(HANG_NS);
            let sender = Vector { enqueued: 4096, done: 4095, age_ns, ..Vector::default() };
            let receiver = Vector { rank: 1, enqueued: 99, done: 98, age_ns, ..Vector::default() };
            found(Communicator {
                kind: CommKind::Pair,
                vectors: vec![sender, receiver],
                sizes: [(0, sends.to_vec()), (1, receives.to_vec())].into(),
                ..Communicator::default()
            })
        };
        let small = [(1, Some(8)), (21, Some(4))];
        let desync = &found_with(&small, &[(1, Some(8))])[0];
        assert_eq!((desync.index, &desync.accused[..]), (21, &[0, 1][..]));
        assert_eq!(found_with(&small, &[(1, Some(8)), (21, Some(4))]), []);
        let fits = [(1, Some(8)), (30, Some(16)), (31, Some(8))];
        assert_eq!(found_with(&[(1, Some(8))], &fits)[0].index, 30);
        // The numbers of one side may be off by one, except that the one that waits differs.
        let (one, other) = ([(1, Some(8)), (2, Some(4))], [(1, Some(4)), (2, Some(8))]);
        assert_eq!(found_with(&one, &other)[0].index, 99);
        let back = [(1, Some(4)), (2, Some(8)), (3, Some(4))];
        assert_eq!(found_with(&one, &back), []);
        // What comes after the one that waits, and what is not known, shows nothing.
        assert_eq!(found_with(&[(1, Some(8)), (100, Some(4))], &[(1, Some(8))]), []);
        assert_eq!(found_with(&[(200, Some(4))], &[(1, Some(8))]), []);
        assert_eq!(found_with(&[(1, Some(8)), (21, None)], &[(1, Some(8))]), []);
    }

    #[test]
    fn a_send_and_a_receive_that_ended_may_have_been_unfit() {
        let found_with = |received: u64, done: u64| {
            let vector = |rank| Vector { rank, enqueued: 9, done, ..Vector::default() };
            let sizes = |bytes| vec![(1, Some(8)), (5, Some(bytes))];
            let pair = Communicator {
                kind: CommKind::Pair,
                vectors: vec![vector(0), vector(1)],
                sizes: [(0, sizes(4)), (1, sizes(received))].into(),
                ..Communicator::default()
            };
            let job = Job { comms: vec![pair], ..Job::default() };
            assert_eq!(find(&job, HANG_NS), []);
            find_ended(&job).map(|desync| desync.index)
        };
        assert_eq!(found_with(2, 9), Some(5));
        assert_eq!(found_with(4, 9), None);
        assert_eq!(found_with(2, 4), None, "those have not ended");
    }
}
