// SPDX-License-Identifier: Apache-2.0
/*!
Forms the groups that are compared: the measures of all runs by role, function, size, algorithm and
protocol.

If a function has more than [`SIZES`] sizes in a role, they are put into classes, each with sizes up
to twice the smallest, except those of a benchmark. If both sides do an operation with the same
algorithms and protocols, each of these is compared with itself; otherwise all of A is compared with
all of B, because the change itself is of interest.
*/

use crate::estimate::{RunValues, Values};
use crate::ranks;
use crate::run::{BLOCKS, Frequency, Measure, Operation, Run, Series};
use crate::schema::{Kind, RowKey};
use ncclscope_operations::stats::count;
use ncclscope_statistics::median;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of sizes that are compared separately.
const SIZES: usize = 16;

/// Why a row has nothing to compare if recordings are missing.
const UNRECORDED: &str = "recordings of some ranks are missing";

/// One measure with its values on both sides.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) key: RowKey,
    pub(crate) a: Values,
    pub(crate) b: Values,
    /// How many times a rank executes it in a step, in A and in B.
    pub(crate) per_step: [Option<f64>; 2],
    /// Whether the values of A, and of B, are lower bounds.
    pub(crate) is_least: [bool; 2],
    /// Why the sides cannot be compared.
    pub(crate) reason: Option<&'static str>,
}

/// The runs of both sides.
type Sides<'a> = [&'a [Run]; 2];
/// The smallest size, and the smallest size above the class; `None` for a single size.
type SizeClass = (Option<u64>, Option<u64>);
/// Algorithm and protocol.
type How<'a> = (&'a str, &'a str);
/// An operation, also as a measure.
type Member<'a> = (&'a Measure, &'a Operation);

/// All measures of both sides.
pub(crate) fn groups(a: &[Run], b: &[Run]) -> Vec<Group> {
    let sides = [a, b];
    let mut groups = Vec::new();
    let mut operations: BTreeMap<(&str, &str), Vec<Member<'_>>> = BTreeMap::new();
    let mut waits: BTreeMap<(&str, &str), Vec<&Measure>> = BTreeMap::new();
    for measure in measures(sides) {
        match measure {
            Measure::Waiting { role, func, .. } => {
                waits.entry((role, func)).or_default().push(measure);
            }
            Measure::Transfer(of) => {
                operations.entry((&of.role, &of.func)).or_default().push((measure, of));
            }
            other => groups.push(group(sides, key_of(other), &[other])),
        }
    }
    groups.extend(waits.into_values().filter_map(|members| waits_of(sides, &members)));
    for operations in operations.into_values() {
        transfers(sides, &operations, &mut groups);
    }
    groups
}

fn measures(sides: Sides<'_>) -> BTreeSet<&Measure> {
    sides.into_iter().flatten().flat_map(|run| run.series.keys()).collect()
}

/// The operations of one function of a role.
fn transfers(sides: Sides<'_>, operations: &[Member<'_>], groups: &mut Vec<Group>) {
    let sizes: BTreeSet<Option<u64>> = operations.iter().map(|of| of.1.bytes).collect();
    let has_classes =
        sizes.len() > SIZES && !sides.into_iter().flatten().any(|run| run.has_exact_sizes);
    let class = |of: &Member<'_>| size_class(of.1.bytes, has_classes);
    let classes: BTreeSet<SizeClass> = operations.iter().map(class).collect();
    for size in classes {
        let members: Vec<Member<'_>> =
            operations.iter().copied().filter(|of| class(of) == size).collect();
        let ways = sides.map(|runs| {
            let has = |of: &&Member<'_>| runs.iter().any(|run| run.series.contains_key(of.0));
            members.iter().filter(has).map(|of| how(of.1)).collect::<BTreeSet<How<'_>>>()
        });
        let [before, now] = &ways;
        if before == now {
            for &way in now {
                let of = members.iter().copied().filter(|of| how(of.1) == way);
                groups.push(transfer(sides, &of.collect::<Vec<_>>(), size, way));
            }
        } else {
            let name = |part: fn(&How<'_>) -> String| change([before, now], part);
            let (algo, proto) = (name(|way| way.0.to_owned()), name(|way| way.1.to_owned()));
            groups.push(transfer(sides, &members, size, (&algo, &proto)));
        }
    }
}

fn how(of: &Operation) -> How<'_> {
    (&of.shape.algo, &of.shape.proto)
}

