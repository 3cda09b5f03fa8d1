// SPDX-License-Identifier: Apache-2.0
/*!
Which ranks wait for which in collectives, from the mean durations of the members alone.

The members of a communicator leave a collective together, so that the member with the shortest mean
duration comes last, and the others wait for it. The additional time of the other members is
waiting. The time by which even the last but one is longer is what all of them lose to the last: two
ranks that are equally late cost nothing alone. Lateness that goes from rank to rank cancels out in
the means: only a rank that is late repeatedly shows, which is what a live view needs. `ncclscope
stragglers` compares single operations. Communicators without a known hash are left out, because
several of them look like one.
*/

use crate::work::{Function, FunctionKey, Work};
use std::collections::BTreeMap;

/// What the durations of operations show about a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Wait {
    /// Share of time in which the rank waits for others; `None` if unknown.
    pub(crate) share: Option<f64>,
    /// Share of time in which all others of a communicator wait for the rank; the largest of its
    /// communicators, because what it is late in one it is also late in the next.
    pub(crate) caused: f64,
}

impl Wait {
    /// What the rank itself costs the others, as a share of time: for as long as it waits, it is
    /// late because another rank is. `None` if unknown.
    pub(crate) fn cost(&self) -> Option<f64> {
        self.share.map(|share| self.caused - share)
    }
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
    let mut caused: BTreeMap<(usize, u64), f64> = BTreeMap::new();
    for (key, members) in groups {
        let mut means: Vec<(usize, f64, f64)> = members
            .iter()
            .filter_map(|(at, function)| Some((*at, function.duration()?, function.timed)))
            .collect();
        means.sort_by(|a, b| a.1.total_cmp(&b.1));
        let [(last, least, count), others @ ..] = &means[..] else { continue };
        let Some((_, second, _)) = others.first() else { continue };
        *caused.entry((*last, key.comm.hash)).or_default() += (second - least) * count / span_s;
        for (at, mean, count) in &means {
            let share = &mut waits[*at].share;
            *share = Some(share.unwrap_or(0.0) + (mean - least) * count / span_s);
        }
    }
    for ((at, _), share) in caused {
        waits[at].caused = waits[at].caused.max(share);
    }
    waits
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

    /// Waits of works on the communicators 1 (of pairs) and 2 (of pairs of pairs).
    fn nested(seconds: [[f64; 2]; 4]) -> Vec<Wait> {
        let works = (0..).zip(seconds).map(|(at, [inner, outer])| {
            let mut work = work_of(10 + at / 2, inner);
            work.add(&work_of(20 + at % 2, outer));
            work
        });
        of(&works.collect::<Vec<_>>(), 2.0)
    }

    #[test]
    fn the_rank_that_comes_last_is_the_one_that_others_wait_for() {
        let waits = waits(&[1.1, 1.1, 0.2, 1.0]);
        let share = |at: usize| waits[at].share.unwrap();
        assert!((share(0) - 0.45).abs() < 1e-9 && share(2) == 0.0);
        let costs: Vec<f64> = waits.iter().filter_map(Wait::cost).collect();
        let is_late: Vec<bool> = costs.iter().map(|cost| *cost > 0.0).collect();
        assert_eq!(is_late, [false, false, true, false]);
        assert!((costs[2] - 0.4).abs() < 1e-9, "what all lose: {costs:?}");
    }

    #[test]
    fn lateness_reaches_further_communicators_and_counts_once() {
        // Rank 0 is late by 0.4 s, so that rank 1 waits, and both come last to the outer ones.
        let waits = nested([[0.1, 0.1], [0.5, 0.1], [0.1, 0.5], [0.1, 0.5]]);
        let costs: Vec<f64> = waits.iter().filter_map(Wait::cost).collect();
        let wanted = [0.2, 0.0, -0.2, -0.2];
        assert!(costs.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9), "{costs:?}");
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
