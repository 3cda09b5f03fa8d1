// SPDX-License-Identifier: Apache-2.0
//! What changed between two runs: for each row the estimate with its interval.

use crate::chart::{
    Figure, Legend, Plot, Scale, Swatch, Tick, count, legend, linear_ticks, px, short, x_axis,
};
use crate::section::{Section, absent};
use maud::{Markup, html};
use ncclscope_compare::schema::{Row, Verdict};
use ncclscope_compare::{Comparison, name};
use ncclscope_operations::human;

/// Maximum number of rows: changes by cost, then unknown rows.
const ROWS: usize = 40;
/// Height of a row.
const ROW: f64 = 24.0;
const WIDTH: f64 = 1120.0;
const LEFT: f64 = 360.0;
const TOP: f64 = 8.0;
/// Larger changes are drawn at the edge of the chart.
const MOST: f64 = 3.0;

/// A row that is drawn.
struct Drawn<'a> {
    row: &'a Row,
    change: f64,
    interval: [f64; 2],
}

impl Drawn<'_> {
    /// The row with its estimate and interval; `None` if it has none.
    fn of(row: &Row) -> Option<Drawn<'_>> {
        Some(Drawn { row, change: row.change?, interval: row.change_interval? })
    }
}

pub(crate) fn section(comparison: &Comparison) -> Section {
    let all: Vec<Drawn<'_>> = comparison.rows.iter().filter_map(Drawn::of).collect();
    let shown = all.get(..ROWS).unwrap_or(&all);
    Section {
        id: "changes",
        title: "Changes",
        about: "From A to B: the point is the estimate, the line its interval of 95 %. To the \
                right of 0 B is slower. Of waiting the change is a share of a step. What is beyond \
                +300 % lies on the edge.",
        body: match shown.is_empty() {
            true => absent("No time has an interval on both sides."),
            false => html! {
                (chart(shown))
                @if all.len() > ROWS {
                    p.note { "The first " (ROWS) " of " (all.len()) "; the table "
                        a href="#table-rows" { "Times" } " has all." }
                }
            },
        },
    }
}

fn chart(rows: &[Drawn<'_>]) -> Markup {
    let reach = |pick: fn(f64, f64) -> f64| {
        let ends = rows.iter().flat_map(|row| [row.change, row.interval[0], row.interval[1]]);
        ends.map(|end| end.clamp(-1.0, MOST)).fold(0.0, pick)
    };
    let (low, high) = (reach(f64::min), reach(f64::max));
    let ticks = ticks(low, high);
    let bottom = TOP + ROW * count(rows.len());
    let plot = Plot { left: LEFT, right: WIDTH - 30.0, top: TOP, bottom };
    let x = Scale::linear([ticks[0], ticks[ticks.len() - 1]], [plot.left, plot.right]);
    let marks: Vec<Tick> =
        ticks.iter().map(|&tick| Tick { at: x.at(tick), label: percent(tick) }).collect();
    let drawing = html! {
        (x_axis(plot, &marks, "change"))
        line.zero x1=(px(x.at(0.0))) x2=(px(x.at(0.0))) y1=(px(TOP)) y2=(px(bottom)) {}
        @for (at, row) in rows.iter().enumerate() {
            (draw(row, TOP + ROW * (count(at) + 0.5), x))
        }
    };
    let of = |verdict: Verdict| rows.iter().filter(|row| row.row.verdict == verdict).count();
    let description = format!(
        "{}, of which {} slower and {} faster. The table “Times” has the figures.",
        human::count(rows.len(), "row"),
        of(Verdict::Slower),
        of(Verdict::Faster)
    );
    let entry = |class: &str, label: &str| Legend {
        class: class.into(),
        swatch: Swatch::Line,
        label: label.into(),
        role: None,
    };
    let below = [("slower", "slower"), ("faster", "faster"), ("unsure", "the same, or unknown")];
    Figure {
        id: "changes-chart",
        title: "Changes from A to B",
        description: &description,
        size: [WIDTH, bottom + 40.0],
    }
    .draw(&drawing, &legend(&below.map(|(class, label)| entry(class, label))))
}

/// Round values that enclose 0 and `low..high`.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let step = linear_ticks(high - low, 8)[1];
    let (mut at, mut ticks) = ((low / step).floor(), Vec::new());
    while ticks.len() < 2 || ticks.last().is_some_and(|last| *last < high * 0.999) {
        // The sum makes a zero positive.
        ticks.push(at * step + 0.0);
        at += 1.0;
    }
    ticks
}

fn draw(Drawn { row, change, interval }: &Drawn<'_>, y: f64, x: Scale) -> Markup {
    let what = name(&row.key);
    let [from, to] = *interval;
    let say = format!("{what}: {} ({} to {})", percent(*change), percent(from), percent(to));
    let class = match row.verdict {
        Verdict::Slower => "slower",
        Verdict::Faster => "faster",
        Verdict::Unknown | Verdict::Same => "unsure",
    };
    html! {
        g.effect.(class) data-role=[row.key.role.as_deref()] {
            title { (say) }
            text.label x=(px(LEFT - 12.0)) y=(px(y + 4.0)) text-anchor="end" { (short(&what, 48)) }
            line x1=(px(x.at(from))) x2=(px(x.at(to))) y1=(px(y)) y2=(px(y)) {}
            circle cx=(px(x.at(*change))) cy=(px(y)) r="4.5" {}
        }
    }
}

/// A change in percent with its sign.
fn percent(change: f64) -> String {
    let percent = 100.0 * change;
    let digits = usize::from(percent.abs() < 9.95 && percent.fract() != 0.0);
    format!("{}{percent:.digits$} %", if change > 0.0 { "+" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_have_one_distance_and_hold_zero() {
        assert_eq!(ticks(0.0, 0.0), [0.0, 1.0]);
        let marks = ticks(-0.6, 3.0);
        assert_eq!((marks[0], marks[2], marks.len()), (-1.0, 0.0, 9));
        assert_eq!(marks.iter().map(|&mark| percent(mark)).next_back(), Some("+300 %".into()));
        assert_eq!(
            ticks(-0.04, 0.0).iter().map(|&mark| percent(mark)).next_back(),
            Some("0 %".into())
        );
    }

    #[test]
    fn a_change_has_its_sign_and_few_digits() {
        assert_eq!([0.0, 0.05, -0.052, 1.5].map(percent), ["0 %", "+5 %", "-5.2 %", "+150 %"]);
    }
}