/// The names on both sides; a single name if they are equal.
fn change(ways: [&BTreeSet<How<'_>>; 2], part: fn(&How<'_>) -> String) -> String {
    let [before, now] = ways.map(|ways| {
        let names: BTreeSet<String> = ways.iter().map(part).collect();
        names.into_iter().collect::<Vec<_>>().join("+")
    });
    if before == now || before.is_empty() || now.is_empty() {
        return if now.is_empty() { before } else { now };
    }
    format!("{before} -> {now}")
}

fn size_class(bytes: Option<u64>, is_coarse: bool) -> SizeClass {
    match bytes {
        Some(bytes) if is_coarse => {
            let first = bytes.checked_ilog2().map_or(0, |log| 1 << log);
            (Some(first), Some(u64::saturating_mul(first, 2).max(1)))
        }
        bytes => (bytes, None),
    }
}

fn transfer(
    sides: Sides<'_>,
    members: &[Member<'_>],
    (bytes, bytes_below): SizeClass,
    (algo, proto): How<'_>,
) -> Group {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let of = members.first().map(|of| of.1);
    let key = RowKey {
        role: of.map(|of| of.role.clone()),
        func: of.map(|of| of.func.clone()),
        bytes,
        bytes_below,
        algorithm: some(algo),
        protocol: some(proto),
        ..empty(Kind::Transfer)
    };
    group(sides, key, &members.iter().map(|of| of.0).collect::<Vec<_>>())
}

fn empty(kind: Kind) -> RowKey {
    RowKey {
        kind,
        role: None,
        func: None,
        bytes: None,
        bytes_below: None,
        algorithm: None,
        protocol: None,
        src: None,
        dst: None,
    }
}

fn key_of(measure: &Measure) -> RowKey {
    let some = |text: &str| Some(text.to_owned());
    match measure {
        Measure::Step => empty(Kind::Step),
        Measure::Waiting { role, func, .. } => {
            RowKey { role: some(role), func: some(func), ..empty(Kind::Waiting) }
        }
        Measure::Link { role, from, to } => {
            RowKey { role: some(role), src: Some(*from), dst: Some(*to), ..empty(Kind::Link) }
        }
        Measure::Transfer(of) => {
            RowKey { role: some(&of.role), func: some(&of.func), ..empty(Kind::Transfer) }
        }
    }
}

/// Combines these measures into one group.
fn group(sides: Sides<'_>, key: RowKey, members: &[&Measure]) -> Group {
    comparable(sides, key, members, |run, members| {
        members.iter().filter_map(|&measure| run.series.get(measure).cloned()).collect()
    })
}

/// The waiting in the communicators of a role that have one function.
fn waits_of(sides: Sides<'_>, members: &[&Measure]) -> Option<Group> {
    let key = key_of(members.first()?);
    let series = |run: &Run, of: &[&Measure]| ranks::together(run, of).into_iter().collect();
    Some(comparable(sides, key, members, series))
}

/// The group of the series of those of these measures that have the same ranks on both sides.
fn comparable(
    sides: Sides<'_>,
    key: RowKey,
    members: &[&Measure],
    series: impl Fn(&Run, &[&Measure]) -> Vec<Series>,
) -> Group {
    let comparable = ranks::comparable(sides, members);
    let of = comparable.as_deref().unwrap_or(members);
    let mut group = group_of(sides, key, |run| series(run, of));
    if comparable.is_none() {
        group.reason = Some(UNRECORDED);
    }
    group
}

/// The group of these series of each run.
fn group_of(sides: Sides<'_>, key: RowKey, series: impl Fn(&Run) -> Vec<Series>) -> Group {
    let length = if key.kind == Kind::Link { 1 } else { block_steps(sides) };
    let of = |run: &Run| -> Vec<Series> {
        series(run).iter().map(|series| in_blocks(run, series, length)).collect()
    };
    let [a, b] = sides.map(|runs| {
        let all = runs.iter().map(of).filter(|series| !series.is_empty());
        all.collect::<Vec<Vec<Series>>>()
    });
    let per_step = [&a, &b].map(|side| {
        let each = side.iter().map(|run| per_step(run));
        median(&each.collect::<Option<Vec<f64>>>()?)
    });
    let is_least = [&a, &b].map(|side| is_least(side));
    let values = |side: Vec<Vec<Series>>, is_least: bool| -> Values {
        let of = |series: Series| if is_least { series.least } else { series.values };
        let runs = side.into_iter().map(|run| run.into_iter().flat_map(of).collect::<RunValues>());
        runs.filter(|run| !run.is_empty()).collect()
    };
    let [a, b] = [values(a, is_least[0]), values(b, is_least[1])];
    let is_lost = |values: &Values, runs: &[Run]| {
        values.is_empty() && runs.iter().any(|run| run.unrecorded > 0)
    };
    let reason = (is_lost(&a, sides[0]) || is_lost(&b, sides[1])).then_some(UNRECORDED);
    Group { key, a, b, per_step, is_least, reason }
}

/// The number of training steps of a block, the same for all runs: the median of several steps is
/// not that of one step if their times have a skewed distribution. The shortest run determines it.
fn block_steps(sides: Sides<'_>) -> usize {
    let runs = || sides.into_iter().flatten().filter(|run| run.steps > 0);
    let shortest = runs().map(|run| run.steps).min().unwrap_or(1);
    let combined = runs().map(|run| run.combined).max().unwrap_or(1);
    shortest.div_ceil(BLOCKS).next_multiple_of(combined.max(1))
}

/// A series with the numbers of blocks of this many steps; a last block of fewer steps is left out.
fn in_blocks(run: &Run, series: &Series, length: usize) -> Series {
    if run.steps == 0 || length == 1 {
        return series.clone();
    }
    let whole = (run.steps / length).max(1);
    let of = |values: &[(u32, f64)]| -> RunValues {
        let block = |number: u32| u32::try_from(number as usize / length).unwrap_or(u32::MAX);
        let all = values.iter().map(|&(number, value)| (block(number), value));
        all.filter(|(block, _)| (*block as usize) < whole).collect()
    };
    let frequency = series.frequency.clone();
    Series { values: of(&series.values), least: of(&series.least), frequency }
}

/// True if most values of a side are lower bounds. Otherwise the few that are will be left out: a
/// rare series without ends does not make the times of all others unknown.
fn is_least(side: &[Vec<Series>]) -> bool {
    let all = || side.iter().flatten();
    let least: usize = all().map(|series| series.least.len()).sum();
    least > all().map(|series| series.values.len()).sum::<usize>()
}

/// How many times a rank executes these series of a run in a step. Some communicators may have only
/// one of the series, and others only another one.
fn per_step(series: &[Series]) -> Option<f64> {
    let all = series.iter().map(|series| series.frequency.as_ref());
    let all = all.collect::<Option<Vec<&Frequency>>>()?;
    let sources: BTreeSet<usize> = all.iter().flat_map(|of| of.sources.iter().copied()).collect();
    let in_step: f64 = all.iter().map(|of| of.in_step).sum();
    Some(in_step / count(sources.len().max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Shape;

    fn run(operations: &[(u64, &str)]) -> Run {
        let mut run = Run::default();
        for &(bytes, algo) in operations {
            let shape = Shape { algo: algo.into(), proto: "LL".into(), channels: "2".into() };
            let (role, func, bytes) = ("tp".into(), "AllReduce".into(), Some(bytes));
            let series = Series { values: vec![(0, 1.0)], ..Series::default() };
            let operation = Operation { role, func, bytes, shape, ranks: vec![] };
            run.series.insert(Measure::Transfer(operation), series);
        }
        run
    }

    fn names(a: &Run, b: &Run) -> Vec<String> {
        let groups = groups(std::slice::from_ref(a), std::slice::from_ref(b));
        let name = |group: Group| {
            let RowKey { bytes, bytes_below, algorithm, protocol, .. } = group.key;
            let below = bytes_below.map_or_else(String::new, |below| format!("..{below}"));
            format!("{}{below} {} {}", bytes.unwrap(), algorithm.unwrap(), protocol.unwrap())
        };
        groups.into_iter().map(name).collect()
    }

    #[test]
    fn a_changed_algorithm_is_compared_with_the_former_one() {
        let (ring, tree) = (run(&[(64, "RING")]), run(&[(64, "TREE")]));
        assert_eq!(names(&ring, &tree), ["64 RING -> TREE LL"]);
        assert_eq!(names(&ring, &ring), ["64 RING LL"]);
        let both = run(&[(64, "RING"), (64, "TREE")]);
        assert_eq!(names(&both, &both), ["64 RING LL", "64 TREE LL"]);
        assert_eq!(names(&both, &ring), ["64 RING+TREE -> RING LL"]);
        assert_eq!(names(&ring, &Run::default()), ["64 RING LL"]);
    }

    #[test]
    fn few_lower_bounds_are_left_out_and_many_make_the_row_one() {
        let of = |whole: u32, least: u32, channels: [&str; 2]| {
            let values = |count: u32, of: f64| (0..count).map(|block| (block, of)).collect();
            let series = |values, least| Series { values, least, ..Series::default() };
            let ends = series(values(whole, 2.0), vec![]);
            let open = series(vec![], values(least, 1.0));
            let mut run = Run::default();
            for (channels, series) in channels.into_iter().zip([ends, open]) {
                let (algo, proto) = ("RING".into(), "LL".into());
                let shape = Shape { algo, proto, channels: channels.into() };
                let (role, func) = ("tp".into(), "AllReduce".into());
                let measure =
                    Measure::Transfer(Operation { role, func, bytes: None, shape, ranks: vec![] });
                let known = run.series.entry(measure).or_default();
                known.values.extend(series.values);
                known.least.extend(series.least);
            }
            let found = groups(&[run], &[]);
            let [Group { a, is_least, .. }] = &found[..] else { panic!("{found:?}") };
            (a.concat().len(), is_least[0])
        };
        // Whether one series has both or each has its own.
        for channels in [["2", "2"], ["2", "4"]] {
            let found = [(3, 0), (3, 3), (2, 3), (0, 1)].map(|(n, least)| of(n, least, channels));
            assert_eq!(found, [(3, false), (3, false), (3, true), (1, true)], "{channels:?}");
        }
    }

    #[test]
    fn many_sizes_are_compared_by_class() {
        let few: Vec<(u64, &str)> = (1..=16).map(|n| (n * 100, "RING")).collect();
        assert_eq!(names(&run(&few), &run(&few)).len(), 16);
        let many: Vec<(u64, &str)> = (0..40).map(|n| (n * 100, "RING")).collect();
        let names = names(&run(&many), &run(&many));
        let sizes = ["0..1", "64..128", "128..256", "256..512", "512..1024", "1024..2048"];
        assert_eq!(names.len(), 7, "{names:?}");
        assert!(names.iter().zip(sizes).all(|(name, size)| name.starts_with(size)), "{names:?}");
    }
}
