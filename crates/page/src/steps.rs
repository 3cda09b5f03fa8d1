// SPDX-License-Identifier: Apache-2.0
//! The timeline of steps: duration, waiting time, and the causes of the waiting.

use crate::chart::{
    Figure, Legend, Plot, SERIES, Scale, Swatch, Tick, count, legend, linear_ticks, per_bin, px,
    round_duration, x_axis, y_axis,
};
use crate::content::Content;
use crate::section::{Section, absent};
use maud::{Markup, html};
use ncclscope_operations::human::{self, duration, three};
use ncclscope_operations::stats::to_u64;
use ncclscope_stragglers::causes::Cause;
use ncclscope_stragglers::report::StepRow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of bars; more steps are combined.
const BARS: usize = 240;
/// Number of causes with a colour of their own.
const COLOURED: usize = 4;
const SIZE: [f64; 2] = [1120.0, 320.0];
const PLOT: Plot = Plot { left: 72.0, right: 1096.0, top: 28.0, bottom: 240.0 };
/// Position and height of the strip below the bars that shows the cause of each.
const STRIP: [f64; 2] = [246.0, 10.0];

/// A bar: one step, or the mean of several.
#[derive(Debug)]
struct Bar {
    first: i64,
    last: i64,
    ms: f64,
    /// Mean waiting time of a rank, ms; `None` if unknown.
    waiting: Option<f64>,
    /// The part of `waiting` that is due to the cause, ms.
    caused: f64,
    cause: Option<String>,
}

pub(crate) fn section(content: Content<'_>) -> Section {
    let is_step = |step: &&StepRow| step.duration_ms() > 0.0;
    let steps: Vec<StepRow> = content.slow.steps.iter().filter(is_step).cloned().collect();
    let chunks = steps.chunks(per_bin(steps.len(), BARS));
    let bars: Vec<Bar> = chunks.filter_map(|steps| bar(steps, &content.slow.causes)).collect();
    let about = match content.slow.steps_from {
        "marks" => "The steps are those that the application marked.",
        "repetition" => {
            "The application marked no steps: they are found by a collective that \
                         repeats."
        }
        _ => "The application marked no steps, and no collective repeats: the run is one step.",
    };
    Section {
        id: "steps",
        title: "Steps",
        about,
        body: match bars.is_empty() {
            true => absent("No complete step was recorded."),
            false => chart(&bars, &steps),
        },
    }
}

/// The place of a row's last step among those that it combines.
fn last_in(row: &StepRow) -> i64 {
    i64::try_from(row.step_count.max(1) - 1).unwrap_or(0)
}

fn bar(steps: &[StepRow], causes: &[Cause]) -> Option<Bar> {
    let n = count(steps.iter().map(|step| step.step_count).sum());
    let waits =
        || steps.iter().filter_map(|step| Some((step, step.waiting_share? * step.duration_ms())));
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for (step, waiting) in waits() {
        if let Some(cause) = step.cause.and_then(|at| causes.get(at)) {
            *sums.entry(&cause.name).or_default() += waiting * step.share;
        }
    }
    let worst = sums.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    Some(Bar {
        first: steps.first()?.step,
        last: steps.last().map(|last| last.step + last_in(last))?,
        ms: steps.iter().map(|step| step.duration_ms()).sum::<f64>() / n,
        waiting: (waits().count() > 0).then(|| waits().map(|(_, ms)| ms).sum::<f64>() / n),
        caused: worst.as_ref().map_or(0.0, |(_, ms)| ms / n),
        cause: worst.map(|(cause, _)| cause.to_owned()),
    })
}

/// The causes sorted by the waiting that they are responsible for, worst first; the first few have
/// colours.
fn causes(bars: &[Bar]) -> Vec<&str> {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for bar in bars {
        if let Some(cause) = bar.cause.as_deref() {
            *sums.entry(cause).or_default() += bar.caused;
        }
    }
    let mut causes: Vec<(&str, f64)> = sums.into_iter().collect();
    causes.sort_by_key(|(_, ms)| Reverse(to_u64(ms * 1e6)));
    causes.into_iter().map(|(cause, _)| cause).take(COLOURED).collect()
}

/// The CSS class of a cause's colour; the first colours have other uses.
fn class(causes: &[&str], cause: Option<&str>) -> String {
    let at = cause.and_then(|cause| causes.iter().position(|other| *other == cause));
    at.map_or_else(|| "others".into(), |at| format!("s{}", (at + 1) % SERIES))
}

fn chart(bars: &[Bar], steps: &[StepRow]) -> Markup {
    let high = bars.iter().map(|bar| bar.ms).fold(0.0, f64::max);
    let ticks = linear_ticks(high, 5);
    let y = Scale::linear([0.0, ticks[ticks.len() - 1]], [PLOT.bottom, PLOT.top]);
    let width = (PLOT.right - PLOT.left) / count(bars.len());
    let causes = causes(bars);
    let y_ticks: Vec<Tick> =
        ticks.iter().map(|&ms| Tick { at: y.at(ms), label: round_duration(ms * 1e6) }).collect();
    let below = Plot { bottom: STRIP[0] + STRIP[1], ..PLOT };
    let drawing = html! {
        (x_axis(below, &step_ticks(bars, width), "step"))
        (y_axis(PLOT, &y_ticks, "duration of a step"))
        @for (at, bar) in bars.iter().enumerate() {
            @let left = PLOT.left + width * count(at);
            (draw(bar, left, width, y, &class(&causes, bar.cause.as_deref())))
        }
    };
    let number: usize = steps.iter().map(|step| step.step_count).sum();
    let whole: f64 = steps.iter().map(StepRow::duration_ms).sum();
    let mean = duration(1e6 * whole / count(number).max(1.0));
    let mut description = format!("{} of {mean} in the mean.", human::count(number as u64, "step"));
    if let Some(cause) = causes.first() {
        description += &format!(" Most of the waiting is caused by {cause}.");
    }
    let figure = Figure {
        id: "timeline",
        title: "Duration of each step",
        description: &description,
        size: SIZE,
    };
    figure.draw(&drawing, &legend(&entries(bars, &causes)))
}

