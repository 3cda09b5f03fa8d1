// SPDX-License-Identifier: Apache-2.0
//! Finds KernelCh events that have the times of another kernel, and drops these times. `kernels.rs`
//! and `stamps.rs` describe the two causes.

use crate::facts::Launched;
use crate::hash::Mix;
use crate::kernels::Drifts;
use crate::operation::valid_ptimers;
use crate::ptimer::{ClockFit, launch_of};
use crate::stamps::{Stamps, Verdict};
use crate::steps::earliest;
use crate::timeline::marks;
use crate::{EventId, GpuClock, Parent, Timeline};
use ncclscope_control::releases::{Drift, of_comm};
use ncclscope_trace::record::KernelCh;
use ncclscope_trace::{Detail, EventKind, Handle, Recording};
use std::collections::HashSet;
use std::hash::BuildHasherDefault;

/// A start that is this much earlier than its launch is another kernel's, ns; clocks may differ by
/// less over hours.
const BEFORE_LAUNCH_NS: u64 = 2_000_000;
/// After this time the comparison of later kernels does not wait any longer for a kernel that has
/// not stopped, ns.
const STUCK_NS: f64 = 10e9;

/// The state of the search, updated by each [`Doubts::look`].
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    drifts: Drifts,
    /// Whether records of API calls may be missing.
    lacks_calls: bool,
    /// Whether the activation mask had kernel channels.
    is_asked: bool,
    stamps: Stamps<Handle>,
    /// Indexed by the position of the communicator.
    comms: Vec<CommDoubts>,
    /// Number of kernel channels that NCCL announced for collectives after a drift (`announced`),
    /// and of those that were recorded (`came`).
    announced: u64,
    came: u64,
    /// Number of kernel channels with the times of another work.
    stray: u64,
}

/// The state of the search in one communicator's kernels.
#[derive(Debug, Default)]
struct CommDoubts {
    /// Whether the NCCL release may drift ([`Drift`]), perhaps because of calls that are not
    /// recorded. Sends of a rank to itself do not count: jobs that have them repeat them.
    may_drift: bool,
    /// Start of the drift, in ticks: kernel times from then on are not used.
    since: Option<u64>,
    /// Whether the GPU's timer seemed to go backward.
    jumped: bool,
    /// Starts with a known launch. The fit is one line, because a window could consist of wrong
    /// starts only.
    starts: ClockFit,
}

/// A KernelCh event of a known operation.
#[derive(Clone, Copy)]
struct Kernel {
    id: EventId,
    operation: EventId,
    comm: usize,
    channel: u8,
    ptimer: u64,
}

impl Doubts {
    pub(crate) fn new(recording: &Recording) -> Doubts {
        let mut drifts = Drifts::default();
        let ends = recording.marks().iter().filter(|mark| mark.ends_kernels());
        ends.for_each(|mark| drifts.off(mark.ticks));
        recording.comms().iter().for_each(|comm| drifts.comm(comm));
        let comms = recording.comms().iter().map(|comm| CommDoubts {
            may_drift: !matches!(of_comm(comm).drift, Drift::Never | Drift::SelfSend),
            starts: ClockFit::of_one_line(),
            ..CommDoubts::default()
        });
        Doubts {
            drifts,
            lacks_calls: lacks_calls(recording),
            is_asked: recording.header().mask & EventKind::KernelCh.bit() != 0,
            comms: comms.collect(),
            ..Doubts::default()
        }
    }

    /// Checks the events that were joined up to `until` ticks (`None`: all), and drops wrong times
    /// in the timeline.
    pub(crate) fn look(&mut self, timeline: &mut Timeline<'_>, until: Option<u64>) {
        self.note(timeline, until);
        self.flag_early(timeline);
        let since = self.comms.iter().map(|comm| comm.since).collect();
        timeline.doubt_kernels(since, self.stray_kernels());
    }

    /// Number of kernel channels with the times of another work, or missing because NCCL waited for
    /// another work's.
    const fn stray_kernels(&self) -> u64 {
        self.stray + self.announced.saturating_sub(self.came)
    }

