// SPDX-License-Identifier: Apache-2.0
//! The figures that the repository keeps, one line for each row of the table, and what is worse
//! than they are.
//!
//! The same jobs give the same figures: of a row whose jobs never change, a column may not be worse
//! at all. A row whose jobs are drawn anew is worse if its share would come up less often than once
//! in 10,000 draws, were the kept share still true. Time and memory are not kept.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::figures::{Figures, Part};
use super::score::float;
use crate::outcome::Outcome;

/// The file, and its schema.
pub(super) const FILE: &str = "xtask/evaluation/figures.json";
const SCHEMA: &str = "ncclscope.evaluation/2";

/// Largest difference of two equal numbers: four decimals are kept.
const ROUNDING: f64 = 0.000_11;
/// A share that comes up less often than this is worse.
const RARE: f64 = 1e-4;

/// Columns in which less is better; in all other columns more is.
const LESS: [&str; 6] =
    ["wrong ranks", "cost error p50", "cost error p90", "cannot tell", "fine though slow", FALSE];
/// What the names of the columns of false alarms begin with; the class follows.
const FALSE: &str = "false ";
/// The number of jobs, which is neither.
const JOBS: &str = "jobs";

/// A column's value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Figure {
    Number(f64),
    /// How many of how many.
    Share(u64, u64),
}

/// The columns of a row by name; those that its jobs do not have are left out.
pub(super) type Columns = BTreeMap<String, Figure>;

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    row: String,
    #[serde(flatten)]
    columns: Columns,
}

#[derive(Debug, Deserialize)]
struct File {
    schema: String,
    rows: Vec<Line>,
}

/// The columns of a row that are kept.
pub(super) fn columns(of: &Figures) -> Columns {
    let share = |part: Part| (part.of > 0).then_some(Figure::Share(part.is, part.of));
    let number = |value: f64| Figure::Number((value * 1e4).round() / 1e4);
    let named = [
        (JOBS, Some(number(float(of.jobs)))),
        ("class right", share(of.class)),
        ("root right", share(of.root)),
        ("wrong ranks", Some(number(float(of.extra)))),
        ("first row right", share(of.first_row)),
        ("cost error p50", of.error(50).map(number)),
        ("cost error p90", of.error(90).map(number)),
        ("cost within 25 %", share(of.near())),
        ("cost in interval", share(of.inside)),
        ("cannot tell", share(of.cannot_tell)),
        ("fine though slow", share(of.fine)),
    ];
    let named = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let alarms = of.alarms.iter();
    let alarms =
        alarms.map(|(class, count)| (format!("{FALSE}{class}"), Figure::Share(*count, of.healthy)));
    named.chain(alarms).collect()
}

/// Number of jobs of a row.
pub(super) fn jobs(of: &Columns) -> f64 {
    match of.get(JOBS) {
        Some(Figure::Number(jobs)) => *jobs,
        _ => 0.0,
    }
}

