// SPDX-License-Identifier: Apache-2.0
//! A recording that is joined to the kernels of a profile, and converted to its clock.

use crate::join::{Joined, Pair, join};
use crate::trace::Trace;
use ncclscope_operations::launches::{Launch, launches};
use ncclscope_operations::{Operation, Selection, Timeline};
use ncclscope_views::{Axis, Scene};
use std::collections::HashMap;

/// A recording, joined to the trace of the same process.
#[derive(Debug)]
pub struct Rank<'t, 'r> {
    trace: &'t Trace,
    scene: Scene<'t, 'r>,
    launches: Vec<Launch>,
    joined: Joined,
    pairs: HashMap<u32, Pair>,
}

impl<'t, 'r> Rank<'t, 'r> {
    /// Joins a recording, whose timeline was read with its steps, to a trace.
    #[must_use]
    pub fn new(trace: &'t Trace, timeline: &'t Timeline<'r>) -> Rank<'t, 'r> {
        let scene = Scene::new(timeline);
        let launches = launches(timeline, scene.operations(), scene.clocks());
        let joined = join(trace, &launches, timeline.recording().comms());
        let host_ns = joined.offset.ns;
        let (mut first, mut last) = trace.window;
        let mut pairs = HashMap::new();
        for pair in &joined.pairs {
            let launch = &launches[pair.launch];
            first = first.min(launch.call_ns.saturating_add(host_ns));
            last = last.max(launch.end_ns.saturating_add(host_ns));
            let operations = launch.operations.iter().filter_map(|&at| u32::try_from(at).ok());
            pairs.extend(operations.map(|operation| (operation, *pair)));
        }
        let gpu_ns = gpu_offset(trace, &launches, &joined);
        // A recording may cover hours; slices outside of the trace's time are left out.
        let window = (unsigned(first), unsigned(last));
        let scene = scene.on(Axis { host_ns, gpu_ns, window });
        Rank { trace, scene, launches, joined, pairs }
    }

    /// Restricts it to what the filter selects of the recording.
    #[must_use]
    pub fn of(self, selection: &Selection) -> Rank<'t, 'r> {
        Rank { scene: self.scene.of(selection), ..self }
    }

    /// The trace.
    #[must_use]
    pub fn trace(&self) -> &'t Trace {
        self.trace
    }
    /// The recording's slices, on the trace's clock.
    #[must_use]
    pub fn scene(&self) -> &Scene<'t, 'r> {
        &self.scene
    }
    /// The recording's operations.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        self.scene.operations()
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

    pub(crate) fn pair_of(&self, operation: u32) -> Option<&Pair> {
        self.pairs.get(&operation)
    }
}

/// Correction that is added to the recording's GPU times, ns. The trace has the exact time of each
/// kernel, the recording only an upper bound from the callback.
fn gpu_offset(trace: &Trace, launches: &[Launch], joined: &Joined) -> i64 {
    let differences = joined.pairs.iter().filter_map(|pair| {
        let (first, _) = launches[pair.launch].gpu?;
        Some(trace.kernels[pair.kernel].start_ns - first)
    });
    let mut differences: Vec<i64> = differences.collect();
    differences.sort_unstable();
    differences.get(differences.len() / 2).copied().unwrap_or(joined.offset.ns)
}

/// Converts ns since 1970.
fn unsigned(ns: i64) -> u64 {
    u64::try_from(ns).unwrap_or(0)
}