    /// Start of the drift of a communicator, in ticks; `None` without a drift.
    fn since(&self, comm: usize) -> Option<u64> {
        self.comms.get(comm)?.since
    }

    fn is_after_drift(&self, comm: usize, ticks: u64) -> bool {
        self.since(comm).is_some_and(|since| ticks >= since)
    }

    /// Processes the new events before `until` ticks, all of which have been read; `None`: all
    /// events.
    fn note(&mut self, timeline: &mut Timeline<'_>, until: Option<u64>) {
        let is_read = |ticks: u64| until.is_none_or(|until| ticks < until);
        let mut noted = Vec::new();
        for (id, event) in timeline.events() {
            if event.has(marks::NOTED) || !is_read(event.start.ticks) {
                continue;
            }
            if let Detail::CollApi(call) = event.start.detail {
                self.drifts.string(call.func, timeline.string(call.func));
            }
            self.drifts.start(&event.start);
            noted.push(id);
        }
        self.find_drifts(timeline.recording());
        for &id in &noted {
            self.announce(timeline, id);
            timeline.mark(id, marks::NOTED);
        }
        self.compare(timeline, until);
    }

    /// Finds the start of the drift of each communicator from its calls and operations.
    fn find_drifts(&mut self, recording: &Recording) {
        for (doubts, comm) in self.comms.iter_mut().zip(recording.comms()) {
            // A Broadcast may be among the missing calls, or an earlier call of the drift's kind.
            let is_any = of_comm(comm).drift == Drift::Broadcast && comm.ranks != 1;
            let is_found = self.drifts.drift(comm.index).is_some();
            let all = (self.lacks_calls && (is_any || is_found)).then_some(0);
            doubts.since = earliest(all, self.drifts.since(comm.index));
        }
    }

    /// Counts the announced kernel channels of an operation after a drift.
    fn announce(&mut self, timeline: &Timeline<'_>, id: EventId) {
        let event = timeline.event(id);
        let Detail::Coll(coll) = event.start.detail else { return };
        let Some(comm) = timeline.comm_of(event) else { return };
        let start = event.start.ticks;
        let is_asked = self.is_asked && !self.drifts.is_off(start);
        if is_asked && !coll.symmetric && self.is_after_drift(comm, start) {
            self.announced += u64::from(coll.channels);
        }
    }

    /// Compares the times of each kernel with those before it on its channel.
    fn compare(&mut self, timeline: &mut Timeline<'_>, until: Option<u64>) {
        let mut kernels: Vec<(u64, Kernel)> = Vec::new();
        let mut rest = Vec::new();
        for (id, event) in timeline.events() {
            let is_new = event.has(marks::LINKED) && !event.has(marks::COMPARED);
            let is_read = until.is_none_or(|until| event.start.ticks < until);
            if event.kind() != EventKind::KernelCh || !is_new || !is_read {
                continue;
            }
            match Kernel::of(timeline, id) {
                Some(kernel) => kernels.push((event.start.ticks, kernel)),
                None => rest.push(id),
            }
        }
        rest.iter().for_each(|&id| timeline.mark(id, marks::COMPARED | marks::PASSED));
        // An unstable sort needs no memory.
        kernels.sort_unstable_by_key(|(start, kernel)| (*start, kernel.id));
        let mut waits: HashSet<(usize, u8), BuildHasherDefault<Mix>> = HashSet::default();
        for (start, kernel) in kernels {
            let place = (kernel.comm, kernel.channel);
            let runs = until.is_some_and(|until| {
                let age = until.saturating_sub(start);
                let is_stuck = timeline.clock().duration_ns(age) >= STUCK_NS;
                timeline.event(kernel.id).stop.is_none() && !is_stuck
            });
            // The kernels of a channel run in order, so later ones wait for one that is still
            // running.
            if !waits.contains(&place) && !runs {
                self.compare_one(timeline, &kernel);
            } else {
                waits.insert(place);
            }
        }
    }

