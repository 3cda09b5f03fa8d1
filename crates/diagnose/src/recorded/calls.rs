// SPDX-License-Identifier: Apache-2.0
/*!
Calls in which NCCL connects to other ranks for sends and receives, before it launches anything.

NCCL reports the function of such a call, but not its peer. It connects once for each peer and
direction, so the peer cannot be one with which the rank has already done the same.
*/

use crate::input::snapshot::{Member, P2pCall, PlacedMember};
use crate::job::{Call, CommKind, Communicator, InFlightOp, Job, Vector};
use std::cell::OnceCell;
use std::collections::HashSet;

/// The members for which a member that is connecting may wait.
pub(super) fn awaited<'a>(
    member: &'a Member,
    members: &'a [PlacedMember<'a>],
) -> impl Iterator<Item = &'a PlacedMember<'a>> {
    members.iter().filter(move |(_, other, _)| may_await(member, other.rank))
}

fn may_await(member: &Member, rank: u32) -> bool {
    let call = member.connects_p2p.unwrap_or_default();
    let is_new = |is_send| !member.pairs.contains_key(&(is_send, rank));
    let new = call.has_sends && is_new(true) || call.has_receives && is_new(false);
    new && rank != member.rank
}

/// Adds the calls of a communicator's members, each with the members for which it may wait.
pub(super) fn add(members: &[PlacedMember<'_>], parent: usize, job: &mut Job) {
    let in_call = |placed: &&PlacedMember<'_>| placed.1.connects_p2p.is_some();
    let there: HashSet<u32> = members.iter().map(|(_, member, _)| member.rank).collect();
    // Found once, because all members may be in a call.
    let missing = OnceCell::new();
    for &(process, member, now) in members.iter().filter(in_call) {
        let group = &job.comms[parent];
        let missing: &Vec<u32> = missing
            .get_or_init(|| (0..group.nranks).filter(|rank| !there.contains(rank)).collect());
        let is_silent = missing.iter().any(|&rank| may_await(member, rank));
        let others: Vec<Vector> = awaited(member, members)
            .map(|&(process, other, _)| Vector { process, rank: other.rank, ..Vector::default() })
            .collect();
        if others.is_empty() && !is_silent {
            continue;
        }
        let call = member.connects_p2p.unwrap_or_default();
        let before = member.pairs.values().map(|side| side.issued).sum();
        let age_ns = Some(now.saturating_sub(call.since_ns));
        let own = Vector { process, rank: member.rank, age_ns, ..Vector::default() };
        let p2p_number = member.p2p_enqueued.map(|latest| latest + 1);
        let own = Vector { born_ns: age_ns, connects: true, enqueued: before, done: before, ..own };
        let own = Vector { p2p_number, ..own };
        let flight = InFlightOp { call: text(call), ..InFlightOp::default() };
        job.comms.push(Communicator {
            name: group.name.clone(),
            comm_name: group.comm_name.clone(),
            role: group.role.clone(),
            kind: CommKind::Call,
            nranks: group.nranks,
            vectors: std::iter::once(own).chain(others).collect(),
            silent: if is_silent { group.silent.clone() } else { Vec::new() },
            flights: [(0, flight)].into(),
            ..Communicator::default()
        });
    }
}

fn text(call: P2pCall) -> Call {
    let func = match (call.has_sends, call.has_receives) {
        (true, false) => "Send",
        (false, true) => "Recv",
        _ => "Send and Recv",
    };
    Call { func: func.into(), ..Call::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A search among all members for each rank that a call may wait for would take a minute.
    #[test]
    fn calls_of_many_members_wait_for_a_missing_one_that_is_new_to_them() {
        let ranks = 3_000;
        let member = |rank: u32| {
            let call = P2pCall { has_sends: rank == 1, ..P2pCall::default() };
            let pairs = (0..ranks).filter(|_| rank == 1).map(|peer| (true, peer));
            let pairs = pairs.map(|key| (key, Default::default())).collect();
            Member { rank, pairs, connects_p2p: Some(call), ..Member::default() }
        };
        let mut members: Vec<Member> = (0..ranks).map(member).collect();
        let silent = vec![ranks - 1];
        let group = Communicator { nranks: ranks, silent, ..Communicator::default() };
        let mut job = Job { comms: vec![group], ..Job::default() };
        let placed = |members: &'_ [Member], job: &mut Job| {
            let placed: Vec<PlacedMember<'_>> = members.iter().map(|it| (it.rank, it, 9)).collect();
            add(&placed, 0, job);
        };
        placed(&members, &mut job);
        assert_eq!(job.comms.len(), 1, "no call waits for any");
        members[1].pairs.remove(&(true, ranks - 1));
        members.pop();
        placed(&members, &mut job);
        assert_eq!((job.comms.len(), job.comms[1].vectors.len()), (2, 1));
        assert_eq!(job.comms[1].silent, [ranks - 1]);
    }
}
