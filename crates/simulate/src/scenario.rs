// SPDX-License-Identifier: Apache-2.0
//! Scenarios: what to simulate, from a scenario file or the defaults.

use crate::fault::Fault;
use crate::func::Func;
use serde::{Deserialize, Serialize};

/// A scenario: a job and the faults that are planted in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// The seed of all random choices.
    pub seed: u64,
    /// The job.
    pub job: JobShape,
    /// The hosts, GPUs and the network.
    pub machine: Machine,
    /// The planted faults, at most three.
    pub fault: Vec<Planted>,
    /// Write only a table of vectors, not recordings.
    pub counters: bool,
}

/// The ranks and their parallel layout. A 0 means: choose a suitable value.
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
    /// Expert parallel ranks, a divisor of the data parallel ones; 1: none.
    pub ep: u32,
    /// Training steps; by default 20, or 12 from 512 ranks on.
    pub steps: u32,
    /// Microbatches per step.
    pub microbatches: u32,
    /// How long recording continues after the job has hung, s.
    pub hold_s: u32,
    /// How much later than others the job began, s: for several runs in a directory.
    pub start_s: u32,
    /// How much earlier than those of others the first host's recordings were copied, s.
    pub early_s: u32,
    /// Every process is process 1 of the host `localhost`, as in containers.
    pub in_containers: bool,
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
            start_s: 0,
            early_s: 0,
            in_containers: false,
            ring_mib: 0,
        }
    }
}

/// Times and rates of the hardware.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Machine {
    /// Network bandwidth of one rank in each direction, GB/s.
    pub network_gb_s: f64,
    /// Network latency, ns.
    pub network_ns: u64,
    /// Bandwidth between the GPUs of a host, GB/s.
    pub nvlink_gb_s: f64,
    /// Latency between the GPUs of a host, ns.
    pub nvlink_ns: u64,
    /// Forward pass of one microbatch in one stage, µs.
    pub forward_us: u64,
    /// Relative standard deviation of a GPU's computing time.
    pub jitter: f64,
    /// Host time of a call, ns.
    pub call_ns: u64,
    /// The largest clock offset of a host, ms.
    pub clock_offset_ms: f64,
    /// The largest clock rate error of a host, ppm.
    pub clock_drift_ppm: f64,
    /// The share of progress records that are lost.
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

/// A fault to plant. Unset fields are chosen at random.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planted {
    /// The fault.
    pub name: Fault,
    /// The rank in the job.
    pub rank: Option<u32>,
    /// The step; by default the one in the middle.
    pub step: Option<u32>,
    /// The slowdown factor.
    pub factor: Option<f64>,
    /// The collective of `slow-function`.
    pub func: Option<Func>,
}

impl Planted {
    /// A fault whose other fields are chosen at random.
    #[must_use]
    pub fn new(name: Fault) -> Planted {
        Planted { name, rank: None, step: None, factor: None, func: None }
    }
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// What is wrong with the file, and where.
    pub fn parse(text: &str) -> Result<Scenario, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map(|before| before.matches('\n').count() + 1);
            let place = line.map_or_else(String::new, |line| format!("line {line}: "));
            format!("{place}{}", error.message())
        })
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault.iter().any(|planted| planted.name == fault)
    }
}
