// SPDX-License-Identifier: Apache-2.0
//! The ways to place ranks, and the default workload of each.

/// A way to place ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Topology {
    pub(super) name: &'static str,
    pub(super) ranks: u32,
    pub(super) nodes: u32,
    /// The options of the rig's `job`; none: `--topology` and the name.
    pub(super) options: &'static [&'static str],
    /// Description for people.
    pub(super) about: &'static str,
}

/// The topologies on which a release is run by default.
pub(super) const TOPOLOGIES: &[Topology] = &[
    Topology { name: "socket", ranks: 2, nodes: 2, options: &[], about: "two hosts of one device" },
    Topology {
        name: "socket-shm",
        ranks: 4,
        nodes: 2,
        options: &[],
        about: "two hosts of two devices",
    },
    Topology {
        name: "shm",
        ranks: 2,
        nodes: 1,
        options: &[],
        about: "one host, shared host memory",
    },
    Topology {
        name: "p2p-ipc",
        ranks: 2,
        nodes: 1,
        options: &[],
        about: "one host, peer access by CUDA IPC",
    },
    Topology {
        name: "p2p-cumem",
        ranks: 2,
        nodes: 1,
        options: &[],
        about: "one host, peer access by cuMem",
    },
    Topology {
        name: "threads",
        ranks: 4,
        nodes: 1,
        options: &[],
        about: "four devices in one process",
    },
    Topology {
        name: "tree",
        ranks: 3,
        nodes: 3,
        options: &[],
        about: "three hosts, AllReduce over a tree",
    },
];

/// Tasks that have several of a node's GPUs each, as threads.
const TASKS: &[Topology] = &[
    Topology {
        name: "tasks-threads",
        ranks: 4,
        nodes: 1,
        options: &["--hosts", "1", "--devices", "4", "--tasks", "2"],
        about: "one host, two processes of two devices",
    },
    Topology {
        name: "socket-threads",
        ranks: 4,
        nodes: 2,
        options: &["--hosts", "2", "--devices", "2", "--tasks", "1"],
        about: "two hosts of one process of two devices",
    },
    Topology {
        name: "socket-tasks-threads",
        ranks: 8,
        nodes: 2,
        options: &["--hosts", "2", "--devices", "4", "--tasks", "2"],
        about: "two hosts of two processes of two devices",
    },
];

/// More tasks than GPUs on a node, which NCCL refuses: for the page only.
const SHARED: &[Topology] = &[
    shared("shared-1x1", 2, 1, &["--hosts", "1", "--devices", "2", "--gpus", "1"]),
    shared("shared-1xm", 4, 1, &["--hosts", "1", "--devices", "4", "--gpus", "2"]),
    shared("shared-nx1", 4, 2, &["--hosts", "2", "--devices", "2", "--gpus", "1"]),
    shared("shared-nxm", 8, 2, &["--hosts", "2", "--devices", "4", "--gpus", "2"]),
];

const fn shared(
    name: &'static str,
    ranks: u32,
    nodes: u32,
    options: &'static [&'static str],
) -> Topology {
    Topology { name, ranks, nodes, options, about: "two tasks share each GPU" }
}

/// What NCCL says if two ranks of a communicator have one GPU: before 2.30, and from then on.
pub(super) const REFUSALS: [&str; 2] =
    ["Duplicate GPU detected", "Multiple Ranks are using the same GPU"];

/// Topologies of the page beyond [`TOPOLOGIES`]: they tell which layouts of tasks work.
pub(super) fn of_page() -> impl Iterator<Item = &'static Topology> {
    TASKS.iter().chain(SHARED)
}

/// Topologies that only scenarios use.
const OF_SCENARIOS: &[Topology] = &[
    Topology { name: "ring3", ranks: 3, nodes: 3, options: &[], about: "three hosts, rings only" },
    Topology { name: "ring4", ranks: 4, nodes: 4, options: &[], about: "four hosts, rings only" },
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
    /// Whether NCCL refuses it.
    pub(super) fn is_refused(&self) -> bool {
        SHARED.contains(self)
    }

    /// The options of the rig's `job`.
    pub(super) fn job_options(&self) -> Vec<&'static str> {
        match self.options {
            [] => vec!["--topology", self.name],
            options => options.to_vec(),
        }
    }

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
