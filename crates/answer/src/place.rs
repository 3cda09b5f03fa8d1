// SPDX-License-Identifier: Apache-2.0
//! Where the ranks of a job run.

use ncclscope_report::Report;
use ncclscope_report::schema::Fact;
use serde::Serialize;
use std::collections::HashMap;

/// Where a rank runs. What is not known is `null`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Rank in the job.
    pub rank: u32,
    /// Host name.
    pub host: Option<String>,
    /// Process id.
    pub pid: Option<u32>,
    /// Number of the process among those of the job on its host.
    pub local_rank: Option<u64>,
    /// CUDA device, as the process counts them.
    pub device: Option<u64>,
}

/// The places of all ranks with a recording.
#[derive(Debug, Default)]
pub(crate) struct Places(HashMap<u32, Place>);

impl Places {
    pub(crate) fn of(report: &Report) -> Places {
        let facts = report.processes.iter().map(|process| (&*process.file, &process.identity));
        let facts: HashMap<&str, _> = facts.collect();
        let mut places = HashMap::new();
        for row in &report.ranks {
            let Some(rank) = row.rank else { continue };
            let number = |key| match facts.get(&*row.file)?.get(key)? {
                Fact::Number(number) => Some(*number),
                Fact::Text(_) => None,
            };
            let place = places.entry(rank).or_insert_with(|| Place {
                rank,
                host: Some(row.host.clone()),
                pid: Some(row.pid),
                local_rank: number("local_rank"),
                device: None,
            });
            let known = place.device.or_else(|| row.device.map(u64::from));
            place.device = known.or_else(|| number("device"));
        }
        Places(places)
    }

    /// The place of a rank, with its rank alone if it has no recording.
    pub(crate) fn of_rank(&self, rank: u32) -> Place {
        let unknown = || Place { rank, ..Place::default() };
        self.0.get(&rank).cloned().unwrap_or_else(unknown)
    }
}

/// `rank 10 (node-0002, local rank 2, GPU 2, pid 10640)`.
impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let facts = [
            self.host.clone(),
            self.local_rank.map(|rank| format!("local rank {rank}")),
            self.device.map(|device| format!("GPU {device}")),
            self.pid.map(|pid| format!("pid {pid}")),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        match facts.is_empty() {
            true => write!(f, "rank {} (no recording)", self.rank),
            false => write!(f, "rank {} ({})", self.rank, facts.join(", ")),
        }
    }
}
