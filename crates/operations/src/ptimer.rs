// SPDX-License-Identifier: Apache-2.0
/*!
Converts GPU time stamps (pTimer, the GPU's globaltimer in ns) to the host's clock.

A callback that reports a pTimer runs after that time, with an unknown delay that is sometimes
short. So the line under all points (pTimer, callback − pTimer) is the best estimate of the clocks'
offset. A kernel cannot start before its launch, which bounds the offset from below; the smallest
distance between the line and these bounds is the error of the line.

The drift between two clocks is not constant: a crystal's depends on its temperature, and NTP steers
the host's. So each window of 30 s (or up to twice that) has its own line. Windows with too few
kernels are joined, up to the whole recording. A GPU has one clock, to which the kernels of all
communicators of a process on that GPU contribute. The clock is linear between the middles of the
gaps between windows, so it never jumps.

Durations never use the converted values.
*/

use crate::hull::{Hull, Line, Pair, difference};
use crate::stats::{to_f64, to_i64, to_u64};
use crate::{Event, EventId, Parent, Timeline};
use ncclscope_trace::record::KernelCh;
use ncclscope_trace::{Detail, EventKind, Recording};
use std::collections::HashMap;

/// The length of a window, ns.
const WINDOW_NS: u64 = 30_000_000_000;
/// Least number of callbacks of a window; one with fewer, or over too short a time, is joined with
/// the next.
const LEAST: u64 = 64;
/// Most windows (34 hours); beyond that each window becomes twice as long.
const WINDOWS_MAX: usize = 4096;

/// Converts a GPU's timer to the host's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuClock {
    /// In the order of time; at least one.
    knots: Vec<Knot>,
    error_ns: Option<u64>,
    granularity_ns: Option<u64>,
}

/// The offset of the host's clock at a time of the GPU's timer, both in ns; linear between two
/// knots.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Knot {
    gpu: u64,
    ahead: i64,
}

impl GpuClock {
    /// The line under `callbacks`, with its error from `launches`, which are pairs of a kernel's
    /// pTimer and a host time before it.
    #[cfg(test)]
    fn fit(callbacks: impl IntoIterator<Item = Pair>, launches: &[Pair]) -> Option<GpuClock> {
        let mut fit = ClockFit::default();
        callbacks.into_iter().for_each(|pair| fit.add(pair));
        launches.iter().for_each(|&pair| fit.add_launch(pair));
        fit.clock()
    }

    /// Host time (`CLOCK_REALTIME`, ns) of a GPU time stamp.
    #[must_use]
    pub fn host_ns(&self, ptimer: u64) -> u64 {
        let next = self.knots.partition_point(|knot| knot.gpu <= ptimer);
        // Before the first and after the last knot the nearest segment is extended.
        let next = next.clamp(1, self.knots.len().saturating_sub(1).max(1));
        let ahead = match (self.knots.get(next - 1), self.knots.get(next)) {
            (Some(a), Some(b)) => {
                let x = |gpu: u64| {
                    to_f64(gpu.saturating_sub(a.gpu)) - to_f64(a.gpu.saturating_sub(gpu))
                };
                let rise = b.ahead.saturating_sub(a.ahead);
                let rise = to_f64(rise.unsigned_abs()) * if rise < 0 { -1.0 } else { 1.0 };
                a.ahead.saturating_add(to_i64(rise * (x(ptimer) / x(b.gpu))))
            }
            (Some(only), None) => only.ahead,
            (None, _) => 0,
        };
        ptimer.saturating_add_signed(ahead)
    }

    /// The greatest error of [`GpuClock::host_ns`] in any window with launches, ns; `None` if there
    /// is none.
    #[must_use]
    pub fn error_ns(&self) -> Option<u64> {
        self.error_ns
    }

    /// The resolution of the GPU's timer, ns: the greatest common divisor of the differences of all
    /// pTimers. `None` if there are too few.
    #[must_use]
    pub fn granularity_ns(&self) -> Option<u64> {
        self.granularity_ns
    }
}

/// The clocks of the GPUs of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuClocks {
    /// Index in `clocks` by position of the communicator.
    gpus: Vec<usize>,
    clocks: Vec<Option<GpuClock>>,
}

