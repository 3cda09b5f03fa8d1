// SPDX-License-Identifier: Apache-2.0
/*!
What the charts share: scales, axes, classes of colours, and the frame of a figure.

Charts are SVG with classes instead of colours, so that the style sheet has one palette for light
and one for dark. Each has a title and a description for screen readers, and its figures stand in a
table as well.
*/

mod axis;
mod figure;
mod scale;

pub(crate) use axis::{Tick, x_axis, y_axis};
pub(crate) use figure::{Figure, Legend, Swatch, legend};
pub(crate) use scale::{Scale, linear_ticks, log_ticks, size_ticks};

use ncclscope_operations::human::duration;

/// Number of colours for series: the classes `s0` to `s7`.
pub(crate) const SERIES: usize = 8;

/// The rectangle of a chart that its axes enclose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plot {
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

/// A coordinate as text with one decimal, which is less than a pixel.
pub(crate) fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// A round duration as the label of an axis: `50 ms`.
pub(crate) fn round_duration(ns: f64) -> String {
    if ns <= 0.0 {
        return "0".into();
    }
    let text = duration(ns);
    let Some((value, unit)) = text.split_once(' ').filter(|(value, _)| value.contains('.')) else {
        return text;
    };
    format!("{} {unit}", value.trim_end_matches('0').trim_end_matches('.'))
}

pub(crate) use ncclscope_operations::stats::count;

/// Text cut to at most `most` characters; if it was cut, the element's title has all of it.
pub(crate) fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// Number of rows or columns that are combined into one, so that at most `most` of `all` remain.
pub(crate) fn per_bin(all: usize, most: usize) -> usize {
    all.div_ceil(most).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_and_labels_are_short() {
        assert_eq!([px(12.0), px(0.26), px(-3.5)], ["12", "0.3", "-3.5"]);
        assert_eq!([short("data", 4), short("parallel", 4)], ["data", "par…"]);
        assert_eq!([per_bin(16, 256), per_bin(4096, 256), per_bin(257, 256)], [1, 16, 2]);
        assert_eq!(per_bin(0, 256), 1);
        let labels = [0.0, 1e3, 50e6, 2.5e6, 100e9].map(round_duration);
        assert_eq!(labels, ["0", "1 us", "50 ms", "2.5 ms", "100 s"]);
    }
}
