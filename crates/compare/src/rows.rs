// SPDX-License-Identifier: Apache-2.0
//! Makes rows with verdicts from the runs of two sides.

use crate::answer;
use crate::configuration::{Configuration, differences};
use crate::estimate::Estimate;
use crate::groups::{Group, groups};
use crate::limits::Limits;
use crate::means;
use crate::run::Run;
use crate::schema::{Comparison, Cost, Kind, Row, SCHEMA, Side, Units, Verdict};
use ncclscope_operations::stats::count;
use ncclscope_statistics::{adjusted, least_p, median};
use ncclscope_stragglers::steps::StepSource;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of runs of a side that a reason asks for.
const MOST_RUNS: usize = 100;

/// Compares the runs of B with those of A.
#[must_use]
pub fn compare(a: &[Run], b: &[Run], limits: &Limits) -> Comparison {
    let step_ns = step_ns(a);
    let mixed = mixed_steps([a, b]);
    let is_mixed = mixed.is_some();
    let groups = groups(a, b);
    let tests = tests(&groups);
    let mut judged: Vec<(Row, bool)> = groups
        .into_iter()
        .map(|group| {
            let kind = group.key.kind;
            let tests = tests.get(&kind).copied().unwrap_or(1.0);
            let mut estimate = Estimate::of(&group.a, &group.b, tests, limits);
            // Marked steps and those of a repeating collective may be different things.
            let mixed = mixed.filter(|_| matches!(kind, Kind::Step | Kind::Waiting));
            let reason = mixed.or(group.reason);
            // Lower bounds are not durations: nothing follows from their difference.
            if group.is_least != [false; 2] || reason.is_some() {
                (estimate.shift, estimate.ratio, estimate.p) = (None, None, None);
            }
            let step_ns = step_ns.filter(|_| !is_mixed);
            let reason = reason.map(Cow::Borrowed);
            (Row { reason, ..row(group, &estimate, step_ns) }, estimate.is_separate)
        })
        .collect();
    adjust(&mut judged);
    let resolution_ns = a.iter().chain(b).map(|run| run.resolution_ns).fold(0.0, f64::max);
    judged.iter_mut().for_each(|(row, _)| coarsen(row, resolution_ns, limits));
    judged.iter_mut().for_each(|(row, is_separate)| judge(row, *is_separate, limits));
    let mut rows: Vec<Row> = judged.into_iter().map(|(row, _)| row).collect();
    let is_same_link = |row: &Row| row.key.kind == Kind::Link && row.verdict == Verdict::Same;
    let same_links = rows.iter().filter(|row| is_same_link(row)).count();
    rows.retain(|row| !is_same_link(row));
    sort(&mut rows);
    let config_differences = differences(&configurations(a), &configurations(b));
    let sides = [a, b].map(side);
    let gpus = gpus([a, b]);
    let mut answer = answer::of((&rows, same_links), &sides, &config_differences, gpus, limits);
    let costs = answer.cost.into_iter().chain(means::text([a, b], limits));
    answer.cost = costs.reduce(|median, mean| format!("{median}; {mean}"));
    let notes = notes([a, b], resolution_ns);
    let [a, b] = sides;
    Comparison { schema: SCHEMA, answer, a, b, rows, same_links, config_differences, notes }
}

/// What the inputs cannot tell, in times that are multiples of a resolution.
fn notes(sides: [&[Run]; 2], resolution_ns: f64) -> Vec<String> {
    let runs = || sides.into_iter().flatten();
    let mut notes: BTreeSet<String> = runs().flat_map(|run| run.notes.clone()).collect();
    if resolution_ns > 0.0 && runs().any(|run| run.resolution_ns <= 0.0) {
        notes.insert(
            "one side is of NCCL Inspector, which times the longest channel of a kernel, the other \
             from the first channel's start to the last one's end, which is a little longer"
                .into(),
        );
    }
    notes.into_iter().collect()
}

/// The number of GPUs, if all runs have as many: else a step is not the same work for each.
fn gpus(sides: [&[Run]; 2]) -> Option<usize> {
    let mut all = sides.into_iter().flatten().map(|run| run.gpus);
    let first = all.next()?;
    all.all(|gpus| gpus == first).then_some(first)
}

fn configurations(runs: &[Run]) -> Vec<&Configuration> {
    runs.iter().map(|run| &run.configuration).collect()
}

fn step_ns(runs: &[Run]) -> Option<f64> {
    median(&runs.iter().filter_map(|run| run.step_ns).collect::<Vec<_>>())
}

