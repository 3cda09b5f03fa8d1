// SPDX-License-Identifier: Apache-2.0
//! How long operations take: for each role, function and size the shortest, the median, the 99th
//! percentile and the longest.

use crate::chart::{
    Figure, Legend, Plot, Scale, Swatch, Tick, count, legend, log_ticks, px, round_duration, short,
    x_axis,
};
use crate::facts::Facts;
use crate::{Section, absent};
use maud::{Markup, html};
use ncclscope_operations::human::{bytes, duration};
use ncclscope_operations::stats::{to_f64, to_u64};
use ncclscope_report::Report;
use ncclscope_report::schema::{Durations, OperationRow};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The most rows; those with the most time are shown.
const ROWS: usize = 30;
/// The height of a row.
const ROW: f64 = 30.0;
const WIDTH: f64 = 1120.0;
const LEFT: f64 = 300.0;
const TOP: f64 = 8.0;

/// Durations of several communicators: the extremes of all, and the median of their medians.
#[derive(Debug, Default)]
struct Spread {
    medians: Vec<u64>,
    ends: Option<Durations>,
}

impl Spread {
    fn add(&mut self, of: Option<Durations>) {
        let Some(of) = of else { return };
        self.medians.push(of.p50);
        let ends = self.ends.get_or_insert(of);
        ends.min = ends.min.min(of.min);
        ends.p99 = ends.p99.max(of.p99);
        ends.max = ends.max.max(of.max);
    }

    fn durations(mut self) -> Option<Durations> {
        self.medians.sort_unstable();
        let p50 = self.medians.get(self.medians.len().saturating_sub(1) / 2).copied()?;
        self.ends.map(|ends| Durations { p50, ..ends })
    }
}

/// A row of the chart.
#[derive(Debug)]
struct Row<'a> {
    role: &'a str,
    name: String,
    /// From each rank's arrival, or from the operation's start.
    all: Option<Durations>,
    transfer: Option<Durations>,
}

pub(crate) fn section(report: &Report, facts: &Facts<'_>) -> Section {
    let mut groups: BTreeMap<(&str, &str, Option<u64>), Vec<&OperationRow>> = BTreeMap::new();
    for row in &report.operations {
        let key = (facts.role(&row.comm), &*row.func, row.bytes);
        groups.entry(key).or_default().push(row);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, rows)| {
        Reverse(rows.iter().filter_map(|row| row.total_ns).fold(0, u64::saturating_add))
    });
    let rows: Vec<Row<'_>> = groups.iter().map(|(key, rows)| row(*key, rows)).collect();
    let known: Vec<Row<'_>> =
        rows.into_iter().filter(|row| row.all.is_some() || row.transfer.is_some()).collect();
    let (shown, all) = (&known[..known.len().min(ROWS)], known.len());
    Section {
        id: "latency",
        title: "Durations",
        about: "The line reaches from the shortest to the longest, the bar to the 99th percentile; \
                the mark is the median. With waiting: as each rank took part, the wait for later \
                ranks included. Transfer: from the last rank's arrival to the end.",
        body: match shown.is_empty() {
            true => absent("No finished operation was recorded."),
            false => html! {
                (chart(shown))
                @if all > ROWS {
                    p.note { "The " (ROWS) " of " (all) " with the most time; the table "
                        a href="#table-operations" { "Operations" } " has all." }
                }
            },
        },
    }
}

fn row<'a>((role, func, size): (&'a str, &'a str, Option<u64>), rows: &[&OperationRow]) -> Row<'a> {
    let (mut all, mut transfer) = (Spread::default(), Spread::default());
    for row in rows {
        all.add(row.with_waiting_ns.or(row.duration_ns));
        transfer.add(row.transfer_ns);
    }
    let size = size.map_or_else(|| "unknown size".into(), bytes);
    Row {
        role,
        name: format!("{role} {func} {size}"),
        all: all.durations(),
        transfer: transfer.durations(),
    }
}

fn chart(rows: &[Row<'_>]) -> Markup {
    let of = |pick: fn(&Durations) -> u64| {
        let known = rows.iter().flat_map(|row| [row.all, row.transfer]).flatten();
        known.map(move |durations| to_f64(pick(&durations).max(1)))
    };
    let low = of(|durations| durations.min).fold(f64::MAX, f64::min);
    let high = of(|durations| durations.max).fold(1.0, f64::max);
    let ticks = log_ticks(low, high);
    let bottom = TOP + ROW * count(rows.len());
    let plot = Plot { left: LEFT, right: WIDTH - 24.0, top: TOP, bottom };
    let ends = [ticks[0], ticks[ticks.len() - 1]];
    let x = Scale::log(ends, [plot.left, plot.right]);
    let marks: Vec<Tick> = ticks
        .iter()
        .map(|&ns| Tick { at: x.at(ns), label: round_duration(to_f64(to_u64(ns))) })
        .collect();
    let drawing = html! {
        (x_axis(plot, &marks, "duration"))
        @for (at, row) in rows.iter().enumerate() {
            @let y = TOP + ROW * (count(at) + 0.5);
            g data-role=(row.role) {
                text.label x=(px(LEFT - 12.0)) y=(px(y + 4.0)) text-anchor="end" {
                    (short(&row.name, 38)) title { (row.name) }
                }
                @if let Some(all) = row.all { (bar("waits", all, y - 5.0, x)) }
                @if let Some(transfer) = row.transfer { (bar("s0", transfer, y + 5.0, x)) }
            }
        }
    };
    let description = format!(
        "{} rows, from {} to {}. The table “Operations” has the figures.",
        rows.len(),
        duration(low),
        duration(high)
    );
    let entry = |class: &str, label: &str| Legend {
        class: class.into(),
        swatch: Swatch::Area,
        label: label.into(),
        role: None,
    };
    let below = legend(&[entry("waits", "with waiting"), entry("s0", "transfer")]);
    Figure {
        id: "durations",
        title: "Durations by role, function and size",
        description: &description,
        size: [WIDTH, bottom + 40.0],
    }
    .draw(&drawing, &below)
}

fn bar(class: &str, of: Durations, y: f64, x: Scale) -> Markup {
    let at = |ns: u64| x.at(to_f64(ns.max(1)));
    let [min, p50, p99, max] = [of.min, of.p50, of.p99, of.max].map(at);
    let say = [("min", of.min), ("median", of.p50), ("p99", of.p99), ("max", of.max)]
        .map(|(name, ns)| format!("{name} {}", duration(to_f64(ns))));
    html! {
        g.spread.(class) {
            title { (say.join(", ")) }
            line x1=(px(min)) x2=(px(max)) y1=(px(y)) y2=(px(y)) {}
            rect x=(px(min)) y=(px(y - 3.0)) width=(px((p99 - min).max(1.0))) height="6" rx="1.5" {}
            line.median x1=(px(p50)) x2=(px(p50)) y1=(px(y - 5.0)) y2=(px(y + 5.0)) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_extremes_of_all_and_the_middle_median() {
        let mut spread = Spread::default();
        assert_eq!(Spread::default().durations(), None);
        for (min, p50, p99, max) in [(5, 10, 20, 30), (6, 12, 40, 41), (4, 50, 60, 61)] {
            spread.add(Some(Durations { min, p50, p99, max }));
        }
        spread.add(None);
        assert_eq!(spread.durations(), Some(Durations { min: 4, p50: 12, p99: 60, max: 61 }));
    }
}
