// SPDX-License-Identifier: Apache-2.0
//! The thresholds of the analyses.

/// The thresholds for findings; a value below its threshold is not reported.
#[derive(Clone, PartialEq, Debug)]
pub struct Limits {
    /// S1: the test of units against their peers, with the least cost that matters.
    pub test: ncclscope_statistics::Limits,
    /// N5: the number of recorded steps.
    pub min_steps: usize,
    /// N5: the time that a GPU holds up, as a share of the steps.
    pub min_stalled: f64,
    /// N5: the length of a run of fewer than [`Limits::min_steps`] steps, ns.
    pub min_span_ns: f64,
    /// N5: the ratio of that time to the others' median.
    pub stall_factor: f64,
    /// S8: the time for which a process was short of processor time, as a share of the run.
    pub min_short: f64,
    /// S8: the ratio to the others' median of that time to the rest of the run.
    pub short_factor: f64,
    /// S2, S5: the distance from the median, in median absolute deviations.
    pub mads: f64,
    /// S2, S5: the ratio to the usual time.
    pub drift_factor: f64,
    /// S2 to S6: the number of operations or transfers.
    pub min_samples: u64,
    /// S5: the number of others to compare with.
    pub min_peers: usize,
    /// S2, S5: the lost time, as a share of the run.
    pub min_extra: f64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            test: ncclscope_statistics::Limits::default(),
            min_steps: 10,
            min_stalled: 0.02,
            min_span_ns: 1e10,
            stall_factor: 3.0,
            min_short: 0.05,
            short_factor: 3.0,
            mads: 5.0,
            drift_factor: 1.1,
            min_samples: 20,
            min_peers: 2,
            min_extra: 0.002,
        }
    }
}
