// SPDX-License-Identifier: Apache-2.0
//! The mean durations of a step: long steps, such as those with a checkpoint, are in no median.

use crate::limits::Limits;
use crate::run::{Measure, Run};
use ncclscope_operations::human;
use ncclscope_operations::stats::count;
use ncclscope_statistics::median;

/// What a step takes in the mean on both sides, if that changed otherwise than the median.
pub(crate) fn text(sides: [&[Run]; 2], limits: &Limits) -> Option<String> {
    let [(before, usual_before), (now, usual_now)] = [of(sides[0])?, of(sides[1])?];
    let is_otherwise = (now / before - usual_now / usual_before).abs() >= limits.min_effect;
    let [before, now] = [before, now].map(human::duration);
    is_otherwise.then(|| {
        format!(
            "in the mean a step takes {now}, {before} before: few steps, in no median, are long"
        )
    })
}

/// The mean and the median of the durations of all steps, ns.
fn of(runs: &[Run]) -> Option<(f64, f64)> {
    let series = runs.iter().filter_map(|run| run.series.get(&Measure::Step));
    let all: Vec<f64> = series.flat_map(|of| of.values.iter().map(|(_, ns)| *ns)).collect();
    let mean = all.iter().sum::<f64>() / count(all.len());
    median(&all).filter(|usual| *usual > 0.0).map(|usual| (mean, usual))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Series;

    #[test]
    fn steps_that_are_in_no_median_are_in_the_mean() {
        let run = |long: f64| {
            let values = (0..40).map(|at| (at, if at == 20 { long } else { 1e8 })).collect();
            let series = [(Measure::Step, Series { values, ..Series::default() })].into();
            [Run { series, ..Run::default() }]
        };
        let text = |now: f64| text([&run(1e8), &run(now)], &Limits::default());
        assert_eq!(text(1e8), None);
        let told = text(6e10).unwrap();
        assert!(told.starts_with("in the mean a step takes 1.60 s, 100 ms before:"), "{told}");
        assert_eq!(super::text([&[], &run(1e8)], &Limits::default()), None);
    }
}
