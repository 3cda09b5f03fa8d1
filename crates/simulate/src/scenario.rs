// SPDX-License-Identifier: Apache-2.0
//! What is to be simulated: a scenario file, or the defaults.

use crate::fault::Fault;
use serde::{Deserialize, Serialize};

/// A scenario: a job and what is planted in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Everything that is drawn depends on this number.
    pub seed: u64,
    /// The job.
    pub job: JobShape,
    /// The hosts, GPUs and the network.
    pub machine: Machine,
    /// What is planted, one to three.
    pub fault: Vec<Planted>,
    /// Only a table of vectors is written, not recordings.
    pub counters: bool,
}

/// Ranks and how they work together. What is 0 is chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobShape {
    /// Processes, one GPU each.
    pub ranks: u32,
    /// Ranks of a host.
    pub per_host: u32,
    /// Tensor parallel ranks.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Data parallel ranks; follows from the others.
    pub dp: u32,
    /// Expert parallel ranks, a part of the data parallel ones; 1 none.
    pub ep: u32,
    /// Training steps; chosen: 20, and 12 from 512 ranks on.
    pub steps: u32,
    /// Microbatches of a step.
    pub microbatches: u32,
    /// How long recording goes on after the job hung, s.
    pub hold_s: u32,
    /// MiB of each recording's ring.
    pub ring_mib: u32,
}

impl Default for JobShape {
    fn default() -> JobShape {
        JobShape {
            ranks: 16,
            per_host: 0,
            tp: 0,
            pp: 0,
            dp: 0,
            ep: 0,
            steps: 0,
            microbatches: 0,
            hold_s: 60,
            ring_mib: 0,
        }
    }
}

/// Times and rates of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Machine {
    /// Network of one rank, each way, GB/s.
    pub network_gb_s: f64,
    /// Its latency, ns.
    pub network_ns: u64,
    /// Links between the GPUs of a host, GB/s.
    pub nvlink_gb_s: f64,
    /// Their latency, ns.
    pub nvlink_ns: u64,
    /// Forward pass of one microbatch in one stage, µs.
    pub forward_us: u64,
    /// Deviation of what a GPU computes, as a part of it.
    pub jitter: f64,
    /// Host time of a call, ns.
    pub call_ns: u64,
    /// Clocks of hosts are off by up to this, ms.
    pub clock_offset_ms: f64,
    /// Clocks of hosts run up to this much too fast or slow, millionths.
    pub clock_drift_ppm: f64,
    /// Progress that gets lost, as a part of it.
    pub dropped: f64,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine {
            network_gb_s: 25.0,
            network_ns: 8_000,
            nvlink_gb_s: 200.0,
            nvlink_ns: 1_500,
            forward_us: 12_000,
            jitter: 0.01,
            call_ns: 12_000,
            clock_offset_ms: 200.0,
            clock_drift_ppm: 20.0,
            dropped: 0.0,
        }
    }
}

/// Something to plant. What is not given is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planted {
    /// What.
    pub name: Fault,
    /// Where, as a rank of the job.
    pub rank: Option<u32>,
    /// In which step; that in the middle where it is not given.
    pub step: Option<u32>,
    /// How much slower.
    pub factor: Option<f64>,
}

impl Planted {
    /// With everything drawn.
    #[must_use]
    pub fn new(name: Fault) -> Planted {
        Planted { name, rank: None, step: None, factor: None }
    }
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Scenario, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// True if that is planted.
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault.iter().any(|planted| planted.name == fault)
    }
}