impl GpuClocks {
    /// Fits the clocks to the kernels of a timeline, in one pass over its events.
    #[must_use]
    pub fn of(timeline: &Timeline<'_>) -> GpuClocks {
        let mut fits = ClockFits::new(timeline.recording());
        for (_, event) in timeline.events().filter(|(_, it)| it.kind() == EventKind::KernelCh) {
            fits.add_kernel(timeline, event);
        }
        fits.clocks()
    }

    /// The clock of the GPU of a communicator, by position; `None` without time stamps.
    #[must_use]
    pub fn of_comm(&self, comm: usize) -> Option<&GpuClock> {
        self.clocks.get(*self.gpus.get(comm)?)?.as_ref()
    }

    /// All clocks.
    pub fn iter(&self) -> impl Iterator<Item = &GpuClock> {
        self.clocks.iter().flatten()
    }
}

/// Collects the pairs of times to which [`GpuClocks`] are fitted.
#[derive(Debug)]
pub(crate) struct ClockFits {
    gpus: Vec<usize>,
    fits: Vec<ClockFit>,
}

impl ClockFits {
    /// Communicators on one GPU share a clock; a communicator whose GPU is unknown has its own.
    pub(crate) fn new(recording: &Recording) -> ClockFits {
        let mut places: HashMap<u32, usize> = HashMap::new();
        let (mut gpus, mut fits) = (Vec::new(), Vec::new());
        for comm in recording.comms() {
            let next = fits.len();
            let gpu = match recording.comm_device(comm.index) {
                Some(device) => *places.entry(device.index).or_insert(next),
                None => next,
            };
            if gpu == next {
                fits.push(ClockFit::default());
            }
            gpus.push(gpu);
        }
        ClockFits { gpus, fits }
    }

    pub(crate) fn add_kernel(&mut self, timeline: &Timeline<'_>, event: &Event) {
        let Detail::KernelCh(KernelCh { ptimer, .. }) = event.start.detail else { return };
        let gpu = timeline.comm_of(event).and_then(|comm| self.gpus.get(comm));
        let Some(fit) = gpu.and_then(|&gpu| self.fits.get_mut(gpu)) else { return };
        if ptimer != 0 {
            fit.add((ptimer, timeline.ns(event.start.ticks)));
            if let Some(ticks) = launch_of(timeline, event) {
                fit.add_launch((ptimer, timeline.ns(ticks)));
            }
        }
        if let Some((ptimer, ticks)) = event.ptimer_stop
            && ptimer != 0
        {
            fit.add((ptimer, timeline.ns(ticks)));
        }
    }

    pub(crate) fn clocks(mut self) -> GpuClocks {
        GpuClocks { clocks: self.fits.iter_mut().map(ClockFit::clock).collect(), gpus: self.gpus }
    }
}

/// Collects the pairs of times to which a [`GpuClock`] is fitted.
#[derive(Debug)]
pub(crate) struct ClockFit {
    /// In the order of time.
    windows: Vec<Window>,
    width: u64,
    /// Index of the window of the latest pair.
    latest: usize,
    /// The first pTimer, and (`divisor`) the greatest common divisor of the differences of the
    /// others from it.
    first: Option<u64>,
    divisor: u64,
}

/// The pairs of a stretch of time.
#[derive(Clone, Debug)]
struct Window {
    /// Its start, in widths of a window since the timer's 0.
    number: u64,
    callbacks: Hull,
    launches: Hull,
    count: u64,
    /// Sum of the callbacks' pTimers, ns.
    sum: u128,
}

impl Default for ClockFit {
    fn default() -> ClockFit {
        ClockFit::of_width(WINDOW_NS)
    }
}

impl ClockFit {
    fn of_width(width: u64) -> ClockFit {
        ClockFit { windows: Vec::new(), width, latest: 0, first: None, divisor: 0 }
    }

