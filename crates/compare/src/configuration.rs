// SPDX-License-Identifier: Apache-2.0
/*!
How runs were configured, as far as it was recorded, and where two sides differ.

Versions, the network plugin, the command, NCCL's variables, the number of ranks, hosts and
communicators; and how NCCL did the operations that both sides have: algorithm, protocol and
channels.
*/

use crate::schema::ConfigDifference;
use std::collections::{BTreeMap, BTreeSet};

/// Facts of a process's identity that are the same in all processes of a run, with names for
/// people.
const FACTS: [(&str, &str); 6] = [
    ("nccl", "NCCL"),
    ("cuda", "CUDA of the driver"),
    ("profiler_api", "profiler API"),
    ("net_plugin", "network plugin"),
    ("beside", "libraries beside NCCL"),
    ("command", "command"),
];
/// Prefix of the recorded variables.
const VARIABLE: &str = "NCCL_";
/// Maximum number of values of one setting that are named.
const NAMED: usize = 4;

/// The configuration of a run: the values of each setting.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Configuration {
    facts: BTreeMap<String, BTreeSet<String>>,
    /// How operations were executed; not a difference if one side lacks the operation.
    choices: BTreeMap<String, BTreeSet<String>>,
}

/// Processes and communicators of a run while they are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Topology {
    ranks: usize,
    /// Ranks of the largest communicator; 0 if unknown.
    nranks: u32,
    hosts: BTreeMap<String, usize>,
    /// The names of communicators, by role and size.
    comms: BTreeMap<(String, Option<u32>), BTreeSet<String>>,
}

impl Configuration {
    /// Adds a fact about the run.
    pub(crate) fn fact(&mut self, what: &str, value: impl Into<String>) {
        self.facts.entry(what.to_owned()).or_default().insert(value.into());
    }

    /// Adds how an operation was executed.
    pub(crate) fn choice(&mut self, operation: &str, how: String) {
        self.choices.entry(operation.to_owned()).or_default().insert(how);
    }

    /// Adds a fact of a process's identity, unless such facts differ between processes anyway.
    pub(crate) fn identity(&mut self, key: &str, value: &str) {
        let known = FACTS.iter().find(|(name, _)| *name == key).map(|(_, shown)| *shown);
        if let Some(what) = known.or_else(|| key.starts_with(VARIABLE).then_some(key)) {
            self.fact(what, value);
        }
    }

    /// Adds the topology.
    pub(crate) fn topology(&mut self, topology: &Topology) {
        self.fact("ranks", topology.gpus().to_string());
        self.fact("hosts", topology.hosts.len().to_string());
        for (host, ranks) in &topology.hosts {
            self.fact("ranks of a host", ranks.to_string());
            self.fact("host names", host.clone());
        }
        for ((role, size), comms) in &topology.comms {
            let size = size.map_or_else(|| "unknown size".into(), |size| format!("{size} ranks"));
            self.fact(&format!("communicators of {role}"), format!("{} of {size}", comms.len()));
        }
    }
}

impl Topology {
    /// Adds a process.
    pub(crate) fn process(&mut self, host: &str) {
        self.ranks += 1;
        *self.hosts.entry(host.to_owned()).or_default() += 1;
    }

    /// Adds a communicator, which may have been added before.
    pub(crate) fn comm(&mut self, role: &str, nranks: Option<u32>, name: &str) {
        self.comms.entry((role.to_owned(), nranks)).or_default().insert(name.to_owned());
    }

    /// Adds the number of ranks of a communicator; 0 if unknown.
    pub(crate) fn size(&mut self, nranks: u32) {
        self.nranks = self.nranks.max(nranks);
    }

    /// Number of GPUs, as a report counts them: a process may have several ranks, and recordings of
    /// some ranks may be missing.
    pub(crate) fn gpus(&self) -> usize {
        self.ranks.max(self.nranks as usize)
    }
}

/// The differences between the configurations of two sides; the runs of one side are merged.
pub(crate) fn differences(a: &[&Configuration], b: &[&Configuration]) -> Vec<ConfigDifference> {
    type Values = BTreeMap<String, BTreeSet<String>>;
    let all = |of: fn(&Configuration) -> &Values, runs: &[&Configuration]| {
        let mut all = Values::new();
        for (what, values) in runs.iter().copied().flat_map(of) {
            all.entry(what.clone()).or_default().extend(values.iter().cloned());
        }
        all
    };
    let none = BTreeSet::new();
    let (facts, others) = (all(|c| &c.facts, a), all(|c| &c.facts, b));
    let names: BTreeSet<&String> = facts.keys().chain(others.keys()).collect();
    let mut found: Vec<ConfigDifference> = names
        .into_iter()
        .filter_map(|what| {
            let of = |facts: &'_ Values| facts.get(what).cloned();
            difference(what, &of(&facts).unwrap_or_default(), of(&others).as_ref().unwrap_or(&none))
        })
        .collect();
    let (choices, others) = (all(|c| &c.choices, a), all(|c| &c.choices, b));
    let both = choices.iter().filter_map(|(what, a)| Some((what, a, others.get(what)?)));
    found.extend(both.filter_map(|(what, a, b)| difference(what, a, b)));
    found
}

fn difference(what: &str, a: &BTreeSet<String>, b: &BTreeSet<String>) -> Option<ConfigDifference> {
    (a != b).then(|| ConfigDifference { what: what.to_owned(), a: some(a), b: some(b) })
}

/// The values if they are few, else their number.
fn some(values: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = values.iter().take(NAMED).map(String::as_str).collect();
    match values.len() - shown.len() {
        _ if shown.is_empty() => "not recorded".into(),
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(facts: &[(&str, &str)], choices: &[(&str, &str)]) -> Configuration {
        let mut made = Configuration::default();
        facts.iter().for_each(|(key, value)| made.identity(key, value));
        choices.iter().for_each(|(op, how)| made.choice(op, (*how).to_owned()));
        made
    }

    #[test]
    fn what_differs_is_told_with_both_values() {
        let a = configuration(
            &[("nccl", "2.27.3"), ("pid", "7"), ("NCCL_ALGO", "Ring")],
            &[
                ("AllReduce of 16 MiB on tp", "RING SIMPLE"),
                ("Broadcast of 1 MiB on tp", "RING LL"),
            ],
        );
        let b = configuration(
            &[("nccl", "2.28.9"), ("pid", "9")],
            &[("AllReduce of 16 MiB on tp", "TREE LL128")],
        );
        let found = differences(&[&a], &[&b]);
        let shown: Vec<String> =
            found.iter().map(|d| format!("{}: {} | {}", d.what, d.a, d.b)).collect();
        assert_eq!(
            shown,
            [
                "NCCL: 2.27.3 | 2.28.9",
                "NCCL_ALGO: Ring | not recorded",
                "AllReduce of 16 MiB on tp: RING SIMPLE | TREE LL128",
            ]
        );
        assert_eq!(differences(&[&a], &[&a]), []);
    }
}
