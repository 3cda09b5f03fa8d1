// SPDX-License-Identifier: Apache-2.0
/*!
The lanes that show a recording: which there are, and what lies on them.

Slices of a lane nest or are apart, always: readers drop slices that cross, or show wrong durations.
What overlaps goes to a further lane of the same name.
*/

use crate::rank::Rank;
use ncclscope_operations::launches::{gpu_times, signed};
use ncclscope_operations::steps::{StepExt, states};
use ncclscope_operations::{Completion, Event, EventId, GpuClock, tracks};
use ncclscope_trace::record::{KernelCh, KernelPhase, step_flags};
use ncclscope_trace::{Detail, EventKind};
use std::collections::{BTreeMap, HashMap};

/// What a slice shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum What {
    /// An event from its start to its stop.
    Event(EventId),
    /// An operation from its start to its completion: index of [`Rank::operations`].
    Operation(usize),
    /// A network step: index of the timeline's steps.
    Step(usize),
    /// A state of a network step, 0 to 2.
    Wait(usize, usize),
}

/// A stretch of time on a lane; ns since 1970 by the trace's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slice {
    pub(crate) start: i64,
    /// Not before the start.
    pub(crate) end: i64,
    pub(crate) what: What,
}

/// A lane.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) name: String,
    /// Each slice comes before those inside it.
    pub(crate) slices: Vec<Slice>,
}

/// Lanes in the order in which they are shown: communicator by communicator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Row {
    Api { thread: u8 },
    Operations { comm: Option<usize> },
    Kernel { comm: Option<usize>, channel: u8 },
    Network { comm: Option<usize>, peer: i32, is_send: bool, channel: u8, steps: bool },
}

impl Row {
    /// Sorts by communicator first, calls before all.
    fn place(self) -> (Option<Option<usize>>, Row) {
        match self {
            Row::Api { .. } => (None, self),
            Row::Operations { comm } | Row::Kernel { comm, .. } | Row::Network { comm, .. } => {
                (Some(comm), self)
            }
        }
    }

    fn name(self, rank: &Rank<'_, '_>) -> String {
        let (name, comm) = match self {
            Row::Api { .. } => return "API calls".into(),
            Row::Operations { comm } => ("Operations".into(), comm),
            Row::Kernel { comm, channel } => (format!("Kernel channel {channel}"), comm),
            Row::Network { comm, peer, is_send, channel, steps } => {
                let way = if is_send { "Send to" } else { "Receive from" };
                let what = if steps { ", waits" } else { "" };
                (format!("{way} rank {peer}, channel {channel}{what}"), comm)
            }
        };
        match comm.filter(|_| rank.timeline().recording().comms().len() > 1) {
            Some(comm) => format!("{} {name}", rank.comm_name(comm)),
            None => name,
        }
    }
}

/// Slices that stay together: an outer one with those inside it.
type Block = Vec<Slice>;

/// The lanes of a rank.
pub(crate) fn lanes(rank: &Rank<'_, '_>) -> Vec<Lane> {
    let mut blocks: BTreeMap<(Option<Option<usize>>, Row), Vec<Block>> = BTreeMap::new();
    let mut put = |row: Row, block: Block| {
        if block.first().is_some_and(|outer| rank.is_shown(outer.start, outer.end)) {
            blocks.entry(row.place()).or_default().push(block);
        }
    };
    for (index, operation) in rank.operations().iter().enumerate() {
        put(Row::Operations { comm: operation.comm }, vec![rank.operation_slice(index)]);
    }
    let timeline = rank.timeline();
    for (id, event) in timeline.events() {
        let comm = timeline.comm_of(event);
        let row = match event.start.detail {
            Detail::GroupApi(_)
            | Detail::CollApi(_)
            | Detail::P2pApi(_)
            | Detail::KernelLaunch(_) => Row::Api { thread: event.lane },
            Detail::KernelCh(KernelCh { channel, .. })
            | Detail::KernelPhase(KernelPhase { channel, .. }) => Row::Kernel { comm, channel },
            Detail::ProxyOp(op) if event.steps.is_some() => {
                let (peer, is_send, channel) = (op.peer, op.is_send, op.channel);
                Row::Network { comm, peer, is_send, channel, steps: false }
            }
            _ => continue,
        };
        put(row, vec![rank.event_slice(id)]);
    }
    for (index, (op, _)) in timeline.steps().iter().enumerate() {
        let event = timeline.event(*op);
        let Detail::ProxyOp(op) = event.start.detail else { continue };
        let (peer, is_send, channel) = (op.peer, op.is_send, op.channel);
        let comm = timeline.comm_of(event);
        put(Row::Network { comm, peer, is_send, channel, steps: true }, step_block(rank, index));
    }
    let mut lanes = Vec::new();
    for ((_, row), blocks) in blocks {
        let packed = match row {
            Row::Api { .. } | Row::Kernel { .. } => nested(blocks.into_iter().flatten().collect()),
            _ => apart(blocks),
        };
        lanes.extend(packed.into_iter().map(|slices| Lane { name: row.name(rank), slices }));
    }
    lanes
}

