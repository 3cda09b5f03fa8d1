// SPDX-License-Identifier: Apache-2.0
/*!
The heat map of lateness: for each rank and step, how long the others waited for it.

Ranks and steps are put into bins, so that the picture has at most [`ROWS`] by [`COLUMNS`] cells for
any job. A bin shows the worst of its ranks: a single late rank is never averaged away. Cells of one
colour are one path, and no cell is drawn where no rank waits.
*/

use crate::chart::{
    Figure, Legend, Plot, Swatch, Tick, count, legend, linear_ticks, per_bin, px, x_axis, y_axis,
};
use crate::content::Content;
use crate::section::{Section, absent};
use maud::{Markup, html};
use ncclscope_operations::human;
use ncclscope_operations::stats::to_u64;
use ncclscope_stragglers::report::StepRow;
use serde::Serialize;
use std::fmt::Write as _;

/// Maximum number of rows (bins of ranks).
pub(crate) const ROWS: usize = 256;
/// Maximum number of columns (bins of steps).
pub(crate) const COLUMNS: usize = 200;

/// Lower bound of each colour, as a share of a step.
const CLASSES: [f64; 6] = [0.002, 0.005, 0.01, 0.03, 0.1, 0.3];
const WIDTH: f64 = 1120.0;
const LEFT: f64 = 72.0;
const TOP: f64 = 28.0;
/// Maximum number of root ranks that are named beside the map.
const NAMED: usize = 8;

/// The data with which the script describes a cell.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Heat {
    /// The ranks, ascending.
    pub(crate) ranks: Vec<u32>,
    pub(crate) steps: Vec<i64>,
    /// Number of ranks in a row; `steps_per_column` is that of steps in a column.
    pub(crate) ranks_per_row: usize,
    pub(crate) steps_per_column: usize,
    /// For each row and column: the time that another rank waited, in 1/1000 of a step.
    pub(crate) cells: Vec<Vec<u32>>,
    /// For each row and column: position in the row of the rank that was waited for.
    pub(crate) worst: Vec<Vec<usize>>,
    /// As `cells` and `worst`, over all ranks and steps.
    #[serde(skip)]
    latest: (u32, usize),
}

impl Heat {
    /// The map; `None` if arrivals on the GPU are unknown, or there is nothing to compare.
    pub(crate) fn of(content: Content<'_>) -> Option<Heat> {
        let Content { slow, details, .. } = content;
        let steps: Vec<(&StepRow, &[f32])> = slow
            .steps
            .iter()
            .zip(&details.steps)
            .map(|(row, step)| (row, &step.caused_ms[..]))
            .filter(|(row, caused)| row.duration_ms() > 0.0 && caused.len() == details.ranks.len())
            .collect();
        if steps.is_empty() || details.ranks.len() < 2 {
            return None;
        }
        let mut heat = Heat {
            ranks: details.ranks.clone(),
            steps: steps.iter().map(|(row, _)| row.step).collect(),
            ranks_per_row: per_bin(details.ranks.len(), ROWS),
            steps_per_column: per_bin(steps.len(), COLUMNS),
            latest: cell(&steps, 0..details.ranks.len()),
            ..Heat::default()
        };
        for first in (0..heat.ranks.len()).step_by(heat.ranks_per_row) {
            let last = (first + heat.ranks_per_row).min(heat.ranks.len());
            let cells = steps.chunks(heat.steps_per_column).map(|steps| cell(steps, first..last));
            let (shares, worst): (Vec<u32>, Vec<usize>) = cells.unzip();
            heat.cells.push(shares);
            heat.worst.push(worst);
        }
        Some(heat)
    }
}

/// The worst rank of a bin: the time that the others waited for it, in 1/1000 of these steps, and
/// its position in the bin.
fn cell(steps: &[(&StepRow, &[f32])], ranks: std::ops::Range<usize>) -> (u32, usize) {
    let whole: f64 = steps.iter().map(|(row, _)| row.duration_ms()).sum();
    let share = |rank: usize| {
        let caused: f64 = steps.iter().map(|(_, caused)| f64::from(caused[rank])).sum();
        if whole > 0.0 { caused / whole } else { 0.0 }
    };
    let first = ranks.start;
    let worst = ranks.map(|rank| (share(rank), rank - first)).max_by(|a, b| a.0.total_cmp(&b.0));
    let (share, at) = worst.unwrap_or_default();
    (u32::try_from(to_u64((share * 1000.0).round())).unwrap_or(u32::MAX), at)
}

