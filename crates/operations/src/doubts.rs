// SPDX-License-Identifier: Apache-2.0
//! Which kernel times of a process are not their own: see `kernels.rs` and `stamps.rs`.

use crate::facts::Launched;
use crate::kernels::{Drift, Drifts, of_release};
use crate::operation::valid_ptimers;
use crate::ptimer::{GpuClock, group_api_of, launches_by_group};
use crate::stamps::Stamps;
use crate::{Event, EventId, Parent, Timeline};
use ncclscope_trace::record::KernelCh;
use ncclscope_trace::{Detail, EventKind, What};
use std::collections::{HashMap, HashSet};

/// A start that lies this far before its launch is another kernel's, ns: what clocks may be off
/// over hours.
const BEFORE_LAUNCH_NS: u64 = 2_000_000;

/// What is found.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    /// KernelCh with the times of another work.
    pub(crate) stray: Vec<EventId>,
    /// KernelCh that did not come for that reason.
    pub(crate) missing: u64,
    /// By position of the communicator, since when its kernels are not believed, in ticks.
    since: HashMap<usize, u64>,
}

/// A KernelCh of a known operation.
#[derive(Clone, Copy)]
struct Kernel<'t> {
    id: EventId,
    event: &'t Event,
    operation: &'t Event,
    comm: usize,
    channel: u8,
    ptimer: u64,
}

impl Doubts {
    pub(crate) fn of(timeline: &Timeline<'_>) -> Doubts {
        let mut kernels: Vec<Kernel<'_>> =
            timeline.events().filter_map(|(id, event)| Kernel::of(timeline, id, event)).collect();
        kernels.sort_by_key(|kernel| kernel.event.start.ticks);
        let mut doubts = Doubts { since: drifts(timeline), ..Doubts::default() };
        doubts.add_missing(timeline, &kernels);
        kernels.retain(|kernel| {
            let is_doubted = doubts.is_after_drift(kernel.comm, kernel.operation);
            if is_doubted {
                doubts.stray.push(kernel.id);
            }
            !is_doubted
        });
        let jumped = doubts.add_disorder(&kernels);
        // A clock that was set cannot be placed on the host's.
        kernels.retain(|kernel| !jumped.contains(&kernel.comm));
        doubts.add_early(timeline, &kernels);
        doubts.stray.sort_unstable();
        doubts.stray.dedup();
        doubts
    }

    /// Since when a communicator's kernels are not believed, in ticks.
    pub(crate) fn since(&self, comm: usize) -> Option<u64> {
        self.since.get(&comm).copied()
    }

    fn is_after_drift(&self, comm: usize, operation: &Event) -> bool {
        self.since(comm).is_some_and(|since| operation.start.ticks >= since)
    }

