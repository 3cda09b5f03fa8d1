// SPDX-License-Identifier: Apache-2.0
//! When processes were short of processor time, according to their heartbeat records.

use crate::model::CpuShortage;
use crate::shortage::starved;
use ncclscope_limits::slow;
use ncclscope_operations::stats::to_f64;
use ncclscope_trace::Recording;
use ncclscope_trace::progress::{Heartbeat, Shortage};

/// When a process was short of processor time: sorted spans in ns since 1970.
#[derive(Clone, Debug, Default)]
pub(super) struct ShortTimes {
    spans: Vec<(u64, u64)>,
}

impl ShortTimes {
    /// How long each process was short of processor time, and when. The spans are empty for
    /// processes that are not far shorter of it than the others: on a machine that is busy
    /// everywhere, links can still be compared.
    pub(super) fn of_all(recordings: &[(u32, &Recording)]) -> (Vec<CpuShortage>, Vec<ShortTimes>) {
        let shortages: Vec<CpuShortage> =
            recordings.iter().enumerate().map(|(worker, &(_, of))| shortage(worker, of)).collect();
        let mut times = vec![ShortTimes::default(); recordings.len()];
        for starved in starved(&shortages) {
            times[starved.of.worker] = ShortTimes::read(recordings[starved.of.worker].1);
        }
        (shortages, times)
    }

    fn read(recording: &Recording) -> ShortTimes {
        ShortTimes { spans: all(recording).map(|of| span(recording, of)).collect() }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// True if any part of the time from `start` to `end` (ns since 1970) is in a span.
    pub(super) fn contain(&self, start: u64, end: u64) -> bool {
        let first = self.spans.partition_point(|&(_, over)| over < start);
        self.spans.get(first).is_some_and(|&(begin, _)| begin <= end)
    }
}

/// The span that a shortage record covers, ns since 1970.
fn span(recording: &Recording, of: &Shortage) -> (u64, u64) {
    let end = recording.tick_map().realtime_ns(of.ticks);
    (end.saturating_sub(u64::from(of.span_us) * 1_000), end)
}

fn all(recording: &Recording) -> impl Iterator<Item = &Shortage> {
    recording.heartbeats().iter().filter_map(|heartbeat| match heartbeat {
        Heartbeat::Shortage(shortage) => Some(shortage),
        _ => None,
    })
}

/// Time of the first shortage that is a relevant share of its span.
fn first(recording: &Recording) -> Option<u64> {
    let least = slow::SHORT;
    let matters = |of: &&Shortage| {
        to_f64(of.late_us.max(of.delay_us).into()) >= least * to_f64(of.span_us.into())
    };
    all(recording).find(matters).map(|of| span(recording, of).0)
}

fn shortage(worker: usize, recording: &Recording) -> CpuShortage {
    let clock = recording.tick_map();
    let begin = recording.comms().iter().map(|comm| comm.ticks).min();
    let watched = begin.map_or(0, |begin| recording.last_ticks().saturating_sub(begin));
    let ns = |us: u32| to_f64(u64::from(us)) * 1e3;
    let none = CpuShortage {
        worker,
        watched: clock.duration_ns(watched),
        late: 0.0,
        delay: 0.0,
        longest: 0.0,
        throttled: 0.0,
        since: first(recording),
    };
    all(recording).fold(none, |sum, of| CpuShortage {
        late: sum.late + ns(of.late_us),
        delay: sum.delay + ns(of.delay_us),
        longest: sum.longest.max(ns(of.longest_us)),
        throttled: sum.throttled + ns(of.throttled_us),
        ..sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_touches_a_shortage_is_in_it() {
        let times = ShortTimes { spans: vec![(10, 20), (40, 50)] };
        assert!(times.contain(0, 10) && times.contain(20, 30) && times.contain(0, 100));
        assert!(times.contain(41, 42));
        assert!(!times.contain(0, 9) && !times.contain(21, 39) && !times.contain(51, 60));
        assert!(!ShortTimes::default().contain(0, u64::MAX));
    }
}