pub(crate) fn section(content: Content<'_>) -> Section {
    let body = match Heat::of(content) {
        Some(heat) => chart(&heat, &content.answer.root_ranks),
        None if content.slow.steps.iter().all(|step| step.duration_ms() <= 0.0) => {
            absent("No complete step was recorded.")
        }
        None => absent(
            "Which rank the others wait for is not known: that needs kernel times (KernelCh) of at \
             least two ranks.",
        ),
    };
    Section {
        id: "lateness",
        title: "Late ranks",
        about: "How long the other ranks waited because the own work of a rank took longer than \
                that of its peers, as a share of the step and as the mean over all other ranks. \
                Waits that a rank passes on count for the rank that they come from.",
        body,
    }
}

fn chart(heat: &Heat, roots: &[u32]) -> Markup {
    let (rows, columns) = (heat.cells.len(), heat.steps.len().div_ceil(heat.steps_per_column));
    let row = (420.0 / count(rows)).clamp(2.0, 18.0);
    let column = ((WIDTH - LEFT - 120.0) / count(columns)).min(48.0);
    let plot = Plot {
        left: LEFT,
        right: LEFT + column * count(columns),
        top: TOP,
        bottom: TOP + row * count(rows),
    };
    let ranks = |rank: f64| plot.top + row * (rank / count(heat.ranks_per_row) + 0.5);
    let drawing = html! {
        (x_axis(plot, &step_ticks(heat, plot, column), "step"))
        (y_axis(plot, &rank_ticks(heat, &ranks, row), "rank"))
        rect.ground x=(px(plot.left)) y=(px(plot.top)) width=(px(plot.right - plot.left))
            height=(px(plot.bottom - plot.top)) {}
        @for class in 0..CLASSES.len() {
            path.(format!("h{class}")) d=(cells(heat, class, plot, [column, row])) {}
        }
        (names(heat, roots, plot, row))
        rect #heat-cursor hidden fill="none" width=(px(column)) height=(px(row.max(6.0))) {}
    };
    let below = html! {
        p #heat-say.readout role="status" {
            "Point at a cell, or press Tab and the arrow keys, to read it."
        }
        (legend(&entries()))
    };
    let figure = Figure {
        id: "heat",
        title: "How long the others waited for each rank",
        description: &describe(heat),
        size: [plot.right + 120.0, plot.bottom + 40.0],
    };
    html! {
        div #heat-box tabindex="0" role="group" aria-describedby="heat-say"
            aria-label="Heat map of late ranks; the arrow keys move over its cells"
            data-left=(px(plot.left)) data-top=(px(plot.top)) data-column=(column) data-row=(row) {
            (figure.draw(&drawing, &below))
        }
    }
}

fn step_ticks(heat: &Heat, plot: Plot, column: f64) -> Vec<Tick> {
    let all = count(heat.steps.len());
    let places = linear_ticks((all - 1.0).max(1.0), 12);
    let whole = places.into_iter().filter(|at| at.fract() == 0.0 && *at < all);
    let tick = |at: f64| {
        let step = usize::try_from(to_u64(at)).ok().and_then(|at| heat.steps.get(at))?;
        let column = plot.left + column * (at / count(heat.steps_per_column) + 0.5);
        Some(Tick { at: column, label: step.to_string() })
    };
    whole.filter_map(tick).collect()
}

fn rank_ticks(heat: &Heat, place: &dyn Fn(f64) -> f64, row: f64) -> Vec<Tick> {
    let all = heat.ranks.len();
    // Powers of two, because ranks are binned by those, at least 16 pixels apart.
    let mut step = 1;
    while row * count(step) / count(heat.ranks_per_row) < 16.0 || all / step > 24 {
        step *= 2;
    }
    let tick = |at: usize| Tick { at: place(count(at)), label: heat.ranks[at].to_string() };
    (0..all).step_by(step).map(tick).collect()
}

/// The cells of one colour as a single path.
fn cells(heat: &Heat, class: usize, plot: Plot, [column, row]: [f64; 2]) -> String {
    let mut path = String::new();
    for (y, shares) in heat.cells.iter().enumerate() {
        for (x, &share) in shares.iter().enumerate() {
            if class_of(share) == Some(class) {
                let (left, top) = (plot.left + column * count(x), plot.top + row * count(y));
                // Writing to a string cannot fail.
                let _ = write!(path, "M{} {}h{}v{}h-{2}z", px(left), px(top), px(column), px(row));
            }
        }
    }
    path
}

