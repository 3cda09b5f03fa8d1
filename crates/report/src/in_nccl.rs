// SPDX-License-Identifier: Apache-2.0
/*!
The time that ranks spent in operations: from arrival to end, where overlapping operations count
once.

The sum of durations is not that time. The duration of an operation with a network part begins when
it is enqueued, and the host runs ahead of the GPU; also, sends and receives of one kernel overlap,
and so do operations of several communicators.
*/

use ncclscope_operations::hash::Map;
use ncclscope_operations::operation::{Completion, End, Operation, Timing};
use ncclscope_operations::ptimer::group_api_of;
use ncclscope_operations::stats::to_u64;
use ncclscope_operations::timeline::{comm_name, role_or_size};
use ncclscope_operations::{GpuClock, GpuClocks, Selection, Timeline};
use ncclscope_trace::{EventKind, Handle, MarkKind, Recording, StrId};
use std::collections::BTreeMap;

/// Most intervals that are stored individually; half of them are dropped at a time. Operations come
/// nearly in the order of their starts, but those whose end is unknown come seconds later.
const KEPT: usize = 4096;

/// The union of intervals, ns.
#[derive(Debug, Default)]
struct Cover {
    /// The latest intervals, in order and disjoint.
    kept: Vec<(u64, u64)>,
    /// Length of the union of the earlier intervals.
    settled: u64,
    /// The end of the earlier intervals.
    until: u64,
}

impl Cover {
    fn add(&mut self, start: u64, end: u64) {
        let start = start.max(self.until);
        if start >= end {
            return;
        }
        let first = self.kept.partition_point(|&(_, other)| other < start);
        let last = self.kept.partition_point(|&(other, _)| other <= end);
        let joined = self.kept.get(first..last).unwrap_or_default().iter();
        let joined = joined.fold((start, end), |of, other| (of.0.min(other.0), of.1.max(other.1)));
        self.kept.splice(first..last.max(first), [joined]);
        if self.kept.len() > KEPT {
            for (start, end) in self.kept.drain(..KEPT / 2) {
                self.settled += end - start;
                self.until = end;
            }
        }
    }

    /// The length of the union, after `part` cuts each stored interval.
    fn length(&self, part: impl Fn((u64, u64)) -> (u64, u64)) -> u64 {
        let kept = self.kept.iter().map(|&span| part(span));
        let lengths = kept.map(|(start, end)| end.saturating_sub(start));
        lengths.fold(self.settled, u64::saturating_add)
    }
}

/// Cuts an interval to the chosen time.
fn within((from, to): (u64, u64), (start, end): (u64, u64)) -> (u64, u64) {
    (start.max(from), end.min(to))
}

/// Number of operations by the kind of time that is known.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// The time from arrival to end.
    whole: u64,
    /// A lower bound, because the end is unknown.
    least: u64,
    /// An upper bound, from the enqueuing to the end, because the arrival is unknown.
    most: u64,
    /// No time.
    nothing: u64,
}

/// The operations of one function on one rank, of all communicators with the same role.
#[derive(Debug)]
struct Group {
    comm: Option<usize>,
    func: StrId,
    counts: Counts,
    /// Time by the GPU's timer.
    gpu: Cover,
    /// Time from the arrival, by the host's clock.
    host: Cover,
    /// Time from the enqueuing, by the host's clock.
    most: Cover,
    /// Sum of times from CUDA events, ns; these have no absolute time, so overlaps are unknown.
    event_ns: u64,
    /// The group of calls and the communicator of the latest launch in `event_ns`.
    launch: Option<(Handle, Option<usize>)>,
}

impl Group {
    /// Adds an operation whose end is not in the recording. It may hang, wait in a queue, or have
    /// ended without a sign (its end was lost, its communicator was aborted, the recording
    /// stopped), so it adds no time, and makes the sum a bound.
    fn add_open(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
        let event = timeline.event(operation.event);
        let mut children = timeline.children(operation.event).iter().map(|&id| timeline.event(id));
        let has_kernel = children.any(|child| child.kind() == EventKind::KernelCh);
        if has_kernel && !timeline.is_kernel_doubted(event) {
            self.counts.least += 1;
        } else {
            self.counts.most += 1;
            let end = timeline.ns(timeline.recording().last_ticks());
            self.most.add(timeline.ns(event.start.ticks), end);
        }
    }
}

/// Collects the times of one process as its operations end.
#[derive(Debug, Default)]
pub(crate) struct ProcessTimes {
    places: Map<(Option<usize>, StrId), usize>,
    /// Index of the group by rank, role and function.
    names: BTreeMap<(u32, String, StrId), usize>,
    groups: Vec<Group>,
}

