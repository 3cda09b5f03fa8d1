// SPDX-License-Identifier: Apache-2.0
//! Axes with marks, labels and units.

use super::{Plot, px};
use maud::{Markup, html};

/// A mark of an axis.
#[derive(Clone, Debug)]
pub(crate) struct Tick {
    /// Its coordinate.
    pub(crate) at: f64,
    pub(crate) label: String,
}

/// The axis below a plot, with lines across it.
pub(crate) fn x_axis(plot: Plot, ticks: &[Tick], title: &str) -> Markup {
    let Plot { left, right, top, bottom } = plot;
    html! {
        g.axis {
            @for tick in ticks {
                line.grid x1=(px(tick.at)) x2=(px(tick.at)) y1=(px(top)) y2=(px(bottom)) {}
                text x=(px(tick.at)) y=(px(bottom + 16.0)) text-anchor="middle" { (tick.label) }
            }
            line.base x1=(px(left)) x2=(px(right)) y1=(px(bottom)) y2=(px(bottom)) {}
            text.unit x=(px((left + right) / 2.0)) y=(px(bottom + 34.0)) text-anchor="middle" {
                (title)
            }
        }
    }
}

/// The axis at the left of a plot, with lines across it. Its title stands above it.
pub(crate) fn y_axis(plot: Plot, ticks: &[Tick], title: &str) -> Markup {
    let Plot { left, right, top, .. } = plot;
    html! {
        g.axis {
            @for tick in ticks {
                line.grid x1=(px(left)) x2=(px(right)) y1=(px(tick.at)) y2=(px(tick.at)) {}
                text x=(px(left - 8.0)) y=(px(tick.at + 4.0)) text-anchor="end" { (tick.label) }
            }
            text.unit x=(px(left - 8.0)) y=(px(top - 12.0)) text-anchor="start" dx="-44" { (title) }
        }
    }
}
