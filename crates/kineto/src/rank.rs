// SPDX-License-Identifier: Apache-2.0
//! A recording as a trace is to show it.

use crate::join::{Joined, Pair, join};
use crate::lanes::Clock;
use crate::trace::Trace;
use ncclscope_operations::launches::{Launch, launches};
use ncclscope_operations::timeline::comm_name;
use ncclscope_operations::{GpuClock, Operation, Timeline, operations};
use std::collections::HashMap;

/// A recording, joined to the trace of the same process.
#[derive(Debug)]
pub struct Rank<'t, 'r> {
    trace: &'t Trace,
    timeline: &'t Timeline<'r>,
    operations: Vec<Operation>,
    launches: Vec<Launch>,
    joined: Joined,
    clock: Clock,
    window: (i64, i64),
    pairs: HashMap<usize, Pair>,
}

impl<'t, 'r> Rank<'t, 'r> {
    /// Joins a recording, whose timeline was read with its steps, to a trace.
    #[must_use]
    pub fn new(trace: &'t Trace, timeline: &'t Timeline<'r>) -> Rank<'t, 'r> {
        let operations = operations(timeline);
        let launches = launches(timeline, &operations);
        let comms = timeline.recording().comms();
        let joined = join(trace, &launches, comms);
        let gpus = (0..comms.len()).map(|comm| GpuClock::of_comm(timeline, comm)).collect();
        let gpu_ns = gpu_offset(trace, &launches, &joined);
        let mut window = trace.window;
        let mut pairs = HashMap::new();
        for pair in &joined.pairs {
            let launch = &launches[pair.launch];
            window.0 = window.0.min(launch.call_ns.saturating_add(joined.offset.ns));
            window.1 = window.1.max(launch.end_ns.saturating_add(joined.offset.ns));
            pairs.extend(launch.operations.iter().map(|&operation| (operation, *pair)));
        }
        let clock = Clock { host_ns: joined.offset.ns, gpu_ns, gpus };
        Rank { trace, timeline, operations, launches, joined, clock, window, pairs }
    }

    /// The trace.
    #[must_use]
    pub fn trace(&self) -> &'t Trace {
        self.trace
    }
    /// The recording's events.
    #[must_use]
    pub fn timeline(&self) -> &'t Timeline<'r> {
        self.timeline
    }
    /// The recording's operations.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }
    /// The recording's kernels.
    #[must_use]
    pub fn launches(&self) -> &[Launch] {
        &self.launches
    }
    /// The pairs of the trace's kernels with the recording's.
    #[must_use]
    pub fn joined(&self) -> &Joined {
        &self.joined
    }
    /// Whether trace and recording have nothing in common: no pair, and no call at the same time.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        let (first, last) = self.trace.window;
        let overlaps = self.launches.iter().any(|it| it.call_ns <= last && it.end_ns >= first);
        self.joined.pairs.is_empty() && (!self.trace.kernels.is_empty() || !overlaps)
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The pair that an operation belongs to.
    pub(crate) fn pair_of(&self, operation: usize) -> Option<&Pair> {
        self.pairs.get(&operation)
    }

    /// Whether something lies in the trace's time; a recording may be of hours.
    pub(crate) fn is_shown(&self, start: i64, end: i64) -> bool {
        start <= self.window.1 && end >= self.window.0
    }

    /// What a communicator is called: as the application does, else by its hash.
    pub(crate) fn comm_name(&self, comm: usize) -> String {
        let comm = self.timeline.comm(comm);
        comm.name.clone().unwrap_or_else(|| comm_name(comm))
    }
}

/// What is to be added to the GPU's times as the recording places them: the trace says exactly when
/// each kernel ran, the recording only that it was before a callback.
fn gpu_offset(trace: &Trace, launches: &[Launch], joined: &Joined) -> i64 {
    let differences = joined.pairs.iter().filter_map(|pair| {
        let (first, _) = launches[pair.launch].gpu?;
        Some(trace.kernels[pair.kernel].start_ns - first)
    });
    let mut differences: Vec<i64> = differences.collect();
    differences.sort_unstable();
    differences.get(differences.len() / 2).copied().unwrap_or(joined.offset.ns)
}