    /// A fit of one line to the whole recording.
    pub(crate) fn of_one_line() -> ClockFit {
        ClockFit::of_width(u64::MAX)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Adds a callback: its pTimer and its host time.
    pub(crate) fn add(&mut self, pair: Pair) {
        let first = *self.first.get_or_insert(pair.0);
        self.divisor = divisor(self.divisor, pair.0.abs_diff(first));
        let window = self.window(pair.0);
        window.callbacks.add(pair);
        window.count += 1;
        window.sum += u128::from(pair.0);
    }

    fn add_launch(&mut self, pair: Pair) {
        self.window(pair.0).launches.add(pair);
    }

    fn window(&mut self, ptimer: u64) -> &mut Window {
        let number = ptimer / self.width;
        if self.windows.get(self.latest).is_none_or(|window| window.number != number) {
            let found = self.windows.binary_search_by_key(&number, |window| window.number);
            self.latest = found.unwrap_or_else(|at| self.insert(at, ptimer));
        }
        &mut self.windows[self.latest]
    }

    /// Inserts the window of `ptimer` at index `at`; returns its index, which is another if the
    /// windows became wider.
    fn insert(&mut self, at: usize, ptimer: u64) -> usize {
        if let Some(before) = at.checked_sub(2).and_then(|at| self.windows.get_mut(at)) {
            before.callbacks.shrink();
            before.launches.shrink();
        }
        self.windows.insert(at, Window::new(ptimer / self.width));
        while self.windows.len() > WINDOWS_MAX {
            self.width = self.width.saturating_mul(2);
            let mut wider: Vec<Window> = Vec::new();
            for window in self.windows.drain(..) {
                let number = window.number / 2;
                match wider.last_mut().filter(|last| last.number == number) {
                    Some(last) => last.join(&window),
                    None => wider.push(Window { number, ..window }),
                }
            }
            self.windows = wider;
        }
        let number = ptimer / self.width;
        self.windows.partition_point(|window| window.number < number)
    }

    /// The clock so far; `None` without any callback.
    pub(crate) fn clock(&mut self) -> Option<GpuClock> {
        let mut parts = self.parts();
        let lines: Vec<Part> = parts.iter_mut().filter_map(Window::part).collect();
        let mut clock = GpuClock { knots: knots(&lines)?, error_ns: None, granularity_ns: None };
        let errors = parts.iter_mut().enumerate().filter_map(|(at, part)| {
            let [before, after] = [at.checked_sub(1), Some(at + 1)].map(|at| lines.get(at?));
            Some(part.error(&clock)? + lines.get(at)?.bend([before, after]))
        });
        clock.error_ns = errors.max();
        let callbacks: u64 = parts.iter().map(|part| part.count).sum();
        clock.granularity_ns = (callbacks >= LEAST && self.divisor > 0).then_some(self.divisor);
        Some(clock)
    }

    /// The windows, after those with too few pairs are joined.
    fn parts(&self) -> Vec<Window> {
        let mut parts: Vec<Window> = Vec::new();
        let mut is_enough = true;
        for window in &self.windows {
            match parts.last_mut().filter(|_| !is_enough) {
                Some(last) => last.join(window),
                None => parts.push(window.clone()),
            }
            is_enough = parts.last_mut().is_some_and(Window::is_enough);
        }
        // A last window with too few pairs is joined with the one before it.
        if !is_enough && parts.len() > 1 {
            let rest = parts.pop();
            parts.last_mut().zip(rest).into_iter().for_each(|(last, rest)| last.join(&rest));
        }
        parts
    }
}

impl Window {
    const fn new(number: u64) -> Window {
        Window { number, callbacks: Hull::LOWER, launches: Hull::UPPER, count: 0, sum: 0 }
    }

    fn join(&mut self, other: &Window) {
        self.callbacks.add_all(&other.callbacks);
        self.launches.add_all(&other.launches);
        self.count += other.count;
        self.sum += other.sum;
    }

    /// Whether its pairs are enough for a line.
    fn is_enough(&mut self) -> bool {
        let count = self.count;
        let points = self.callbacks.points();
        let span = points.last().zip(points.first()).map_or(0, |(last, first)| last.0 - first.0);
        count >= LEAST && span >= WINDOW_NS / 2
    }

    fn part(&mut self) -> Option<Part> {
        let mean = u64::try_from(self.sum / u128::from(self.count.max(1))).unwrap_or(u64::MAX);
        let points = self.callbacks.points();
        let line = Line::under(points, mean)?;
        Some(Part { first: points.first()?.0, last: points.last()?.0, line })
    }

