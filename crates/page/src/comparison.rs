// SPDX-License-Identifier: Apache-2.0
//! The page of a comparison: the answer, what changed, bandwidths of both sides, settings.

use crate::content::Beside;
use crate::data::script;
use crate::facts::Facts;
use crate::frame::{self, Frame};
use crate::section::{Section, absent};
use crate::table::{Kind, Table};
use crate::{bandwidth, changes};
use maud::{Markup, html};
use ncclscope_compare::schema::{Answer, ConfigDifference, Row, Side, State};
use ncclscope_compare::{Comparison, name};
use ncclscope_operations::human::{count, duration};
use ncclscope_report::Report;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeSet;

/// Maximum number of runs of a side that are named.
const RUNS: usize = 20;

/// What the page shows.
#[derive(Clone, Copy, Debug)]
pub struct ComparisonContent<'a> {
    /// The inputs of both sides, as the user's commands name them.
    pub inputs: [&'a str; 2],
    /// The result of the comparison.
    pub comparison: &'a Comparison,
    /// The report of one run of each side; `None` for saved reports.
    pub reports: Option<[&'a Report; 2]>,
}

/// The page's data: the comparison as `compare --format json` prints it, and its tables.
#[derive(Debug, Serialize)]
struct Data<'a> {
    schema: &'static str,
    inputs: [&'a str; 2],
    comparison: &'a Comparison,
    tables: &'a [Table],
}

/// The page.
#[must_use]
pub fn render_comparison(content: ComparisonContent<'_>) -> String {
    let ComparisonContent { inputs, comparison, reports } = content;
    let facts = reports.map(|reports| reports.map(Facts::of));
    let mut sections = vec![changes::section(comparison)];
    if let (Some([a, b]), Some([_, of_b])) = (reports, &facts) {
        sections.push(bandwidth::section(b, of_b, Some(Beside { name: inputs[0], report: a })));
    }
    sections.extend([sides(inputs, comparison), settings(comparison)]);
    let tables = [times(&comparison.rows), differences(&comparison.config_differences)];
    let tables: Vec<Table> = tables.into_iter().filter(|table| !table.rows.is_empty()).collect();
    let data = script(&Data { schema: "ncclscope.page/2", inputs, comparison, tables: &tables });
    let roles: BTreeSet<&str> =
        comparison.rows.iter().filter_map(|row| row.key.role.as_deref()).collect();
    let [a, b] = inputs;
    let frame = Frame {
        title: format!("{}: {a} and {b}", comparison.answer.state.word()),
        heading: html! { "Comparison of " span.input { (a) } " and " span.input { (b) } },
        answer: answer(&comparison.answer),
        roles,
        sections: &sections,
        tables: &tables,
        data,
        command: "compare --format json",
    };
    frame::page(frame).into_string()
}

fn answer(answer: &Answer) -> Markup {
    let tone = match answer.state {
        State::Slower => "bad",
        State::Faster | State::Same => "good",
        State::Unknown => "unknown",
    };
    frame::answer(tone, &answer.lines())
}

/// The section that names the two sides.
fn sides(inputs: [&str; 2], comparison: &Comparison) -> Section {
    let side = |label: &str, input: &str, side: &Side| {
        let steps = match side.step_ns {
            Some(ns) => format!("{}, median {}", count(side.steps, "step"), duration(ns)),
            None => "steps unknown".into(),
        };
        html! {
            dt { (label) }
            dd { (input) ": " (count(side.runs.len(), "run")) " ("
                (side.runs.iter().take(RUNS).cloned().collect::<Vec<_>>().join(", "))
                @if side.runs.len() > RUNS { ", ..." }
                "), " (steps) }
        }
    };
    Section {
        id: "sides",
        title: "Sides",
        about: "The runs of each side, and what limits the comparison.",
        body: html! {
            dl { (side("A", inputs[0], &comparison.a)) (side("B", inputs[1], &comparison.b)) }
            @if !comparison.notes.is_empty() {
                ul { @for note in &comparison.notes { li { (note) } } }
            }
        },
    }
}

fn settings(comparison: &Comparison) -> Section {
    let different = comparison.config_differences.len();
    Section {
        id: "settings",
        title: "Settings",
        about: "What was recorded of versions, variables, ranks, hosts and algorithms. That a \
                setting explains a time is for the reader to decide.",
        body: match different {
            0 => absent("No recorded setting differs."),
            _ => html! {
                p { (count(different, "recorded setting")) " "
                    (if different == 1 { "differs" } else { "differ" }) ": table "
                    a href="#table-settings" { "Settings that differ" } "." }
            },
        },
    }
}

fn times(rows: &[Row]) -> Table {
    let columns = [
        ("key", "what", Kind::Text),
        ("key.role", "role", Kind::Role),
        ("key.algorithm", "algorithm", Kind::Text),
        ("key.protocol", "protocol", Kind::Text),
        ("a", "A", Kind::Three),
        ("b", "B", Kind::Three),
        ("unit", "unit", Kind::Text),
        ("change", "change", Kind::Percent),
        ("change_interval.0", "from", Kind::Percent),
        ("change_interval.1", "to", Kind::Percent),
        ("p_adjusted", "p", Kind::Three),
        ("cost.step_share", "of a step", Kind::Percent),
        ("verdict", "verdict", Kind::Text),
        ("reason", "why", Kind::Text),
    ];
    let about = "Medians in us, of links in GB/s; the change of a link is that of the time for a \
                 byte, so that + is slower. Changes by cost, then what is unknown, then what is \
                 the same.";
    Table::new(["rows", "Times", about], &columns, rows, |row| {
        let is_link = row.key.src.is_some();
        // A byte in 1 ns is 1 GB/s.
        let shown = |value: Option<f64>| value.map(|ns| if is_link { 1.0 / ns } else { ns / 1e3 });
        vec![
            json!(name(&row.key)),
            json!(row.key.role),
            json!(row.key.algorithm),
            json!(row.key.protocol),
            json!(shown(row.a)),
            json!(shown(row.b)),
            json!(unit(row)),
            json!(row.change),
            json!(row.change_interval.map(|[from, _]| from)),
            json!(row.change_interval.map(|[_, to]| to)),
            json!(row.p_adjusted),
            json!(row.cost.map(|cost| cost.step_share)),
            json!(row.verdict),
            json!(row.reason),
        ]
    })
}

/// The unit of a row's times, and which of them are lower bounds.
fn unit(row: &Row) -> &'static str {
    match (row.key.src.is_some(), row.a_is_least, row.b_is_least) {
        (true, ..) => "GB/s",
        (_, true, true) => "us at least",
        (_, true, false) => "us, A at least",
        (_, false, true) => "us, B at least",
        _ => "us",
    }
}

fn differences(differences: &[ConfigDifference]) -> Table {
    let columns = [("what", "setting", Kind::Text), ("a", "A", Kind::Text), ("b", "B", Kind::Text)];
    let about = "Facts that were recorded of both sides.";
    Table::new(["settings", "Settings that differ", about], &columns, differences, |row| {
        vec![json!(row.what), json!(row.a), json!(row.b)]
    })
}
