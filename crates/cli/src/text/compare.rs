// SPDX-License-Identifier: Apache-2.0
//! A comparison as text on one screen: at most 60 lines.

use super::page::{Page, bandwidth, or_dash};
use crate::tables::table::{Align, Table};
use ncclscope_compare::schema::{Answer, Kind, Row, RowKey, Side, State, Verdict};
use ncclscope_compare::{Comparison, name};
use ncclscope_console::printable::Colour;
use ncclscope_operations::human::{self, duration};

/// Maximum number of rows of the table.
const ROWS: usize = 30;
/// Maximum number of settings.
const SETTINGS: usize = 8;
/// Maximum number of notes.
const NOTES: usize = 3;
/// Maximum length of a setting's value.
const VALUE_MAX: usize = 40;

/// The answer, then one screen or everything.
pub(crate) fn comparison(comparison: &Comparison, is_full: bool, mut page: Page) -> String {
    answer(&mut page, &comparison.answer);
    let limit = |few: usize| if is_full { usize::MAX } else { few };
    sides(&mut page, comparison);
    rows(&mut page, comparison, limit(ROWS));
    settings(&mut page, comparison, limit(SETTINGS));
    notes(&mut page, &comparison.notes, limit(NOTES));
    page.into_text()
}

/// The answer, in at most five lines.
fn answer(page: &mut Page, answer: &Answer) {
    let colour = match answer.state {
        State::Slower => Colour::Red,
        State::Faster | State::Same => Colour::Green,
        State::Unknown => Colour::Yellow,
    };
    let colours = std::iter::once(Some(colour)).chain(std::iter::repeat(None));
    for ((label, text), colour) in answer.lines().into_iter().zip(colours) {
        page.labelled(&format!("{label:<8}"), colour, text);
    }
}

fn sides(page: &mut Page, comparison: &Comparison) {
    page.heading("SIDES");
    for (label, side) in [("A", &comparison.a), ("B", &comparison.b)] {
        let Side { runs, steps, step_ns, filters, .. } = side;
        let steps = match (*steps, step_ns) {
            (0, _) => "steps unknown".into(),
            (steps, Some(ns)) => format!("{steps} steps, median {}", duration(*ns)),
            (steps, None) => format!("{steps} steps"),
        };
        let shown: Vec<&str> = runs.iter().take(3).map(String::as_str).collect();
        let more = if runs.len() > 3 { ", ..." } else { "" };
        let names = format!("{}{more}", shown.join(", "));
        page.line(&format!("  {label}  {} ({names}), {steps}", human::count(runs.len(), "run")));
        filters.iter().for_each(|filter| page.line(&format!("     filter: {filter}")));
    }
}

fn rows(page: &mut Page, comparison: &Comparison, most: usize) {
    let rows = &comparison.rows;
    if rows.is_empty() && comparison.same_links == 0 {
        return;
    }
    page.heading("TIMES, medians, with the change from A to B");
    let mut table = Table::new(&[
        ("what", Align::Left),
        ("algorithm", Align::Left),
        ("A", Align::Right),
        ("B", Align::Right),
        ("change", Align::Right),
        ("95 % interval", Align::Right),
        ("p", Align::Right),
        ("a step", Align::Right),
        ("verdict", Align::Left),
    ])
    .spare(&["p", "95 % interval", "algorithm", "a step"])
    .key("what");
    for row in rows.iter().take(most) {
        table.row(cells(row));
    }
    if !rows.is_empty() {
        page.table(&table);
    }
    if rows.len() > most {
        page.line(&format!("  ... and {} more: --full", rows.len() - most));
    }
    if comparison.same_links > 0 {
        let links = human::are(comparison.same_links, "network link");
        page.line(&format!("  {links} the same"));
    }
    let has = |kind: Kind| rows.iter().take(most).any(|row| row.key.kind == kind);
    if has(Kind::Waiting) {
        page.wrapped("  ", "waiting: of a rank in a step; its change is a share of the step");
    }
    if has(Kind::Link) {
        page.wrapped("  ", "link: the change is that of the time for a byte, so that + is slower");
    }
}

/// A share in percent with its sign; a value that rounds to zero has none.
fn tenths(share: f64) -> String {
    let text = format!("{:+.1}", 100.0 * share);
    if text == "-0.0" { "+0.0".into() } else { text }
}

fn cells(row: &Row) -> Vec<String> {
    let time = |value: Option<f64>, is_least: bool| match row.key.kind {
        // A byte in 1 ns is 1 GB/s.
        Kind::Link => or_dash(value, |ns| format!("{} GB/s", bandwidth(Some(1.0 / ns), None))),
        _ => or_dash(value, |ns| format!("{}{}", if is_least { ">=" } else { "" }, duration(ns))),
    };
    let signed = |share: f64| format!("{} %", tenths(share));
    vec![
        short(&row.key),
        algorithm(&row.key),
        time(row.a, row.a_is_least),
        time(row.b, row.b_is_least),
        or_dash(row.change, signed),
        or_dash(row.change_interval, |[low, high]| {
            format!("{} to {} %", tenths(low), tenths(high))
        }),
        or_dash(row.p_adjusted, |p| if p < 1e-4 { "<0.0001".into() } else { format!("{p:.4}") }),
        or_dash(row.cost, |cost| signed(cost.step_share)),
        match row.verdict {
            Verdict::Slower => "SLOWER".into(),
            Verdict::Faster => "FASTER".into(),
            Verdict::Same => "same".into(),
            Verdict::Unknown => {
                format!("unknown: {}", row.reason.as_deref().unwrap_or("no reason is known"))
            }
        },
    ]
}

fn short(key: &RowKey) -> String {
    match key.kind {
        Kind::Step => "step".into(),
        _ => name(key).replacen("the link", "link", 1),
    }
}

fn algorithm(key: &RowKey) -> String {
    let parts: Vec<&str> =
        [&key.algorithm, &key.protocol].into_iter().flatten().map(String::as_str).collect();
    if parts.is_empty() { "-".into() } else { parts.join(" ") }
}

fn settings(page: &mut Page, comparison: &Comparison, most: usize) {
    let all = &comparison.config_differences;
    if all.is_empty() {
        return;
    }
    page.heading("DIFFERENCES IN CONFIGURATION, as far as it was recorded");
    let columns = [("setting", Align::Left), ("A", Align::Left), ("B", Align::Left)];
    let mut table = Table::new(&columns);
    for difference in all.iter().take(most) {
        let [a, b] = [&difference.a, &difference.b].map(|value| cut(value));
        table.row(vec![difference.what.clone(), a, b]);
    }
    page.table(&table);
    if all.len() > most {
        page.line(&format!("  ... and {} more: --full", all.len() - most));
    }
}

fn cut(value: &str) -> String {
    match value.char_indices().nth(VALUE_MAX) {
        Some((at, _)) => format!("{} ...", &value[..at]),
        None => value.to_owned(),
    }
}

fn notes(page: &mut Page, notes: &[String], most: usize) {
    page.sentences("NOTES", notes.get(..most).unwrap_or(notes));
    if notes.len() > most {
        page.line(&format!("  ... and {} more: --full", notes.len() - most));
    }
}

#[cfg(test)]
mod tests {
    use super::tenths;

    #[test]
    fn nothing_has_no_sign_of_less() {
        let shown = [-0.0004, 0.0, 0.0004, -0.0006, 0.012].map(tenths);
        assert_eq!(shown, ["+0.0", "+0.0", "+0.0", "-0.1", "+1.2"]);
    }
}