/// A step with what it waited for.
fn step_block(rank: &Rank<'_, '_>, index: usize) -> Block {
    let (_, step) = &rank.timeline().steps()[index];
    let outer = Slice {
        start: rank.host_ns(step.ticks),
        end: rank.host_ns(step.end_ticks()),
        what: What::Step(index),
    };
    let mut block = vec![outer];
    let mut end = outer.end;
    for (state, ticks) in step.state_ticks().into_iter().enumerate().rev() {
        let Some(ticks) = ticks else { continue };
        let start = rank.host_ns(ticks).clamp(outer.start, end);
        if start < end {
            block.insert(1, Slice { start, end, what: What::Wait(index, state) });
        }
        end = start;
    }
    block
}

/// What a step waits for in a state: the states' names, in the reader's words.
pub(crate) fn wait_name(is_send: bool, state: usize) -> &'static str {
    match (is_send, state) {
        (true, 0) => "wait for GPU",
        (true, 1) => "wait for peer",
        (true, _) => "sending",
        (false, 0) => "receiving",
        (false, 1) => "flush",
        (false, _) => "wait for GPU",
    }
}

/// Spreads blocks over lanes such that those of a lane are apart.
fn apart(mut blocks: Vec<Block>) -> Vec<Vec<Slice>> {
    blocks.sort_by_key(|block| (block[0].start, block[0].end));
    let (mut lanes, mut ends): (Vec<Vec<Slice>>, _) = (Vec::new(), Vec::new());
    for block in blocks {
        let at = tracks::first_free(&mut ends, block[0].start, block[0].end);
        if at == lanes.len() {
            lanes.push(Vec::new());
        }
        lanes[at].extend(block);
    }
    lanes
}

/// Spreads slices over lanes on which they are apart or one inside the other.
fn nested(mut slices: Vec<Slice>) -> Vec<Vec<Slice>> {
    slices.sort_by_key(|slice| (slice.start, std::cmp::Reverse(slice.end), slice.what));
    tracks::nested(slices, |slice| (slice.start, slice.end))
}

/// Where the times of a rank's events lie on the trace's clock.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Added to the recording's time.
    pub(crate) host_ns: i64,
    /// Added to the GPU's time as the recording places it.
    pub(crate) gpu_ns: i64,
    pub(crate) gpus: Vec<Option<GpuClock>>,
}

impl Rank<'_, '_> {
    /// The trace's time of the recording's ticks.
    pub(crate) fn host_ns(&self, ticks: u64) -> i64 {
        signed(self.timeline().ns(ticks)).saturating_add(self.clock().host_ns)
    }

    /// The GPU's times of a kernel channel, on the trace's clock.
    fn gpu_ns(&self, event: &Event) -> Option<(i64, i64)> {
        let clock = self.clock();
        let (start, stop) = gpu_times(event)?;
        let gpu = clock.gpus.get(self.timeline().comm_of(event)?)?.as_ref()?;
        let place = |ptimer| signed(gpu.host_ns(ptimer)).saturating_add(clock.gpu_ns);
        Some((place(start), place(stop)))
    }

    /// The slice of an event; a kernel's lies where the GPU's timer says.
    pub(crate) fn event_slice(&self, id: EventId) -> Slice {
        let event = self.timeline().event(id);
        let last = self.timeline().recording().last_ticks();
        let (start, end) = self.gpu_ns(event).unwrap_or_else(|| {
            (self.host_ns(event.start.ticks), self.host_ns(event.stop.unwrap_or(last)))
        });
        Slice { start, end: end.max(start), what: What::Event(id) }
    }

