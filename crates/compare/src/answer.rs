// SPDX-License-Identifier: Apache-2.0
//! The answer of a comparison: slower, faster, same, or unknown.

use crate::limits::Limits;
use crate::schema::{
    Answer, Comparison, ConfigDifference, Kind, Row, RowKey, Side, State, Verdict,
};
use ncclscope_operations::human::{self, percent};
use ncclscope_operations::stats::count;

/// An unknown row counts as a possible difference if that would cost at least this share of a step.
const HIDDEN: f64 = 0.01;

/// The answer for these sorted rows, which lack the links that are the same. `gpus` is `None` if
/// runs have different numbers of them.
pub(crate) fn of(
    (rows, same_links): (&[Row], usize),
    sides: &[Side; 2],
    differences: &[ConfigDifference],
    gpus: Option<usize>,
    limits: &Limits,
) -> Answer {
    let with = |verdict| rows.iter().filter(move |row| row.verdict == verdict);
    let (slower, faster) = (with(Verdict::Slower).count(), with(Verdict::Faster).count());
    let state = match (slower, faster) {
        (0, 0) if !is_any_judged(rows, same_links) => State::Unknown,
        (0, 0) if gone(rows).next().is_some() => State::Unknown,
        (0, 0) if rows.iter().any(|row| hides(row, limits)) => State::Unknown,
        // A hung run does not contain what it would have done otherwise.
        (0, _) if sides.iter().any(|side| !side.hung.is_empty()) => State::Unknown,
        (0, 0) => State::Same,
        (0, _) => State::Faster,
        _ => State::Slower,
    };
    let first = match state {
        State::Slower => with(Verdict::Slower).next(),
        State::Faster => with(Verdict::Faster).next(),
        _ => None,
    };
    Answer {
        state,
        slower,
        faster,
        worst: with(Verdict::Slower).filter_map(|row| row.change).reduce(f64::max),
        what: hangs(sides) + &what(state, first, (rows, same_links), limits),
        cost: first.and_then(|first| cost(first, rows, sides, gpus)),
        config: (same_links > 0 || rows.iter().any(is_common)).then(|| config(differences)),
        next: None,
    }
}

impl Comparison {
    /// Number of rows that are slower by more than this share, and for which the runs are too few
    /// to tell whether that is chance.
    #[must_use]
    pub fn undecided(&self, limit: f64) -> usize {
        let is_open = |row: &&Row| row.lacks_runs && row.change.is_some_and(|by| by > limit);
        self.rows.iter().filter(is_open).count()
    }

    /// Number of rows that only A has, where nothing else shows what became of them.
    #[must_use]
    pub fn gone(&self) -> usize {
        gone(&self.rows).count()
    }

    /// True if anything is known to have changed, or not to have. Links that are the same count
    /// only where nothing else is on both sides.
    #[must_use]
    pub fn judges(&self) -> bool {
        is_any_judged(&self.rows, self.same_links)
    }
}

fn is_any_judged(rows: &[Row], same_links: usize) -> bool {
    // Links that are the same are not among the rows.
    rows.iter().any(|row| row.verdict != Verdict::Unknown) || is_of_links(rows, same_links)
}

/// True if links are the same, and nothing else is on both sides that could be compared.
fn is_of_links(rows: &[Row], same_links: usize) -> bool {
    same_links > 0 && !rows.iter().any(|row| row.key.kind != Kind::Link && is_common(row))
}

/// True if both sides have the row.
fn is_common(row: &Row) -> bool {
    row.a.is_some() && row.b.is_some()
}

/// Names the hung runs, as the beginning of a sentence.
fn hangs(sides: &[Side; 2]) -> String {
    let one = |(name, side): (&str, &Side)| match &side.hung[..] {
        [] => None,
        [run] => Some(format!("{run} ({name}) hangs")),
        runs => Some(format!("{} runs of {name} hang", runs.len())),
    };
    let sides: Vec<String> = ["A", "B"].into_iter().zip(sides).filter_map(one).collect();
    match sides.is_empty() {
        true => String::new(),
        false => format!("{}; before that, ", sides.join(" and ")),
    }
}

/// The operations of A of which B has no values, if no steps show what became of them: their
/// program may have failed there, or computed wrong data.
fn gone(rows: &[Row]) -> impl Iterator<Item = &Row> {
    let has_steps = rows.iter().any(|row| row.key.kind == Kind::Step);
    let is_of_a = |row: &&Row| row.a.is_some() && row.b.is_none();
    let of_a = rows.iter().filter(|row| row.key.kind == Kind::Transfer).filter(is_of_a);
    of_a.filter(move |_| !has_steps)
}

/// True if the row may have changed, and that would matter. The estimate does not show it: if times
/// vary too much, it is small.
fn hides(row: &Row, limits: &Limits) -> bool {
    let most = row.change_interval.map(|[low, high]| low.abs().max(high.abs()));
    let is_large = match most {
        Some(most) => most >= limits.min_effect,
        // Steps that both sides have and that are not comparable.
        None => row.key.kind == Kind::Step && is_common(row),
    };
    let costs = row.most_share.is_none_or(|most| most >= HIDDEN);
    row.verdict == Verdict::Unknown && is_large && costs && row.key.kind != Kind::Link
}

