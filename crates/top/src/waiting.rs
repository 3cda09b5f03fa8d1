// SPDX-License-Identifier: Apache-2.0
/*!
Which ranks wait for which in collectives, from the mean durations of the members alone.

The members of a communicator leave a collective together, so that the member with the shortest mean
duration comes last, and the others wait for it. The additional time of the other members is
waiting. Lateness that goes from rank to rank cancels out in the means: only a rank that is late
repeatedly shows, which is what a live view needs. `ncclscope stragglers` compares single
operations. Communicators without a known hash are left out, because several of them look like one.

A rank that comes last may be late because it waited itself, in another communicator. So members are
compared by all that they wait in collectives: a rank that passes lateness on has waited as long as
those that wait for it. Waits for messages are not known, so that ranks of a pipeline stage pass
lateness on as if it was their own; but most of them do so alike.
*/

use crate::work::{Function, FunctionKey, Work};
use ncclscope_statistics::median_of_others;
use std::collections::{BTreeMap, BTreeSet};

/// What the durations of operations show about a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Wait {
    /// Share of time in which the rank waits for others; `None` if unknown.
    pub(crate) share: Option<f64>,
    /// Share of time in which all others of a communicator wait for this rank's own lateness.
    pub(crate) caused: f64,
}

/// The waits of the ranks of a job, in a span of `span_s` seconds. A share may exceed 1 if
/// operations began before the span.
pub(crate) fn of<'w>(works: impl IntoIterator<Item = &'w Work>, span_s: f64) -> Vec<Wait> {
    let mut groups: BTreeMap<&FunctionKey, Vec<(usize, &Function)>> = BTreeMap::new();
    let mut waits = Vec::new();
    for work in works {
        let collectives = work.functions.iter().filter(|(key, _)| !key.is_p2p);
        for (key, function) in collectives.filter(|(key, _)| key.comm.hash != 0) {
            groups.entry(key).or_default().push((waits.len(), function));
        }
        waits.push(Wait::default());
    }
    if span_s <= 0.0 {
        return waits;
    }
    // What each rank waits where the waits of all members are known.
    let mut known = vec![0.0; waits.len()];
    let mut comms: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for (key, members) in groups {
        let means = members.iter().filter_map(|(at, of)| Some((*at, of.duration()?, of.timed)));
        let means: Vec<(usize, f64, f64)> = means.collect();
        if means.len() < 2 {
            continue;
        }
        let is_whole = means.len() == members.len();
        let least = means.iter().map(|(_, mean, _)| *mean).fold(f64::INFINITY, f64::min);
        for (at, mean, count) in means {
            let waited = (mean - least) * count / span_s;
            let share = &mut waits[at].share;
            *share = Some(share.unwrap_or(0.0) + waited);
            if is_whole {
                known[at] += waited;
                comms.entry(key.comm.hash).or_default().insert(at);
            }
        }
    }
    let comms: Vec<BTreeSet<usize>> = comms.into_values().collect();
    for (wait, caused) in waits.iter_mut().zip(alone(&comms, &known)) {
        wait.caused = caused;
    }
    waits
}

/// By how much each rank is later than all other members of one of its communicators, less what
/// the usual other member of a communicator is late: what ranks have in common, none of them costs
/// alone.
fn alone(comms: &[BTreeSet<usize>], waited: &[f64]) -> Vec<f64> {
    let mut late: Vec<f64> = vec![0.0; waited.len()];
    let mut usual = late.clone();
    for (members, sorted) in comms.iter().map(|members| (members, sorted(members, waited))) {
        let [least, second, ..] = sorted[..] else { continue };
        for &at in members {
            let of_others = if waited[at] > least { least } else { second };
            late[at] = late[at].max(of_others - waited[at]);
        }
    }
    for (members, sorted) in comms.iter().map(|members| (members, sorted(members, &late))) {
        for &at in members.iter().filter(|_| sorted.len() > 1) {
            usual[at] = usual[at].max(median_of_others(&sorted, late[at]));
        }
    }
    late.iter().zip(usual).map(|(late, usual)| (late - usual).max(0.0)).collect()
}

