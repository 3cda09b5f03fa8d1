// SPDX-License-Identifier: Apache-2.0
//! Processes with several ranks: JAX runs eight GPUs in one process. Each rank counts as a process
//! of its own, because one of them may wait for another.

use crate::input::snapshot::{Member, Snapshot};
use ncclscope_trace::local_ranks::{LocalMember, local_ranks};
use std::collections::BTreeMap;

/// Splits a process into one snapshot per rank. The recording does not say to which rank a thread
/// or the call that has not returned belongs, so that none of several ranks gets them. A rank's
/// times are those of its communicators, and it gets the reports of the process's watchdog only if
/// that reports one of them.
pub(super) fn split(snapshot: Snapshot) -> Vec<Snapshot> {
    let places = snapshot.comms.iter().map(|member| LocalMember {
        hash: member.hash,
        name: &member.name,
        rank: member.rank.cast_signed(),
        nranks: member.nranks,
        device: member.device,
    });
    let Some(numbers) = local_ranks(&places.collect::<Vec<_>>()) else { return vec![snapshot] };
    let Snapshot { comms, .. } = snapshot;
    let whole =
        Snapshot { comms: Vec::new(), entered: None, setup: None, threads: Vec::new(), ..snapshot };
    let mut ranks: BTreeMap<u32, Vec<Member>> = BTreeMap::new();
    for (number, member) in numbers.into_iter().zip(comms) {
        ranks.entry(number).or_default().push(member);
    }
    let one = |members: Vec<Member>| {
        let world = members.iter().max_by_key(|member| member.nranks);
        let rank = world.map_or(whole.rank, |member| member.rank);
        let latest = |of: fn(&Member) -> u64| members.iter().map(of).max().unwrap_or(0);
        let (change_ns, last_call_ns) =
            (latest(|member| member.change_ns), latest(|member| member.last_call_ns));
        let (reports, reported_ns) = match members.iter().any(|member| member.is_reported) {
            true => (whole.reports.clone(), whole.reported_ns),
            false => (Vec::new(), 0),
        };
        let whole = whole.clone();
        Snapshot { rank, change_ns, last_call_ns, reports, reported_ns, comms: members, ..whole }
    };
    ranks.into_values().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(hash: u64, rank: u32, nranks: u32, device: Option<u32>) -> Member {
        Member { hash, rank, nranks, device, ..Member::default() }
    }

    fn ranks(comms: Vec<Member>) -> Vec<(u32, Vec<u64>)> {
        let all = split(Snapshot { comms, rank: 9, ..Snapshot::default() });
        let hashes = |one: &Snapshot| one.comms.iter().map(|member| member.hash).collect();
        all.iter().map(|one| (one.rank, hashes(one))).collect()
    }

    /// Rank 4 waits since 10 ns and its watchdog reports it; rank 5 called last at 90 ns.
    #[test]
    fn each_rank_has_the_times_and_reports_of_its_own_communicators() {
        let at = |device, rank, ns, is_reported| {
            let times = Member {
                change_ns: ns,
                last_call_ns: ns,
                is_reported,
                ..member(1, rank, 8, Some(device))
            };
            [times, member(2, 0, 2, Some(device))]
        };
        let comms = at(0, 4, 10, true).into_iter().chain(at(1, 5, 90, false)).collect();
        let reports = vec!["HANG".to_owned()];
        let whole = Snapshot {
            change_ns: 90,
            last_call_ns: 90,
            reports,
            reported_ns: 80,
            comms,
            ..Snapshot::default()
        };
        let of = |one: &Snapshot| {
            (one.rank, one.change_ns, one.last_call_ns, one.reports.len(), one.reported_ns)
        };
        let found: Vec<_> = split(whole).iter().map(of).collect();
        assert_eq!(found, [(4, 10, 10, 1, 80), (5, 90, 90, 0, 0)]);
    }

    #[test]
    fn each_rank_has_its_own_communicators() {
        let known =
            |device| [member(1, 4 + device, 8, Some(device)), member(2, 0, 2, Some(device))];
        let two = known(0).into_iter().chain(known(1)).collect();
        assert_eq!(ranks(two), [(4, vec![1, 2]), (5, vec![1, 2])]);
        let unknown = vec![member(1, 2, 4, None), member(1, 3, 4, None)];
        assert_eq!(ranks(unknown), [(2, vec![1]), (3, vec![1])]);
        let one = vec![member(1, 4, 8, Some(0)), member(2, 0, 2, Some(0))];
        assert_eq!(ranks(one), [(9, vec![1, 2])], "a process of one rank keeps its own");
    }
}
