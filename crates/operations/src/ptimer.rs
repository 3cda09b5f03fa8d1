// SPDX-License-Identifier: Apache-2.0
/*!
Converts GPU time stamps (pTimer, the GPU's globaltimer in ns) to the host's clock.

A callback that reports a pTimer runs after it, with an unknown delay that is sometimes short: the
line under all points (pTimer, callback − pTimer) is the best estimate of the clocks' offset. A
kernel cannot start before its launch: that bounds the offset from below, and the smallest distance
between the line and those bounds is the error of the line. Durations never use the converted
values.
*/

use crate::hash::Map;
use crate::stats::{to_f64, to_i64, to_u64};
use crate::{Event, EventId, Parent, Timeline};
use ncclscope_trace::record::KernelCh;
use ncclscope_trace::{Detail, EventKind};

/// Shorter recordings say nothing about drift: the line is level.
const DRIFT_SPAN_NS: f64 = 10e9;
/// A steeper line is an artefact: clocks drift by parts in a million.
const DRIFT_MAX: f64 = 1e-4;

/// A GPU's clock against the host's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuClock {
    base: u64,
    offset: i64,
    at_base: f64,
    drift: f64,
    error_ns: Option<u64>,
}

/// A GPU time stamp and a host time (`CLOCK_REALTIME`), both in ns.
pub type Pair = (u64, u64);

impl GpuClock {
    /// The clocks of the GPUs that the kernels of each communicator ran on, in one pass over the
    /// events; `None` without time stamps.
    #[must_use]
    pub fn of_comms(timeline: &Timeline<'_>) -> Vec<Option<GpuClock>> {
        let mut fits: Vec<ClockFit> = Vec::new();
        fits.resize_with(timeline.recording().comms().len(), ClockFit::default);
        let launches = launches_by_group(timeline);
        for (_, event) in timeline.events().filter(|(_, it)| it.kind() == EventKind::KernelCh) {
            if let Some(fit) = timeline.comm_of(event).and_then(|comm| fits.get_mut(comm)) {
                fit.add_kernel(timeline, event, &launches);
            }
        }
        fits.iter_mut().map(ClockFit::clock).collect()
    }

    /// The line under `callbacks`, with its error from `launches`, which are pairs of a kernel's
    /// pTimer and a host time before it.
    #[must_use]
    pub fn fit(callbacks: Vec<Pair>, launches: &[Pair]) -> Option<GpuClock> {
        let mut fit = ClockFit::default();
        callbacks.into_iter().for_each(|pair| fit.add(pair));
        launches.iter().for_each(|&pair| fit.launches.add(pair));
        fit.clock()
    }

    fn relative(&self, (gpu, host): Pair) -> (f64, f64) {
        let x = to_f64(gpu.saturating_sub(self.base)) - to_f64(self.base.saturating_sub(gpu));
        let y = difference(host, gpu).saturating_sub(self.offset);
        (x, to_f64(y.unsigned_abs()) * if y < 0 { -1.0 } else { 1.0 })
    }

    /// Host time (`CLOCK_REALTIME`, ns) of a GPU time stamp.
    #[must_use]
    pub fn host_ns(&self, ptimer: u64) -> u64 {
        let x = to_f64(ptimer.saturating_sub(self.base)) - to_f64(self.base.saturating_sub(ptimer));
        let correction = to_i64(self.at_base + self.drift * x);
        ptimer.saturating_add_signed(self.offset.saturating_add(correction))
    }

    /// How far [`GpuClock::host_ns`] can be off, ns; `None` where no launch bounds it.
    #[must_use]
    pub fn error_ns(&self) -> Option<u64> {
        self.error_ns
    }
}

/// What a [`GpuClock`] is fitted to, in little memory whatever the number of points: a line under
/// all points touches only those of their hull.
#[derive(Debug)]
pub(crate) struct ClockFit {
    callbacks: Hull,
    launches: Hull,
    count: u64,
    /// Of the callbacks' pTimers.
    sum: u128,
}

impl Default for ClockFit {
    fn default() -> ClockFit {
        let hull = |is_lower| Hull { is_lower, points: Vec::new(), fill: HULL_FILL };
        ClockFit { callbacks: hull(true), launches: hull(false), count: 0, sum: 0 }
    }
}

