// SPDX-License-Identifier: Apache-2.0
/*!
Transfers that became slower during the run (S2).

Transfer times ([`crate::transfers`]) are compared with the usual time of operations like them; what
they take longer in a step is a cost. The one test ([`ncclscope_statistics`]) says whether it rose:
for each communicator, and for all workers together, because a slower network slows all
communicators a little.
*/

use crate::finding::{Finding, excess_figures};
use crate::looked::{Log, Seen};
use crate::onset::Onset;
use crate::rules::Rule;
use crate::transfers::{Kind, Sample, Transfers, usual};
use ncclscope_findings::{Evidence, FindingClass};
use ncclscope_operations::human;
use ncclscope_operations::stats::{count, median};
use ncclscope_statistics::Limits;
use ncclscope_statistics::{Against, Answer, Blocks, Effect, compare_units};
use std::collections::BTreeMap;

/// Maximum number of classes in the evidence.
const LINES: usize = 4;

/// The finding about the transfers that became slower.
pub(crate) fn find(transfers: &Transfers<'_>, limits: &Limits, log: &mut Log) -> Option<Finding> {
    let kinds = transfers.kinds.iter();
    let usual = kinds.filter_map(|(&kind, samples)| Some((kind, usual(samples)?))).collect();
    let comms = transfers.excess(&usual);
    let answers = compare(transfers, &comms, limits);
    // The whole job comes first.
    let (all, each) = answers.split_first()?;
    log.saw(Rule::SlowedTransfers, || {
        Seen::of(("all transfers".into(), Vec::new()), (all, "step"), limits)
    });
    for (comm, answer) in comms.keys().zip(each) {
        log.saw(Rule::SlowedTransfers, || {
            let subject = format!("transfers of {comm}");
            Seen::of((subject, transfers.ranks(comm)), (answer, "step"), limits)
        });
    }
    let slow = comms.keys().zip(each).filter(|(_, answer)| answer.is_slow());
    let mut slow: Vec<(&str, Effect)> = slow.map(|(comm, of)| (*comm, *of.effect())).collect();
    if let Answer::Slow(effect) = all {
        // Those that rose by an amount nearer to the largest rise than to none.
        let rises = comms.iter().map(|(comm, values)| (*comm, rise(values, effect.since)));
        let rises: Vec<(&str, f64)> = rises.collect();
        let most = rises.iter().map(|(_, rise)| *rise).fold(0.0, f64::max);
        let rose = rises.iter().filter(|(_, rise)| *rise > 0.0 && 2.0 * rise >= most);
        slow = rose.map(|(comm, _)| (*comm, *effect)).collect();
    }
    let dearest =
        slow.iter().map(|(_, effect)| *effect).max_by(|a, b| a.mean.total_cmp(&b.mean))?;
    Some(finding(transfers, &slow, dearest))
}

/// Whether the costs of all workers together, and those of each communicator, rose.
fn compare(
    transfers: &Transfers<'_>,
    comms: &BTreeMap<&str, Vec<f64>>,
    limits: &Limits,
) -> Vec<Answer> {
    let workers = count(transfers.job.workers.len()).max(1.0);
    let mut blocks = Blocks::new(comms.len() + 1);
    for step in 0..transfers.steps.len() {
        let known = comms.iter().filter(|(_, values)| !values[step].is_nan());
        let costs = known.map(|(comm, values)| values[step] * count(transfers.members[comm].len()));
        let mean = costs.sum::<f64>() / workers;
        blocks.push([mean].into_iter().chain(comms.values().map(|values| values[step])));
    }
    compare_units(&blocks, Against::Past, limits)
}

/// By how much these costs are higher from a step on; NaN if unknown.
fn rise(values: &[f64], since: usize) -> f64 {
    let median_of = |values: &[f64]| {
        let mut known: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
        median(&mut known).unwrap_or(f64::NAN)
    };
    let (before, after) = values.split_at(since);
    median_of(after) - median_of(before)
}

/// One finding for all of them, because the likely cause is one network or one switch.
fn finding(transfers: &Transfers<'_>, slow: &[(&str, Effect)], dearest: Effect) -> Finding {
    let since = dearest.since;
    let start = transfers.steps.get(since).map(|step| Onset::Job(step.start));
    let [low, high] = dearest.interval;
    let text = format!(
        "transfers take {:.1} % of a step longer than in the {} before ({:.1} to {:.1} %)",
        100.0 * dearest.mean,
        human::count(since, "step"),
        100.0 * low,
        100.0 * high,
    );
    let line = |text: String| Evidence::about(FindingClass::TransfersSlowed, text);
    let is_slow = |kind: &Kind| slow.iter().any(|(comm, _)| *comm == transfers.comm(*kind));
    let kinds = transfers.kinds.iter().filter(|(kind, _)| is_slow(kind));
    let mut changes: Vec<Change<'_>> =
        kinds.filter_map(|(kind, samples)| Change::of(*kind, samples, since)).collect();
    changes.sort_by(|a, b| b.extra().total_cmp(&a.extra()));
    let mut evidence = vec![line(text).with(excess_figures(&dearest))];
    evidence
        .extend(changes.iter().take(LINES).map(|of| line(of.text(transfers)).with(of.figures())));
    let mut factors: Vec<f64> = changes.iter().map(|of| of.now / of.usual).collect();
    Finding {
        title: format!(
            "transfers became slower during the run, on {}",
            human::count(slow.len(), "communicator")
        ),
        factor: median(&mut factors),
        most_lost_share: Some(dearest.mean),
        onset: start,
        comm_texts: slow.iter().map(|(comm, _)| (*comm).to_owned()).collect(),
        evidence,
        ..Finding::of(FindingClass::TransfersSlowed)
    }
}

/// A class before and after the change: median transfer times, ns.
struct Change<'s> {
    kind: Kind,
    before: &'s [Sample],
    after: &'s [Sample],
    usual: f64,
    now: f64,
}

impl Change<'_> {
    fn of(kind: Kind, samples: &[Sample], since: usize) -> Option<Change<'_>> {
        let (before, after) = samples.split_at(samples.partition_point(|(step, _)| *step < since));
        let (usual, now) = usual(before).zip(usual(after))?;
        (now > usual).then_some(Change { kind, before, after, usual, now })
    }

    /// Time that it takes longer in all, ns.
    fn extra(&self) -> f64 {
        (self.now - self.usual) * count(self.after.len())
    }

    fn text(&self, transfers: &Transfers<'_>) -> String {
        format!(
            "{}: the transfer took {} at first (median of {}) and {} since",
            transfers.describe(self.kind),
            human::duration(self.usual),
            self.before.len(),
            human::duration(self.now)
        )
    }

    fn figures(&self) -> [(&'static str, f64); 2] {
        [("before_ns", self.usual), ("now_ns", self.now)]
    }
}
