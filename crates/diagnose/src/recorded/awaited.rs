// SPDX-License-Identifier: Apache-2.0
//! Since when processes wait for other processes.

use super::calls;
use crate::input::snapshot::{Member, PlacedMember};
use std::collections::{BTreeMap, HashMap};

/// Since when other processes wait for a process, ns by their own clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    pub(super) since_ns: u64,
    /// Since when processes on its own host wait for it, whose clock is the same.
    pub(super) on_host_ns: Option<u64>,
}

impl Awaited {
    fn note(&mut self, since: u64, is_on_host: bool) {
        self.since_ns = since.min(self.since_ns);
        if is_on_host {
            self.on_host_ns = Some(self.on_host_ns.map_or(since, |known| known.min(since)));
        }
    }
}

/// Since when other processes wait for each process. `machines` and `closed` are indexed by
/// position in the job; `closed` is the time at which a process ended in order.
pub(super) fn awaited<'a>(
    groups: impl Iterator<Item = &'a Vec<PlacedMember<'a>>>,
    machines: &[&str],
    closed: &[Option<u64>],
) -> HashMap<u32, Awaited> {
    let mut awaited: HashMap<u32, Awaited> = HashMap::new();
    let mut note = |process: u32, since: u64, is_on_host: bool| {
        let unknown = Awaited { since_ns: since, on_host_ns: None };
        awaited.entry(process).or_insert(unknown).note(since, is_on_host);
    };
    let machine = |process: u32| machines.get(process as usize).copied().unwrap_or_default();
    for members in groups {
        let everywhere = since_by_front(members.iter());
        let mut on_hosts: HashMap<&str, Vec<&PlacedMember<'_>>> = HashMap::new();
        for placed in members {
            on_hosts.entry(machine(placed.0)).or_default().push(placed);
        }
        let on_hosts: HashMap<&str, BTreeMap<u64, u64>> = on_hosts
            .into_iter()
            .map(|(host, members)| (host, since_by_front(members.into_iter())))
            .collect();
        let by_rank: HashMap<u32, &PlacedMember<'_>> =
            members.iter().map(|placed| (placed.1.rank, placed)).collect();
        for (process, since) in left_behind(members, closed) {
            note(process, since, true);
        }
        for &(process, member, _) in members {
            let later = member.entered().saturating_add(1)..;
            if let Some((_, &since)) = everywhere.range(later.clone()).next() {
                note(process, since, false);
            }
            let on_host = on_hosts.get(machine(process)).and_then(|all| all.range(later).next());
            if let Some((_, &since)) = on_host {
                note(process, since, true);
            }
            let is_neighbour = |other: u32| machine(other) == machine(process);
            if let Some(call) = member.connects_p2p {
                calls::awaited(member, members)
                    .for_each(|other| note(other.0, call.since_ns, is_neighbour(other.0)));
            }
            for (&(is_send, peer), side) in &member.pairs {
                let (Some(other), Some(since)) = (by_rank.get(&peer), side.since_ns) else {
                    continue;
                };
                let theirs = other.1.pairs.get(&(!is_send, member.rank));
                if theirs.map_or(0, |theirs| theirs.issued) < side.issued {
                    note(other.0, since, is_neighbour(other.0));
                }
            }
        }
    }
    awaited
}

/// Members that ended in order inside an operation that all members had entered, with the time:
/// from then on the others wait for these members and no others.
fn left_behind(members: &[PlacedMember<'_>], closed: &[Option<u64>]) -> Vec<(u32, u64)> {
    let Some((_, first, _)) = members.first() else { return Vec::new() };
    let entered = members.iter().map(|(_, member, _)| member.entered()).min().unwrap_or(0);
    let is_in = |member: &Member| member.is_inside() && member.done < entered;
    let is_left = |&(process, ..): &&PlacedMember<'_>| {
        closed.get(*process as usize).is_none_or(Option::is_none)
    };
    if members.len() != first.nranks as usize
        || !members.iter().filter(is_left).any(|(_, member, _)| is_in(member))
    {
        return Vec::new();
    }
    let ended = |&(process, member, _): &PlacedMember<'_>| {
        let end = closed.get(process as usize).copied().flatten();
        end.filter(|_| is_in(member)).map(|end| (process, end))
    };
    members.iter().filter_map(ended).collect()
}

/// For each operation: since when some member has waited in it or in a later one, ns.
fn since_by_front<'a>(members: impl Iterator<Item = &'a PlacedMember<'a>>) -> BTreeMap<u64, u64> {
    let mut by_front: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, member, _) in members.filter(|(_, member, _)| member.is_inside()) {
        if let Some(since) = member.since_ns {
            let oldest = by_front.entry(member.done + 1).or_insert(since);
            *oldest = since.min(*oldest);
        }
    }
    let mut oldest = u64::MAX;
    for since in by_front.values_mut().rev() {
        oldest = oldest.min(*since);
        *since = oldest;
    }
    by_front
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The members of a communicator of three ranks, which have entered these numbers of
    /// operations; all have completed 24.
    fn members(entered: &[u64]) -> Vec<Member> {
        let member = |(&enqueued, rank): (&u64, u32)| Member {
            nranks: 3,
            rank,
            enqueued,
            done: 24,
            ..Member::default()
        };
        entered.iter().zip(0..).map(member).collect()
    }

    #[test]
    fn a_rank_that_ended_in_an_operation_that_all_had_entered_is_waited_for() {
        let found = |entered: &[u64], closed: &[Option<u64>]| {
            let members = members(entered);
            let placed: Vec<PlacedMember<'_>> =
                members.iter().zip(0..).map(|(member, process)| (process, member, 900)).collect();
            left_behind(&placed, closed)
        };
        let ended = [None, Some(100), None];
        assert_eq!(found(&[26, 25, 25], &ended), [(1, 100)]);
        assert_eq!(found(&[26, 24, 25], &ended), [], "it had not entered the operation");
        assert_eq!(found(&[26, 25, 24], &ended), [], "another had not");
        assert_eq!(found(&[26, 25], &ended), [], "another is not recorded");
        assert_eq!(found(&[26, 25, 25], &[Some(90), Some(100), Some(95)]), [], "all ended");
    }
}
