// SPDX-License-Identifier: Apache-2.0
//! Where the ranks of a job run.

use ncclscope_findings::RankLocation;
use ncclscope_report::Report;
use ncclscope_report::schema::Fact;
use std::collections::HashMap;

/// The locations of all ranks with a recording.
#[derive(Debug, Default)]
pub(crate) struct RankLocations(HashMap<u32, RankLocation>);

impl RankLocations {
    pub(crate) fn of(report: &Report) -> RankLocations {
        let facts = report.processes.iter().map(|process| (&*process.file, &process.identity));
        let facts: HashMap<&str, _> = facts.collect();
        let mut places = HashMap::new();
        for row in &report.ranks {
            let Some(rank) = row.rank else { continue };
            let number = |key| match facts.get(&*row.file)?.get(key)? {
                Fact::Number(number) => Some(*number),
                Fact::Text(_) => None,
            };
            let place = places.entry(rank).or_insert_with(|| RankLocation {
                rank,
                host: Some(row.host.clone()),
                pid: Some(row.pid),
                local_rank: number("local_rank"),
                device: None,
            });
            let known = place.device.or_else(|| row.device.map(u64::from));
            place.device = known.or_else(|| number("device"));
        }
        RankLocations(places)
    }

    /// The location of a rank; without a recording it contains only the rank.
    pub(crate) fn of_rank(&self, rank: u32) -> RankLocation {
        let unknown = || RankLocation { rank, ..RankLocation::default() };
        self.0.get(&rank).cloned().unwrap_or_else(unknown)
    }
}