    pub(crate) fn operation_slice(&self, index: usize) -> Slice {
        let operation = &self.operations()[index];
        let event = self.timeline().event(operation.event);
        let end = match operation.completion {
            Completion::Done(ticks) => ticks,
            Completion::Unseen => event.stop.unwrap_or(event.start.ticks),
            Completion::Open => self.timeline().recording().last_ticks(),
        };
        let start = self.host_ns(event.start.ticks);
        Slice { start, end: self.host_ns(end).max(start), what: What::Operation(index) }
    }

    /// A slice's name. None begins with what readers take for a NCCL kernel.
    pub(crate) fn name(&self, what: What) -> String {
        let timeline = self.timeline();
        let func = |id| timeline.recording().string(id).unwrap_or("operation");
        match what {
            What::Operation(index) => func(self.operations()[index].func).into(),
            What::Step(index) => format!("step {}", timeline.steps()[index].1.step),
            What::Wait(index, state) => {
                let is_send = timeline.steps()[index].1.has(step_flags::IS_SEND);
                wait_name(is_send, state).into()
            }
            What::Event(id) => {
                let event = timeline.event(id);
                match event.start.detail {
                    Detail::CollApi(call) | Detail::P2pApi(call) => func(call.func).into(),
                    Detail::KernelPhase(KernelPhase { name, .. }) => func(name).into(),
                    Detail::KernelCh(KernelCh { channel, .. }) => format!("channel {channel}"),
                    Detail::ProxyOp(op) if op.is_send => "send".into(),
                    Detail::ProxyOp(_) => "receive".into(),
                    _ => event.kind().name().into(),
                }
            }
        }
    }

    /// The kernel channels of an operation, or where there are none, its network operations.
    pub(crate) fn inner_events(&self, operation: usize) -> Vec<EventId> {
        let children = self.timeline().children(self.operations()[operation].event);
        let of = |kind| {
            let is = |id: &EventId| self.timeline().event(*id).kind() == kind;
            children.iter().copied().filter(is).collect::<Vec<_>>()
        };
        let kernels = of(EventKind::KernelCh);
        if !kernels.is_empty() {
            return kernels;
        }
        let has_steps = |id: &EventId| self.timeline().event(*id).steps.is_some();
        of(EventKind::ProxyOp).into_iter().filter(has_steps).collect()
    }
}

/// The lane and the slice of each thing that an arrow may point at.
pub(crate) fn places(lanes: &[Lane]) -> HashMap<What, (usize, Slice)> {
    let mut places = HashMap::new();
    for (lane, Lane { slices, .. }) in lanes.iter().enumerate() {
        let targets =
            slices.iter().filter(|s| matches!(s.what, What::Event(_) | What::Operation(_)));
        places.extend(targets.map(|slice| (slice.what, (lane, *slice))));
    }
    places
}

/// NCCL's name of a step's state.
pub(crate) fn state_name(is_send: bool, state: usize) -> &'static str {
    states(is_send)[state].name().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(ranges: &[(i64, i64)]) -> Vec<Slice> {
        let slice = |(at, &(start, end))| Slice { start, end, what: What::Operation(at) };
        ranges.iter().enumerate().map(slice).collect()
    }

    fn ranges(lanes: &[Vec<Slice>]) -> Vec<Vec<(i64, i64)>> {
        lanes.iter().map(|lane| lane.iter().map(|s| (s.start, s.end)).collect()).collect()
    }

    #[test]
    fn what_overlaps_goes_to_another_lane() {
        let lanes = nested(slices(&[(0, 10), (2, 4), (5, 12), (10, 11)]));
        assert_eq!(ranges(&lanes), [vec![(0, 10), (2, 4), (10, 11)], vec![(5, 12)]]);
        let lanes = apart(
            slices(&[(0, 10), (2, 4), (5, 12), (10, 11)]).into_iter().map(|s| vec![s]).collect(),
        );
        assert_eq!(ranges(&lanes), [vec![(0, 10), (10, 11)], vec![(2, 4), (5, 12)]]);
    }
}
