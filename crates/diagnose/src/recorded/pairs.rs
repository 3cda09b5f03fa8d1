// SPDX-License-Identifier: Apache-2.0
//! The sends and receives between two ranks, as communicators of their own.

use crate::desync;
use crate::input::snapshot::{PairSide, PlacedMember};
use crate::job::{CommKind, Communicator, Job, Vector};
use crate::missing::SilentRanks;
use std::collections::{BTreeMap, HashMap};

/// Adds the pairs of ranks that have a send or receive in flight, or whose two sides differ.
pub(super) fn add(
    members: &[PlacedMember<'_>],
    parent: usize,
    silent: &SilentRanks,
    job: &mut Job,
) {
    // An all-to-all has n² pairs, too many for a search among all members for each.
    let mut by_rank: HashMap<u32, &PlacedMember<'_>> = HashMap::new();
    for placed in members {
        by_rank.entry(placed.1.rank).or_insert(placed);
    }
    for ((src, dst), sides) in pairs(members) {
        if !is_open_or_differs(sides) {
            continue;
        }
        let known = |rank: u32| by_rank.get(&rank).copied();
        let counts = [src, dst].iter().all(|&rank| known(rank).is_none_or(|m| m.1.counts_pairs));
        let in_job = |rank: u32| {
            let process = known(rank).map(|m| m.0).or_else(|| silent.get(&(parent, rank)).copied());
            process.and_then(|process| job.known_rank(process))
        };
        let name = match (in_job(src), in_job(dst)) {
            (Some(src), Some(dst)) => format!("rank {src} to rank {dst} of"),
            _ => format!("its rank {src} to its rank {dst} of"),
        };
        let mut comm = Communicator {
            name: format!("{name} {}", job.comms[parent].name),
            role: job.comms[parent].role.clone(),
            kind: if counts { CommKind::Pair } else { CommKind::Sequence },
            parent: u32::try_from(parent).ok(),
            nranks: 2,
            vectors: Vec::with_capacity(2),
            ..Communicator::default()
        };
        for (rank, side) in [src, dst].into_iter().zip(sides) {
            let Some(placed) = known(rank) else {
                comm.silent.extend(silent.get(&(parent, rank)));
                continue;
            };
            let side = side.cloned().unwrap_or_default();
            let at = u32::try_from(comm.vectors.len()).unwrap_or(u32::MAX);
            comm.vectors.push(vector(placed, &side, counts));
            comm.flights.insert(at, side.flight);
            comm.sizes.insert(at, side.sizes.into());
        }
        job.comms.push(comm);
    }
}

/// The two sides of each pair (sender, receiver), that of the sender first.
fn pairs<'a>(members: &'a [PlacedMember<'a>]) -> BTreeMap<(u32, u32), [Option<&'a PairSide>; 2]> {
    let mut pairs: BTreeMap<(u32, u32), [Option<&PairSide>; 2]> = BTreeMap::new();
    for (_, member, _) in members {
        for (&(is_send, peer), side) in &member.pairs {
            let key = if is_send { (member.rank, peer) } else { (peer, member.rank) };
            pairs.entry(key).or_default()[usize::from(!is_send)] = Some(side);
        }
    }
    pairs
}

/// True if a side has something in flight, or the two sides differ.
fn is_open_or_differs(sides: [Option<&PairSide>; 2]) -> bool {
    let [sent, received] = sides.map(|side| side.map_or(0, |side| side.issued));
    let is_open = sides.iter().flatten().any(|side| side.open > 0);
    let is_other_size = || match sides {
        [Some(sent), Some(received)] => {
            let last = sent.done.min(received.done);
            desync::first_other_size(&sent.sizes, &received.sizes, last, false).is_some()
        }
        _ => false,
    };
    is_open || sent != received || is_other_size()
}

/// The progress of one side. Only one operation in flight is known unless all are counted.
fn vector(&(process, member, now): &PlacedMember<'_>, side: &PairSide, counts: bool) -> Vector {
    let (enqueued, done) = if counts { (side.issued, side.done) } else { (side.open.min(1), 0) };
    let runs = side.flight.kernel.is_some_and(|(_, started, _)| started > 0);
    let ago = |since: Option<u64>| since.map(|since| now.saturating_sub(since));
    Vector {
        process,
        rank: member.rank,
        api: enqueued,
        enqueued,
        started: member.sees_kernels.then_some(done + u64::from(runs)),
        done,
        age_ns: ago(side.since_ns),
        born_ns: ago(side.born_ns),
        changed_ns: Some(member.change_ns),
        is_blind: side.is_unseen,
        p2p_number: side.number,
        ..Vector::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::snapshot::Member;
    use crate::job::Process;
    use crate::missing::add_silent;
    use crate::recorded::add_group;

    /// A search among all members for the sides of each pair would take seconds here, and minutes
    /// in an all-to-all of thousands of ranks. The last member is missing.
    #[test]
    fn each_send_in_flight_of_a_large_ring_is_a_pair() {
        let ranks = 30_000;
        let member = |rank: u32| {
            let side = PairSide { issued: 1, open: 1, ..PairSide::default() };
            let pairs = [((true, (rank + 1) % ranks), side)].into();
            Member { nranks: ranks, rank, pairs, counts_pairs: true, ..Member::default() }
        };
        let members: Vec<Member> = (0..ranks - 1).map(member).collect();
        let placed: Vec<PlacedMember<'_>> =
            members.iter().zip(0..).map(|(member, process)| (process, member, 900)).collect();
        let process = |rank| Process { rank: Some(rank), ..Process::default() };
        let mut job = Job { processes: (0..ranks - 1).map(process).collect(), ..Job::default() };
        add_group(&placed, &mut job);
        let silent = add_silent(&mut job, &SilentRanks::new());
        add(&placed, 0, &silent, &mut job);
        assert_eq!(job.comms.len(), ranks as usize);
        let sides = |comm: &Communicator| {
            let ranks: Vec<u32> = comm.vectors.iter().map(|vector| vector.rank).collect();
            (ranks, comm.silent.clone())
        };
        assert_eq!(sides(&job.comms[1]), (vec![0, 1], vec![]));
        let last = &job.comms[ranks as usize - 1];
        assert_eq!(sides(last), (vec![ranks - 2], vec![ranks - 1]));
        assert!(last.name.starts_with("rank 29998 to rank 29999 of"), "{}", last.name);
    }
}