impl ProcessTimes {
    /// Adds an operation if it has a duration, or is open.
    pub(crate) fn add(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
        let ns = match (operation.duration_ns, operation.completion) {
            (Some(ns), _) => to_u64(ns),
            (None, Completion::Open) => 0,
            (None, _) => return,
        };
        let at = match self.places.get(&(operation.comm, operation.func)) {
            Some(at) => *at,
            None => self.place(timeline, operation),
        };
        let Some(group) = self.groups.get_mut(at) else { return };
        if operation.completion == Completion::Open {
            return group.add_open(timeline, operation);
        }
        let counts = &mut group.counts;
        let waiting = operation.with_waiting_ns.map(to_u64);
        match (operation.timing, operation.gpu_span, waiting.zip(operation.end)) {
            (Timing::Kernel, Some((start, end)), _) => {
                counts.whole += 1;
                group.gpu.add(start, end);
            }
            (Timing::KernelLead, Some((start, end)), _) => {
                counts.least += 1;
                group.gpu.add(start, end);
            }
            (Timing::Event, ..) => {
                counts.whole += 1;
                // Sends and receives of one launch all have its time, so it is added once.
                let launch = group_api_of(timeline, timeline.event(operation.event));
                // Not its number: when events are forgotten, another one gets that.
                let launch = launch.map(|id| (timeline.event(id).start.handle, operation.comm));
                if launch.is_none() || launch != group.launch {
                    group.event_ns = group.event_ns.saturating_add(ns);
                }
                group.launch = launch;
            }
            (Timing::Proxy, _, Some((waiting, End::Host(ticks)))) => {
                counts.whole += 1;
                let end = timeline.ns(ticks);
                group.host.add(end.saturating_sub(waiting), end);
            }
            (Timing::Proxy, ..) => {
                counts.most += 1;
                let start = timeline.ns(timeline.event(operation.event).start.ticks);
                group.most.add(start, start.saturating_add(ns));
            }
            _ => counts.nothing += 1,
        }
    }

    /// Finds or creates the group for a communicator and function that are new.
    fn place(&mut self, timeline: &Timeline<'_>, operation: &Operation) -> usize {
        let Operation { comm, func, .. } = *operation;
        let recording = timeline.recording();
        let rank = comm.and_then(|at| recording.local_ranks()?.get(at).copied());
        let role = comm.map(|at| {
            let comm = timeline.comm(at);
            let said = recording.role(comm).or(comm.name.as_deref());
            role_or_size(said, Some(comm.ranks).filter(|&ranks| ranks != 0))
        });
        let name = (rank.unwrap_or(0), role.unwrap_or_default(), func);
        let groups = &mut self.groups;
        let at = *self.names.entry(name).or_insert_with(|| {
            groups.push(Group {
                comm,
                func,
                counts: Counts::default(),
                gpu: Cover::default(),
                host: Cover::default(),
                most: Cover::default(),
                event_ns: 0,
                launch: None,
            });
            groups.len() - 1
        });
        self.places.insert((comm, func), at);
        at
    }
}

/// The time of all ranks in operations of one function and role.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Time {
    counts: Counts,
    known_ns: u64,
    most_ns: u64,
}

