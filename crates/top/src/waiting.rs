// SPDX-License-Identifier: Apache-2.0
/*!
Which ranks wait for which in collectives, from the mean durations of the members alone.

The members of a communicator leave a collective together, so that the member with the shortest mean
duration comes last, and the others wait for it. The additional time of the other members is
waiting. Lateness that goes from rank to rank cancels out in the means: only a rank that is late
repeatedly shows, which is what a live view needs. `ncclscope stragglers` compares single
operations. Communicators without a known hash are left out, because several of them look like one.
*/

use crate::reading::Rank;
use crate::work::{Function, FunctionKey};
use std::collections::BTreeMap;

/// Minimum share of time that the others must lose to a rank for it to be a straggler.
const SLOW: f64 = 0.1;
/// Fewer operations prove nothing.
const ENOUGH: f64 = 3.0;
/// Minimum distance of the last member from the last but one, relative to the spread of the others.
const APART: f64 = 0.5;

/// What the durations of operations show about a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Wait {
    /// Share of time in which the rank waits for others; `None` if unknown.
    pub(crate) share: Option<f64>,
    /// Share of time that the others lose to this rank.
    pub(crate) caused: f64,
}

impl Wait {
    /// True if the rank is a straggler.
    pub(crate) fn is_slow(&self) -> bool {
        self.caused >= SLOW
    }
}

/// The waits of each rank, in a span of `span_s` seconds.
pub(crate) fn of(ranks: &[Rank], span_s: f64) -> Vec<Wait> {
    let mut waits = vec![Wait::default(); ranks.len()];
    if span_s <= 0.0 {
        return waits;
    }
    let mut groups: BTreeMap<(&str, &FunctionKey), Vec<(usize, &Function)>> = BTreeMap::new();
    for (at, rank) in ranks.iter().enumerate() {
        let collectives = rank.work.functions.iter().filter(|(key, _)| !key.is_p2p);
        for (key, function) in collectives.filter(|(key, _)| key.comm.hash != 0) {
            groups.entry((&rank.job, key)).or_default().push((at, function));
        }
    }
    for members in groups.values() {
        let mut means: Vec<(usize, f64, f64)> = members
            .iter()
            .filter_map(|(at, function)| Some((*at, function.duration()?, function.timed)))
            .collect();
        means.sort_by(|a, b| a.1.total_cmp(&b.1));
        add_group(&mut waits, &means, span_s);
    }
    waits
}

/// Adds the waits of the members of a communicator, given their mean durations, the shortest first.
fn add_group(waits: &mut [Wait], means: &[(usize, f64, f64)], span_s: f64) {
    let [(last, least, count), others @ ..] = means else { return };
    let Some((_, second, _)) = others.first() else { return };
    for (at, mean, count) in means {
        let Some(wait) = waits.get_mut(*at) else { continue };
        let share = wait.share.unwrap_or(0.0) + (mean - least) * count / span_s;
        wait.share = Some(share.min(1.0));
    }
    let Some((_, median, _)) = others.get(others.len() / 2) else { return };
    let is_apart = second - least >= APART * (median - least);
    if let Some(wait) = waits.get_mut(*last).filter(|_| is_apart && *count >= ENOUGH) {
        wait.caused = (wait.caused + (median - least) * count / span_s).min(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{Comm, Work};

    fn rank(seconds: f64) -> Rank {
        rank_of(7, seconds)
    }

    fn rank_of(hash: u64, seconds: f64) -> Rank {
        let comm = Comm::new(hash, "dp");
        let key = FunctionKey { comm, func: "AllReduce".into(), is_p2p: false };
        let function = Function { count: 10.0, timed: 10.0, seconds, ..Function::default() };
        let work = Work { functions: [(key, function)].into(), ..Work::default() };
        Rank { work, ..Rank::default() }
    }

    #[test]
    fn the_rank_that_comes_last_is_the_one_that_others_wait_for() {
        let waits = of(&[rank(1.1), rank(1.1), rank(0.2), rank(1.0)], 2.0);
        let share = |at: usize| waits[at].share.unwrap();
        assert!((share(0) - 0.45).abs() < 1e-9 && share(2) == 0.0);
        let slow: Vec<bool> = waits.iter().map(Wait::is_slow).collect();
        assert_eq!(slow, [false, false, true, false]);
        assert!((waits[2].caused - 0.45).abs() < 1e-9);
    }

    #[test]
    fn operations_of_unknown_communicators_are_not_compared() {
        let waits = of(&[rank_of(0, 1.1), rank_of(0, 0.1), rank_of(0, 1.0)], 2.0);
        assert_eq!(waits, [Wait::default(); 3]);
    }

    #[test]
    fn small_or_common_differences_accuse_no_rank() {
        let slow = |ranks: &[Rank]| of(ranks, 2.0).iter().any(Wait::is_slow);
        assert!(!slow(&[rank(1.0), rank(1.1)]), "5 %");
        assert!(!slow(&[rank(0.2), rank(0.2), rank(1.4), rank(1.5)]), "two come last");
        assert!(!slow(&[rank(1.0)]));
        assert_eq!(of(&[rank(1.0)], 2.0)[0].share, None, "nothing to compare with");
        assert_eq!(of(&[rank(1.0), rank(0.1)], 0.0)[0], Wait::default());
    }
}