    /// The error of the clock, ns: its least distance from a launch, or if it contradicts a launch
    /// or a callback, by how much. `None` without launches.
    fn error(&mut self, clock: &GpuClock) -> Option<u64> {
        let off = |&(gpu, host): &Pair| difference(clock.host_ns(gpu), host);
        let least = self.launches.points().iter().map(off).min()?.unsigned_abs();
        let beyond = self.callbacks.points().iter().map(off).max().unwrap_or(0);
        Some(least.max(u64::try_from(beyond).unwrap_or(0)))
    }
}

/// A stretch of time and its line.
#[derive(Clone, Copy, Debug)]
struct Part {
    first: u64,
    last: u64,
    line: Line,
}

impl Part {
    /// The greatest distance from the line, ns, of a clock whose drift changes steadily from a
    /// neighbour's to this part's: that of a parabola from its chord, or at its ends from the
    /// tangent at its middle.
    fn bend(&self, neighbours: [Option<&Part>; 2]) -> u64 {
        let turns = neighbours.into_iter().flatten();
        let turns = turns.map(|other| (other.line.slope - self.line.slope).abs());
        to_u64(turns.fold(0.0, f64::max) * to_f64(self.last - self.first) / 8.0)
    }
}

/// The knots of a clock that follows the lines without jumps; `None` without lines.
fn knots(parts: &[Part]) -> Option<Vec<Knot>> {
    let (first, last) = (parts.first()?, parts.last()?);
    let knot = |part: &Part, gpu| Knot { gpu, ahead: part.line.at(gpu) };
    let mut knots = vec![knot(first, first.first)];
    for pair in parts.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        if b.first - a.last > WINDOW_NS {
            knots.extend([knot(a, a.last), knot(b, b.first)]);
        } else {
            let middle = a.last.midpoint(b.first);
            let ahead = a.line.at(middle).midpoint(b.line.at(middle));
            knots.push(Knot { gpu: middle, ahead });
        }
    }
    if last.last > last.first {
        knots.push(knot(last, last.last));
    }
    Some(knots)
}

/// The greatest common divisor; 0 only for two zeros.
fn divisor(a: u64, b: u64) -> u64 {
    // Usually `b` is a multiple of `a`, and this ends after one division.
    match (a, b) {
        (0, other) | (other, 0) => other,
        (a, b) => divisor(b % a, a),
    }
}

/// When the first kernel of the group that an event descends from was launched, in ticks.
pub(crate) fn launch_of(timeline: &Timeline<'_>, event: &Event) -> Option<u64> {
    timeline.launches().get(&group_api_of(timeline, event)?).copied()
}