/// Why steps cannot be compared: some are marked, the others are derived.
fn mixed_steps(sides: [&[Run]; 2]) -> Option<&'static str> {
    let [a, b] = sides.map(|runs| {
        let has = |source| runs.iter().any(|run| run.steps_from == Some(source));
        (has(StepSource::Marked), has(StepSource::Repeating))
    });
    match (a, b) {
        ((true, false), (false, true)) | ((false, true), (true, false)) => {
            Some("steps are marked on one side only")
        }
        _ if (a.0 || b.0) && (a.1 || b.1) => Some("steps are marked in some runs only"),
        _ => None,
    }
}

fn side(runs: &[Run]) -> Side {
    let filters: BTreeSet<String> = runs.iter().filter_map(|run| run.filter.clone()).collect();
    Side {
        filters: filters.into_iter().collect(),
        runs: runs.iter().map(|run| run.name.clone()).collect(),
        hung: runs.iter().filter(|run| run.hangs).map(|run| run.name.clone()).collect(),
        steps: runs.iter().map(|run| run.steps).sum(),
        step_ns: step_ns(runs),
    }
}

/// The row of a measure, without its verdict.
fn row(group: Group, estimate: &Estimate, step_ns: Option<f64>) -> Row {
    let Group { key, per_step, is_least, .. } = group;
    let kind = key.kind;
    let [a, b] = estimate.medians;
    // What B loses in a step: the shift of a value, times how often B has it in a step. No cost for
    // links.
    let each = match kind {
        Kind::Link => None,
        _ => per_step[1],
    };
    let in_step = |ns: f64| Some((ns * each?, step_ns.filter(|&step| step > 0.0)?));
    let share = |ns: f64| in_step(ns).map(|(ns, step)| ns / step);
    let cost = estimate
        .shift
        .and_then(|(ns, _)| in_step(ns))
        .map(|(ns_per_step, step)| Cost { ns_per_step, step_share: ns_per_step / step });
    let most = estimate.shift.map(|(_, [low, high])| low.abs().max(high.abs()));
    let (change, change_interval) = match kind {
        Kind::Waiting => (
            estimate.shift.and_then(|(ns, _)| share(ns)),
            estimate.shift.and_then(|(_, [low, high])| Some([share(low)?, share(high)?])),
        ),
        _ => (
            estimate.ratio.map(|(ratio, _)| ratio - 1.0),
            estimate.ratio.map(|(_, interval)| interval.map(|ratio| ratio - 1.0)),
        ),
    };
    Row {
        key,
        a,
        b,
        a_is_least: a.is_some() && is_least[0],
        b_is_least: b.is_some() && is_least[1],
        ratio: estimate.ratio.map(|(ratio, _)| ratio),
        interval: estimate.ratio.map(|(_, interval)| interval),
        change,
        change_interval,
        p: estimate.p,
        p_adjusted: None,
        verdict: Verdict::Unknown,
        reason: None,
        lacks_runs: false,
        cost,
        most_share: most.and_then(share),
        units: estimate.units,
    }
}

/// By how much [`adjust`] multiplies the p value of a row of each kind if no other row changed.
fn tests(groups: &[Group]) -> BTreeMap<Kind, f64> {
    let mut rows: BTreeMap<Kind, usize> = BTreeMap::new();
    let is_tested = |of: &&Group| {
        let is_whole = of.is_least == [false; 2] && of.reason.is_none();
        is_whole && !of.a.is_empty() && !of.b.is_empty()
    };
    for group in groups.iter().filter(is_tested) {
        *rows.entry(group.key.kind).or_default() += 1;
    }
    let kinds = count(rows.len());
    rows.into_iter().map(|(kind, rows)| (kind, kinds * count(rows))).collect()
}

/// Adjusts the p values for the number of rows of each kind, and for the number of kinds, so that
/// many links do not hide a collective.
fn adjust(judged: &mut [(Row, bool)]) {
    let mut kinds: BTreeMap<Kind, Vec<(usize, f64)>> = BTreeMap::new();
    for (at, (row, _)) in judged.iter().enumerate() {
        if let Some(p) = row.p {
            kinds.entry(row.key.kind).or_default().push((at, p));
        }
    }
    let count = count(kinds.len());
    for of in kinds.into_values() {
        let p: Vec<f64> = of.iter().map(|(_, p)| *p).collect();
        for ((at, _), p) in of.into_iter().zip(adjusted(&p)) {
            judged[at].0.p_adjusted = Some((p * count).min(1.0));
        }
    }
}

