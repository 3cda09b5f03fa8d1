// SPDX-License-Identifier: Apache-2.0
/*!
Collectives whose algorithm, protocol or number of channels changed during the run (S6).
*/

use crate::clock::Clocks;
use crate::finding::Finding;
use crate::looked::{Because, Log, Seen};
use crate::model::{Collective, Job};
use crate::onset::Onset;
use crate::rules::Rule;
use crate::transfers::describe;
use crate::waits::on_clock;
use ncclscope_findings::{Evidence, FindingClass};
use ncclscope_limits::slow;
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;
use std::collections::{BTreeMap, BTreeSet};

/// S6: the usual shape of the last third differs from that of the first third.
pub(crate) fn find(job: &Job, clocks: &Clocks, log: &mut Log) -> Option<Finding> {
    let mut by_class: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for collective in &job.collectives {
        by_class.entry(collective.class).or_default().push(collective.shape);
    }
    let mut onsets = Vec::new();
    let mut changes: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    let mut seen = 0;
    for (&class, shapes) in &by_class {
        let third = shapes.len() / 3;
        let (before, after) = (usual(&shapes[..third]), usual(&shapes[shapes.len() - third..]));
        if let (Some(before), Some(after)) = (before, after)
            && before != after
            && third >= slow::COLLECTIVES
        {
            changes.entry((before, after)).or_default().push(class);
            onsets.extend(onset(job, clocks, (class, after)));
            seen += third;
        }
    }
    let is_enough = seen as u64 >= slow::SAMPLES;
    log.saw(Rule::ChangedAlgorithm, || Seen {
        ranks: Vec::new(),
        subject: human::count(by_class.len(), "kind") + " of collectives",
        saw: format!("{} run otherwise in the last third", human::count(seen, "collective")),
        because: match is_enough {
            true => Because::Found,
            false => Because::Not(format!("fewer than {}", slow::SAMPLES)),
        },
        nearness: to_f64(seen as u64) / to_f64(slow::SAMPLES),
    });
    if !is_enough {
        return None;
    }
    let line = |((before, after), classes): (&(usize, usize), &Vec<usize>)| {
        let names: Vec<String> = classes.iter().map(|&class| describe(job, class)).collect();
        let (before, after) = (&job.shapes[*before], &job.shapes[*after]);
        let text = format!("{}: at first {before}, at the end {after}", names.join("; "));
        Evidence::about(FindingClass::AlgorithmChanged, text)
    };
    let comms: BTreeSet<&String> =
        changes.values().flatten().map(|&class| &job.classes[class].comm).collect();
    Some(Finding {
        title: "NCCL runs collectives differently than at first".into(),
        onset: onsets.into_iter().reduce(f64::min).map(Onset::Job),
        comm_texts: comms.into_iter().cloned().collect(),
        evidence: changes.iter().map(line).collect(),
        ..Finding::of(FindingClass::AlgorithmChanged)
    })
}

/// Start of the first collective of a class after which most run in a shape.
fn onset(job: &Job, clocks: &Clocks, (class, shape): (usize, usize)) -> Option<f64> {
    let of_class = job.collectives.iter().filter(|one| one.class == class);
    let start = |one: &Collective| {
        one.parts.iter().map(|part| on_clock(part, clocks).start).fold(f64::MAX, f64::min)
    };
    let times: Vec<_> = of_class.map(|one| (start(one), one.shape == shape)).collect();
    Onset::first(&times, slow::STAYS)
}

/// The shape of at least four in five collectives, if there is one.
fn usual(shapes: &[usize]) -> Option<usize> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for &shape in shapes {
        *counts.entry(shape).or_default() += 1;
    }
    let (&shape, &most) = counts.iter().max_by_key(|(_, count)| **count)?;
    (5 * most >= 4 * shapes.len()).then_some(shape)
}