    fn compare_one(&mut self, timeline: &mut Timeline<'_>, kernel: &Kernel) {
        timeline.mark(kernel.id, marks::COMPARED);
        let operation = timeline.event(kernel.operation).start;
        if self.is_after_drift(kernel.comm, operation.ticks) {
            self.came += u64::from(self.is_asked && matches!(operation.detail, Detail::Coll(_)));
            return self.drop_times(timeline, kernel.id);
        }
        let event = timeline.event(kernel.id);
        let (start, handle) = (event.start.ticks, event.start.handle);
        let stop = event.ptimer_stop.map(|(stop, _)| stop);
        let launch = launch_of(timeline, event).is_some();
        let doubts = &mut self.comms[kernel.comm];
        if stop.is_some() && valid_ptimers((kernel.ptimer, stop)).is_none() {
            doubts.jumped = true;
        }
        if kernel.ptimer == 0 {
            timeline.mark(kernel.id, marks::PASSED);
        } else if doubts.may_drift && launch {
            doubts.starts.add((kernel.ptimer, timeline.ns(start)));
        }
        let (mut stray, mut passed) = (Vec::new(), Vec::new());
        let Ok(comm) = u16::try_from(kernel.comm) else { return };
        let times = (kernel.ptimer, stop, Launched::of(&operation).group);
        let tell = |handle, verdict| match verdict {
            Verdict::Stray => stray.push(handle),
            Verdict::Passed => passed.push(handle),
        };
        self.stamps.start((comm, kernel.channel), times, handle, tell);
        for handle in stray {
            if let Some(id) = timeline.find(handle) {
                self.drop_times(timeline, id);
            }
        }
        for handle in passed {
            if let Some(id) = timeline.find(handle) {
                timeline.mark(id, marks::PASSED);
            }
        }
    }

    fn drop_times(&mut self, timeline: &mut Timeline<'_>, kernel: EventId) {
        if !timeline.event(kernel).has(marks::STRAY) {
            self.stray += 1;
            timeline.drop_times(kernel);
        }
    }

    /// Drops starts that are earlier than their launch, in releases that may drift. Converts GPU
    /// times with the clock fitted so far.
    fn flag_early(&mut self, timeline: &mut Timeline<'_>) {
        if !self.comms.iter().any(|comm| comm.may_drift && !comm.starts.is_empty()) {
            return;
        }
        let clocks: Vec<Option<GpuClock>> =
            self.comms.iter_mut().map(|comm| comm.starts.clock()).collect();
        for id in timeline.ids() {
            if !timeline.event(id).has(marks::COMPARED) {
                continue;
            }
            let Some(kernel) = Kernel::of(timeline, id).filter(|kernel| kernel.ptimer != 0) else {
                continue;
            };
            let CommDoubts { may_drift, jumped, .. } = self.comms[kernel.comm];
            let launch = launch_of(timeline, timeline.event(id));
            // If the GPU's timer was set, its times cannot be converted to the host's clock.
            if let (Some(clock), Some(launch)) = (&clocks[kernel.comm], launch)
                && may_drift
                && !jumped
                && clock.host_ns(kernel.ptimer).saturating_add(BEFORE_LAUNCH_NS)
                    < timeline.ns(launch)
            {
                self.drop_times(timeline, id);
            }
        }
    }
}

impl Kernel {
    fn of(timeline: &Timeline<'_>, id: EventId) -> Option<Kernel> {
        let event = timeline.event(id);
        let Detail::KernelCh(KernelCh { channel, ptimer }) = event.start.detail else {
            return None;
        };
        let Parent::Known(operation) = event.parent else { return None };
        let comm = timeline.comm_of(event)?;
        Some(Kernel { id, operation, comm, channel, ptimer })
    }
}

/// Whether API calls may be missing.
fn lacks_calls(recording: &Recording) -> bool {
    let kind = EventKind::CollApi;
    let is_wanted = recording.header().mask & kind.bit() != 0;
    !is_wanted || recording.lacks(kind) || recording.is_windowed()
}
