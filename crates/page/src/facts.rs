// SPDX-License-Identifier: Apache-2.0
//! Lookups for the rows of a report: the roles of communicators, and the hosts of ranks.

use ncclscope_report::schema::Fact;
use ncclscope_report::{CommRole, Report, comm_roles};
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Clone, Debug, Default)]
pub(crate) struct RankFacts<'a> {
    pub(crate) rank: Option<u32>,
    pub(crate) host: &'a str,
    pub(crate) pid: u32,
    pub(crate) local_rank: Option<u64>,
    pub(crate) device: Option<u64>,
    /// The roles of the rank's communicators.
    pub(crate) roles: BTreeSet<&'a str>,
}

/// The facts that the rows of a report refer to.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    /// The processes, by rank.
    pub(crate) ranks: Vec<RankFacts<'a>>,
    comms: HashMap<&'a str, CommRole>,
    hosts: HashMap<u32, &'a str>,
}

impl<'a> Facts<'a> {
    pub(crate) fn of(report: &'a Report) -> Facts<'a> {
        let comms = comm_roles(&report.ranks);
        let identities: HashMap<&str, &BTreeMap<String, Fact>> =
            report.processes.iter().map(|row| (&*row.file, &row.identity)).collect();
        let mut files: BTreeMap<&str, RankFacts<'a>> = BTreeMap::new();
        for row in &report.ranks {
            let number = |key| match identities.get(&*row.file)?.get(key)? {
                Fact::Number(number) => Some(*number),
                Fact::Text(_) => None,
            };
            let one = files.entry(&row.file).or_default();
            one.rank = one.rank.or(row.rank);
            one.host = &row.host;
            one.pid = row.pid;
            one.local_rank = one.local_rank.or_else(|| number("local_rank"));
            one.device = one.device.or_else(|| row.device.map(u64::from));
            one.device = one.device.or_else(|| number("device"));
            one.roles.extend(row.role.as_deref().or(row.comm_name.as_deref()));
        }
        let mut ranks: Vec<RankFacts<'a>> = files.into_values().collect();
        ranks.sort_by_key(|one| (one.rank.is_none(), one.rank));
        let hosts = ranks.iter().filter_map(|one| Some((one.rank?, one.host))).collect();
        Facts { ranks, comms, hosts }
    }

    pub(crate) fn role(&self, comm: &str) -> &str {
        self.comms.get(comm).map_or("unknown", |comm| &comm.role)
    }

    /// All roles, unsorted.
    pub(crate) fn roles(&self) -> impl Iterator<Item = &str> {
        self.comms.values().map(|comm| &*comm.role)
    }

    /// The host of a job rank, if known.
    pub(crate) fn host(&self, rank: u32) -> Option<&'a str> {
        self.hosts.get(&rank).copied()
    }
}
