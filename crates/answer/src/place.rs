// SPDX-License-Identifier: Apache-2.0
//! Where the ranks of a job run.

use ncclscope_findings::Place;
use ncclscope_report::Report;
use ncclscope_report::schema::Fact;
use std::collections::HashMap;

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