/// Index of the colour for a share in 1/1000; `None` if it is too small.
fn class_of(share: u32) -> Option<usize> {
    let share = f64::from(share) / 1000.0;
    CLASSES.iter().rposition(|from| share >= *from)
}

/// The names of the root ranks, beside their rows.
fn names(heat: &Heat, roots: &[u32], plot: Plot, row: f64) -> Markup {
    let place = |rank: &u32| {
        let at = heat.ranks.binary_search(rank).ok()?;
        Some((*rank, plot.top + row * (count(at / heat.ranks_per_row) + 0.5)))
    };
    let mut named: Vec<(u32, f64)> = Vec::new();
    for (rank, y) in roots.iter().filter_map(place) {
        let has_room = named.last().is_none_or(|(_, above)| y - above >= 14.0);
        if has_room && named.len() < NAMED {
            named.push((rank, y));
        }
    }
    html! {
        @for (rank, y) in &named {
            text.fault x=(px(plot.right + 8.0)) y=(px(y + 4.0)) { "◄ rank " (rank) }
        }
    }
}

fn entries() -> Vec<Legend> {
    let percent = |share: f64| format!("{}", (share * 1000.0).round() / 10.0);
    let entry = |(class, from): (usize, &f64)| Legend {
        class: format!("h{class}"),
        swatch: Swatch::Area,
        label: match CLASSES.get(class + 1) {
            Some(to) => format!("{} to {} %", percent(*from), percent(*to)),
            None => format!("{} % of the step or more", percent(*from)),
        },
        role: None,
    };
    CLASSES.iter().enumerate().map(entry).collect()
}

fn describe(heat: &Heat) -> String {
    let (ranks, steps) = (human::count(heat.ranks.len() as u64, "rank"), heat.steps.len());
    let steps = human::count(steps as u64, "step");
    match heat.latest {
        (share, at) if share >= 2 => format!(
            "{ranks}, {steps}. The others wait most for rank {}: {:.1} % of the time.",
            heat.ranks[at],
            f64::from(share) / 10.0
        ),
        _ => format!("{ranks}, {steps}: the others wait for no rank longer than 0.2 % of a step."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(number: i64) -> StepRow {
        StepRow {
            step: number,
            step_count: 1,
            cause: None,
            share: 0.0,
            waiting_share: None,
            duration_ns: 100_000_000,
        }
    }

    #[test]
    fn a_bin_shows_its_worst_rank_and_never_a_mean_of_ranks() {
        let (one, two) = (step(0), step(1));
        let caused: [&[f32]; 2] = [&[0.0, 30.0, 0.0, 1.0], &[0.0, 10.0, 0.0, 1.0]];
        let steps = [(&one, caused[0]), (&two, caused[1])];
        assert_eq!(cell(&steps, 0..3), (200, 1));
        assert_eq!(cell(&steps, 3..4), (10, 0));
        assert_eq!(cell(&steps[1..], 0..4), (100, 1));
    }

    #[test]
    fn the_description_names_the_latest_rank_of_all_steps() {
        // Two ranks are the worst of a row in one step each; a third one is late in both.
        let heat = Heat { ranks: vec![4, 5, 6, 7], steps: vec![0, 1], ..Heat::default() };
        let (one, two) = (step(0), step(1));
        let caused: [&[f32]; 2] = [&[30.0, 0.0, 20.0, 0.0], &[0.0, 30.0, 20.0, 0.0]];
        let latest = cell(&[(&one, caused[0]), (&two, caused[1])], 0..4);
        let said = describe(&Heat { latest, ..heat.clone() });
        let expected = "4 ranks, 2 steps. The others wait most for rank 6: 20.0 % of the time.";
        assert_eq!(said, expected);
        assert!(describe(&heat).ends_with("no rank longer than 0.2 % of a step."));
    }

    #[test]
    fn colours_have_limits() {
        assert_eq!([0, 1, 2, 30, 999].map(class_of), [None, None, Some(0), Some(3), Some(5)]);
        assert_eq!(entries()[0].label, "0.2 to 0.5 %");
        assert_eq!(entries()[5].label, "30 % of the step or more");
    }
}
