// SPDX-License-Identifier: Apache-2.0
//! Bus bandwidth by size: a chart for each function, with a line for each role, algorithm and
//! protocol. The lines of another run have the same colours, but are dashed and have squares in
//! place of points.

use crate::chart::{
    Figure, Legend, Plot, SERIES, Scale, Swatch, Tick, legend, log_ticks, px, short, size_ticks,
    x_axis, y_axis,
};
use crate::content::Beside;
use crate::facts::Facts;
use crate::section::{Section, absent};
use maud::{Markup, html};
use ncclscope_operations::human::{bytes, count, three};
use ncclscope_operations::stats::{lower_median, to_f64, to_u64};
use ncclscope_report::Report;
use ncclscope_report::schema::OperationRow;
use std::collections::{BTreeMap, BTreeSet};

const SIZE: [f64; 2] = [560.0, 320.0];
const PLOT: Plot = Plot { left: 60.0, right: 528.0, top: 28.0, bottom: 274.0 };

/// Role, algorithm, protocol.
type Key<'a> = (&'a str, &'a str, &'a str);

/// Bus bandwidths of one size, GB/s: `transfers`, and `bounds` (lower bounds) if these are unknown.
#[derive(Debug, Default)]
struct Size {
    transfers: Vec<f64>,
    bounds: Vec<f64>,
}

/// The median bandwidth of a size.
#[derive(Clone, Copy, Debug)]
struct Point {
    bytes: u64,
    gbs: f64,
    is_bound: bool,
}

/// A line of a chart.
#[derive(Debug)]
struct Line<'a> {
    key: Key<'a>,
    points: Vec<Point>,
    /// Number of its colour; lines with the same key share it.
    colour: usize,
    /// Name of the other run, if the line belongs to that.
    of: Option<&'a str>,
}

pub(crate) fn section<'a>(
    report: &'a Report,
    facts: &'a Facts<'_>,
    beside: Option<Beside<'a>>,
) -> Section {
    let other = beside.map(|beside| (beside, Facts::of(beside.report)));
    let mut functions = lines_of(report, facts, None);
    if let Some((Beside { name, report }, facts)) = &other {
        for (func, lines) in lines_of(report, facts, Some(name)) {
            functions.entry(func).or_default().extend(lines);
        }
    }
    functions.retain(|_, lines| !lines.is_empty());
    functions.values_mut().for_each(|lines| colour(lines));
    let charts: Vec<Markup> =
        functions.iter().enumerate().map(|(at, (func, lines))| chart(at, func, lines)).collect();
    Section {
        id: "bandwidth",
        title: "Bandwidth by size",
        about: "Bus bandwidth as nccl-tests defines it, of the transfer: from the last rank's \
                arrival to the end. Of several communicators with one role the median. A ring is \
                a lower bound, which contains the wait for late ranks.",
        body: match charts.is_empty() {
            true => absent("No operation with a known size and time was recorded."),
            false => html! { div.charts { @for chart in &charts { (chart) } } },
        },
    }
}

/// The lines of a report, by function.
fn lines_of<'a>(
    report: &'a Report,
    facts: &'a Facts<'_>,
    of: Option<&'a str>,
) -> BTreeMap<&'a str, Vec<Line<'a>>> {
    let mut functions: BTreeMap<&str, BTreeMap<Key<'_>, BTreeMap<u64, Size>>> = BTreeMap::new();
    for row in &report.operations {
        let Some(size) = row.bytes.filter(|&bytes| bytes > 0) else { continue };
        let key = (
            facts.role(&row.comm),
            or_dash(row.algorithm.as_ref()),
            or_dash(row.protocol.as_ref()),
        );
        let sizes = functions.entry(&row.func).or_default().entry(key).or_default();
        add(sizes.entry(size).or_default(), row);
    }
    functions.into_iter().map(|(func, series)| (func, lines(series, of))).collect()
}