fn judge(row: &mut Row, is_separate: bool, limits: &Limits) {
    let least = limits.of(row.key.kind);
    let widest = limits.widest.max(2.0 * least);
    let is_wide = |[low, high]: [f64; 2]| low < -widest || high > widest;
    let sure = row.p_adjusted.is_some_and(|p| p < limits.false_share);
    let unknown = |reason: &'static str| (Verdict::Unknown, Some(Cow::Borrowed(reason)));
    let (verdict, reason) = match (row.change, row.change_interval) {
        _ if row.a.is_none() && row.b.is_none() => unknown("neither side has one"),
        _ if row.a.is_none() || row.b.is_none() => {
            (Verdict::Unknown, row.reason.take().or(Some(Cow::Borrowed("one side has none"))))
        }
        _ if row.a_is_least || row.b_is_least => unknown(least_of(row)),
        _ if row.reason.is_some() => (Verdict::Unknown, row.reason.take()),
        _ if row.p.is_none() => unknown(few(row.units)),
        (None, _) => unknown("a time is 0, or no step is known"),
        (Some(change), _) if change.abs() >= least && !sure => {
            let too_few = too_few_runs(row, limits);
            row.lacks_runs = too_few.is_some();
            let reason = too_few.map_or(Cow::Borrowed("the difference may be chance"), Cow::Owned);
            (Verdict::Unknown, Some(reason))
        }
        (Some(change), _) if change.abs() >= least && !is_separate => {
            unknown("runs of one side differ as much")
        }
        (Some(change), _) if change >= least => (Verdict::Slower, None),
        (Some(change), _) if change <= -least => (Verdict::Faster, None),
        (_, Some(interval)) if is_wide(interval) => unknown("the times vary too much"),
        _ => (Verdict::Same, None),
    };
    (row.verdict, row.reason) = (verdict, reason);
}

/// How many runs are enough for a row, if those of its sides prove nothing among so many rows
/// however far apart they are; `None` if they could.
fn too_few_runs(row: &Row, limits: &Limits) -> Option<String> {
    let factor = row.p_adjusted? / row.p.filter(|&p| p > 0.0)?;
    let is_enough = |a, b| least_p(a, b) * factor < limits.false_share;
    let Units { of, a, b } = row.units;
    if of != "run" || is_enough(a, b) {
        return None;
    }
    let fewest = a.min(b);
    let enough = (fewest + 1..=MOST_RUNS).find(|&runs| is_enough(runs, runs));
    let give = enough.map_or_else(|| "more".to_owned(), |runs| runs.to_string());
    Some(format!("{fewest} runs on a side prove nothing among so many rows: give {give} on each"))
}

/// Widens the interval by what the times of an input leave open, ns: with whole microseconds, a
/// difference of one may be none.
fn coarsen(row: &mut Row, resolution_ns: f64, limits: &Limits) {
    let (Kind::Transfer, Some(a), Some(b)) = (row.key.kind, row.a, row.b) else { return };
    if resolution_ns <= 0.0 || a <= 0.0 {
        return;
    }
    let open = resolution_ns / a;
    row.interval = row.interval.map(|[low, high]| [(low - open).max(0.0), high + open]);
    row.change_interval = row.change_interval.map(|[low, high]| [low - open, high + open]);
    let is_change = row.change.is_some_and(|change| change.abs() >= limits.of(row.key.kind));
    if row.reason.is_none() && is_change && (b - a).abs() <= resolution_ns {
        let same = "the times are in whole microseconds, and differ by one at most";
        row.reason = Some(same.into());
    }
}

/// The reason why a row with a lower bound cannot be compared.
fn least_of(row: &Row) -> &'static str {
    match (row.a_is_least, row.b_is_least) {
        (true, true) => "the ends are not recorded: both times are the least that it took",
        (true, false) => "the ends are not recorded in A: its time is the least that it took",
        _ => "the ends are not recorded in B: its time is the least that it took",
    }
}

fn few(units: Units) -> &'static str {
    match units.a.min(units.b) {
        0 | 1 => "one value does not show how times vary: give several runs, or recordings",
        _ => "too few blocks: give longer recordings, or several runs",
    }
}

/// Sorts the rows: changes by cost, then unknown, then same.
fn sort(rows: &mut [Row]) {
    let place = |verdict| match verdict {
        Verdict::Slower | Verdict::Faster => 0,
        Verdict::Unknown => 1,
        Verdict::Same => 2,
    };
    let cost = |row: &Row| row.cost.map_or(0.0, |cost| cost.ns_per_step.abs());
    let change = |row: &Row| row.change.map_or(0.0, f64::abs);
    rows.sort_by(|x, y| {
        let by_cost = cost(y).total_cmp(&cost(x)).then(change(y).total_cmp(&change(x)));
        place(x.verdict).cmp(&place(y.verdict)).then(by_cost)
    });
}
