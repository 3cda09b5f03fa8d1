// SPDX-License-Identifier: Apache-2.0
/*!
What a picture of the job shows beside the [report](crate::report): how long the others waited for
each worker in each step.

These are the figures on which the findings rest, so that a picture does not contradict them. This
module does **not** decide who is slow.
*/

use crate::replay::Replay;
use ncclscope_operations::stats::count;

/// The details of an analysis.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Details {
    /// The ranks of the workers, ascending.
    pub ranks: Vec<u32>,
    /// The steps, in the order of [`SlowReport::steps`](crate::SlowReport::steps).
    pub steps: Vec<StepDetails>,
}

/// What each worker did in one step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StepDetails {
    /// Mean time that the other workers waited for the own work of each worker because it took
    /// longer than that of its peers, ms, in the order of [`Details::ranks`]. Empty if unknown:
    /// without arrivals on the GPU, and in early steps of a large job.
    pub caused_ms: Vec<f32>,
    /// Own time of each worker, ms, in the order of [`Details::ranks`]; empty without arrivals on
    /// the GPU.
    pub own_ms: Vec<f32>,
}

impl Details {
    /// The details of the steps at these places; `late` is the excess of each worker's own work in
    /// each, ns.
    pub(crate) fn of<'a>(
        replay: &Replay<'_>,
        places: &[usize],
        late: impl Iterator<Item = &'a [f32]>,
    ) -> Details {
        let workers = &replay.job.workers;
        let mut order: Vec<usize> = (0..workers.len()).collect();
        order.sort_by_key(|&worker| workers[worker].rank);
        let others = count(order.len().saturating_sub(1)).max(1.0);
        let step = |(&place, late): (&usize, &[f32])| StepDetails {
            caused_ms: match late.is_empty() {
                true => Vec::new(),
                false => order.iter().map(|&at| ms(f64::from(late[at]) / others)).collect(),
            },
            own_ms: order.iter().map(|&at| ms(replay.work.own(at, place).max(0.0))).collect(),
        };
        Details {
            ranks: order.iter().map(|&worker| workers[worker].rank).collect(),
            steps: places.iter().zip(late).map(step).collect(),
        }
    }
}

/// Single precision is enough for a picture.
#[expect(clippy::cast_possible_truncation, reason = "rounds, which is meant")]
fn ms(ns: f64) -> f32 {
    (ns / 1e6) as f32
}
