// SPDX-License-Identifier: Apache-2.0
//! The ways to place ranks, and the default workload of each.

/// A way to place ranks, with its name in the rig's `job --topology`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Topology {
    pub(super) name: &'static str,
    pub(super) ranks: u32,
    pub(super) nodes: u32,
    /// Description for people.
    pub(super) about: &'static str,
}

/// The topologies on which a release is run by default.
pub(super) const TOPOLOGIES: &[Topology] = &[
    Topology { name: "socket", ranks: 2, nodes: 2, about: "two hosts of one device" },
    Topology { name: "socket-shm", ranks: 4, nodes: 2, about: "two hosts of two devices" },
    Topology { name: "shm", ranks: 2, nodes: 1, about: "one host, shared host memory" },
    Topology { name: "p2p-ipc", ranks: 2, nodes: 1, about: "one host, peer access by CUDA IPC" },
    Topology { name: "p2p-cumem", ranks: 2, nodes: 1, about: "one host, peer access by cuMem" },
    Topology { name: "threads", ranks: 4, nodes: 1, about: "four devices in one process" },
    Topology { name: "tree", ranks: 3, nodes: 3, about: "three hosts, AllReduce over a tree" },
];

/// Topologies that only scenarios use.
const OF_SCENARIOS: &[Topology] = &[
    Topology { name: "ring3", ranks: 3, nodes: 3, about: "three hosts, rings only" },
    Topology { name: "ring4", ranks: 4, nodes: 4, about: "four hosts, rings only" },
];

pub(super) fn of_scenario(name: &str) -> Option<Topology> {
    TOPOLOGIES.iter().chain(OF_SCENARIOS).find(|topology| topology.name == name).copied()
}

/// The default steps of a cell: each collective in several sizes, sends and receives, groups, and
/// replays of a captured graph.
const MIXED: &[&str] = &[
    "allreduce:1048576",
    "allreduce:256",
    "allgather:300001",
    "reducescatter:4096",
    "broadcast:65536",
    "reduce:65536",
    "sendrecv:300001",
    "group:4x65536",
    "repeat:3:allreduce:1000",
    "graph:3x4096",
];

/// The steps of a cell if only AllReduce has an algorithm: if `NCCL_ALGO` names one that other
/// functions lack, NCCL refuses these.
const ALL_REDUCES: &[&str] = &[
    "allreduce:1048576",
    "allreduce:256",
    "sendrecv:300001",
    "group:4x65536",
    "repeat:3:allreduce:1000",
    "graph:3x4096",
];

impl Topology {
    /// The steps of a cell, unless a scenario or a workload sets them.
    pub(super) fn steps(&self) -> &'static [&'static str] {
        if self.name == "tree" { ALL_REDUCES } else { MIXED }
    }
}

/// The topologies with a name; `p2p` stands for both of its forms.
pub(super) fn named(name: &str) -> Result<Vec<Topology>, String> {
    let is_it = |topology: &&Topology| {
        topology.name == name || name == "p2p" && topology.name.starts_with("p2p-")
    };
    let found: Vec<_> = TOPOLOGIES.iter().filter(is_it).copied().collect();
    if found.is_empty() {
        let names: Vec<_> = TOPOLOGIES.iter().map(|topology| topology.name).collect();
        return Err(format!("no topology `{name}`; there are p2p, {}", names.join(", ")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(named("p2p").expect("a name").len(), 2);
        assert_eq!(named("tree").expect("a name")[0].ranks, 3);
        assert!(named("mesh").is_err());
    }
}