fn what(
    state: State,
    first: Option<&Row>,
    (rows, same_links): (&[Row], usize),
    limits: &Limits,
) -> String {
    let of = |verdict| rows.iter().filter(move |row| row.verdict == verdict).count();
    let [slower, faster, same, unknown] =
        [Verdict::Slower, Verdict::Faster, Verdict::Same, Verdict::Unknown].map(of);
    let counts = || {
        let all = human::count(slower + faster + same + unknown, "row");
        format!("{slower} of {all} slower, {faster} faster")
    };
    // Links have a limit of their own.
    let (limit, all) = match same {
        0 => (limits.of(Kind::Link), human::count(same_links, "network link")),
        _ => (limits.min_effect, human::count(same, "row")),
    };
    let alike =
        || format!("no difference of {} or more in {all}; {unknown} unknown", percent(limit));
    match (state, first) {
        (State::Slower | State::Faster, Some(first)) => {
            format!("{}; {}", changed(first), counts())
        }
        (State::Same, _) => alike(),
        _ => {
            let hidden = rows.iter().filter(|row| hides(row, limits));
            let reason = hidden.chain(rows).find_map(|row| row.reason.as_deref());
            match (reason, gone(rows).next()) {
                (_, Some(row)) => {
                    let rows = human::count(gone(rows).count(), "row");
                    format!("B has no values in {rows} of A, such as {}", name(&row.key))
                }
                (Some(reason), _) => reason.to_owned(),
                (None, _) if same + same_links > 0 => alike(),
                (None, _) => "nothing is on both sides that can be compared".into(),
            }
        }
    }
}

/// The change of a row in words.
fn changed(row: &Row) -> String {
    let change = row.change.unwrap_or(0.0);
    let interval = row.change_interval.map_or_else(String::new, |[low, high]| {
        let (low, high) = if change < 0.0 { (-high, -low) } else { (low, high) };
        format!(" ({:.1} to {:.1} %)", 100.0 * low, 100.0 * high)
    });
    let by = percent(change.abs());
    let name = name(&row.key);
    match (row.key.kind, change > 0.0) {
        (Kind::Waiting, true) => format!("{name} takes {by} of a step more{interval}"),
        (Kind::Waiting, false) => format!("{name} takes {by} of a step less{interval}"),
        (_, true) => format!("{name} takes {by} longer{interval}"),
        (_, false) => format!("{name} takes {by} less time{interval}"),
    }
}

/// The key of a row in words.
#[must_use]
pub fn name(key: &RowKey) -> String {
    let role = key.role.as_deref().unwrap_or("unknown");
    let func = key.func.as_deref().unwrap_or("operation");
    match (key.kind, key.src, key.dst) {
        (Kind::Step, ..) => "a training step".into(),
        (Kind::Waiting, ..) => format!("waiting in {func} on {role}"),
        (Kind::Link, Some(from), Some(to)) => format!("the link from rank {from} to {to} ({role})"),
        (Kind::Link | Kind::Transfer, ..) => format!("{func}{} on {role}", size(key)),
    }
}

fn size(key: &RowKey) -> String {
    match (key.bytes, key.bytes_below) {
        (None, _) => String::new(),
        (Some(bytes), None) => format!(" of {}", human::bytes(bytes)),
        (Some(bytes), Some(below)) => {
            format!(" of {} to {}", human::bytes(bytes), human::bytes(below))
        }
    }
}

/// The cost: the change of the step itself, else what the first row adds to it.
fn cost(first: &Row, rows: &[Row], sides: &[Side; 2], gpus: Option<usize>) -> Option<String> {
    let step = rows.iter().find(|row| row.key.kind == Kind::Step);
    let is_changed = |row: &&Row| matches!(row.verdict, Verdict::Slower | Verdict::Faster);
    if let Some((change, [Some(before), Some(now)])) = step
        .filter(is_changed)
        .and_then(|row| Some((row.change?, [&sides[0], &sides[1]].map(|side| side.step_ns))))
    {
        let word = if change > 0.0 { "lost" } else { "gained" };
        let hours = gpus.map_or_else(String::new, |gpus| {
            let hours = 24.0 * count(gpus) * change.abs() / (1.0 + change);
            format!(": {} GPU-hours a day {word}", human::three(hours))
        });
        let [before, now] = [before, now].map(human::duration);
        return Some(format!("a step takes {now}, {before} before{hours}"));
    }
    let cost = first.cost?;
    let word = if cost.ns_per_step > 0.0 { "more" } else { "less" };
    let time = human::duration(cost.ns_per_step.abs());
    Some(format!("{time} {word} in each step, {} of it", percent(cost.step_share.abs())))
}

fn config(differences: &[ConfigDifference]) -> String {
    // Settings that users change come before how NCCL is started and where the job ran.
    let place = |d: &&ConfigDifference| match d.what.as_str() {
        "host names" => 2,
        "command" => 1,
        _ => 0,
    };
    let Some(first) = differences.iter().min_by_key(place) else {
        return "no recorded setting differs".into();
    };
    let ConfigDifference { what, a, b } = first;
    let more = match differences.len() - 1 {
        0 => String::new(),
        1 => "; 1 more setting differs".into(),
        more => format!("; {more} more settings differ"),
    };
    format!("{what}: {a} before, {b} now{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_comes_before_the_command_and_the_hosts() {
        let of = |what: &str| ConfigDifference { what: what.into(), a: "x".into(), b: "y".into() };
        let all = ["command", "host names", "NCCL_ALGO"].map(of);
        assert_eq!(config(&all), "NCCL_ALGO: x before, y now; 2 more settings differ");
        assert_eq!(config(&all[..2]), "command: x before, y now; 1 more setting differs");
        assert_eq!(config(&[]), "no recorded setting differs");
    }
}