impl ClockFit {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a callback.
    pub(crate) fn add(&mut self, (ptimer, host): Pair) {
        self.callbacks.add((ptimer, host));
        self.count += 1;
        self.sum += u128::from(ptimer);
    }

    /// Adds a KernelCh; `launches` has when the first kernel of each group was launched, in ticks.
    pub(crate) fn add_kernel(
        &mut self,
        timeline: &Timeline<'_>,
        event: &Event,
        launches: &Map<EventId, u64>,
    ) {
        let Detail::KernelCh(KernelCh { ptimer, .. }) = event.start.detail else { return };
        if ptimer != 0 {
            self.add((ptimer, timeline.ns(event.start.ticks)));
            if let Some(&ticks) = group_api_of(timeline, event).and_then(|g| launches.get(&g)) {
                self.launches.add((ptimer, timeline.ns(ticks)));
            }
        }
        if let Some((ptimer, ticks)) = event.ptimer_stop
            && ptimer != 0
        {
            self.add((ptimer, timeline.ns(ticks)));
        }
    }

    /// The clock so far; `None` without any callback.
    pub(crate) fn clock(&mut self) -> Option<GpuClock> {
        let callbacks = self.callbacks.points();
        let &(base, host) = callbacks.first()?;
        let offset = difference(host, base);
        let mut clock = GpuClock { base, offset, at_base: 0.0, drift: 0.0, error_ns: None };
        let points: Vec<(f64, f64)> = callbacks.iter().map(|&pair| clock.relative(pair)).collect();
        let mean = self.sum / u128::from(self.count.max(1));
        let mean = to_f64(u64::try_from(mean).unwrap_or(u64::MAX).saturating_sub(base));
        (clock.at_base, clock.drift) = line_under(&points, mean);
        let slack = self.launches.points().iter().map(|&pair| {
            let (x, y) = clock.relative(pair);
            clock.at_base + clock.drift * x - y
        });
        // A negative distance contradicts the line, by that much.
        clock.error_ns = slack.min_by(f64::total_cmp).map(|slack| to_u64(slack.abs()));
        Some(clock)
    }
}

/// Points that are added between two looks for those on the hull.
const HULL_FILL: usize = 1024;

/// The lower or upper convex hull of points (pTimer, host − pTimer).
#[derive(Debug)]
struct Hull {
    is_lower: bool,
    points: Vec<Pair>,
    fill: usize,
}

impl Hull {
    fn add(&mut self, pair: Pair) {
        self.points.push(pair);
        if self.points.len() >= self.fill {
            self.points();
            self.fill = self.points.len() + HULL_FILL;
        }
    }

    /// Those on the hull, sorted by pTimer.
    fn points(&mut self) -> &[Pair] {
        let turn = if self.is_lower { 1 } else { -1 };
        let y = |(gpu, host): Pair| i128::from(difference(host, gpu)) * turn;
        self.points.sort_unstable_by_key(|&pair| (pair.0, y(pair)));
        self.points.dedup_by_key(|pair| pair.0);
        let mut kept = 0;
        for next in 0..self.points.len() {
            let p = self.points[next];
            while kept >= 2 {
                let (a, b) = (self.points[kept - 2], self.points[kept - 1]);
                let x = |from: Pair, to: Pair| i128::from(to.0 - from.0);
                // Only times that no clock shows are so far apart that this saturates.
                let (turn, straight) =
                    (x(a, b).saturating_mul(y(p) - y(a)), (y(b) - y(a)).saturating_mul(x(a, p)));
                if turn > straight {
                    break;
                }
                kept -= 1;
            }
            self.points[kept] = p;
            kept += 1;
        }
        self.points.truncate(kept);
        &self.points
    }
}

fn difference(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b).cast_signed()
}

/// When the first kernel of each GroupApi event was launched, in ticks.
pub(crate) fn launches_by_group(timeline: &Timeline<'_>) -> Map<EventId, u64> {
    let mut launches = Map::default();
    for (_, event) in timeline.events() {
        if let (EventKind::KernelLaunch, Parent::Known(group)) = (event.kind(), event.parent) {
            let first = launches.entry(group).or_insert(event.start.ticks);
            *first = event.start.ticks.min(*first);
        }
    }
    launches
}