fn step_ticks(bars: &[Bar], width: f64) -> Vec<Tick> {
    let places = linear_ticks((count(bars.len()) - 1.0).max(1.0), 12);
    let tick = |at: f64| {
        let bar = usize::try_from(to_u64(at)).ok().and_then(|at| bars.get(at))?;
        Some(Tick { at: PLOT.left + width * (at + 0.5), label: bar.first.to_string() })
    };
    places.into_iter().filter(|at| at.fract() == 0.0).filter_map(tick).collect()
}

fn draw(bar: &Bar, left: f64, width: f64, y: Scale, class: &str) -> Markup {
    let gap = if width > 6.0 { 2.0 } else { 0.0 };
    let (x, wide) = (px(left + gap / 2.0), px((width - gap).clamp(0.5, 64.0)));
    let waiting = bar.waiting.unwrap_or(0.0).min(bar.ms);
    let caused = bar.caused.min(waiting);
    let piece = |class: &str, from: f64, to: f64| {
        let (top, bottom) = (y.at(to), y.at(from));
        html! {
            @if bottom - top > 0.05 {
                rect.(class) x=(x) y=(px(top)) width=(wide) height=(px(bottom - top)) {}
            }
        }
    };
    html! {
        g {
            title { (say(bar)) }
            (piece("own", 0.0, bar.ms - waiting))
            (piece("waits", bar.ms - waiting, bar.ms - caused))
            (piece(class, bar.ms - caused, bar.ms))
            @if bar.cause.is_some() {
                rect.(class) x=(x) y=(px(STRIP[0])) width=(wide) height=(px(STRIP[1])) {}
            }
        }
    }
}

/// A bar as text, such as `step 7: 156 ms, of which a rank waits 44.1 ms; 38.0 ms because of rank
/// 8`.
fn say(bar: &Bar) -> String {
    let name = match bar.first == bar.last {
        true => format!("step {}", bar.first),
        false => format!("steps {} to {}, mean", bar.first, bar.last),
    };
    let ms = |ms: f64| format!("{} ms", three(ms));
    let mut text = format!("{name}: {}", ms(bar.ms));
    if let Some(waiting) = bar.waiting {
        text += &format!(", of which a rank waits {}", ms(waiting));
    }
    if let Some(cause) = &bar.cause {
        text += &format!("; {} because of {cause}", ms(bar.caused));
    }
    text
}

fn entries(bars: &[Bar], causes: &[&str]) -> Vec<Legend> {
    let entry =
        |class: String, label: String| Legend { class, swatch: Swatch::Area, label, role: None };
    let mut entries = vec![entry("own".into(), "work and transfer".into())];
    if bars.iter().any(|bar| bar.waiting.is_some()) {
        entries.push(entry("waits".into(), "waiting, other causes".into()));
    }
    let named = causes
        .iter()
        .map(|cause| entry(class(causes, Some(cause)), format!("waiting because of {cause}")));
    entries.extend(named);
    let is_other = |bar: &Bar| bar.cause.as_deref().is_some_and(|cause| !causes.contains(&cause));
    if bars.iter().any(is_other) {
        entries.push(entry("others".into(), "waiting because of further causes".into()));
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(number: i64, cause: usize, waiting: f64) -> StepRow {
        StepRow {
            step: number,
            step_count: 1,
            cause: Some(cause),
            share: 0.5,
            waiting_share: Some(waiting),
            duration_ns: 100_000_000,
        }
    }

    #[test]
    fn bars_of_several_steps_name_the_worst_cause() {
        let cause = |rank: u32| Cause {
            name: format!("rank {rank}"),
            root: None,
            root_ranks: vec![rank],
            finding: None,
            share: 0.0,
            steps: 0,
            through: vec![],
        };
        let known = [cause(1), cause(2)];
        let bar = bar(&[step(4, 0, 0.1), step(5, 1, 0.4), step(6, 0, 0.1)], &known).unwrap();
        assert_eq!((bar.first, bar.last, bar.cause.as_deref()), (4, 6, Some("rank 2")));
        assert!((bar.ms - 100.0).abs() < 1e-9 && (bar.waiting.unwrap() - 20.0).abs() < 1e-9);
        let words = "steps 4 to 6, mean: 100 ms, of which a rank waits 20.0 ms; 6.67 ms because of \
                     rank 2";
        assert_eq!(say(&bar), words);
        assert_eq!(class(&causes(&[bar]), Some("rank 2")), "s1");
        assert_eq!(class(&[], Some("rank 9")), "others");
    }
}