impl Time {
    pub(crate) fn add(&mut self, other: Time) {
        for (sum, more) in [
            (&mut self.counts.whole, other.counts.whole),
            (&mut self.counts.least, other.counts.least),
            (&mut self.counts.most, other.counts.most),
            (&mut self.counts.nothing, other.counts.nothing),
            (&mut self.known_ns, other.known_ns),
            (&mut self.most_ns, other.most_ns),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// The time in ns, and whether it is only a bound (`least` or `most`); `None` if it is unknown.
    pub(crate) fn known(&self) -> Option<(u64, Option<&'static str>)> {
        let Counts { whole, least, most, nothing } = self.counts;
        match (whole + least, most, nothing) {
            (0, 0, _) | (0, _, 1..) => None,
            (0, ..) => Some((self.most_ns, Some("most"))),
            (_, 0, 0) if least == 0 => Some((self.known_ns, None)),
            _ => Some((self.known_ns, Some("least"))),
        }
    }
}

/// The times of all processes, by communicator and function. Communicators of the same role are
/// summed under the name of one of them.
#[derive(Debug, Default)]
pub(crate) struct Times(BTreeMap<(String, String), Time>);

impl Times {
    /// Adds the times of one process within the chosen time.
    pub(crate) fn add(
        &mut self,
        timeline: &Timeline<'_>,
        clocks: &GpuClocks,
        times: ProcessTimes,
        chosen: (u64, u64),
    ) {
        for group in times.groups {
            let clock = group.comm.and_then(|comm| clocks.of_comm(comm));
            let by_gpu = |clock: &GpuClock, (start, end)| {
                within(chosen, (clock.host_ns(start), clock.host_ns(end)))
            };
            let gpu = group.gpu.length(|span| match clock {
                Some(clock) if chosen != (0, u64::MAX) => by_gpu(clock, span),
                _ => span,
            });
            let host = group.host.length(|span| within(chosen, span));
            let most_ns = group.most.length(|span| within(chosen, span));
            let known_ns = gpu.saturating_add(host).saturating_add(group.event_ns);
            let comm = group.comm.map(|at| comm_name(timeline.comm(at)));
            let key = (comm.unwrap_or_default(), timeline.string(group.func).to_owned());
            let time = Time { counts: group.counts, known_ns, most_ns };
            self.0.entry(key).or_default().add(time);
        }
    }

    /// Communicator, function and time.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, Time)> {
        self.0.iter().map(|((comm, func), time)| (&**comm, &**func, *time))
    }
}

/// Sum over the ranks of a process of their recorded time within the chosen time, ns.
pub(crate) fn recorded_ns(recording: &Recording, selection: &Selection) -> u64 {
    let clock = recording.tick_map();
    let Some(first) = recording.comms().iter().map(|comm| comm.ticks).min() else { return 0 };
    // Overwritten parts are not recorded.
    let is_all = recording.is_whole() && recording.header().overwritten.iter().all(|&n| n == 0);
    let first = if is_all { first } else { first.max(recording.first_ticks()) };
    let span = (clock.realtime_ns(first), clock.realtime_ns(recording.last_ticks()));
    let span = within(selection.window(), span);
    let length = |(start, end): (u64, u64)| end.saturating_sub(start);
    let ns = match recording.is_windowed() {
        true => crate::windows::windows(recording)
            .iter()
            .map(|of| (of.start_ns, of.stop_ns.unwrap_or(u64::MAX)))
            .chain(first_window(recording, is_all))
            .map(|window| length(within(span, window)))
            .fold(0, u64::saturating_add),
        false => length(span),
    };
    let of_all = || {
        recording.local_ranks().map_or(1, |numbers| {
            numbers.into_iter().collect::<std::collections::BTreeSet<u32>>().len()
        })
    };
    ns.saturating_mul(selection.ranks().unwrap_or_else(of_all) as u64)
}

/// The window that had begun before the first mark of one, if there was one: the process recorded
/// from the beginning, or the start mark was overwritten. `is_all`: nothing was.
fn first_window(recording: &Recording, is_all: bool) -> Option<(u64, u64)> {
    let is_edge = |what: MarkKind| matches!(what, MarkKind::Start | MarkKind::Stop);
    match recording.marks().iter().find(|mark| is_edge(mark.what)) {
        Some(mark) if mark.what == MarkKind::Start => None,
        Some(stop) => Some((0, recording.tick_map().realtime_ns(stop.ticks))),
        None => (!is_all).then_some((0, u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_counts_once() {
        let mut cover = Cover::default();
        for (start, end) in [(10, 20), (15, 30), (40, 50), (12, 18), (30, 35), (45, 45)] {
            cover.add(start, end);
        }
        assert_eq!((cover.length(|span| span), &*cover.kept), (35, &[(10, 35), (40, 50)][..]));
        cover.add(0, 100);
        assert_eq!(cover.length(|span| span), 100);
        assert_eq!(cover.length(|span| within((20, 60), span)), 40);
    }

    #[test]
    fn a_time_says_which_bound_it_is() {
        let known = |[whole, least, most, nothing]: [u64; 4]| {
            let counts = Counts { whole, least, most, nothing };
            Time { counts, known_ns: 5, most_ns: 9 }.known()
        };
        assert_eq!(known([2, 0, 0, 0]), Some((5, None)));
        for counts in [[0, 1, 0, 0], [2, 1, 0, 0], [2, 0, 1, 0], [2, 0, 0, 1]] {
            assert_eq!(known(counts), Some((5, Some("least"))), "{counts:?}");
        }
        assert_eq!(known([0, 0, 3, 0]), Some((9, Some("most"))));
        assert_eq!([known([0, 0, 0, 4]), known([0, 0, 3, 1])], [None, None]);
    }

    #[test]
    fn many_intervals_cover_what_few_would() {
        let mut cover = Cover::default();
        for at in 0..10_000 {
            cover.add(at * 10, at * 10 + 4);
            // Late intervals that overlap earlier ones.
            cover.add((at * 10).saturating_sub(15_000), (at * 10).saturating_sub(14_997));
        }
        assert_eq!(cover.length(|span| span), 40_000);
        assert!(cover.kept.len() <= KEPT);
        // Intervals before the stored ones are ignored.
        cover.add(5, 10);
        assert_eq!(cover.length(|span| span), 40_000);
    }
}
