// SPDX-License-Identifier: Apache-2.0
//! The thresholds of the analyses.

/// The thresholds for findings; a value below its threshold is not reported.
#[derive(Clone, PartialEq, Debug)]
pub struct Limits {
    /// S1, S2, S5, N5: the one test, with the least cost that matters.
    pub test: ncclscope_statistics::Limits,
    /// S8: the time for which a process was short of processor time, as a share of the run.
    pub min_short: f64,
    /// S8: the ratio to the others' median of that time to the rest of the run.
    pub short_factor: f64,
    /// S3, S4, S6, N5: the number of operations or transfers.
    pub min_samples: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            test: ncclscope_statistics::Limits::default(),
            min_short: 0.05,
            short_factor: 3.0,
            min_samples: 20,
        }
    }
}