/// What is worse in a row than in the kept one.
pub(super) fn worse(kept: &Columns, now: &Columns, is_drawn: bool) -> Vec<String> {
    let mut names: Vec<&String> = kept.keys().chain(now.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let row = names.into_iter().filter_map(|name| {
        let (old, new) = (kept.get(name).copied(), now.get(name).copied());
        let is_worse = match (old, new) {
            // The number of drawn jobs is free, and so are sums over them.
            (Some(Figure::Number(_)), _) | (_, Some(Figure::Number(_))) if is_drawn => false,
            (Some(old), Some(new)) if name == JOBS => old != new,
            (Some(Figure::Number(old)), Some(Figure::Number(new))) => {
                above(name, new, old, ROUNDING)
            }
            (Some(Figure::Share(is, of)), Some(Figure::Share(now, among))) if is_drawn => {
                is_rare(name, [is, of], [now, among])
            }
            (Some(Figure::Share(is, of)), Some(Figure::Share(now, among))) => {
                above(name, float(now) / float(among), float(is) / float(of), 0.0)
            }
            (Some(_), Some(_)) => true,
            (None, Some(Figure::Share(now, among))) if name.starts_with(FALSE) => {
                !is_drawn || is_rare(name, [0, among], [now, among])
            }
            // A column is gone. False alarms may be.
            (Some(_), None) => !name.starts_with(FALSE) && !is_drawn,
            (None, _) => false,
        };
        is_worse.then(|| format!("{name}: {} after {}", shown(new), shown(old)))
    });
    row.collect()
}

/// True if `new` is worse than `old` by more than the tolerance.
fn above(name: &str, new: f64, old: f64, tolerance: f64) -> bool {
    let by = if is_less_better(name) { new - old } else { old - new };
    by > tolerance + 1e-9
}

fn is_less_better(name: &str) -> bool {
    LESS.contains(&name) || name.starts_with(FALSE)
}

/// True if as bad a share of new jobs is rare where the kept share is true (rule of succession).
fn is_rare(name: &str, [is, of]: [u64; 2], [now, among]: [u64; 2]) -> bool {
    // What must not happen: in a column in which more is better, what does not.
    let bad = |is: u64, of: u64| if is_less_better(name) { is } else { of - is.min(of) };
    let share = (float(bad(is, of)) + 1.0) / (float(of) + 2.0);
    at_least(bad(now, among), among, share) < RARE
}

/// The probability that of `among` draws at least `count` have what a draw has with `share`, which
/// is neither 0 nor 1.
fn at_least(count: u64, among: u64, share: f64) -> f64 {
    let odds = share / (1.0 - share);
    let mut exactly = (float(among) * (1.0 - share).ln()).exp();
    let mut fewer = 0.0;
    for k in 0..count {
        fewer += exactly;
        exactly *= float(among - k) / float(k + 1) * odds;
    }
    1.0 - fewer
}

fn shown(figure: Option<Figure>) -> String {
    match figure {
        None => "nothing".into(),
        Some(Figure::Number(value)) => value.to_string(),
        Some(Figure::Share(is, of)) => format!("{is}/{of}"),
    }
}

/// The kept rows by name; none if there is no file.
///
/// # Errors
/// The file has another form.
pub(super) fn read(path: &Path) -> Outcome<BTreeMap<String, Columns>> {
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let file: File = serde_json::from_str(&fs::read_to_string(path)?)?;
    if file.schema != SCHEMA {
        return Err(format!("{}: not {SCHEMA}", path.display()).into());
    }
    Ok(file.rows.into_iter().map(|line| (line.row, line.columns)).collect())
}

/// Replaces the kept rows.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, rows: &BTreeMap<String, Columns>) -> Outcome<()> {
    let lines = rows.iter().map(|(row, columns)| {
        serde_json::to_string(&Line { row: row.clone(), columns: columns.clone() })
    });
    let lines: Vec<String> = lines.collect::<Result<_, _>>()?;
    let text = format!("{{\"schema\":\"{SCHEMA}\",\"rows\":[\n{}\n]}}\n", lines.join(",\n"));
    Ok(fs::write(path, text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(of: &[(&str, Figure)]) -> Columns {
        of.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn the_same_figures_are_not_worse_and_each_direction_is_known() {
        let kept = row(&[
            ("jobs", Figure::Number(11.0)),
            ("class right", Figure::Share(10, 11)),
            ("cost error p50", Figure::Number(0.05)),
            ("cannot tell", Figure::Share(1, 11)),
        ]);
        assert_eq!(worse(&kept, &kept, false), [""; 0]);
        for (name, good, bad) in [
            ("class right", Figure::Share(11, 11), Figure::Share(9, 11)),
            ("cost error p50", Figure::Number(0.04), Figure::Number(0.051)),
            ("cannot tell", Figure::Share(0, 11), Figure::Share(2, 11)),
        ] {
            let with =
                |value| [kept.clone(), row(&[(name, value)])].into_iter().flatten().collect();
            assert_eq!(worse(&kept, &with(good), false), [""; 0], "{name}");
            assert_eq!(worse(&kept, &with(bad), false).len(), 1, "{name}");
        }
        let other = [kept.clone(), row(&[("jobs", Figure::Number(12.0))])];
        let other: Columns = other.into_iter().flatten().collect();
        assert_eq!(worse(&kept, &other, false), ["jobs: 12 after 11"]);
        assert_eq!(worse(&kept, &row(&[]), false).len(), 4, "columns are gone");
    }

    #[test]
    fn a_class_without_false_alarms_may_not_get_one() {
        let now = row(&[("false S1", Figure::Share(1, 50))]);
        assert_eq!(worse(&row(&[]), &now, false), ["false S1: 1/50 after nothing"]);
        assert_eq!(worse(&now, &row(&[]), false), [""; 0], "it is better");
        assert_eq!(worse(&row(&[]), &now, true), [""; 0], "one of 50 may be chance");
    }

    #[test]
    fn drawn_jobs_are_worse_only_if_chance_does_not_explain_them() {
        let kept = row(&[("root right", Figure::Share(95, 100)), ("jobs", Figure::Number(100.0))]);
        let of = |is| row(&[("root right", Figure::Share(is, 10)), ("jobs", Figure::Number(10.0))]);
        for is in 7..=10 {
            assert_eq!(worse(&kept, &of(is), true), [""; 0], "{is}");
        }
        assert_eq!(worse(&kept, &of(4), true), ["root right: 4/10 after 95/100"]);
    }

    #[test]
    fn tails_of_the_binomial_distribution() {
        assert!((at_least(0, 10, 0.3) - 1.0).abs() < 1e-12);
        assert!((at_least(1, 2, 0.5) - 0.75).abs() < 1e-12);
        assert!((at_least(10, 10, 0.5) - 0.5_f64.powi(10)).abs() < 1e-12);
    }

    #[test]
    fn a_file_has_one_line_a_row_and_is_read_again() {
        let path = std::env::temp_dir().join(format!("evaluation-{}.json", std::process::id()));
        let both = [
            ("b".to_owned(), row(&[("wrong ranks", Figure::Number(3.0))])),
            ("a".to_owned(), row(&[("class right", Figure::Share(1, 2))])),
        ];
        let rows: BTreeMap<String, Columns> = both.into_iter().collect();
        write(&path, &rows).expect("written");
        let text = fs::read_to_string(&path).expect("there");
        assert_eq!(text.lines().nth(1), Some(r#"{"row":"a","class right":[1,2]},"#), "{text}");
        assert_eq!(read(&path).expect("read"), rows);
        fs::remove_file(&path).expect("removed");
        assert!(read(&path).expect("no file is no row").is_empty());
    }

    #[test]
    fn columns_leave_out_what_the_jobs_do_not_have() {
        let mut of = Figures { jobs: 2, healthy: 2, ..Figures::default() };
        of.alarms.insert("S1", 1);
        of.cannot_tell = Part { of: 2, is: 1 };
        let expected = row(&[
            ("cannot tell", Figure::Share(1, 2)),
            ("false S1", Figure::Share(1, 2)),
            ("jobs", Figure::Number(2.0)),
            ("wrong ranks", Figure::Number(0.0)),
        ]);
        assert_eq!(columns(&of), expected);
    }
}