/// Assigns the same colour to lines with the same key.
fn colour(lines: &mut [Line<'_>]) {
    let keys: BTreeSet<Key<'_>> = lines.iter().map(|line| line.key).collect();
    for line in lines {
        line.colour = keys.range(..line.key).count() % SERIES;
    }
}

fn or_dash(text: Option<&String>) -> &str {
    text.map_or("-", String::as_str)
}

fn add(size: &mut Size, row: &OperationRow) {
    match (row.busbw_gbs, row.busbw_with_waiting_gbs) {
        (Some(gbs), _) => size.transfers.push(gbs),
        (None, Some(gbs)) => size.bounds.push(gbs),
        (None, None) => {}
    }
}

/// The points of each line; lines without points are left out.
fn lines<'a>(series: BTreeMap<Key<'a>, BTreeMap<u64, Size>>, of: Option<&'a str>) -> Vec<Line<'a>> {
    let point = |(bytes, size): (u64, Size)| {
        let is_bound = size.transfers.is_empty();
        // The same choice as in the report.
        let mut values = if is_bound { size.bounds } else { size.transfers };
        let gbs = lower_median(&mut values)?;
        (gbs > 0.0).then_some(Point { bytes, gbs, is_bound })
    };
    let lines = series.into_iter().map(|(key, sizes)| {
        let points = sizes.into_iter().filter_map(point).collect();
        Line { key, points, colour: 0, of }
    });
    lines.filter(|line| !line.points.is_empty()).collect()
}

fn chart(at: usize, func: &str, series: &[Line<'_>]) -> Markup {
    let points = || series.iter().flat_map(|line| &line.points);
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold([f64::MAX, 0.0], |[low, high], v| [v.min(low), v.max(high)])
    };
    let [small, large] = range(&mut points().map(|point| to_f64(point.bytes)));
    let [slow, fast] = range(&mut points().map(|point| point.gbs));
    // Some room around the points, so that a line with one size does not lie on an axis.
    let sizes = size_ticks(small / 2.0, large * 2.0, 7);
    let speeds = log_ticks(slow / 2.0, fast * 2.0);
    let ends = |ticks: &[f64]| [ticks[0], ticks[ticks.len() - 1]];
    let x = Scale::log(ends(&sizes), [PLOT.left, PLOT.right]);
    let y = Scale::log(ends(&speeds), [PLOT.bottom, PLOT.top]);
    let x_ticks: Vec<Tick> =
        sizes.iter().map(|&v| Tick { at: x.at(v), label: bytes(to_u64(v)) }).collect();
    let y_ticks: Vec<Tick> =
        speeds.iter().map(|&v| Tick { at: y.at(v), label: plain(v) }).collect();
    let drawing = html! {
        (x_axis(PLOT, &x_ticks, "size"))
        (y_axis(PLOT, &y_ticks, "GB/s"))
        @for line in series { (draw(line, [x, y])) }
    };
    let description = format!(
        "{} with {} from {} to {}; bus bandwidth from {} to {} GB/s. The table “Sizes” has the \
         figures.",
        count(series.len() as u64, "line"),
        count(points().count() as u64, "size"),
        bytes(to_u64(small)),
        bytes(to_u64(large)),
        three(slow),
        three(fast)
    );
    Figure { id: &format!("bandwidth-{at}"), title: func, description: &description, size: SIZE }
        .draw(&drawing, &legend(&entries(series)))
}

fn draw(line: &Line<'_>, [x, y]: [Scale; 2]) -> Markup {
    let Line { key, points, colour, of } = line;
    let place =
        |point: &Point| format!("{},{}", px(x.at(to_f64(point.bytes))), px(y.at(point.gbs)));
    let path: Vec<String> = points.iter().map(place).collect();
    html! {
        g.series.(format!("s{colour}")).beside-line[of.is_some()] data-role=(key.0) {
            @if points.len() > 1 { polyline points=(path.join(" ")) {} }
            @for point in points {
                @let at = [x.at(to_f64(point.bytes)), y.at(point.gbs)];
                (mark(at, point.is_bound, of.is_some(), &say(line, point)))
            }
        }
    }
}

/// A point; a square for the other run.
fn mark([x, y]: [f64; 2], is_bound: bool, is_other: bool, say: &str) -> Markup {
    html! {
        @if is_other {
            rect.ring x=(px(x - 6.0)) y=(px(y - 6.0)) width="12" height="12" { title { (say) } }
        } @else {
            circle.ring[is_bound] cx=(px(x)) cy=(px(y)) r="4.5" { title { (say) } }
        }
    }
}

/// A point as text, such as `tp, Ring, Simple: 16 MiB, 72.9 GB/s`.
fn say(line: &Line<'_>, point: &Point) -> String {
    let bound = if point.is_bound { "at least " } else { "" };
    format!("{}: {}, {bound}{} GB/s", line.name(), bytes(point.bytes), three(point.gbs))
}

impl Line<'_> {
    fn name(&self) -> String {
        match self.of {
            Some(run) => format!("{}, {run}", name(self.key)),
            None => name(self.key),
        }
    }
}

fn name((role, algo, proto): Key<'_>) -> String {
    match (algo, proto) {
        ("-", "-") => role.to_owned(),
        _ => format!("{role}, {algo}, {proto}"),
    }
}

fn entries(series: &[Line<'_>]) -> Vec<Legend> {
    let entry = |line: &Line<'_>| Legend {
        class: format!("s{}", line.colour),
        swatch: match line.points.iter().all(|point| point.is_bound) {
            _ if line.of.is_some() => Swatch::Dashes,
            true => Swatch::Ring,
            false => Swatch::Line,
        },
        label: short(&line.name(), 48),
        role: Some(line.key.0.to_owned()),
    };
    series.iter().map(entry).collect()
}

/// A round value of an axis, such as `0.05` or `20`.
fn plain(value: f64) -> String {
    if value < 0.00095 {
        return format!("{value:.0e}");
    }
    if value >= 1.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.prec$}", prec = digits(value))
    }
}

/// Number of decimals that a value below 1 needs.
fn digits(value: f64) -> usize {
    (1..12)
        .find(|&digits| value * 10f64.powi(digits) > 0.999)
        .map_or(12, |digits| usize::try_from(digits).unwrap_or(12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marks_of_the_axis_are_plain_numbers() {
        assert_eq!([0.001, 0.05, 0.2, 1.0].map(plain), ["0.001", "0.05", "0.2", "1"]);
        assert_eq!([1e-5, 500.0].map(plain), ["1e-5", "500"]);
    }

    #[test]
    fn a_transfer_counts_before_a_bound() {
        let both = Size { transfers: vec![3.0, 1.0, 2.0, 4.0], bounds: vec![9.0] };
        let bound = Size { bounds: vec![9.0], ..Size::default() };
        let sizes = BTreeMap::from([(1024, both), (2048, bound), (4096, Size::default())]);
        let lines = lines(BTreeMap::from([(("tp", "Ring", "Simple"), sizes)]), None);
        let points: Vec<_> = lines[0].points.iter().map(|p| (p.bytes, p.gbs, p.is_bound)).collect();
        assert_eq!(points, [(1024, 2.0, false), (2048, 9.0, true)]);
        let texts: Vec<String> =
            lines[0].points.iter().map(|point| say(&lines[0], point)).collect();
        assert_eq!(texts[0], "tp, Ring, Simple: 1 KiB, 2.00 GB/s");
        assert_eq!(texts[1], "tp, Ring, Simple: 2 KiB, at least 9.00 GB/s");
    }
}
