// SPDX-License-Identifier: Apache-2.0
/*!
The waiting of a role's ranks, from that of its communicators.

Ranks wait for different times, so that means over different ranks differ also between equal runs.
If recordings are missing in a run, only communicators that all runs have are compared.
*/

use crate::run::{Frequency, Measure, Run, Series};
use crate::stats::count;
use std::collections::{BTreeMap, BTreeSet};

/// Those of these communicators that are comparable, as measures; `None` if there are none.
pub(crate) fn comparable<'a>(
    sides: [&[Run]; 2],
    members: &[&'a Measure],
) -> Option<Vec<&'a Measure>> {
    let runs = || sides.into_iter().flatten();
    if runs().all(|run| run.unrecorded == 0) {
        return Some(members.to_vec());
    }
    let has = |run: &Run, measure: &Measure| run.series.contains_key(measure);
    // A run without any of them is not in the row.
    let others: Vec<&Run> =
        runs().filter(|run| members.iter().any(|measure| has(run, measure))).collect();
    let is_common = |measure: &&Measure| others.iter().all(|run| has(run, measure));
    let common: Vec<&Measure> = members.iter().copied().filter(is_common).collect();
    (!common.is_empty()).then_some(common)
}

/// The mean waiting of the ranks of these communicators in a run; `None` without values.
pub(crate) fn together(run: &Run, members: &[&Measure]) -> Option<Series> {
    let mut all: BTreeSet<u32> = BTreeSet::new();
    let mut steps: BTreeMap<u32, f64> = BTreeMap::new();
    let (mut least, mut whole, mut share) = (0.0, 0.0, 0.0);
    for &measure in members {
        let Measure::Waiting { ranks, .. } = measure else { continue };
        let Some(series) = run.series.get(measure) else { continue };
        let sum = |values: &[(u32, f64)]| -> f64 {
            values.iter().map(|(_, ns)| ns * count(ranks.len())).sum()
        };
        least += sum(&series.least);
        whole += sum(&series.values);
        for (step, ns) in series.values.iter().chain(&series.least) {
            *steps.entry(*step).or_default() += ns * count(ranks.len());
        }
        let in_step = series.frequency.as_ref().map_or(0.0, |frequency| frequency.in_step);
        share = in_step / count(series.count().max(1));
        all.extend(ranks);
    }
    let values: Vec<(u32, f64)> =
        steps.into_iter().map(|(step, ns)| (step, ns / count(all.len()))).collect();
    if values.is_empty() {
        return None;
    }
    let frequency = Some(Frequency::of_each(share * count(values.len())));
    let mut series = Series { frequency, ..Series::default() };
    // Most ends are unknown: then the values are lower bounds.
    let of = if least > whole { &mut series.least } else { &mut series.values };
    *of = values;
    Some(series)
}
