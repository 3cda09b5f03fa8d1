// SPDX-License-Identifier: Apache-2.0
/*!
Finds the kernels that NCCL launched in a recording.

NCCL starts one Group event for each plan, and a plan is one kernel (`src/enqueue.cc`,
`ncclLaunchPrepare`, of NCCL 2.28): one kernel executes the operations of a Group event. Copy-engine
collectives have no kernel.
*/

use crate::function::Kind;
use crate::hash::Map;
use crate::{Completion, Event, EventId, GpuClock, GpuClocks, Operation, Parent, Timeline};
use ncclscope_trace::record::{KernelCh, KernelPhase};
use ncclscope_trace::{Detail, EventKind, Handle};

/// A kernel of a recording. Times are `CLOCK_REALTIME` in ns by the recording's clock.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Its operations, by their index.
    pub operations: Vec<usize>,
    /// Position of its communicator.
    pub comm: Option<usize>,
    /// The kinds of its operations, without duplicates.
    pub kinds: Vec<Kind>,
    /// The known sizes of its operations, in bytes.
    pub sizes: Vec<u64>,
    /// When NCCL was called: the start of the API call, else of the Group event. For a launch of a
    /// CUDA graph, which may come long after the call, that of the Group event or the operation.
    pub call_ns: i64,
    /// Start of its first operation.
    pub start_ns: i64,
    /// End of the last of its operations, as far as it is known.
    pub end_ns: i64,
    /// Start of its first channel and end of its last one, by the GPU's timer, converted to the
    /// host's clock.
    pub gpu: Option<(i64, i64)>,
    /// External ids of PyTorch that were current when NCCL was called.
    pub external_ids: Vec<u64>,
}

/// The kernels of a recording with these operations and clocks, sorted by the time of their call.
#[must_use]
pub fn launches(
    timeline: &Timeline<'_>,
    operations: &[Operation],
    clocks: &GpuClocks,
) -> Vec<Launch> {
    let mut launches = Launches::default();
    operations.iter().for_each(|operation| launches.add(timeline, operation));
    launches.finish(clocks)
}

/// Finds the kernels of a recording while its operations end, in any order.
#[derive(Debug, Default)]
pub struct Launches {
    /// The start of each Group event that was forgotten, in ticks.
    groups: Map<Handle, u64>,
    /// Index of the kernel of each Group event.
    by_group: Map<Handle, usize>,
    all: Vec<Unfinished>,
    operations: usize,
}

/// A kernel of which more operations may come.
#[derive(Debug, Default)]
struct Unfinished {
    launch: Launch,
    /// The starts of its operations, in ticks.
    starts: Vec<u64>,
    /// Its times by the GPU's timer, ns.
    ptimers: Option<(u64, u64)>,
}

impl Launches {
    /// Takes a Group event before it is forgotten; its operations may come later.
    pub fn add_group(&mut self, event: &Event) {
        if event.kind() == EventKind::Group {
            self.groups.insert(event.start.handle, event.start.ticks);
        }
    }

    /// Takes the next operation, as [`crate::joiner::Consumer::operation`] does. Operations are
    /// numbered from 0.
    pub fn add(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
        let index = self.operations;
        self.operations += 1;
        let event = timeline.event(operation.event);
        if event.kind() == EventKind::CeColl {
            return;
        }
        let next = self.all.len();
        let group =
            group_of(event).and_then(|handle| Some((handle, self.start(timeline, handle)?)));
        let at = match group {
            Some((handle, _)) => *self.by_group.entry(handle).or_insert(next),
            None => next,
        };
        let start = group.map_or(event.start.ticks, |(_, start)| start);
        if at == next {
            self.all.push(Unfinished::default());
        }
        let Unfinished { launch, starts, ptimers } = &mut self.all[at];
        if starts.iter().all(|&other| event.start.ticks < other) {
            begin(launch, timeline, operation, start);
        }
        starts.push(event.start.ticks);
        launch.operations.push(index);
        add(launch, timeline, operation);
        *ptimers = kernel_times(*ptimers, timeline, operation);
        let id = external_id(timeline, event);
        launch.external_ids.extend(id.filter(|id| !launch.external_ids.contains(id)));
    }

    /// Start of a Group event, in ticks; `None` if it is not in the recording.
    fn start(&self, timeline: &Timeline<'_>, group: Handle) -> Option<u64> {
        let here = timeline.find(group).map(|id| timeline.event(id));
        let here = here.filter(|event| event.kind() == EventKind::Group);
        here.map(|event| event.start.ticks).or_else(|| self.groups.get(&group).copied())
    }

    /// The kernels, sorted by the time of their call.
    #[must_use]
    pub fn finish(self, clocks: &GpuClocks) -> Vec<Launch> {
        let finish = |kernel: Unfinished| kernel.finish(clocks);
        let mut launches: Vec<Launch> = self.all.into_iter().map(finish).collect();
        // An unstable sort needs no memory.
        let first = |launch: &Launch| launch.operations.first().copied();
        launches.sort_unstable_by_key(|launch| (launch.call_ns, launch.start_ns, first(launch)));
        launches
    }
}

impl Unfinished {
    /// The kernel with its operations in the order of their starts.
    fn finish(self, clocks: &GpuClocks) -> Launch {
        let Unfinished { mut launch, starts, ptimers } = self;
        if !starts.is_sorted() {
            let mut order: Vec<(u64, usize)> =
                starts.into_iter().zip(std::mem::take(&mut launch.operations)).collect();
            order.sort_unstable();
            launch.operations = order.into_iter().map(|(_, index)| index).collect();
        }
        let clock = launch.comm.and_then(|comm| clocks.of_comm(comm));
        let host_ns = |clock: &GpuClock, ns| signed(clock.host_ns(ns));
        launch.gpu = clock
            .zip(ptimers)
            .map(|(clock, (start, stop))| (host_ns(clock, start), host_ns(clock, stop)));
        launch
    }
}