/// The GroupApi event that an event descends from.
#[must_use]
pub fn group_api_of(timeline: &Timeline<'_>, event: &Event) -> Option<EventId> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::{Comm, CommDevice};
    use scripts::{Call, Process};

    const GPU: u64 = 5_000_000_000_000;
    const HOST: u64 = 1_700_000_000_000_000_000;

    #[test]
    fn the_quickest_callback_gives_the_offset() {
        let delays = [900u64, 40, 300, 2000];
        let callbacks = (0u64..).zip(delays).map(|(i, d)| (GPU + i * 1000, HOST + i * 1000 + d));
        let launches = [(GPU, HOST - 500), (GPU + 2000, HOST + 2000 - 60)];
        let clock = GpuClock::fit(callbacks, &launches).unwrap();
        assert_eq!(clock.host_ns(GPU + 1000), HOST + 1040);
        assert_eq!(clock.host_ns(GPU - 1000), HOST - 960);
        assert_eq!(clock.error_ns(), Some(100));
    }

    #[test]
    fn drift_is_followed_over_minutes() {
        // A drift of 20 parts per million; one callback in ten is fast (50 ns).
        let callbacks = (0..6000u64).map(|i| {
            let t = i * 10_000_000;
            let delay = if i % 10 == 0 { 50 } else { 3000 + i % 7 * 1000 };
            (GPU + t, HOST + t + t / 50_000 + delay)
        });
        let clock = GpuClock::fit(callbacks, &[]).unwrap();
        let t = 30_000_000_000;
        let off = clock.host_ns(GPU + t).abs_diff(HOST + t + t / 50_000);
        assert!(off <= 60, "{off} ns off");
        assert_eq!(clock.error_ns(), None);
    }

    #[test]
    fn times_that_no_clock_shows_make_a_line_too() {
        let far = [(1, u64::MAX), (2, 3), (u64::MAX, 0), (u64::MAX - 1, 1 << 63), (1 << 63, 7)];
        assert!(GpuClock::fit(far, &far).is_some());
    }

    #[test]
    fn a_contradiction_is_an_error_too() {
        let clock = GpuClock::fit(vec![(GPU, HOST)], &[(GPU + 10, HOST + 80)]).unwrap();
        assert_eq!(clock.error_ns(), Some(70));
        assert_eq!(GpuClock::fit(vec![], &[]), None);
    }

    /// Ten minutes of collectives.
    fn ten_minutes(process: &mut Process) {
        for at in 0..6_000u64 {
            process.now = process.now.max(at * 100_000_000 + at * 7_919 % 1_000_003);
            process.collective(Call::ALL_REDUCE);
        }
    }

    fn with_timeline<T>(process: &Process, look: impl FnOnce(&Timeline<'_>) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        let recording = Recording::open(&process.write(dir.path()).unwrap()).unwrap();
        look(&Timeline::read(&recording, false))
    }

    #[test]
    fn a_clock_whose_drift_changes_is_followed_within_its_error() {
        // The drift changes from 10 to 50 parts per million in ten minutes, as of a GPU that warms
        // up, and back.
        let warmer = |ticks: u64| {
            let seconds = to_f64(ticks) / 1e9;
            to_u64(10e3 * seconds + 40e3 * seconds * seconds / 1200.0)
        };
        let colder = |ticks: u64| {
            let seconds = to_f64(ticks) / 1e9;
            to_u64(50e3 * seconds - 40e3 * seconds * seconds / 1200.0)
        };
        for gain in [warmer as fn(u64) -> u64, colder] {
            let mut process = Process::new(0, 2);
            process.gpu_gain = gain;
            ten_minutes(&mut process);
            let clock = with_timeline(&process, |it| GpuClocks::of(it).of_comm(0).cloned());
            let clock = clock.unwrap();
            let error = clock.error_ns().unwrap();
            let off = |ticks: u64| {
                let host = scripts::EPOCH_NS + ticks;
                clock.host_ns(process.ptimer_at(ticks)).abs_diff(host)
            };
            let worst = (1..6_000).map(|at| off(at * 100_000_000)).max().unwrap();
            assert!(worst <= error, "{worst} ns off, and {error} told");
            // One line for the whole time would be wrong by three milliseconds.
            assert!(error < 30_000, "{error}");
        }
    }

    #[test]
    fn the_step_of_a_timer_is_found() {
        for step in [1, 32, 1_000] {
            let mut process = Process::new(0, 2);
            process.gpu_step = step;
            (0..40).for_each(|at| {
                process.now += 12_345 * at;
                process.collective(Call::ALL_REDUCE);
            });
            let clock = with_timeline(&process, |it| GpuClocks::of(it).of_comm(0).cloned());
            assert_eq!(clock.unwrap().granularity_ns(), Some(step));
        }
        assert_eq!(GpuClock::fit([(GPU, HOST); 99], &[]).unwrap().granularity_ns(), None);
    }

    #[test]
    fn a_gpu_has_one_clock_whatever_its_communicators() {
        let clocks = |devices: [Option<u32>; 2]| {
            let mut process = Process::new(0, 2);
            let second = Comm { index: 1, hash: 7, ..process.comm.clone() };
            process.other_comms = vec![std::mem::replace(&mut process.comm, second)];
            let device = |(comm, index): (u16, Option<u32>)| {
                Some(CommDevice { comm, index: index?, ..CommDevice::default() })
            };
            process.devices = (0..).zip(devices).filter_map(device).collect();
            (0..40).for_each(|at| {
                process.now += 12_345 * at;
                process.collective(Call::ALL_REDUCE);
                std::mem::swap(&mut process.comm, &mut process.other_comms[0]);
            });
            with_timeline(&process, GpuClocks::of)
        };
        let one = clocks([Some(3), Some(3)]);
        assert_eq!((one.iter().count(), one.of_comm(0)), (1, one.of_comm(1)));
        for apart in [[Some(3), Some(4)], [None, None], [Some(3), None]] {
            let two = clocks(apart);
            assert_eq!(two.iter().count(), 2, "{apart:?}");
            assert_ne!(two.of_comm(0), two.of_comm(1), "{apart:?}");
        }
    }

    #[test]
    fn windows_of_a_hostile_timer_are_bounded() {
        let mut fit = ClockFit::default();
        let stamp = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..20_000).for_each(|at| fit.add((stamp(at), HOST)));
        assert!(fit.windows.len() <= WINDOWS_MAX, "{}", fit.windows.len());
        assert!(fit.windows.is_sorted_by(|a, b| a.number < b.number));
        assert_eq!(fit.windows.iter().map(|window| window.count).sum::<u64>(), 20_000);
        assert!(fit.clock().is_some());
    }
}