fn sorted(members: &BTreeSet<usize>, values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = members.iter().map(|&at| values[at]).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Comm;

    fn work_of(hash: u64, seconds: f64) -> Work {
        let comm = Comm::new(hash, "dp");
        let key = FunctionKey { comm, func: "AllReduce".into(), is_p2p: false };
        let function = Function { count: 10.0, timed: 10.0, seconds, ..Function::default() };
        Work { functions: [(key, function)].into(), ..Work::default() }
    }

    fn waits(seconds: &[f64]) -> Vec<Wait> {
        of(&seconds.iter().map(|seconds| work_of(7, *seconds)).collect::<Vec<_>>(), 2.0)
    }

    /// Ranks 0 and 1, and 2 and 3, are in an inner communicator; 0 and 2, and 1 and 3, in an outer.
    fn nested(seconds: [[f64; 2]; 4]) -> Vec<Work> {
        let work = |(at, [inner, outer]): (u64, [f64; 2])| {
            let mut work = work_of(10 + at / 2, inner);
            work.add(&work_of(20 + at % 2, outer));
            work
        };
        (0..).zip(seconds).map(work).collect()
    }

    fn caused(works: &[Work]) -> Vec<f64> {
        of(works, 2.0).iter().map(|wait| (1e3 * wait.caused).round() / 1e3).collect()
    }

    #[test]
    fn the_rank_that_comes_last_is_the_one_that_others_wait_for() {
        let waits = waits(&[1.1, 1.1, 0.2, 1.0]);
        let share = |at: usize| waits[at].share.unwrap();
        assert!((share(0) - 0.45).abs() < 1e-9 && share(2) == 0.0);
        let is_late: Vec<bool> = waits.iter().map(|wait| wait.caused > 0.0).collect();
        assert_eq!(is_late, [false, false, true, false]);
        assert!((waits[2].caused - 0.4).abs() < 1e-9, "what all lose: {waits:?}");
    }

    #[test]
    fn lateness_reaches_further_communicators_and_counts_once() {
        // Rank 0 is late by 0.4 s, so that rank 1 waits, and both come last to the outer ones.
        let mut works = nested([[0.1, 0.1], [0.5, 0.1], [0.1, 0.5], [0.1, 0.5]]);
        assert_eq!(caused(&works), [0.2, 0.0, 0.0, 0.0]);
        // Both are late because both waited for messages.
        works = nested([[0.1, 0.1], [0.1, 0.1], [0.1, 0.5], [0.1, 0.5]]);
        assert_eq!(caused(&works), [0.0; 4]);
    }

    /// 16 ranks, as simulated with a slow GPU: stages 0 and 1, replicas 0 and 1, 4 tensor ranks.
    #[test]
    fn of_a_replica_that_is_late_only_the_cause_is_named() {
        let work = |at: u64| {
            let (tensor, replica, stage) = (at / 4, at / 4 % 2, at / 8);
            let mut work = work_of(10 + tensor, if tensor == 2 && at != 10 { 0.5 } else { 0.1 });
            work.add(&work_of(20 + 4 * stage + at % 4, if replica == 1 { 0.5 } else { 0.1 }));
            work
        };
        let mut wanted = [0.0; 16];
        wanted[10] = 0.2;
        assert_eq!(caused(&(0..16).map(work).collect::<Vec<_>>()), wanted);
    }

    #[test]
    fn operations_of_unknown_communicators_are_not_compared() {
        let works = [work_of(0, 1.1), work_of(0, 0.1), work_of(0, 1.0)];
        assert_eq!(of(&works, 2.0), [Wait::default(); 3]);
    }

    #[test]
    fn common_lateness_costs_nothing_alone() {
        let two = waits(&[0.2, 0.2, 1.4, 1.5]);
        assert!(two.iter().all(|wait| wait.caused == 0.0), "two come last: {two:?}");
        assert_eq!(waits(&[1.0]), [Wait::default()], "nothing to compare with");
        assert_eq!(of(&[work_of(7, 1.0), work_of(7, 0.1)], 0.0), [Wait::default(); 2]);
    }
}