    /// Counts what never came of operations whose kernels are not believed.
    fn add_missing(&mut self, timeline: &Timeline<'_>, kernels: &[Kernel<'_>]) {
        let is_asked = timeline.recording().header().mask & EventKind::KernelCh.bit() != 0;
        if self.since.is_empty() || !is_asked {
            return;
        }
        for (_, event) in timeline.events() {
            let Detail::Coll(coll) = event.start.detail else { continue };
            let Some(comm) = timeline.comm_of(event) else { continue };
            if !coll.symmetric && self.is_after_drift(comm, event) {
                self.missing += u64::from(coll.channels);
            }
        }
        let seen = kernels.iter().filter(|kernel| {
            matches!(kernel.operation.start.detail, Detail::Coll(_))
                && self.is_after_drift(kernel.comm, kernel.operation)
        });
        self.missing = self.missing.saturating_sub(seen.count() as u64);
    }

    /// Finds times that are not in the order of their callbacks. Returns the communicators whose
    /// GPU's timer went back.
    fn add_disorder(&mut self, kernels: &[Kernel<'_>]) -> HashSet<usize> {
        let (mut stamps, mut jumped) = (Stamps::default(), HashSet::new());
        for kernel in kernels {
            let Ok(comm) = u16::try_from(kernel.comm) else { continue };
            let place = (comm, kernel.channel);
            let stop = kernel.event.ptimer_stop.map(|(stop, _)| stop);
            if stop.is_some() && valid_ptimers((kernel.ptimer, stop)).is_none() {
                jumped.insert(kernel.comm);
            }
            let times = (kernel.ptimer, stop, Launched::of(&kernel.operation.start).group);
            stamps.start(place, times, kernel.id, |id| self.stray.push(id));
        }
        jumped
    }

    /// Finds starts that lie before their launch, where counts may part for what is not recorded.
    fn add_early(&mut self, timeline: &Timeline<'_>, kernels: &[Kernel<'_>]) {
        let may_drift =
            |comm: usize| of_release(timeline.comm(comm).nccl_version).drift != Drift::Never;
        let launches = launches_by_group(timeline);
        let mut by_comm: HashMap<usize, Vec<(&Kernel<'_>, u64)>> = HashMap::new();
        for kernel in kernels.iter().filter(|k| k.ptimer != 0 && may_drift(k.comm)) {
            let group = group_api_of(timeline, kernel.event);
            if let Some(&ticks) = group.and_then(|group| launches.get(&group)) {
                by_comm.entry(kernel.comm).or_default().push((kernel, timeline.ns(ticks)));
            }
        }
        for kernels in by_comm.into_values() {
            let callbacks = kernels
                .iter()
                .map(|(kernel, _)| (kernel.ptimer, timeline.ns(kernel.event.start.ticks)));
            let Some(clock) = GpuClock::fit(callbacks.collect(), &[]) else { continue };
            let early = kernels.iter().filter(|(kernel, launch)| {
                clock.host_ns(kernel.ptimer).saturating_add(BEFORE_LAUNCH_NS) < *launch
            });
            self.stray.extend(early.map(|(kernel, _)| kernel.id));
        }
    }
}

impl<'t> Kernel<'t> {
    fn of(timeline: &'t Timeline<'_>, id: EventId, event: &'t Event) -> Option<Kernel<'t>> {
        let Detail::KernelCh(KernelCh { channel, ptimer }) = event.start.detail else {
            return None;
        };
        let Parent::Known(operation) = event.parent else { return None };
        let comm = timeline.comm_of(event)?;
        let operation = timeline.event(operation);
        Some(Kernel { id, event, operation, comm, channel, ptimer })
    }
}

/// Since when the kernels of each communicator are not believed, by the calls.
fn drifts(timeline: &Timeline<'_>) -> HashMap<usize, u64> {
    let recording = timeline.recording();
    let mut drifts = Drifts::default();
    recording.comms().iter().for_each(|comm| drifts.comm(comm));
    for (_, event) in timeline.events() {
        if let Detail::CollApi(call) = event.start.detail {
            drifts.string(call.func, timeline.string(call.func));
            drifts.call(&event.start, &call);
        }
    }
    let lacks_calls = lacks_calls(timeline);
    let since = recording.comms().iter().enumerate().filter_map(|(at, comm)| {
        // A Broadcast may be among the calls that are not there.
        let is_any = of_release(comm.nccl_version).drift == Drift::Broadcast;
        let all = (lacks_calls && is_any && comm.ranks != 1).then_some(0);
        Some((at, all.or_else(|| drifts.since(comm.index))?))
    });
    since.collect()
}

/// Whether API calls may be missing.
fn lacks_calls(timeline: &Timeline<'_>) -> bool {
    let (kind, recording) = (EventKind::CollApi, timeline.recording());
    let header = recording.header();
    let by_cause = [header.without_lane, header.overwritten, header.unwritten];
    header.mask & kind.bit() == 0
        || header.left_out != 0
        || by_cause.iter().any(|lost| lost[kind.index()] != 0)
        || recording.lanes().iter().any(|lane| lane.header.lost[kind.index()] != 0)
        || recording.marks().iter().any(|mark| mark.what == What::Stop)
}
