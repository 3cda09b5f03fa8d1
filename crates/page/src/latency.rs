// SPDX-License-Identifier: Apache-2.0
//! Durations of operations: for each role, function and size two histograms on a logarithmic axis,
//! with and without the wait for later ranks.

use crate::chart::{
    Figure, Legend, Plot, Scale, Swatch, Tick, count, legend, log_ticks, px, round_duration, short,
    x_axis,
};
use crate::section::{Section, absent};
use maud::{Markup, html};
use ncclscope_operations::human::{self, bytes, duration};
use ncclscope_operations::stats::{to_f64, to_u64};
use ncclscope_report::Report;
use ncclscope_report::schema::{Histogram, LatencyRow};

/// Maximum number of rows; those with the most time are shown.
const ROWS: usize = 30;
/// Height of a row; `HIGH` is the maximum height of a histogram.
const ROW: f64 = 48.0;
const HIGH: f64 = 20.0;
const WIDTH: f64 = 1120.0;
const LEFT: f64 = 300.0;
const TOP: f64 = 8.0;

pub(crate) fn section(report: &Report) -> Section {
    let all = &report.latencies;
    let shown = &all[..all.len().min(ROWS)];
    Section {
        id: "latency",
        title: "Durations",
        about: "How many operations took how long. Upwards, with waiting: as each rank took part, \
                the wait for later ranks included. Downwards, transfer: from the last rank's \
                arrival to the end. Heights are square roots of numbers, so that rare durations \
                are seen, too. The long mark is the median, the short one the 99th percentile.",
        body: match shown.is_empty() {
            true => absent("No finished operation was recorded."),
            false => html! {
                (chart(shown))
                p.note {
                    @if all.len() > ROWS {
                        "The " (ROWS) " of " (all.len()) " with the most time. "
                    }
                    "The table " a href="#table-latencies" { "Durations" } " has the figures."
                }
            },
        },
    }
}

fn chart(rows: &[LatencyRow]) -> Markup {
    let known = || rows.iter().flat_map(|row| [&row.with_waiting_ns, &row.transfer_ns]).flatten();
    let low = known().map(|of| to_f64(of.min.max(1))).fold(f64::MAX, f64::min);
    let high = known().map(|of| to_f64(of.max.max(1))).fold(1.0, f64::max);
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
            @let name = name(row);
            g data-role=(row.role) {
                text.label x=(px(LEFT - 12.0)) y=(px(y + 4.0)) text-anchor="end" {
                    (short(&name, 38)) title { (name) }
                }
                line.grid x1=(px(plot.left)) x2=(px(plot.right)) y1=(px(y)) y2=(px(y)) {}
                @if let Some(of) = &row.with_waiting_ns {
                    (histogram("waits", "with waiting", of, (x, y, -HIGH)))
                }
                @if let Some(of) = &row.transfer_ns {
                    (histogram("s0", "transfer", of, (x, y, HIGH)))
                }
            }
        }
    };
    let description = format!(
        "{}, from {} to {}. The table “Durations” has the figures.",
        human::count(rows.len(), "row"),
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

fn name(LatencyRow { role, func, bytes: size, .. }: &LatencyRow) -> String {
    let size = size.map_or_else(|| "unknown size".into(), bytes);
    format!("{role} {func} {size}")
}

/// A histogram on its base line at `y`, with a maximum height of `high`.
fn histogram(class: &str, what: &str, of: &Histogram, (x, y, high): (Scale, f64, f64)) -> Markup {
    let mark = |ns: u64, share: f64| {
        let at = px(x.at(to_f64(ns.max(1))));
        html! { line.median x1=(at) x2=(at) y1=(px(y)) y2=(px(y + high * share)) {} }
    };
    html! {
        g.spread.(class) {
            title { (say(what, of)) }
            path d=(outline(of, (x, y, high))) {}
            (mark(of.p50, 1.0))
            (mark(of.p99, 0.4))
        }
    }
}

fn say(what: &str, of: &Histogram) -> String {
    let figures =
        [("min", of.min), ("median", of.p50), ("p90", of.p90), ("p99", of.p99), ("max", of.max)];
    let figures = figures.map(|(name, ns)| format!("{name} {}", duration(to_f64(ns))));
    format!("{what}: {}, {}", human::count(of.count, "duration"), figures.join(", "))
}

/// The outline of a histogram. Its height is the count per width on the axis, because the buckets
/// have different widths there. Each bucket is at least a pixel wide.
fn outline(of: &Histogram, (x, y, high): (Scale, f64, f64)) -> String {
    let share = |&[from, to, count]: &[u64; 3]| {
        to_f64(count) / (to_f64(to.max(1)) / to_f64(from.max(1))).ln().max(0.01)
    };
    let highest = of.buckets.iter().map(share).fold(0.0, f64::max);
    let (mut path, mut end) = (String::new(), None);
    for bucket in &of.buckets {
        let [from, to, _] = *bucket;
        let [left, right] = [from, to].map(|ns| x.at(to_f64(ns.max(1))));
        // The square root makes the few longest operations visible.
        let top = y + high * (share(bucket) / highest).sqrt().max(0.04);
        if end != Some(from) {
            let back = if path.is_empty() { String::new() } else { format!("V{}Z", px(y)) };
            path += &format!("{back}M{} {}", px(left), px(y));
        }
        path += &format!("V{}H{}", px(top), px(right.max(left + 1.0)));
        end = Some(to);
    }
    format!("{path}V{}Z", px(y))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_as_high_as_many_operations_took_so_long() {
        let of = Histogram {
            count: 9,
            min: 1000,
            p50: 2000,
            p90: 2000,
            p99: 9000,
            max: 9000,
            // Two adjacent buckets, and one apart.
            buckets: vec![[1000, 2000, 2], [2000, 4000, 6], [8000, 16000, 1]],
        };
        let x = Scale::log([1000.0, 16000.0], [0.0, 400.0]);
        let path = outline(&of, (x, 50.0, -30.0));
        assert_eq!(path, "M0 50V32.7H100V20H200V50ZM300 50V37.8H400V50Z");
        let words = "transfer: 9 durations, min 1.00 us, median 2.00 us, p90 2.00 us, p99 9.00 us, \
                     max 9.00 us";
        assert_eq!(say("transfer", &of), words);
    }
}