/// The GroupApi event that an event descends from.
pub(crate) fn group_api_of(timeline: &Timeline<'_>, event: &Event) -> Option<EventId> {
    let mut parent = event.parent;
    while let Parent::Known(id) = parent {
        let event = timeline.event(id);
        if event.kind() == EventKind::GroupApi {
            return Some(id);
        }
        parent = event.parent;
    }
    None
}

/// The line (value at 0, slope) under all points that is nearest to them on average: the edge of
/// their lower convex hull at the mean x. `hull` is sorted by x.
fn line_under(hull: &[(f64, f64)], mean: f64) -> (f64, f64) {
    let lowest = hull.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let span = hull.last().map_or(0.0, |last| last.0);
    if span < DRIFT_SPAN_NS {
        return (lowest, 0.0);
    }
    let edge = hull.windows(2).find(|edge| edge[1].0 >= mean);
    match edge {
        Some(&[(x0, y0), (x1, y1)]) if x1 > x0 && ((y1 - y0) / (x1 - x0)).abs() <= DRIFT_MAX => {
            let slope = (y1 - y0) / (x1 - x0);
            (y0 - slope * x0, slope)
        }
        _ => (lowest, 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: u64 = 5_000_000_000_000;
    const HOST: u64 = 1_700_000_000_000_000_000;

    #[test]
    fn the_quickest_callback_gives_the_offset() {
        let delays = [900u64, 40, 300, 2000];
        let callbacks =
            (0u64..).zip(delays).map(|(i, d)| (GPU + i * 1000, HOST + i * 1000 + d)).collect();
        let launches = [(GPU, HOST - 500), (GPU + 2000, HOST + 2000 - 60)];
        let clock = GpuClock::fit(callbacks, &launches).unwrap();
        assert_eq!(clock.host_ns(GPU + 1000), HOST + 1040);
        assert_eq!(clock.host_ns(GPU - 1000), HOST - 960);
        assert_eq!(clock.error_ns(), Some(100));
    }

    #[test]
    fn drift_is_followed_over_minutes() {
        // 20 parts in a million; one callback in ten is quick (50 ns).
        let callbacks: Vec<Pair> = (0..6000u64)
            .map(|i| {
                let t = i * 10_000_000;
                let delay = if i % 10 == 0 { 50 } else { 3000 + i % 7 * 1000 };
                (GPU + t, HOST + t + t / 50_000 + delay)
            })
            .collect();
        let clock = GpuClock::fit(callbacks, &[]).unwrap();
        let t = 30_000_000_000;
        let off = clock.host_ns(GPU + t).abs_diff(HOST + t + t / 50_000);
        assert!(off <= 60, "{off} ns off");
        assert_eq!(clock.error_ns(), None);
    }

    #[test]
    fn the_hull_of_many_points_is_that_of_all() {
        let pairs = |seed: u64| {
            (0..5_000u64).map(move |i| {
                let delay = (i * seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
                (GPU + i * 3_000_000, HOST + i * 3_000_060 + delay)
            })
        };
        let mut fit = ClockFit::default();
        // The later half comes first.
        pairs(1).skip(2_500).chain(pairs(1).take(2_500)).for_each(|pair| fit.add(pair));
        let clock = fit.clock().unwrap();
        assert!(fit.callbacks.points.len() < 100, "{}", fit.callbacks.points.len());
        let above = |(gpu, host)| clock.host_ns(gpu) <= host + 2;
        assert!(pairs(1).all(above) && pairs(1).any(|(gpu, host)| clock.host_ns(gpu) + 2 >= host));
        assert!((clock.drift - 20e-6).abs() < 1e-6, "{clock:?}");
    }

    #[test]
    fn times_that_no_clock_shows_make_a_line_too() {
        let far = [(1, u64::MAX), (2, 3), (u64::MAX, 0), (u64::MAX - 1, 1 << 63), (1 << 63, 7)];
        assert!(GpuClock::fit(far.to_vec(), &far).is_some());
    }

    #[test]
    fn a_contradiction_is_an_error_too() {
        let clock = GpuClock::fit(vec![(GPU, HOST)], &[(GPU + 10, HOST + 80)]).unwrap();
        assert_eq!(clock.error_ns(), Some(70));
        assert_eq!(GpuClock::fit(vec![], &[]), None);
    }
}