/// The Group event of an operation: its own if the API version has it, else its parent.
fn group_of(event: &Event) -> Option<Handle> {
    let own = match event.start.detail {
        Detail::Coll(coll) => coll.group,
        Detail::P2p(p2p) => p2p.group,
        _ => Handle::NULL,
    };
    let handle = if own.is_null() { event.start.parent } else { own };
    (!handle.is_null()).then_some(handle)
}

/// The API event that an operation belongs to.
fn api_call<'t>(timeline: &'t Timeline<'_>, event: &Event) -> Option<(EventId, &'t Event)> {
    let Parent::Known(parent) = event.parent else { return None };
    let call = timeline.event(parent);
    let is_call = matches!(call.kind(), EventKind::CollApi | EventKind::P2pApi);
    is_call.then_some((parent, call))
}

/// The External id that was current in PyTorch when NCCL was called: of the operation's own API
/// event, else of its group's.
fn external_id(timeline: &Timeline<'_>, event: &Event) -> Option<u64> {
    let (id, call) = api_call(timeline, event)?;
    let of_group = || match call.parent {
        Parent::Known(group) => timeline.external_id(group),
        _ => None,
    };
    timeline.external_id(id).or_else(of_group).filter(|&id| id != 0)
}

/// Sets the beginning of a kernel with this first operation, whose Group event, or which itself,
/// started at `start` ticks.
fn begin(launch: &mut Launch, timeline: &Timeline<'_>, operation: &Operation, start: u64) {
    let event = timeline.event(operation.event);
    let start = start.min(event.start.ticks);
    let call = api_call(timeline, event).filter(|(_, call)| !call.is_captured());
    let call = call.map_or(start, |(_, call)| call.start.ticks);
    (launch.start_ns, launch.call_ns) = (signed(timeline.ns(start)), signed(timeline.ns(call)));
    (launch.comm, launch.end_ns) = (operation.comm, launch.end_ns.max(launch.start_ns));
}

fn add(launch: &mut Launch, timeline: &Timeline<'_>, operation: &Operation) {
    let event = timeline.event(operation.event);
    let kind = Kind::of_function(timeline.string(operation.func));
    if let Some(kind) = kind.filter(|kind| !launch.kinds.contains(kind)) {
        launch.kinds.push(kind);
    }
    launch.sizes.extend(operation.bytes);
    let end = match operation.completion {
        Completion::Done(ticks) => Some(ticks),
        Completion::Unseen => event.stop,
        Completion::Open => Some(timeline.recording().last_ticks()),
    };
    let end = end.map_or(launch.start_ns, |ticks| signed(timeline.ns(ticks)));
    launch.end_ns = launch.end_ns.max(end);
}

/// `times`, extended by the operation's first start and last stop by the GPU's timer, ns.
fn kernel_times(
    times: Option<(u64, u64)>,
    timeline: &Timeline<'_>,
    operation: &Operation,
) -> Option<(u64, u64)> {
    let children = timeline.children(operation.event).iter();
    let channels = children.filter_map(|&child| gpu_times(timeline.event(child)));
    channels.fold(times, |times, (start, stop)| {
        let (first, last) = times.unwrap_or((start, stop));
        Some((first.min(start), last.max(stop)))
    })
}

/// The GPU's time stamps of a kernel channel or phase, ns; `None` if they are invalid.
fn gpu_times(event: &Event) -> Option<(u64, u64)> {
    let (Detail::KernelCh(KernelCh { ptimer, .. })
    | Detail::KernelPhase(KernelPhase { ptimer, .. })) = event.start.detail
    else {
        return None;
    };
    let (stop, _) = event.ptimer_stop.filter(|_| event.stop.is_some())?;
    (ptimer != 0 && stop >= ptimer).then_some((ptimer, stop))
}

/// Converts ns since 1970, which fit into an `i64` until the year 2262.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations;
    use ncclscope_trace::Recording;
    use scripts::{Call, Process};

    /// In a stream, the operations of a kernel come in the order in which they end.
    #[test]
    fn a_kernel_is_the_same_in_whatever_order_its_operations_end() {
        let mut process = Process::new(0, 2);
        for _ in 0..3 {
            process.send_recv(1, 100);
            process.collective(Call::ALL_REDUCE);
        }
        let dir = tempfile::tempdir().unwrap();
        let recording = Recording::open(&process.write(dir.path()).unwrap()).unwrap();
        let timeline = Timeline::read(&recording, false);
        let (operations, clocks) = (operations(&timeline), GpuClocks::of(&timeline));
        let forward = launches(&timeline, &operations, &clocks);
        assert!(forward.iter().any(|launch| launch.operations.len() == 2), "{forward:?}");
        let mut backward = Launches::default();
        operations.iter().rev().for_each(|operation| backward.add(&timeline, operation));
        let mut backward = backward.finish(&clocks);
        for launch in &mut backward {
            launch.operations.iter_mut().for_each(|at| *at = operations.len() - 1 - *at);
            launch.kinds.reverse();
            launch.sizes.reverse();
        }
        assert_eq!(format!("{forward:?}"), format!("{backward:?}"));
    }
}
