// SPDX-License-Identifier: Apache-2.0
/*!
Which ranks are compared.

Ranks wait for different times, and the transfers of communicators differ, so that times of
different ranks differ also between equal runs. If recordings are missing in a run, only
communicators that all runs have are compared.
*/

use crate::run::{Frequency, Measure, Run, Series};
use ncclscope_operations::stats::count;
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
    let of = |run: &Run| -> BTreeSet<&'a [u32]> {
        let has = |measure: &&&Measure| run.series.contains_key(**measure);
        members.iter().filter(has).map(|measure| ranks(measure)).collect()
    };
    // A run without any of them is not in the row.
    let known = runs().map(of).filter(|known| !known.is_empty());
    let common = known.reduce(|all, known| &all & &known).unwrap_or_default();
    let kept = members.iter().copied().filter(|measure| common.contains(ranks(measure)));
    (!common.is_empty()).then(|| kept.collect())
}

/// The ranks of the communicator of a measure.
fn ranks(measure: &Measure) -> &[u32] {
    match measure {
        Measure::Waiting { ranks, .. } => ranks,
        Measure::Transfer(of) => &of.ranks,
        Measure::Step | Measure::Link { .. } => &[],
    }
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
